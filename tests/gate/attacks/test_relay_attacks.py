"""Attacks on a gate's relay over real sockets: by malicious members, and with invalid permissions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gate.service import run_gate
from gate.settings import Admit, GateSettings
from protocol.errors import Refused, Unreachable
from protocol.messages.gate import GATE
from protocol.messages.index import RefusedMessage as RefusedMessage
from protocol.messages.pool import PoolMember
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.words import ProtocolId, Right, Role
from swarm.base.home import Home
from swarm.join.host import HostNetwork, open_host
from swarm.join.node import RunningNode
from swarm.net.addresses import PeerId
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.net.network import Stream
from swarm.pools.enrolment import revoke
from swarm.pools.manifests import with_member
from swarm.pools.owner import OwnPool, create_pool
from swarm.pools.tokens import Grant, issue

ECHO = "/sark/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@asynccontextmanager
async def ticket_gate(tmp_path: Path) -> AsyncIterator[tuple[RunningNode, OwnPool]]:
    """A gate for members only, and its pool."""
    home = Home.at(tmp_path / "gate")
    pool = create_pool(home, "lab")
    settings = GateSettings(listen=(LOOPBACK,), admit=Admit.TICKET)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(run_gate, home, settings), pool
        nursery.cancel_scope.cancel()


def make_member(pool: OwnPool, peer: PeerId, role: Role) -> None:
    now = time.time()
    member = PoolMember(peer=peer, role=role, name=f"m-{peer[-6:]}", until=int(now) + 3600, ttl_s=3600)
    pool.change(lambda manifest: with_member(manifest, member, now))


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def lent(node: HostNetwork, here: RunningNode) -> str:
    """The address at which the node can be called, once the gate has read from its disk that it may be."""
    while True:
        try:
            return (await node.reserve(here.identity.peer_id, here.network.addresses)).address
        except Refused:
            await trio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["caller", "called"])
async def test_the_circuits_of_a_revoked_member_end_within_seconds_and_no_others(
    tmp_path: Path, bad: str
) -> None:
    names = {name: Identity.from_seed(f"member {name}") for name in ("caller", "called", "other")}
    async with (
        ticket_gate(tmp_path) as (here, pool),
        open_host(names["caller"]) as caller,
        open_host(names["called"]) as called,
        open_host(names["other"]) as other,
    ):
        called.handle(ECHO, echo)
        other.handle(ECHO, echo)
        for name, identity in names.items():
            make_member(pool, identity.peer_id, Role.SUBMIT if name == "caller" else Role.WORKER)
        with trio.fail_after(60):
            circuit, others = await lent(called, here), await lent(other, here)
            stream = await caller.open(called.peer_id, ECHO, [circuit])
            await stream.send_all(b"before")
            assert await stream.receive_some() == b"before"
            pairs = await called.open(other.peer_id, ECHO, [others])
            revoke(pool, names[bad].peer_id, time.time())
            with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()  # nothing is sent: the circuit's own pings are enough
            with pytest.raises(Unreachable):
                await caller.open(called.peer_id, ECHO, [circuit])
            if bad == "caller":
                await pairs.send_all(b"goes on")
                assert await pairs.receive_some() == b"goes on"


async def show(
    node: HostNetwork, here: RunningNode, present: ShowCredentials
) -> CredentialsReply | RefusedMessage:
    """Present credentials; returns the gate's answer."""
    async with trio.open_nursery() as nursery:
        links = Links(node, ProtocolId.GATE, GATE, nursery)
        answer = await links.call(here.identity.peer_id, here.network.addresses, present)
        nursery.cancel_scope.cancel()
    assert isinstance(answer, (CredentialsReply, RefusedMessage))
    return answer


async def test_forged_borrowed_or_expired_permissions_give_no_reservation_and_a_good_one_does(
    tmp_path: Path,
) -> None:
    member, evil, visitor = (Identity.from_seed(name) for name in ("member", "evil", "visiting"))
    async with ticket_gate(tmp_path) as (here, pool), open_host(visitor) as node:
        make_member(pool, member.peer_id, Role.SUBMIT)
        now, minute = time.time(), Grant(frozenset({Right.STATUS}), ttl_s=60.0)
        good = issue(member, visitor.peer_id, minute, now=now)
        tries = {
            "signed by somebody else": ShowCredentials(
                issuer=member.peer_id, token=issue(evil, visitor.peer_id, minute, now=now)
            ),
            "of somebody unknown": ShowCredentials(
                issuer=evil.peer_id, token=issue(evil, visitor.peer_id, minute, now=now)
            ),
            "of another visitor": ShowCredentials(
                issuer=member.peer_id, token=issue(member, evil.peer_id, minute, now=now)
            ),
            "over": ShowCredentials(
                issuer=member.peer_id, token=issue(member, visitor.peer_id, minute, now=now - 3600)
            ),
            "changed": ShowCredentials(issuer=member.peer_id, token=good[:-1] + bytes([good[-1] ^ 1])),
            "nonsense": ShowCredentials(issuer=member.peer_id, token=b"\xff" * 200),
        }
        with trio.fail_after(60):
            async with open_host(member) as member_node:
                await lent(member_node, here)  # from here on the gate knows the member
            for why, present in tries.items():
                answer = await show(node, here, present)
                assert isinstance(answer, RefusedMessage), why
                with pytest.raises(Refused):
                    await node.reserve(here.identity.peer_id, here.network.addresses)
            assert isinstance(
                await show(node, here, ShowCredentials(issuer=member.peer_id, token=good)), CredentialsReply
            )
            place = await node.reserve(here.identity.peer_id, here.network.addresses)
            assert place.gate == here.identity.peer_id
