"""The commands of a gate's operator."""
