"""Frames that are too large, too deep or malformed, on every protocol that a node speaks, over real sockets.

The table is compared with the registered protocols: a new protocol fails here until the table lists it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog.testing
import trio
from libp2p.utils.varint import encode_uvarint

from gate.service import run_gate
from gate.settings import GateSettings
from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.work import WORK
from protocol.wire.base import MAX_FRAME, Message
from protocol.wire.codec import pack
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.blobs.server import serve_blobs
from swarm.join.host import HostNetwork, open_host
from swarm.join.node import RunningNode
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.relay.wire import DCUTR, HOP, MAX_MESSAGE, OWN_HOP, OWN_STOP, STOP
from tests.swarm.attacker import LOOPBACK, RawLink, attack

OURS = tuple(ProtocolId)
"""Frames of a 4-byte length and msgpack."""
PROTOBUF = (HOP, OWN_HOP, STOP, OWN_STOP, DCUTR)
"""Frames of a varint length and protobuf."""
NOTHING_READ = ("/ipfs/id/1.0.0", "/ipfs/ping/1.0.0")
"""The caller on these sends nothing, or any 32 bytes."""


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def message(name: str, fields: object, kind: object = "c", number: object = 1) -> bytes:
    return framed(pack([kind, number, name, fields]))


DEEP: dict[str, object] = {}
for _ in range(64):
    DEEP = {"a": DEEP}

BAD_FRAMES = {
    "a length of 4 GiB": b"\xff" * 4,
    "a byte above the cap": (MAX_FRAME + 1).to_bytes(4, "big") + bytes(100),
    "1,000 lists in one another": framed(b"\x91" * 1_000 + b"\x90"),
    "60,000 lists in one another": framed(b"\x91" * 60_000 + b"\x90"),
    "60,000 nothings": framed(b"\xdc\xea\x60" + b"\xc0" * 60_000),
    "60,000 empty lists": framed(b"\xdc\xea\x60" + b"\x90" * 60_000),
    "a list that claims 4 G entries": framed(b"\xdd" + b"\xff" * 4),
    "a map that claims 4 G entries": framed(b"\xdf" + b"\xff" * 4),
    "a text that claims 4 GiB": framed(b"\xdb" + b"\xff" * 4),
    "a type of its own": framed(b"\xc7\x08\x01" + bytes(8)),
    "a moment": framed(b"\xd6\xff" + bytes(4)),
    "nothing": framed(b""),
    "a text": framed(pack("hello")),
    "an unknown message": message("no-such-thing", {}),
    "fields in one another": message("find", DEEP),
    "an odd kind": message("ping", {}, kind="x"),
    "a number of 64 bits": message("ping", {}, number=2**64 - 1),
    "a number below zero": message("ping", {}, number=-1),
    "a name that is a list": framed(pack(["c", 1, ["ping"], {}])),
    "a map with a list for its key": framed(b"\x94\xa1c\x01\xa4ping\x81\x90\xc0"),
    "text that is not UTF-8": framed(b"\x94\xa1c\x01\xa4\xff\xfe\xfd\xfc\x80"),
}
BAD_MESSAGES = {
    "4 GiB": encode_uvarint(4 << 30),
    "an endless length": b"\xff" * 12,
    "more than any message": encode_uvarint(MAX_MESSAGE + 1) + bytes(100),
    "nonsense": encode_uvarint(100) + b"\xff" * 100,
    "groups in one another": encode_uvarint(4_000) + b"\x7b" * 4_000,
    "messages in one another": encode_uvarint(300) + b"\x12\x7f" * 150,
    "no bytes": b"\x00",
}
ENDS_AT_ONCE = (
    "a length of 4 GiB",
    "a byte above the cap",
    "4 GiB",
    "an endless length",
    "more than any message",
)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[RunningNode]:
    """A gate that also speaks the protocols of a worker."""
    settings = GateSettings(listen=(LOOPBACK,))
    async with trio.open_nursery() as nursery:
        gate: RunningNode = await nursery.start(run_gate, Home.at(tmp_path), settings)
        serve_blobs(gate.network, lambda peer, sha256: None)
        serve_links(gate.network, ProtocolId.WORK, WORK, refuse)
        with contextlib.suppress(Unreachable):  # its first attempt makes it accept calls
            await gate.network.reserve(Identity.fresh().peer_id, ["/ip4/127.0.0.1/tcp/1"])
        with trio.fail_after(300):
            yield gate
        nursery.cancel_scope.cancel()


async def refuse(link: Link, message: Message) -> Message:
    raise RemoteProtocolError("nothing is done here")


def spoken(here: RunningNode) -> set[str]:
    network = here.network
    assert isinstance(network, HostNetwork)
    return {str(name) for name in network.host.multiselect.get_protocols() if name}


async def ends(link: RawLink, protocol: str, body: bytes, *, finish: bool) -> None:
    stream = await link.speak(protocol, body)
    if finish:
        await link.finish(stream)
    with trio.fail_after(30 if finish else 4):  # by itself the shortest wait for a message is five seconds
        await link.end_of(stream)


async def answers_others(here: RunningNode) -> bool:
    """Whether an honest peer gets an answer."""
    async with open_host(Identity.fresh()) as honest, trio.open_nursery() as nursery:
        links = Links(honest, ProtocolId.HEALTH, HEALTH, nursery)
        answer = await links.call(here.identity.peer_id, here.network.addresses, Ping())
        nursery.cancel_scope.cancel()
    return isinstance(answer, Pong)


async def test_every_protocol_stands_in_the_table(here: RunningNode) -> None:
    assert spoken(here) == {*OURS, *PROTOBUF, *NOTHING_READ}


async def test_no_frame_on_any_protocol_does_more_than_end_its_own_stream(here: RunningNode) -> None:
    with structlog.testing.capture_logs() as opened:
        async with attack(here.network) as link:
            for protocol in (
                *OURS,
                *PROTOBUF,
                *NOTHING_READ,
            ):  # our protocols first: a gate waits for other peers to identify themselves
                for body in (*BAD_FRAMES.values(), *BAD_MESSAGES.values()):
                    await ends(link, protocol, body, finish=True)
            assert await answers_others(here)
    assert [line for line in opened if line["log_level"] in ("error", "critical")] == []


async def test_what_is_too_large_is_refused_before_it_comes(here: RunningNode) -> None:
    async with attack(here.network) as link:
        for protocols, bodies in ((OURS, BAD_FRAMES), (PROTOBUF, BAD_MESSAGES)):
            for protocol in protocols:
                for name in set(bodies).intersection(ENDS_AT_ONCE):
                    await ends(link, protocol, bodies[name], finish=False)
