"""The network that every role builds on: identity, links that carry messages, the index, file transfer."""

from swarm.base import lean

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` looks for it at start."""

lean.install()
