"""One device: its profile, its leases, its cache, its runs."""

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` checks for it at startup."""
