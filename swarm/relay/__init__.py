"""Circuits through gates, and hole punching to replace them."""
