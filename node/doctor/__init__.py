"""Finds problems with measuring on this device or reaching it, and says what to do about them."""
