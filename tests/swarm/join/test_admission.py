"""A home without a gate admits newcomers: directly, or by a circuit through another owner's gate. Real sockets on loopback."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from protocol.errors import NotPermitted, SarkError, Unreachable, first_error
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import POOL
from protocol.values.requirement import Requirement
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Role
from swarm.base.home import Home
from swarm.index.query import QueryResult
from swarm.join.admission import open_admission
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.net.reservations import RelayReservations
from swarm.pools.client import PoolClient
from swarm.pools.enrolment import invite
from swarm.pools.home_pool import home_pool
from swarm.pools.manifests import find_member, verified
from swarm.pools.membership import Membership
from swarm.pools.owner import MemberTerms
from swarm.pools.tickets import Ticket
from swarm.pools.trusted import trusted_workers

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SHED = Identity.from_seed("shed")
DEVICE = "d-0123456789abcdef"

pytestmark = pytest.mark.patient


class Nowhere:
    """An index that knows nobody."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        raise Unreachable("nobody is asked here")

    async def nearest(self, key: bytes) -> list[Contact]:
        return []


@contextmanager
def _one_error() -> Iterator[None]:
    """Unpack the exception groups of the nursery."""
    try:
        yield
    except* SarkError as group:
        raise first_error(group) from None


class World:
    """Another owner's gate, which records what it is asked, and a newcomer."""

    def __init__(self, gate: HostNetwork, guest: HostNetwork, home: Home) -> None:
        self.gate, self.guest, self.home = gate, guest, home
        self.asked: list[Message] = []
        serve_links(gate, ProtocolId.POOL, POOL, self._refuse)

    async def _refuse(self, link: Link, message: Message) -> Message:
        self.asked.append(message)
        return RefusedMessage(reason=Reason.UNKNOWN, detail="not my pool")

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(f"{address}/p2p/{self.gate.peer_id}" for address in self.gate.addresses)

    def ticket(self, admits: tuple[str, ...]) -> Ticket:
        terms, now = MemberTerms(role=Role.WORKER), time.time()
        pool = home_pool(self.home, now)
        return invite(pool, self.gates, terms, now=now, for_s=600, uses=1, admits=admits)[0]

    async def join(self, ticket: Ticket) -> None:
        """Enrol as `shed`. Raises `NotPermitted`, `Unreachable`."""
        joined = Membership(
            ticket=ticket.secret, **ticket.model_dump(include={"pool", "name", "gates", "admits", "role"})
        )
        with _one_error():
            async with trio.open_nursery() as nursery:
                client = PoolClient(self.guest, nursery, Nowhere(), random.Random(1))
                fresh, signed = await client.enrol(
                    self.gates, joined, None, "shed", now=time.time(), device=DEVICE
                )
                nursery.cancel_scope.cancel()
        assert fresh.spent
        assert find_member(verified(signed), SHED.peer_id, Role.WORKER, time.time()) is not None


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        gate, guest = [
            await stack.enter_async_context(open_host(key, listen=[LOOPBACK], rng=random.Random(1)))
            for key in (Identity.from_seed("gate"), SHED)
        ]
        gate.serve_relay(RelayReservations())
        yield World(gate, guest, Home.at(folder / "owner"))


async def test_a_newcomer_on_the_same_network_is_admitted_and_trusted(tmp_path: Path) -> None:
    async with world(tmp_path) as one, open_admission(one.home, (), [LOOPBACK]) as node:
        assert all("/p2p-circuit" not in address for address in node.addresses)
        await one.join(one.ticket(node.addresses))
        assert trusted_workers(one.home, time.time())[0].devices == {SHED.peer_id: DEVICE}


async def test_a_newcomer_behind_another_router_comes_by_the_gate_which_never_sees_the_ticket(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as one, open_admission(one.home, one.gates, [LOOPBACK]) as node:
        circuits = tuple(address for address in node.addresses if "/p2p-circuit" in address)
        assert circuits
        await one.join(one.ticket(circuits))
        assert trusted_workers(one.home, time.time())[0].peers == {SHED.peer_id}
        assert one.asked == []


async def test_who_comes_late_hears_why_and_what_to_do(tmp_path: Path) -> None:
    async with world(tmp_path) as one:
        async with open_admission(one.home, (), [LOOPBACK]) as node:
            used, open_ = one.ticket(node.addresses), one.ticket(node.addresses)
            assert used.secret is not None
            home_pool(one.home, time.time()).use_ticket(
                used.secret, Identity.from_seed("another").peer_id, time.time()
            )
            with pytest.raises(NotPermitted, match=r"this ticket is used up \(allowed uses: 1\)"):
                await one.join(used)
        with pytest.raises(Unreachable, match="no node that admits members to pool home answers") as caught:
            await one.join(open_)
        assert "must still be waiting there: sark-node invite" in caught.value.hint
        assert one.asked == []
