"""Building blocks of several attacks: cheap raw connections, frames, adverts of devices that do not exist."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.stream_muxer.yamux import yamux

from protocol.errors import SarkError
from protocol.messages import index as index_messages
from protocol.values.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message, read_advert
from protocol.values.index_keys import EVERYBODY, attributes_of
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import Message
from protocol.wire.codec import PREFIX, Frame, FrameKind, Vocabulary
from swarm.index.index import Index
from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity
from tests.rig.attack import Node, Target
from tests.rig.verdict import REFUSED
from tests.swarm.attacker import MSS, RawLink, SecureConn, attack, line

BROKEN: Final = (
    BaseLibp2pError,
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    AssertionError,
    trio.TooSlowError,
    SarkError,
)
"""Errors that may show that the victim has closed a connection."""
UNIT: Final = "Fake (Simulation)"
WINDOW: Final = 256 * 1024
"""The window of a new stream, in bytes."""
STORED: Final = {index_messages.StoreVerdict.OK, index_messages.StoreVerdict.SPLIT}
NEGOTIATED: Final = len(line(MSS[:-1]))


class FlowLink(RawLink):
    """A raw link that tracks how much it may still send on each stream."""

    def __init__(self, secure: SecureConn) -> None:
        super().__init__(secure)
        self._room: dict[int, int] = {}
        self._more = trio.Event()
        self._writing = trio.Lock()

    async def frame(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        async with self._writing:  # several tasks write to streams
            await super().frame(kind, flags, stream_id, body)

    async def open(self) -> int:
        number = await super().open()
        self._room[number] = WINDOW
        return number

    async def data(self, stream_id: int, body: bytes) -> None:
        """Send `body` in pieces that fit the window; waits until `next` has read that there is room."""
        while body:
            room = self._room.get(stream_id, WINDOW)
            if not room:
                await self._more.wait()
                continue
            piece, body = body[:room], body[room:]
            self._room[stream_id] = room - len(piece)
            await super().data(stream_id, piece)

    async def next(self) -> tuple[int, int, int, bytes]:
        """Like `RawLink.next`, but never extends the window for what it reads."""
        with suppress(BaseLibp2pError, OSError, struct.error):
            while True:
                header = await self._secure.read(12)
                _, kind, flags, stream_id, size = struct.unpack(yamux.YAMUX_HEADER_FORMAT, header)
                if kind == yamux.TYPE_PING:
                    if flags & yamux.FLAG_SYN:
                        pong = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, kind, yamux.FLAG_ACK, 0, size)
                        async with self._writing:
                            await self._secure.write(pong)
                    continue
                if kind == yamux.TYPE_WINDOW_UPDATE and stream_id in self._room:
                    self._room[stream_id] += size
                    self._more.set()
                    self._more = trio.Event()
                body = await self._secure.read(size) if kind == yamux.TYPE_DATA else b""
                return kind, flags, stream_id, body
        return -1, 0, 0, b""


@asynccontextmanager
async def connect(node: Node, identity: Identity | None = None) -> AsyncIterator[FlowLink]:
    """A Noise connection, by default under a fresh key, on which yamux frames are written by hand."""
    keys = create_new_key_pair((identity or Identity.fresh()).seed)
    async with attack(node, keys=keys) as link:  # type: ignore[arg-type]
        yield FlowLink(link._secure)


def call(vocabulary: Vocabulary, message: Message, number: int = 1) -> bytes:
    return vocabulary.encode(Frame(FrameKind.CALL, number, message))


def note(vocabulary: Vocabulary, message: Message) -> bytes:
    return vocabulary.encode(Frame(FrameKind.NOTE, 0, message))


class Replies:
    """The victim's messages on a stream that was opened with `RawLink.speak`."""

    def __init__(self, link: RawLink, stream: int, vocabulary: Vocabulary, protocol: str) -> None:
        self._link, self._stream = link, stream
        self._vocabulary = vocabulary
        self._buffer = b""
        self._negotiation = NEGOTIATED + len(line(protocol.encode()))
        self._ready: list[Message] = []

    async def next(self) -> Message:
        """Raises `trio.BrokenResourceError` when the victim ends the stream."""
        while not self._ready:
            kind, flags, number, body = await self._link.next()
            if kind == -1 or (number == self._stream and flags & (yamux.FLAG_RST | yamux.FLAG_FIN)):
                raise trio.BrokenResourceError
            if number == self._stream and kind == yamux.TYPE_DATA:
                skip = min(self._negotiation, len(body))
                self._negotiation -= skip
                self._buffer += body[skip:]
                self._decode()
        return self._ready.pop(0)

    def _decode(self) -> None:
        while len(self._buffer) >= PREFIX:
            end = PREFIX + int.from_bytes(self._buffer[:PREFIX], "big")
            if len(self._buffer) < end:
                return
            self._ready.append(self._vocabulary.decode(self._buffer[PREFIX:end]).message)
            self._buffer = self._buffer[end:]


def invented(identity: Identity, **fields: object) -> Advert:
    """The advert of a device that does not exist."""
    plain: dict[str, object] = {
        "peer": identity.peer_id, "seq": 1, "device": f"d-{identity.peer_id[-12:]}", "name": f"n-{identity.peer_id[-8:]}",
        "units": (UnitOffer(unit=UNIT, runtime="script"),), "ram": 16 << 30, "cores": 8, "sandbox": "full",
        "simulated": True, "soc": "AMD EPYC", "os": "Linux", "arch": "x86_64",
    }  # fmt: skip
    return Advert.model_validate(plain | fields)


def signed(identity: Identity, advert: Advert) -> SignedAdvert:
    body = advert_body(advert)
    return SignedAdvert(body=body, signature=identity.sign(advert_message(body)))


async def publish(node: Node, identity: Identity, advert: Advert) -> bool | None:
    """Have a holder store an advert over a raw connection, which is then closed. Returns whether the holder stored it, None without an
    answer.
    """
    items = tuple(index_messages.StoreItem(attribute=name) for name in attributes_of(advert) or (EVERYBODY,))
    message = index_messages.StoreAdverts(advert=signed(identity, advert), items=items)
    with trio.move_on_after(10), suppress(*BROKEN):
        async with connect(node, identity) as link:
            stream = await link.speak(index_messages.FAMILY, call(index_messages.INDEX, message))
            answer = await Replies(link, stream, index_messages.INDEX, index_messages.FAMILY).next()
            verdicts = [item.verdict for item in getattr(answer, "items", ())]
            return not STORED.isdisjoint(verdicts)
    return None


async def publish_many(
    node: Node, crowd: Sequence[tuple[Identity, Advert]], facts: Counter[str], at_once: int = 4
) -> None:
    """Publish each identity's own advert at one holder. `facts` also counts refused adverts, which make the attack smaller."""
    todo = list(crowd)

    async def one() -> None:
        while todo:
            stored = await publish(node, *todo.pop())
            facts["adverts offered"] += stored is not None
            facts["adverts stored"] += bool(stored)
            facts[REFUSED] += stored is False

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(one)


async def listed(node: Node, peers: Collection[str] = ()) -> dict[str, Advert]:
    """The adverts that a holder lists on one page, by peer. `peers`: only theirs."""
    clauses = (Clause(attribute="peer", op=Op.IN, value=tuple(peers)),) if peers else ()
    question = index_messages.QueryShard(attribute=EVERYBODY, requirement=Requirement(clauses=clauses))
    async with connect(node) as link:
        stream = await link.speak(index_messages.FAMILY, call(index_messages.INDEX, question))
        page = await Replies(link, stream, index_messages.INDEX, index_messages.FAMILY).next()
    adverts = page.adverts if isinstance(page, index_messages.ShardPage) else ()
    return {advert.peer: advert for advert in (read_advert(each.advert.body) for each in adverts)}


@asynccontextmanager
async def a_peer(
    target: Target, identity: Identity | None = None
) -> AsyncIterator[tuple[HostNetwork, Index, trio.Nursery]]:
    """A whole node under its own key, which can be dialled and serves nobody yet."""
    async with (
        open_host(
            identity or Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"], bootstrap=[target.gate.gate]
        ) as network,
        trio.open_nursery() as nursery,
    ):
        yield network, Index(network, rng=random.Random(), serve=False), nursery
        nursery.cancel_scope.cancel()


async def honest_adverts(index: Index, target: Target) -> list[Advert]:
    """The adverts of the honest workers, once the index has them all."""
    wanted = {node.peer_id for node in target.workers}
    while True:
        with suppress(SarkError):
            found = [sighting.advert for sighting in (await index.everybody(64)).devices]
            honest = [advert for advert in found if advert.peer in wanted]
            if {advert.peer for advert in honest} == wanted:
                return honest
        await trio.sleep(0.2)
