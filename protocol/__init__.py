"""What peers say to each other and when they may say it: values, tables, bytes. No I/O, no clock, no logging."""

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` looks for it at start."""
