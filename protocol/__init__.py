"""What peers say to each other and when they may say it: values, tables, bytes. No I/O, no clock, no logging."""
