"""A model from several sources at once, over an in-memory network: from which sources, however they behave, and how often the first one
sends it.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.blobs import (
    BLOB,
    PIECE_SIZE,
    AskPieces,
    HavePieces,
    HolderInfo,
    Holders,
    PieceFollows,
    TransferGrant,
)
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.blobs.piece_picker import PiecePicker, PieceSource
from swarm.blobs.pieces import Hashes, count_of, span
from swarm.blobs.server import serve_blobs
from swarm.blobs.swarm_download import DownloadRequest, Mirror, pull
from swarm.blobs.wire import FrameReader
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.governor import Governor
from swarm.net.identity import Identity
from swarm.net.network import Stream

PIECES = 6
T = TypeVar("T")


CONTENT = random.Random(3).randbytes((PIECES - 1) * PIECE_SIZE + 1000)
SHA = hashlib.sha256(CONTENT).hexdigest()


def piece(index: int, content: bytes = CONTENT) -> bytes:
    offset, length = span(index, len(content))
    return content[offset : offset + length]


@dataclass
class MemoryPieces:
    """A store in memory that gives its pieces to others."""

    size: int = len(CONTENT)
    pieces: dict[int, bytes] = field(default_factory=dict)
    must: Hashes = ()
    full_after: int | None = None
    verified: int = 0
    hashed: int = 0
    """Number of pieces that were compared with their hashes."""

    def missing(self) -> Collection[int]:
        return set(range(count_of(self.size))) - set(self.pieces)

    def know(self, hashes: Hashes) -> Collection[int]:
        self.must = hashes
        wrong = [i for i, data in self.pieces.items() if hashlib.sha256(data).digest() != hashes[i]]
        for index in wrong:
            del self.pieces[index]
        return wrong

    def put(self, index: int, data: bytearray, *, trusted: bool) -> bool:
        if self.full_after is not None and len(self.pieces) >= self.full_after:
            raise OSError(28, "No space left on device")
        self.hashed += not trusted
        if self.must and not trusted and hashlib.sha256(data).digest() != self.must[index]:
            return False
        self.pieces[index] = bytes(data)
        return True

    def verify(self) -> Collection[int]:
        self.verified += 1
        return self.know(self.must) if self.must else ()

    def whole(self) -> bytes:
        return b"".join(self.pieces[index] for index in sorted(self.pieces))


class Field:
    """A scheduler that has the model, and nodes around it."""

    def __init__(self, swarm: MemorySwarm) -> None:
        self.swarm = swarm
        self.nodes: dict[str, MemoryNetwork] = {}
        self.leader = self.node("leader")
        self.sent: Counter[str] = Counter()
        """Holder → bytes sent."""
        self.others: list[MemoryNetwork] = []
        self.content: bytes | Reason = CONTENT
        """What the leader gives."""
        self.leaders = Counted(self.leader, self.sent)
        serve_blobs(self.leaders, lambda *_: self.content, where=self.where)

    def node(self, name: str) -> MemoryNetwork:
        if name not in self.nodes:
            self.nodes[name] = self.swarm.node(Identity.from_seed(name))
        return self.nodes[name]

    async def where(self, peer: str, sha256: str) -> Holders:
        results = tuple(
            HolderInfo(peer=node.peer_id, addresses=node.addresses)
            for node in self.others
            if node.peer_id != peer
        )
        return Holders(grant=grant(self.leader.peer_id, peer), others=results)

    def shares(self, name: str, content: bytes = CONTENT) -> MemoryNetwork:
        """Add a worker that has the whole model."""
        node = self.node(name)
        self.serves(node, lambda *_: content)
        self.others.append(node)
        return node

    def serves(self, node: MemoryNetwork, shared: Callable[..., object], **more: object) -> None:
        """Let a node give what `shared` returns, by a transfer grant."""
        serve_blobs(Counted(node, self.sent), lambda *_: None, shared=shared, **more)

    def odd(self, name: str, behaviour: Callable[[Stream], object]) -> MemoryNetwork:
        node = self.node(name)
        node.handle(ProtocolId.BLOB, behaviour)
        self.others.append(node)
        return node

    async def takes(
        self,
        name: str = "taker",
        store: MemoryPieces | None = None,
        *,
        retry_leader: bool = True,
        mirror: Mirror | None = None,
        **more: object,
    ) -> MemoryPieces:
        stored = store or MemoryPieces()
        node = self.node(name)
        await node.connect(self.leader.peer_id, self.leader.addresses)
        download_request = DownloadRequest(
            SHA, len(CONTENT), lambda: self.leader.peer_id, retry_leader=retry_leader, mirror=mirror
        )
        await pull(node, stored, download_request, rng=random.Random(name), **more)
        return stored


class Counted:
    """A node that counts what its streams send."""

    def __init__(self, node: MemoryNetwork, sent: Counter[str]) -> None:
        self.node, self.sent = node, sent
        self.silent = False
        """It answers, but sends no piece."""

    @property
    def governor(self) -> Governor:
        return self.node.governor

    def handle(self, protocol: str, handler: Callable[[Stream], object]) -> None:
        async def counting(stream: Stream) -> None:
            send_all = stream.send_all

            async def send(data: bytes | bytearray | memoryview) -> None:
                if self.silent and len(data) > 10_000:
                    await trio.sleep_forever()
                self.sent[self.node.peer_id] += len(data)
                await send_all(data)

            stream.send_all = send  # type: ignore[method-assign]
            await handler(stream)

        self.node.handle(protocol, counting)


def grant(giver: str, taker: str) -> TransferGrant:
    return TransferGrant(giver=giver, taker=taker, sha256=SHA, until=1, signature=b"s" * 64)


@pytest.fixture
async def field_() -> AsyncIterator[Field]:
    async with MemorySwarm(random.Random(1), latency_s=0.005, bytes_per_s=100e6) as swarm:
        yield Field(swarm)


async def test_from_one_source_it_comes_whole_with_progress(field_: Field, autojump_clock: MockClock) -> None:
    observed: list[tuple[int, int]] = []
    stored = await field_.takes(progress=lambda done, total: observed.append((done, total)))
    assert stored.whole() == CONTENT
    assert observed[-1] == (len(CONTENT), len(CONTENT))
    assert len(observed) == PIECES
    assert field_.sent[field_.leader.peer_id] < len(CONTENT) + 10_000
    assert (stored.hashed, stored.verified) == (0, 0), "the hash of the whole is enough"


async def test_others_that_have_it_give_most_of_it(field_: Field, autojump_clock: MockClock) -> None:
    others = [field_.shares(f"other {n}") for n in range(3)]
    stored = await field_.takes()
    assert stored.whole() == CONTENT
    assert sum(field_.sent[node.peer_id] > PIECE_SIZE for node in others) >= 2
    assert (stored.hashed, stored.verified) == (PIECES, 1)


async def test_a_liar_is_dropped_and_the_whole_is_right(
    field_: Field,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    false = field_.shares("liar", bytes(len(CONTENT)))
    stored = await field_.takes()
    assert stored.whole() == CONTENT
    assert field_.sent[false.peer_id] <= 3 * PIECE_SIZE + 10_000
    assert "source_dropped" in capsys.readouterr().out + caplog.text


async def test_one_that_stalls_in_the_middle_of_a_piece_holds_nothing_up(
    field_: Field, autojump_clock: MockClock
) -> None:

    async def stalls(stream: Stream) -> None:
        reader = FrameReader(stream)
        while (frame := await reader.frame()) is not None:
            if isinstance(frame.message, AskPieces):
                answer = HavePieces(size=len(CONTENT))
            else:
                answer = PieceFollows(size=len(CONTENT), length=frame.message.length)
            await stream.send_all(BLOB.encode(Frame(FrameKind.ANSWER, frame.id, answer)))
            if isinstance(answer, PieceFollows):
                await stream.send_all(b"x" * 1000)
                await trio.sleep_forever()

    field_.odd("stalls", stalls)
    begin = trio.current_time()
    stored = await field_.takes()
    assert stored.whole() == CONTENT
    assert trio.current_time() - begin < 9


@pytest.mark.parametrize("answer", [b"\xff" * 100, b""], ids=["nonsense", "nothing"])
async def test_one_that_talks_nonsense_or_hangs_up_holds_nothing_up(
    field_: Field, autojump_clock: MockClock, answer: bytes
) -> None:
    async def nonsense(stream: Stream) -> None:
        await stream.send_all(answer)

    field_.odd("nonsense", nonsense)
    assert (await field_.takes()).whole() == CONTENT


async def test_one_that_is_not_there_holds_nothing_up(field_: Field, autojump_clock: MockClock) -> None:
    field_.swarm.kill(field_.shares("dead").peer_id)
    assert (await field_.takes()).whole() == CONTENT


async def test_when_the_leader_goes_the_others_bring_the_rest(
    field_: Field, autojump_clock: MockClock
) -> None:
    field_.shares("other")
    store = MemoryPieces()

    def came(done: int, total: int) -> None:
        if done <= 2 * PIECE_SIZE:
            field_.swarm.kill(field_.leader.peer_id)

    with trio.fail_after(60):
        stored = await field_.takes(store=store, progress=came)
    assert stored.whole() == CONTENT


async def test_a_leader_that_gives_nothing_more_is_an_end_where_nobody_else_has_it(
    field_: Field, autojump_clock: MockClock
) -> None:
    field_.content = Reason.NOT_ALLOWED
    with trio.fail_after(5), pytest.raises(Refused) as error:
        await field_.takes()
    assert error.value.reason is Reason.NOT_ALLOWED


async def test_a_leader_with_another_size_raises_a_protocol_error(
    field_: Field, autojump_clock: MockClock
) -> None:
    field_.content = CONTENT + b"!"
    with trio.fail_after(5), pytest.raises(RemoteProtocolError, match="bytes under this hash"):
        await field_.takes()


@pytest.mark.parametrize("retry_leader", [True, False])
async def test_an_unreachable_leader_is_tried_again_only_with_retry_leader(
    field_: Field, autojump_clock: MockClock, retry_leader: bool
) -> None:
    node = field_.node("taker")
    field_.swarm.kill(field_.leader.peer_id)
    download_request = DownloadRequest(
        SHA, len(CONTENT), lambda: field_.leader.peer_id, retry_leader=retry_leader
    )
    with trio.move_on_after(300) as waited:
        with pytest.raises(Unreachable):
            await pull(node, MemoryPieces(), download_request, rng=random.Random(1))
    assert waited.cancelled_caught is retry_leader


async def test_a_full_disk_ends_it_with_its_own_error(field_: Field, autojump_clock: MockClock) -> None:
    field_.shares("other")
    with pytest.raises(OSError, match="No space left"):
        await field_.takes(store=MemoryPieces(full_after=2))


async def test_what_is_there_already_is_not_asked_for_again(field_: Field, autojump_clock: MockClock) -> None:
    half = MemoryPieces(pieces={index: piece(index) for index in range(4)})
    assert (await field_.takes(store=half)).whole() == CONTENT
    assert field_.sent[field_.leader.peer_id] < 2 * PIECE_SIZE + 10_000


async def test_what_is_there_and_wrong_is_brought_again(field_: Field, autojump_clock: MockClock) -> None:
    half = MemoryPieces(pieces={0: b"?" * PIECE_SIZE, 1: piece(1)})
    assert (await field_.takes(store=half)).whole() == CONTENT


async def test_one_that_is_busy_is_asked_again_later(field_: Field, autojump_clock: MockClock) -> None:
    node, rests, alive = field_.node("busy"), True, True
    field_.serves(node, lambda *_: CONTENT, resting=lambda: rests)
    field_.others.append(node)
    store = MemoryPieces()

    def came(done: int, total: int) -> None:
        nonlocal rests, alive
        rests = False
        if alive and done >= 2 * PIECE_SIZE:
            alive = False
            field_.swarm.kill(field_.leader.peer_id)

    with trio.fail_after(60):
        stored = await field_.takes(store=store, progress=came)
    assert stored.whole() == CONTENT


async def test_those_that_have_none_for_us_make_room_for_those_that_have(
    field_: Field, autojump_clock: MockClock
) -> None:
    for n in range(8):
        field_.serves(stingy := field_.node(f"stingy {n}"), lambda *_: None)
        field_.others.append(stingy)
    other = field_.shares("other")
    field_.leaders.silent = True
    with trio.fail_after(900):
        assert (await field_.takes()).whole() == CONTENT
    assert field_.sent[other.peer_id] > len(CONTENT) - 10


async def test_without_hashes_only_the_leader_is_asked(field_: Field, autojump_clock: MockClock) -> None:
    """An older scheduler does not know the request."""
    other = field_.shares("other", bytes(len(CONTENT)))
    field_.leader = field_.node("older")

    async def older(stream: Stream) -> None:
        reader = FrameReader(stream)
        while (frame := await reader.frame()) is not None:
            if not hasattr(frame.message, "offset"):
                await stream.reset()
                return
            start, length = frame.message.offset, frame.message.length
            part = CONTENT[start : start + length]
            head = PieceFollows(size=len(CONTENT), length=len(part))
            await stream.send_all(BLOB.encode(Frame(FrameKind.ANSWER, frame.id, head)) + part)

    field_.leader.handle(ProtocolId.BLOB, older)
    with trio.fail_after(30):
        assert (await field_.takes()).whole() == CONTENT
    assert field_.sent[other.peer_id] == 0


async def test_eight_takers_at_once_bring_it_to_each_other(field_: Field, autojump_clock: MockClock) -> None:
    takers = [field_.node(f"taker {n}") for n in range(8)]
    stored = {node.peer_id: MemoryPieces() for node in takers}

    def shared(node: MemoryNetwork) -> Callable[..., Part]:
        return lambda *_: Part(stored[node.peer_id])

    for node in takers:
        field_.serves(node, shared(node))
    field_.others += takers
    async with trio.open_nursery() as nursery:
        for n, node in enumerate(takers):
            nursery.start_soon(field_.takes, f"taker {n}", stored[node.peer_id])
    assert all(each.whole() == CONTENT for each in stored.values())
    assert field_.sent[field_.leader.peer_id] < 4 * len(CONTENT)


@dataclass
class Part:
    """A taker's pieces so far, for others: `swarm.blobs.server.PartialBlob`, but in memory."""

    store: MemoryPieces
    total: int = len(CONTENT)

    @property
    def path(self) -> object:
        return self

    def open(self, mode: str, buffering: int = 0) -> object:
        return Pieced(self.store)

    def has(self, index: int) -> bool:
        return bool(self.store.must) and index in self.store.pieces

    def held(self) -> frozenset[int]:
        return frozenset(self.store.pieces) if self.store.must else frozenset()


class Pieced(io.RawIOBase):
    """Such a partial file, opened."""

    def __init__(self, store: MemoryPieces) -> None:
        self.store, self.at = store, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = len(CONTENT) if whence == 2 else offset
        return self.at

    def readinto(self, into: Any) -> int:
        piece, start = self.store.pieces[self.at // PIECE_SIZE], self.at % PIECE_SIZE
        data = piece[start : start + len(into)]
        into[: len(data)] = data
        self.at += len(data)
        return len(data)


# -- the plan --------------------------------------------------------------------------------------------------------------


def plan(*sources: PieceSource, missing: Sequence[int] = range(6)) -> PiecePicker:
    made = PiecePicker(missing, random.Random(1))
    made.hashed = True
    for each in sources:
        made.add(each, 0.0)
    return made


def test_what_fewest_others_have_is_asked_for_first() -> None:
    one, two = (
        PieceSource("a", declared=True),
        PieceSource("b", declared=True, have=frozenset({0, 1, 2, 3, 4})),
    )
    made = plan(one, two)
    assert made.next(one, 0.0) == 5


def test_the_leader_is_asked_for_what_it_sent_nobody_and_for_more_only_when_others_give_nothing() -> None:
    leader = PieceSource("s", leader=True, declared=True, fresh=frozenset({3}))
    other = PieceSource("o", declared=True, have=frozenset({0, 1, 2, 3, 4}))
    made = plan(leader, other)
    made.stored(other, 0, 10.0)
    assert made.next(leader, 10.0) == 3
    assert made.alternatives(leader, 3) == {1, 2, 3, 4, 5}
    assert made.next(leader, 10.0) is None, "one at a time, for what it sends others changes"
    leader.requested[2] = leader.requested.pop(3)
    made.arrived(leader, 2, 10.1)
    made.update(leader, None, set())
    assert made.next(leader, 10.5) is None
    assert made.next(leader, 11.5) == 5, "nothing came from others for a while"
    assert made.alternatives(leader, 5) is None


def test_nobody_but_the_leader_is_asked_before_the_hashes_are_known() -> None:
    leader, other = PieceSource("s", leader=True), PieceSource("o", declared=True)
    made = plan(leader, other)
    made.hashed = False
    assert made.next(other, 0.0) is None
    assert made.next(leader, 0.0) is not None


def test_a_gate_carries_nothing_while_somebody_gives_directly() -> None:
    direct, relayed = PieceSource("d", declared=True), PieceSource("r", declared=True, relayed=True)
    made = plan(direct, relayed)
    assert made.next(direct, 0.0) is not None
    assert made.next(relayed, 0.0) is None
    made.drop(direct, "gone")
    assert made.next(relayed, 0.0) is not None


def test_a_late_piece_is_asked_of_one_other_beside() -> None:
    slow, one, two = (PieceSource(name, declared=True) for name in "sab")
    made = plan(slow, one, two, missing=[0])
    assert made.next(slow, 0.0) == 0
    assert made.next(one, 1.0) is None
    assert made.next(one, 3.5) == 0
    assert made.next(two, 9.0) is None


def test_one_that_fails_rests_longer_each_time() -> None:
    source = PieceSource("a", declared=True)
    made = plan(source)
    assert [made.rest(source, 0.0) for _ in range(7)] == [0.5, 1, 2, 4, 8, 16, 16]
    assert made.next(source, 15.0) is None
    assert made.next(source, 16.0) is not None
