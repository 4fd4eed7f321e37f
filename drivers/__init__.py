"""How a model is loaded, run and measured. Knows no peer, no campaign, no trio."""

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""
