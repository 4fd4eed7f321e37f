"""What peers say to each other, one file for each exchange."""
