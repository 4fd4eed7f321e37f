"""The way in: bootstrap routing and index shards for a swarm."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
