"""What the device can give, to whom and in which order. Pure."""
