"""The settings of a worker's owner."""
