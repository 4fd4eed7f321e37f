"""What stands in the way of measuring or of being reached, and what to do about it."""
