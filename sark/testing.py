"""For your own tests: a whole network in one process, a driver without hardware, and the conformance suite for drivers.

docs/testing.md shows how to use them.
"""

from __future__ import annotations

from drivers.testing.conformance import Subject, check_all
from drivers.testing.fake import FakeDriver
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity

__all__ = ["FakeDriver", "Identity", "MemoryNetwork", "MemorySwarm", "Subject", "check_all"]
