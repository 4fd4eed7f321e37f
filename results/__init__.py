"""Turns a signed record into figures, a row, a verdict, a comparison and a report. Pure, except for reading the data of evaluation
tasks.
"""

PART_OF = "sark-node"
"""Distinguishes this package from another with the same name; `sark.py` checks it at start."""
