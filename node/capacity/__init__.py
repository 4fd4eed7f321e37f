"""The device's capacity: who gets a slot, and in which order. Pure."""
