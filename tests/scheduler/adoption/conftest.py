"""The swarm that each test here begins with: empty."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from swarm.memory.network import MemorySwarm
from tests.scheduler.adoption.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        made = World(swarm, nursery, tmp_path)
        yield made
        for worker in made.workers.values():
            worker.let_go()
        nursery.cancel_scope.cancel()
