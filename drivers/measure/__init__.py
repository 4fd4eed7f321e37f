"""The timed loop, when to stop, and the state of the host during the measurement."""
