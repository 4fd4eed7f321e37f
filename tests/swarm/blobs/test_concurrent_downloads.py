"""A model from the swarm and from a URL at the same time: whatever the URL's server does, the model arrives and is correct."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.blobs.pieces import PIECE_SIZE
from swarm.blobs.swarm_download import DownloadRequest, Mirror, pull
from swarm.memory.network import MemorySwarm
from tests.swarm.blobs.test_swarm_download import CONTENT, SHA, Field, MemoryPieces

Piece = Callable[[int, int], Awaitable[bytearray]]


@pytest.fixture
async def slow() -> AsyncIterator[Field]:
    """A field in which the scheduler's link takes a tenth of a second per piece."""
    async with MemorySwarm(random.Random(1), latency_s=0.005, bytes_per_s=40e6) as swarm:
        yield Field(swarm)


async def takes(field: Field, piece: Piece, *, retry_leader: bool = True) -> MemoryPieces:
    stored = MemoryPieces()
    node = field.node("taker")
    await node.connect(field.leader.peer_id, field.leader.addresses)
    download_request = DownloadRequest(
        SHA,
        len(CONTENT),
        lambda: field.leader.peer_id,
        retry_leader=retry_leader,
        mirror=Mirror("a URL", piece),
    )
    await pull(node, stored, download_request, rng=random.Random(1))
    return stored


async def good(offset: int, length: int) -> bytearray:
    await trio.lowlevel.checkpoint()
    return bytearray(CONTENT[offset : offset + length])


async def false(offset: int, length: int) -> bytearray:
    return bytearray(length)


async def gone(offset: int, length: int) -> bytearray:
    raise Unreachable("nobody there")


async def refused(offset: int, length: int) -> bytearray:
    raise Refused("no such file", reason=Reason.UNKNOWN)


async def silent(offset: int, length: int) -> bytearray:
    await trio.sleep_forever()


async def test_it_takes_the_load_off_the_scheduler(slow: Field) -> None:
    assert (await takes(slow, good)).whole() == CONTENT
    assert slow.sent[slow.leader.peer_id] <= 3 * PIECE_SIZE


@pytest.mark.slow
@pytest.mark.parametrize("piece", [false, gone, refused, silent])
async def test_one_that_lies_or_has_nothing_or_is_silent_holds_nothing_up(slow: Field, piece: Piece) -> None:
    with trio.fail_after(90):
        assert (await takes(slow, piece)).whole() == CONTENT


async def test_it_is_not_asked_before_the_scheduler_has_said_what_the_pieces_are(slow: Field) -> None:
    slow.content = Reason.NOT_ALLOWED
    offsets: list[int] = []

    async def noted(offset: int, length: int) -> bytearray:
        offsets.append(offset)
        return await good(offset, length)

    with trio.fail_after(60), pytest.raises(Refused):
        await takes(slow, noted)
    assert offsets == []


async def test_when_the_scheduler_goes_it_brings_the_rest(slow: Field) -> None:
    async def then_alone(offset: int, length: int) -> bytearray:
        if came:
            slow.swarm.kill(slow.leader.peer_id)
        came.append(offset)
        return await good(offset, length)

    came: list[int] = []
    with trio.fail_after(120):
        assert (await takes(slow, then_alone)).whole() == CONTENT
