"""One campaign: plan, find, agree, collect, store, report."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
