"""For peers of other libp2p implementations: our gate on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity
from swarm.net.reservations import RelayLimits, RelayReservations
from tests.interop.ours import ECHO, LOOPBACK, echo


@pytest.fixture
def relay() -> RelayReservations:
    """The gate's reservations."""
    return RelayReservations(RelayLimits())


@pytest.fixture
async def gate(relay: RelayReservations) -> AsyncIterator[HostNetwork]:
    async with open_host(Identity.from_seed("gate"), listen=[LOOPBACK]) as network:
        network.serve_relay(relay)
        network.handle(ECHO, echo)
        yield network
