"""Files by their hash between two nodes of an in-memory network."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.blobs import BLOB, FetchPiece, PieceFollows
from protocol.wire.codec import PREFIX, Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.blobs.client import fetch_blob
from swarm.blobs.server import Find, serve_blobs
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.network import Stream

CONTENT = random.Random(1).randbytes(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
PIECE = 70_000


@pytest.fixture
async def pair() -> AsyncIterator[tuple[MemoryNetwork, MemoryNetwork]]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm:
        yield swarm.node(Identity.from_seed(1)), swarm.node(Identity.from_seed(2))


def serving(content: Path | bytes | Reason | None) -> Find:
    return lambda peer, sha256: content if sha256 == SHA else None


async def take(
    taker: MemoryNetwork,
    holder: MemoryNetwork,
    sink: Callable[[bytearray], object],
    *,
    offset: int = 0,
    size: int | None = None,
) -> int:
    return await fetch_blob(
        taker, holder.peer_id, holder.addresses, SHA, offset=offset, sink=sink, size=size, piece=PIECE
    )


async def test_a_file_comes_whole_and_in_order(
    pair: tuple[MemoryNetwork, MemoryNetwork], tmp_path: Path
) -> None:
    holder, taker = pair
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    serve_blobs(holder, serving(path))
    got = bytearray()
    observed: list[tuple[int, int]] = []
    size = await fetch_blob(
        taker,
        holder.peer_id,
        holder.addresses,
        SHA,
        sink=got.extend,
        piece=PIECE,
        progress=lambda done, total: observed.append((done, total)),
    )
    assert bytes(got) == CONTENT
    assert size == len(CONTENT)
    assert observed[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in observed] == sorted({done for done, _ in observed})


@pytest.mark.parametrize("offset", [1, PIECE, 299_999, 300_000])
async def test_a_half_is_carried_on_from_any_byte(
    pair: tuple[MemoryNetwork, MemoryNetwork], offset: int
) -> None:
    holder, taker = pair
    serve_blobs(holder, serving(CONTENT))
    got = bytearray(CONTENT[:offset])
    await take(taker, holder, got.extend, offset=offset)
    assert bytes(got) == CONTENT


@pytest.mark.parametrize("offset", [2**44, 2**53])
async def test_beyond_the_end_there_is_nothing_and_the_holder_lives_on(
    pair: tuple[MemoryNetwork, MemoryNetwork], tmp_path: Path, offset: int
) -> None:
    holder, taker = pair
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    serve_blobs(holder, serving(path))
    stream = await taker.open(holder.peer_id, ProtocolId.BLOB, holder.addresses)
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.CALL, 1, FetchPiece(sha256=SHA, offset=offset, length=10)))
    )
    with trio.fail_after(5):
        result = bytes(await stream.receive_some())
    answer = BLOB.decode(result[PREFIX:])
    assert answer.message == PieceFollows(size=len(CONTENT), length=0)
    got = bytearray()
    await take(taker, holder, got.extend)
    assert bytes(got) == CONTENT


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that opens and cannot be read")
async def test_a_file_that_cannot_be_read_is_absent(pair: tuple[MemoryNetwork, MemoryNetwork]) -> None:
    holder, taker = pair
    unreadable = Path("/proc/self/mem")  # its first page is not mapped: reading it is an I/O error
    serve_blobs(holder, serving(unreadable))
    with trio.fail_after(5), pytest.raises(Refused) as error:
        await take(taker, holder, bytearray().extend)
    assert error.value.reason is Reason.UNKNOWN


async def test_an_empty_file_can_be_had(pair: tuple[MemoryNetwork, MemoryNetwork]) -> None:
    holder, taker = pair
    serve_blobs(holder, lambda peer, sha256: b"")
    assert await take(taker, holder, lambda data: pytest.fail("nothing to store")) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, Reason.UNKNOWN), (Reason.NOT_ALLOWED, Reason.NOT_ALLOWED), (Path("/gone"), Reason.UNKNOWN)],
)
async def test_what_is_not_there_or_not_for_us_is_refused_with_the_reason(
    pair: tuple[MemoryNetwork, MemoryNetwork], content: Path | Reason | None, reason: Reason
) -> None:
    holder, taker = pair
    serve_blobs(holder, serving(content))
    with pytest.raises(Refused) as error:
        await take(taker, holder, bytearray().extend)
    assert error.value.reason is reason


async def test_another_size_than_the_tasks_is_refused_before_anything_is_stored(
    pair: tuple[MemoryNetwork, MemoryNetwork],
) -> None:
    holder, taker = pair
    serve_blobs(holder, serving(CONTENT))
    got = bytearray()
    with pytest.raises(RemoteProtocolError, match="300000 bytes under this hash, not 5"):
        await take(taker, holder, got.extend, size=5)
    assert not got


async def test_a_full_disk_ends_the_transfer_with_its_own_error(
    pair: tuple[MemoryNetwork, MemoryNetwork],
) -> None:
    holder, taker = pair
    serve_blobs(holder, serving(CONTENT))

    def full(data: bytearray) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await take(taker, holder, full)


def lying(behaviour: Callable[[Stream], Awaitable[None]]) -> Callable[[MemoryNetwork], None]:
    return lambda holder: holder.handle(ProtocolId.BLOB, behaviour)


async def _silent(stream: Stream) -> None:
    await trio.sleep_forever()


async def _stops_in_the_middle(stream: Stream) -> None:
    await stream.receive_some()
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.ANSWER, 1, PieceFollows(size=len(CONTENT), length=PIECE)))
    )
    await stream.send_all(CONTENT[:1000])
    await trio.sleep_forever()


async def _hangs_up(stream: Stream) -> None:
    await stream.receive_some()
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.ANSWER, 1, PieceFollows(size=len(CONTENT), length=PIECE)))
    )
    await stream.send_all(CONTENT[:1000])


async def _sends_too_much(stream: Stream) -> None:
    await stream.receive_some()
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.ANSWER, 1, PieceFollows(size=len(CONTENT), length=PIECE + 1)))
    )
    await trio.sleep_forever()


async def _sends_nothing_for_ever(stream: Stream) -> None:
    await stream.receive_some()
    await stream.send_all(BLOB.encode(Frame(FrameKind.ANSWER, 1, PieceFollows(size=len(CONTENT), length=0))))
    await trio.sleep_forever()


async def _asks_back(stream: Stream) -> None:
    await stream.send_all(BLOB.encode(Frame(FrameKind.CALL, 1, FetchPiece(sha256=SHA, offset=0, length=1))))
    await trio.sleep_forever()


async def _talks_nonsense(stream: Stream) -> None:
    await stream.send_all(b"\xff" * 100)
    await trio.sleep_forever()


@pytest.mark.parametrize("behaviour", [_silent, _stops_in_the_middle, _hangs_up])
async def test_a_holder_that_stalls_or_leaves_is_given_up_in_a_few_seconds(
    pair: tuple[MemoryNetwork, MemoryNetwork],
    behaviour: Callable[[Stream], Awaitable[None]],
    autojump_clock: MockClock,
) -> None:
    holder, taker = pair
    lying(behaviour)(holder)
    with trio.fail_after(30), pytest.raises(Unreachable, match=r"stopped sending|broke while"):
        await take(taker, holder, bytearray().extend)


@pytest.mark.parametrize("behaviour", [_sends_too_much, _sends_nothing_for_ever, _asks_back, _talks_nonsense])
async def test_a_holder_that_breaks_the_rules_raises_a_protocol_error(
    pair: tuple[MemoryNetwork, MemoryNetwork], behaviour: Callable[[Stream], Awaitable[None]]
) -> None:
    holder, taker = pair
    lying(behaviour)(holder)
    with trio.fail_after(5), pytest.raises(RemoteProtocolError):
        await take(taker, holder, bytearray().extend)


async def read_all(stream: Stream) -> None:
    while await stream.receive_some():
        pass


async def test_a_taker_that_takes_nothing_is_let_go(
    pair: tuple[MemoryNetwork, MemoryNetwork], autojump_clock: MockClock
) -> None:
    holder, taker = pair
    big = bytes(8 * 1024 * 1024)
    serve_blobs(holder, lambda peer, sha256: big)
    stream = await taker.open(holder.peer_id, ProtocolId.BLOB, holder.addresses)
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.CALL, 1, FetchPiece(sha256=SHA, offset=0, length=len(big))))
    )
    await trio.sleep(60)
    with pytest.raises(trio.BrokenResourceError):
        await read_all(stream)


async def test_a_cancelled_transfer_stops_the_holder_too(pair: tuple[MemoryNetwork, MemoryNetwork]) -> None:
    holder, taker = pair
    asked = 0

    def find(peer: str, sha256: str) -> bytes:
        nonlocal asked
        asked += 1
        return CONTENT

    serve_blobs(holder, find)
    with trio.CancelScope() as scope:
        await fetch_blob(
            taker,
            holder.peer_id,
            holder.addresses,
            SHA,
            sink=len,
            piece=PIECE,
            progress=lambda done, total: scope.cancel(),
        )
    assert scope.cancelled_caught
    assert asked == 1
    got = bytearray()
    await take(taker, holder, got.extend)
    assert bytes(got) == CONTENT
