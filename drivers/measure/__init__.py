"""The timed loop, when to stop, and what the host did meanwhile."""
