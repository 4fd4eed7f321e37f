"""The HTTP API and the dashboard that any node can serve for its own home: a shell over the scheduler."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
