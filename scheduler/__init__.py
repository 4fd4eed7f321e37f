"""The life of a campaign: planning, finding devices, agreeing on leases, collecting, storing and reporting results."""

PART_OF = "sark-node"
"""Identifies this package among others of the same name; `sark.py` checks it at start."""
