"""What peers say to each other, with one file for each exchange."""
