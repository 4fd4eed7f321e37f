"""Micro-benchmarks: what a device can do at best."""
