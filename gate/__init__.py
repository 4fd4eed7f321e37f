"""The entry to a swarm: bootstrap, routing, and index shards."""

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` checks for it at startup."""
