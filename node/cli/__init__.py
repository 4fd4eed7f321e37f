"""The commands of a device's owner."""
