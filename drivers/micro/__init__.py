"""Micro-benchmarks: the best that a device can do."""
