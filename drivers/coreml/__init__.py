"""CoreML models."""
