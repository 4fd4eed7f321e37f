"""The HTTP API and the dashboard, which any node can serve for its own home: a thin layer over the scheduler."""

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` checks for it at startup."""
