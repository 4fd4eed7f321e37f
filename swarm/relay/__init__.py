"""Circuits through gates, and hole punching out of them."""
