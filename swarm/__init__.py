"""The network that every role builds on: identity, links that carry messages, the index, file transfer."""

from swarm.base import trimmed_imports

PART_OF = "sark-node"
"""Distinguishes this package from another of the same name; `sark.py` looks for it at start."""

trimmed_imports.install()
