"""How a model is loaded, run and measured. This package knows no peer, no campaign and no trio."""

PART_OF = "sark-node"
"""Tells this package from another one of the same name; `sark.py` looks for it at start."""
