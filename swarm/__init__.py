"""The network every role stands on: identity, links that speak messages, the index, file transfer."""

from swarm.base import lean

PART_OF = "sark-node"
"""Tells this package from another of the same name; `sark.py` looks for it at start."""

lean.install()
