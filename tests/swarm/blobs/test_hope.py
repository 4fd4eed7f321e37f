"""A scheduler no longer gives a model to anybody. Other holders give it, also those that have only part of it yet, and the wait has an
end.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused
from protocol.messages.blobs import BLOB, AskHolders, AskPieceHashes, BlobAbsent, Holders, PieceFollows
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.blobs.pieces import hashes_of
from swarm.blobs.swarm_download import GROWTH_S
from swarm.blobs.wire import FrameReader
from swarm.memory.network import MemorySwarm
from swarm.net.network import Stream
from tests.swarm.blobs.test_swarm_download import CONTENT, PIECES, Field, MemoryPieces, Part, piece

MUST = hashes_of(CONTENT)
HASHES = b"".join(MUST)


class Stingy(Field):
    """A field whose scheduler gives the hashes of the pieces and, while `names`, the other holders, but sends no piece."""

    def __init__(self, swarm: MemorySwarm) -> None:
        super().__init__(swarm)
        self.names = True
        self.silent_until = 0.0
        """Until then it does not answer requests for pieces."""
        self.leader = self.node("stingy")
        self.leader.handle(ProtocolId.BLOB, self.answers)

    async def answers(self, stream: Stream) -> None:
        reader = FrameReader(stream)
        while (frame := await reader.frame()) is not None:
            answer: PieceFollows | BlobAbsent | Holders = BlobAbsent(reason=Reason.NOT_ALLOWED)
            if isinstance(frame.message, AskPieceHashes):
                answer = PieceFollows(size=len(CONTENT), length=len(HASHES))
            elif isinstance(frame.message, AskHolders):
                answer = await self.where(stream.peer, "") if self.names else answer
            else:
                await trio.sleep_until(self.silent_until)
            await stream.send_all(BLOB.encode(Frame(FrameKind.ANSWER, frame.id, answer)))
            if isinstance(answer, PieceFollows):
                await stream.send_all(HASHES)

    def begins(self, name: str, has: Callable[[], MemoryPieces | None]) -> None:
        """Add a worker that has what `has` returns."""
        node = self.node(name)
        self.serves(node, lambda *_: None if (stored := has()) is None else Part(stored))
        self.others.append(node)


@pytest.fixture
async def stingy() -> AsyncIterator[Stingy]:
    async with MemorySwarm(random.Random(1), latency_s=0.005, bytes_per_s=100e6) as swarm:
        yield Stingy(swarm)


def all_of(*, until: int = PIECES) -> MemoryPieces:
    return MemoryPieces(pieces={index: piece(index) for index in range(until)}, must=MUST)


async def test_where_it_does_not_say_what_the_pieces_are_it_ends_at_once_though_others_have_it(
    autojump_clock: MockClock,
) -> None:
    """Nobody else can be asked then. A taker with a URL goes there."""
    async with MemorySwarm(random.Random(1), latency_s=0.005) as swarm:
        field = Field(swarm)
        field.shares("other")
        field.content = Reason.UNKNOWN
        with trio.fail_after(5), pytest.raises(Refused):
            await field.takes()


async def test_one_that_only_begins_to_have_it_is_waited_for(
    stingy: Stingy, autojump_clock: MockClock
) -> None:
    stingy.begins("later", lambda: all_of() if trio.current_time() > 50 else None)
    with trio.fail_after(GROWTH_S[0]):
        assert (await stingy.takes()).whole() == CONTENT


@pytest.mark.slow
async def test_as_long_as_somebodys_share_grows_there_is_hope(
    stingy: Stingy, autojump_clock: MockClock
) -> None:
    slow = all_of(until=0)
    stingy.begins("slow", lambda: slow)

    async def grows() -> None:
        for index in range(PIECES):
            await trio.sleep(GROWTH_S[0] - 15)
            slow.pieces[index] = piece(index)

    half = all_of(until=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grows)  # at first from the pieces that are already here
        assert (await stingy.takes(store=half)).whole() == CONTENT
    assert trio.current_time() > 2 * GROWTH_S[0]


@pytest.mark.parametrize(("retry_leader", "most_s"), [(True, GROWTH_S[0]), (False, GROWTH_S[1])])
async def test_where_nobody_gets_it_there_is_an_end(
    stingy: Stingy, autojump_clock: MockClock, retry_leader: bool, most_s: float
) -> None:
    stingy.begins("never", lambda: None)
    stingy.begins("stuck", lambda: all_of(until=1))
    with trio.fail_after(most_s + 5), pytest.raises(Refused) as error:
        await stingy.takes(retry_leader=retry_leader)
    assert error.value.reason is Reason.NOT_ALLOWED
    assert trio.current_time() > most_s


async def test_those_that_had_none_before_it_gave_up_are_asked_again(
    stingy: Stingy, autojump_clock: MockClock
) -> None:
    stingy.silent_until = 60.0
    stingy.begins("later", lambda: all_of() if trio.current_time() > 80 else None)

    async def forgets() -> None:
        await trio.sleep(5)
        stingy.names = False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forgets)
        with trio.fail_after(200):
            assert (await stingy.takes()).whole() == CONTENT
