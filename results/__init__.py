"""Pure: a signed record becomes figures, a row, a verdict, a comparison, a verification and a report."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
