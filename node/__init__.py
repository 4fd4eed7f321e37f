"""One device: its profile, its leases, its cache, its runs."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
