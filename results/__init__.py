"""Pure, but for the data of evaluation tasks: a signed record becomes figures, a row, a verdict, a comparison and a report."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
