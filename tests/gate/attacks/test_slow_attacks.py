"""Peers that send nothing, or a byte per second, at each step of a connection and on each protocol, over real sockets.

The clock of these tests speeds up many times once every peer is where the test needs it, because the rest is waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.stream_muxer.yamux import yamux
from libp2p.utils.varint import encode_uvarint

from gate.service import run_gate
from gate.settings import GateSettings
from protocol.messages.work import WORK
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.blobs.server import IDLE_S, serve_blobs
from swarm.join.node import RunningNode
from swarm.net.identity import Identity
from swarm.net.link import FRAME_WITHIN_S, refuse_all
from swarm.net.links import serve_links
from swarm.relay.wire import DCUTR, HOP, OWN_HOP
from tests.swarm.attacker import LOOPBACK, MSS, RawLink, attack, ended, line, tcp

LONGEST_S = max(FRAME_WITHIN_S, IDLE_S)
OURS = {family: (1_000).to_bytes(4, "big") for family in ProtocolId}
PROTOBUF = dict.fromkeys((HOP, OWN_HOP, DCUTR), encode_uvarint(1_000))
NOTHING_READ = {"/ipfs/id/1.0.0": b"", "/ipfs/ping/1.0.0": b""}
TABLE = {**OURS, **PROTOBUF, **NOTHING_READ}
"""Protocol → the beginning of a long message on it."""


FAST: Final = 12.0
TIMEOUT_S: Final = 10 * LONGEST_S
"""By the fast clock: nothing here takes this long."""


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """Slow enough for a busy machine to complete handshakes in the seconds allowed; `FAST` is for the waiting."""
    return trio.testing.MockClock(rate=0.5)


@pytest.fixture
async def here(fast_clock: trio.testing.MockClock, tmp_path: Path) -> AsyncIterator[RunningNode]:
    """A gate that also speaks the protocols of a worker."""
    async with trio.open_nursery() as nursery:
        gate: RunningNode = await nursery.start(run_gate, Home.at(tmp_path), GateSettings(listen=(LOOPBACK,)))
        serve_blobs(gate.network, lambda peer, sha256: None)
        serve_links(gate.network, ProtocolId.WORK, WORK, refuse_all)
        yield gate
        nursery.cancel_scope.cancel()


async def a_byte_a_second(send: Callable[[bytes], Awaitable[object]]) -> None:
    """Send a byte per second until nobody accepts it any more."""
    with contextlib.suppress(trio.BrokenResourceError, BaseLibp2pError, OSError):
        while True:
            await trio.sleep(1)
            await send(b"\x00")


async def over_on(link: RawLink, stream: int) -> None:
    """Wait until the stream has ended, with its connection or alone."""
    while True:
        kind, flags, number, _ = await link.next()
        if kind == -1 or (number == stream and flags & (yamux.FLAG_RST | yamux.FLAG_FIN)):
            return


GREETING = line(MSS[:-1])


@pytest.mark.parametrize("slowly", [False, True], ids=["in silence", "a byte a second"])
@pytest.mark.parametrize(
    "opening",
    [
        b"",
        b"\x13/multi",
        GREETING,
        GREETING + line(b"/noise"),
        GREETING + line(b"/noise") + b"\x04\x00" + bytes(64),
    ],
    ids=["nothing", "half a greeting", "a greeting", "noise", "half a handshake"],
)
async def test_a_connection_that_never_comes_to_the_point_is_closed(
    fast_clock: trio.testing.MockClock, here: RunningNode, opening: bytes, slowly: bool
) -> None:
    stream = await tcp(here.network)
    async with stream, trio.open_nursery() as nursery:
        await stream.send_all(opening)
        fast_clock.rate = FAST
        if slowly:
            nursery.start_soon(a_byte_a_second, stream.send_all)
        with trio.fail_after(TIMEOUT_S):
            assert await ended(stream)
        nursery.cancel_scope.cancel()


async def test_every_protocol_stands_in_the_table(
    fast_clock: trio.testing.MockClock, here: RunningNode
) -> None:
    names = here.network.host.multiselect.get_protocols()  # type: ignore[attr-defined]
    assert {str(name) for name in names if name} == set(TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("slowly", [False, True], ids=["in silence", "a byte a second"])
async def test_an_idle_stream_ends_on_every_protocol(
    fast_clock: trio.testing.MockClock, here: RunningNode, slowly: bool
) -> None:
    over: set[str] = set()
    done = trio.Event()
    lasts = {"/ipfs/ping/1.0.0"} if slowly else set()  # it expects 32 bytes at a time

    async def hold(link: RawLink, protocol: str) -> None:
        stream = await link.speak(protocol, TABLE[protocol] if slowly else b"")
        async with trio.open_nursery() as nursery:
            if slowly:
                nursery.start_soon(a_byte_a_second, lambda byte: link.data(stream, byte))
            await over_on(link, stream)
            nursery.cancel_scope.cancel()
        over.add(protocol)
        if over >= set(TABLE) - lasts:
            done.set()

    async with AsyncExitStack() as stack:
        links = {}
        for protocol in TABLE:
            keys = create_new_key_pair(Identity.from_seed(f"slow on {protocol}").seed)
            links[protocol] = await stack.enter_async_context(attack(here.network, keys=keys))
        fast_clock.rate = FAST
        async with trio.open_nursery() as nursery:
            for protocol, link in links.items():
                nursery.start_soon(hold, link, protocol)
            with trio.move_on_after(TIMEOUT_S):
                await done.wait()
            nursery.cancel_scope.cancel()
    assert set(TABLE) - over <= lasts
