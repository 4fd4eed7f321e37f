"""Small messages that cost a lot: frames, notes and streams, by peers that write the bytes themselves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from libp2p.stream_muxer.yamux import yamux

from protocol.messages import index as index_messages
from protocol.messages.health import HEALTH, Ping
from protocol.messages.work import WORK, StatusRequest
from protocol.values.index_keys import EVERYBODY
from protocol.wire.codec import pack
from protocol.words import ProtocolId
from tests.rig.attack import Attack, Facts, Node, Target
from tests.rig.attacks.wire import BROKEN, FlowLink, call, connect, note
from tests.swarm.attacker import RawLink

CHUNK: Final = 64 * 1024
STREAMS: Final = 8
"""Streams of one protocol: the number that one peer may open."""


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


Flood = Callable[[FlowLink, Counter[str]], Awaitable[None]]


async def _again_and_again(node: Node, flood: Flood, facts: Counter[str]) -> None:
    """Repeat the flood, under a new key whenever the victim closes the connection."""
    while True:
        try:
            async with connect(node) as link:
                facts["connections"] += 1
                await flood(link, facts)
        except* BROKEN:
            pass
        facts["closed"] += 1
        await trio.sleep(0.05)


@asynccontextmanager
async def _flooded(nodes: list[Node], flood: Flood, peers: int) -> AsyncIterator[Facts]:
    facts: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        for node in nodes:
            for _ in range(peers):
                nursery.start_soon(_again_and_again, node, flood, facts)
        await trio.sleep(1)
        yield facts
        nursery.cancel_scope.cancel()


async def _drain(link: FlowLink) -> None:
    """Read what arrives, and answer pings, but never extend a window."""
    while (await link.next())[0] != -1:
        pass


async def _then(act: Callable[[], Awaitable[None]], after: Callable[[], None]) -> None:
    await act()
    after()


async def _with_reader(
    link: FlowLink, write: Callable[[], Awaitable[None]], read: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Write while reading, until everything is written or the victim closes the connection."""
    async with trio.open_nursery() as nursery:
        for side in (write, read or partial(_drain, link)):
            nursery.start_soon(_then, side, nursery.cancel_scope.cancel)


# -- tiny frames ----------------------------------------------------------------------------------------------------------------

TINY: Final = (
    (ProtocolId.HEALTH, call(HEALTH, Ping())),
    (
        index_messages.FAMILY,
        call(index_messages.INDEX, index_messages.QueryShard(attribute=EVERYBODY, limit=0)),
    ),
    (ProtocolId.WORK, call(WORK, StatusRequest())),
)


async def _tiny(link: FlowLink, facts: Counter[str]) -> None:
    """Send the smallest calls, 64 KiB at a time, on each of many streams. No answer is ever read from a stream."""

    async def one(protocol: str, body: bytes) -> None:
        stream = await link.speak(protocol)
        many = body * (CHUNK // len(body))
        while True:
            await link.data(stream, many)
            facts["KiB sent"] += len(many) // 1024

    async def write() -> None:
        async with trio.open_nursery() as nursery:
            for protocol, body in TINY:
                for _ in range(STREAMS):
                    nursery.start_soon(one, protocol, body)

    await _with_reader(link, write)


@asynccontextmanager
async def tiny_frames(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _tiny, peers=4) as facts:
        yield facts


# -- notes ------------------------------------------------------------------------------------------------------------------------


async def _notes(link: FlowLink, facts: Counter[str]) -> None:
    """Send calls as notes: no id, no answer, no rate limit."""

    async def one(protocol: str, body: bytes) -> None:
        stream = await link.speak(protocol)
        many = body * (16_384 // len(body))
        while True:
            await link.data(stream, many)
            facts["KiB sent"] += len(many) // 1024
            await trio.sleep(0.005)

    async def write() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                one,
                index_messages.FAMILY,
                note(index_messages.INDEX, index_messages.QueryShard(attribute=EVERYBODY, limit=32)),
            )
            nursery.start_soon(one, ProtocolId.HEALTH, note(HEALTH, Ping()))

    await _with_reader(link, write)


@asynccontextmanager
async def note_flood(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _notes, peers=2) as facts:
        yield facts


# -- links that break again and again -----------------------------------------------------------------------------------------------


async def _broken(link: FlowLink, facts: Counter[str]) -> None:
    """Streams that end in nonsense, each of which may cause a warning."""

    async def write() -> None:
        for protocol in itertools.cycle((ProtocolId.HEALTH, index_messages.FAMILY, ProtocolId.REACH)):
            await link.speak(protocol, (1).to_bytes(4, "big") + b"\xc1")
            facts["broken links"] += 1
            await trio.sleep(0.004)

    await _with_reader(link, write)


@asynccontextmanager
async def log_flood(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate], _broken, peers=1) as facts:
        yield facts


# -- bombs ----------------------------------------------------------------------------------------------------------------------------

AGAIN_S: Final = 5.0
"""Seconds until the bombs are repeated, on another connection."""
CLAIMED: Final = 8 * 1024 * 1024
"""Bytes sent of the 4 GiB that a length claims."""
BOMBS: Final = (
    b"\xff" * 4 + bytes(CLAIMED),
    (65_537).to_bytes(4, "big") + bytes(100),
    framed(b"\x91" * 60_000 + b"\x90"),
    framed(b"\xdc\xea\x60" + b"\x90" * 60_000),
    framed(b"\xdd" + b"\xff" * 4),
    framed(b"\xdf" + b"\xff" * 4),
    framed(b"\xdb" + b"\xff" * 4),
    framed(pack(["c", 1, "find-peers", {"key": bytes(32), "count": 16, "x": [0] * 1_000}])),
)


async def _bombs(link: FlowLink, facts: Counter[str]) -> None:
    """Lengths, nesting and element counts that claim more than there is."""

    async def one(protocol: str, bomb: bytes) -> None:
        stream = await link.speak(protocol)
        facts["bombs"] += 1
        for start in range(0, len(bomb), CHUNK):
            piece = bomb[start : start + CHUNK]
            await link.data(stream, piece)
            facts["KiB sent"] += len(piece) // 1024

    async def write() -> None:
        async with trio.open_nursery() as nursery:
            for protocol, bomb in itertools.product(
                (index_messages.FAMILY, ProtocolId.HEALTH, ProtocolId.WORK), BOMBS
            ):
                nursery.start_soon(one, protocol, bomb)
                await trio.sleep(0.01)
            await trio.sleep(AGAIN_S)
            nursery.cancel_scope.cancel()

    await _with_reader(link, write)


@asynccontextmanager
async def frame_bombs(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _bombs, peers=4) as facts:
        yield facts


# -- yamux ----------------------------------------------------------------------------------------------------------------------------


OVERRUN: Final = 16 * 1024 * 1024


async def _overrun(link: FlowLink, facts: Counter[str]) -> None:
    """Send 16 MiB to a stream whose window is 256 KiB, and whose reader waits for its answers to be read."""
    body = call(HEALTH, Ping())
    chunk = body * (CHUNK // len(body))

    async def write() -> None:
        stream = await link.speak(ProtocolId.HEALTH)
        for _ in range(OVERRUN // CHUNK):
            await RawLink.data(link, stream, chunk)
            facts["KiB sent"] += len(chunk) // 1024
        await trio.sleep_forever()  # the victim did not close the connection, so the bytes stay in its memory

    await _with_reader(link, write)


@asynccontextmanager
async def window_overrun(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _overrun, peers=4) as facts:
        yield facts


async def _opens(link: FlowLink, facts: Counter[str]) -> None:
    """Open streams as fast as possible."""

    async def read() -> None:
        while (heard := await link.next())[0] != -1:
            facts["refused"] += bool(heard[1] & yamux.FLAG_RST)

    async def write() -> None:
        while True:
            await link.open()
            facts["streams"] += 1
            if not facts["streams"] % 200:
                await trio.sleep(0.02)

    await _with_reader(link, write, read)


@asynccontextmanager
async def stream_flood(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _opens, peers=2) as facts:
        yield facts


async def _slow(link: FlowLink, facts: Counter[str]) -> None:
    """Send a long message on each protocol, at a byte per second."""

    async def one(protocol: str) -> None:
        stream = await link.speak(protocol, (1_000).to_bytes(4, "big"))
        facts["slow streams"] += 1
        while True:
            await trio.sleep(1)
            await link.data(stream, b"\x00")
            facts["bytes"] += 1

    async def write() -> None:
        async with trio.open_nursery() as nursery:
            for protocol in ProtocolId:
                for _ in range(STREAMS // 2):
                    nursery.start_soon(one, protocol)

    await _with_reader(link, write)


@asynccontextmanager
async def slow_streams(target: Target) -> AsyncIterator[Facts]:
    async with _flooded([target.gate, target.workers[0]], _slow, peers=6) as facts:
        yield facts


ATTACKS: Final = (
    Attack(
        "tiny-frames",
        "4, N7",
        "64 KiB of the smallest calls at a time on all streams, and no answer is read",
        tiny_frames,
        evidence={"KiB sent": 1_000},
    ),
    Attack(
        "note-flood",
        "6",
        "calls sent as notes, which carry no number and get no answer",
        note_flood,
        evidence={"KiB sent": 1_000},
    ),
    Attack(
        "log-flood",
        "12, T11",
        "one stream after the other that ends in nonsense",
        log_flood,
        evidence={"broken links": 200},
    ),
    Attack(
        "frame-bombs",
        "N7",
        "lengths, nesting and counts that claim more than there is, on every protocol",
        frame_bombs,
        evidence={"bombs": 100, "KiB sent": 4_000},
    ),
    Attack(
        "window-overrun",
        "N3",
        "16 MiB on streams whose window is 256 KiB",
        window_overrun,
        evidence={"KiB sent": 4_000, "closed": 8},
    ),
    Attack(
        "stream-flood",
        "N5",
        "streams opened as fast as they can be written",
        stream_flood,
        evidence={"streams": 2_000, "refused": 1_000},
    ),
    Attack(
        "slow-streams",
        "N6, D1",
        "long messages that come a byte a second, on all protocols",
        slow_streams,
        evidence={"slow streams": 100, "bytes": 300},
    ),
)
