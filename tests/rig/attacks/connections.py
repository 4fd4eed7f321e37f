"""Attacks with connections: many, idle, half-open, or in foreign protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Reservation
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerMessage
from libp2p.stream_muxer.yamux import yamux
from libp2p.utils.varint import encode_uvarint

from protocol.messages import work
from protocol.wire.busy import Busy
from protocol.words import ProtocolId
from swarm.net.addresses import parse_tcp
from swarm.net.identity import Identity, peer_id_bytes
from swarm.relay.wire import OWN_HOP
from tests.rig.attack import Attack, Facts, Node, Target
from tests.rig.attacks.wire import BROKEN, Replies, a_peer, call, connect
from tests.swarm.attacker import MSS, NOISE, line

LOCKOUT: Final = 1_020
"""Connections to hold, of the 1,024 that libp2p accepts."""
RESERVE_BURST: Final = 8
DIALLED_AT_ONCE: Final = 12
FULL_S: Final = 60.0
VARINTS: Final = (2**20, 2**31, 2**32, 2**40, 2**63)


async def tcp(node: Node) -> trio.SocketStream:
    address = parse_tcp(node.address)
    assert address is not None
    return await trio.open_tcp_stream(address.host, address.port)


@asynccontextmanager
async def lockout(target: Target) -> AsyncIterator[Facts]:
    """As many keys as there are connections. Each connects, stays idle and answers pings; a closed one reconnects."""
    facts: Counter[str] = Counter()
    dialling = trio.CapacityLimiter(DIALLED_AT_ONCE)
    full = trio.Event()

    async def one() -> None:
        while True:
            try:
                async with AsyncExitStack() as stack:
                    async with dialling:
                        link = await stack.enter_async_context(connect(target.gate))
                    facts["dialled"] += 1
                    if facts["dialled"] >= LOCKOUT:
                        full.set()
                    while (await link.next())[0] != -1:
                        pass
                    facts["closed by the gate"] += 1
            except* BROKEN:
                facts["refused"] += 1
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(LOCKOUT):
            nursery.start_soon(one)
        with trio.move_on_after(FULL_S):
            await full.wait()
        yield facts
        nursery.cancel_scope.cancel()


OPENINGS: Final = (b"", b"\x13/multi", line(MSS[:-1]), line(MSS[:-1]) + line(b"/noise"), b"\x00")


@asynccontextmanager
async def half_open(target: Target) -> AsyncIterator[Facts]:
    """Connections that prove nothing: each sends part of a greeting and nothing more; a closed one reconnects."""
    facts: Counter[str] = Counter()

    async def one(number: int) -> None:
        while True:
            with suppress(*BROKEN):
                async with await tcp(target.gate) as stream:
                    facts["connections"] += 1
                    await stream.send_all(OPENINGS[number % len(OPENINGS)])
                    while await stream.receive_some():
                        pass
                    facts["closed by the gate"] += 1
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        for number in range(400):
            nursery.start_soon(one, number)
        await trio.sleep(2)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def dial_flood(target: Target) -> AsyncIterator[Facts]:
    """Connections with a fresh key that close at once, as many per second as one process can make."""
    facts: Counter[str] = Counter()

    async def one() -> None:
        while True:
            try:
                async with connect(target.gate):
                    facts["connections"] += 1
            except* BROKEN:
                facts["closed"] += 1
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(one)
        await trio.sleep(1)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def varint_bombs(target: Target) -> AsyncIterator[Facts]:
    """50 connections that claim up to 2^63 bytes before any handshake, and send as many as the victim takes."""
    facts: Counter[str] = Counter()

    async def one(number: int) -> None:
        while True:
            with suppress(*BROKEN):
                async with await tcp(target.gate) as stream:
                    facts["connections"] += 1
                    await stream.send_all(encode_uvarint(VARINTS[number % len(VARINTS)]))
                    while True:
                        await stream.send_all(bytes(65_536))
                        facts["KiB sent"] += 64
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
        await trio.sleep(1)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def downgrade(target: Target) -> AsyncIterator[Facts]:
    """Offers plaintext, SECIO, TLS and another muxer, and asks for libp2p's own DHT."""
    facts: Counter[str] = Counter()

    async def offers(first: bytes) -> None:
        with suppress(*BROKEN), trio.move_on_after(5):
            async with await tcp(target.gate) as stream:
                await stream.send_all(line(MSS[:-1]) + line(first))
                received = b""
                while len(received) < len(line(MSS[:-1])) + 4:
                    received += await stream.receive_some() or b"\x00" * 99
                answer = received[len(line(MSS[:-1])) :]
                facts["Noise accepted" if first == NOISE.encode() else "accepted"] += first in answer
                facts["refused"] += answer == line(b"na")

    async with trio.open_nursery() as nursery:

        async def again() -> None:
            while True:
                for security in (NOISE.encode(), b"/plaintext/2.0.0", b"/secio/1.0.0", b"/tls/1.0.0"):
                    await offers(security)
                with suppress(*BROKEN), trio.move_on_after(5):
                    async with connect(target.gate) as link:
                        stream = await link.speak("/ipfs/kad/1.0.0")
                        facts["accepted"] += b"/ipfs/kad/1.0.0\n" in await link.body_of(stream, len(MSS) + 4)
                await trio.sleep(0.05)

        nursery.start_soon(again)
        yield facts
        nursery.cancel_scope.cancel()


def none_accepted(rows: object, facts: Facts) -> list[str]:
    return (
        [f"{facts['accepted']} offers other than Noise and yamux were accepted"]
        if facts.get("accepted")
        else []
    )


# -- the relay ------------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reservations(target: Target) -> AsyncIterator[Facts]:
    """Reservations for foreign peer ids, and without an end, from fresh keys. An honest node makes one each second."""
    facts: Counter[str] = Counter()

    async def one() -> None:
        while True:
            try:
                async with connect(target.gate) as link:
                    for _ in range(RESERVE_BURST):
                        named = PeerMessage(id=peer_id_bytes(Identity.fresh().peer_id))
                        forged = Reservation(expire=2**62, voucher=b"signed by nobody", addrs=[b"\xff" * 30])
                        message = HopMessage(type=HopMessage.RESERVE, peer=named, reservation=forged)
                        body = message.SerializeToString()
                        await link.speak(OWN_HOP, encode_uvarint(len(body)) + body)
                        facts["reservations asked"] += 1
                    with trio.move_on_after(0.5):
                        while (heard := await link.next())[0] != -1:
                            facts["answers"] += heard[0] == yamux.TYPE_DATA
            except* BROKEN:
                pass
            await trio.sleep(0.02)

    async def honest() -> None:
        while True:
            try:
                async with a_peer(target) as (network, _, _):
                    await network.reserve(target.gate.peer_id, target.gate.addresses)
                    facts["honest reservations"] += 1
            except* BROKEN:
                facts["honest reservations refused"] += 1
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(one)
        await trio.sleep(3)
        nursery.start_soon(honest)
        yield facts
        nursery.cancel_scope.cancel()


def room_for_the_honest(rows: object, facts: Facts) -> list[str]:
    refused = facts.get("honest reservations refused", 0)
    return [f"{refused} honest reservations were refused"] if refused else []


# -- strangers that call workers -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def strangers_verbs(target: Target) -> AsyncIterator[Facts]:
    """Every call of the work protocol, by keys without a permission, again and again, to both workers."""
    facts: Counter[str] = Counter()
    held = (work.HeldLease(lease="l-1", fence=work.Fence(incarnation=1, number=1)),)
    shape = work.Shape(unit="CPU (ONNX)", requirement=work.Requirement(), model="0" * 64, size=1)
    calls = (
        work.Probe(campaign="c-1", shapes=(shape,)),
        work.Commit(key="k", attempt=1, epoch=1, task=b"x" * 10_000, signature=bytes(64)),
        work.Renew(held=held), work.Cancel(held=held), work.Release(held=held), work.ListLeases(campaign="c-1"),
        work.AdoptRequest(campaign="c-1", epoch=2), work.StatusRequest(),
        work.Control(action=work.Action.DRAIN, now=True),
        work.ShowCredentials(issuer=target.scheduler, token=b"\x00" * 500),
    )  # fmt: skip

    async def one(node: Node, began: int) -> None:
        number = began
        while True:
            try:
                async with connect(node) as link:
                    stream = await link.speak(ProtocolId.WORK)
                    replies = Replies(link, stream, work.WORK, ProtocolId.WORK)
                    while True:
                        message = calls[number % len(calls)]
                        number += 1
                        await link.data(stream, call(work.WORK, message))
                        answer = await replies.next()
                        facts["calls"] += 1
                        facts[answer.type] += 1
                        facts["served"] += not isinstance(answer, work.Denied | Busy)
            except* BROKEN:
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for node in target.workers:
            for began in range(2):
                nursery.start_soon(one, node, 5 * began)
        yield facts
        nursery.cancel_scope.cancel()


def none_served(rows: object, facts: Facts) -> list[str]:
    return [f"{facts['served']} calls of strangers were served"] if facts.get("served") else []


ATTACKS: Final = (
    Attack(
        "lockout",
        "5, N4",
        "1,020 keys are connected to the gate, idle, and answer pings",
        lockout,
        evidence={"dialled": LOCKOUT},
    ),
    Attack(
        "half-open",
        "N4, N6",
        "400 connections that never prove a key",
        half_open,
        evidence={"connections": 400},
    ),
    Attack(
        "dial-flood",
        "N4",
        "connections under fresh keys that close at once, as fast as they can be made",
        dial_flood,
        evidence={"connections": 100},
    ),
    Attack(
        "varint-bombs",
        "N2",
        "50 connections claim up to 2^63 bytes before any handshake",
        varint_bombs,
        evidence={"connections": 100, "KiB sent": 1_000},
    ),
    Attack(
        "downgrade",
        "N1, D7",
        "plaintext, SECIO, TLS and libp2p's own DHT are offered",
        downgrade,
        evidence={"refused": 3, "Noise accepted": 1},
        check=none_accepted,
    ),
    Attack(
        "forged-reservations",
        "N11, P10",
        "reservations for foreign peer ids from fresh keys",
        reservations,
        evidence={"answers": 100, "honest reservations": 1},
        check=room_for_the_honest,
    ),
    Attack(
        "strangers-verbs",
        "S1, S12",
        "every call of the work protocol by keys without permission",
        strangers_verbs,
        evidence={"calls": 200},
        check=none_served,
    ),
)
