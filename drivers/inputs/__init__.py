"""Synthetic inputs for any model."""
