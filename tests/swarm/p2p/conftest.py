"""Yamux connections for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from swarm.p2p.hardening import harden
from tests.swarm.p2p.yamux_parts import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    harden()
    async with trio.open_nursery() as nursery:
        rig = Rig(nursery)
        await rig.settled()
        yield rig
        nursery.cancel_scope.cancel()
