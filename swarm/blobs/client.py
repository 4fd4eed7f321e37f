"""Moving files named by their sha256, `/sark/blob/1`: the taker pulls piece by piece, the holder sends nothing unasked.

    serve_blobs(network, find)                                 find(peer, sha256) -> Path | bytes | Reason | None
    await fetch_blob(network, peer, addresses, sha256, offset=0, sink=file.write)

Here one taker pulls a file in order from one peer: records, manifests, and models where they are wanted whole. `swarm_download.py` brings a
model from several at once; `swarm/blobs/server.py` is the other side.

The next piece is asked for before the last one is stored, so neither side waits for the other; the sink is called in worker threads.
At most three pieces are in memory at once. Whether the whole is what its name says is for the taker to check: it hashes what the sink
got, and a resumed file from its first byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.blobs import BLOB, MAX_PIECE, BlobAbsent, FetchPiece, PieceFollows
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId
from swarm.blobs.server import Find, serve_blobs
from swarm.blobs.wire import STALL_S, FrameReader
from swarm.net.addresses import Address, PeerId
from swarm.net.network import Network, Stream

__all__ = ["PIECE", "PIECE_S", "STALL_S", "Find", "Progress", "Sink", "fetch_blob", "serve_blobs"]

PIECE: Final = 2 * 1024 * 1024
"""Bytes asked for at once: large against a round trip, small against memory."""
PIECE_S: Final = 120.0
"""A whole piece, however slow the link."""

Sink = Callable[[bytearray], object]
"""Stores the next bytes, in order. Called in a worker thread; what it raises goes to the caller of `fetch_blob`."""
Progress = Callable[[int, int], None]
"""(bytes so far, bytes in all)"""


# -- the taker -----------------------------------------------------------------------------------------------------------


async def fetch_blob(
    network: Network,
    peer: PeerId,
    addresses: Sequence[Address],
    sha256: str,
    *,
    offset: int = 0,
    sink: Sink,
    size: int | None = None,
    progress: Progress | None = None,
    piece: int = PIECE,
) -> int:
    """Pull a file from byte `offset` on into `sink`. Gives its whole size.

    Raises `Refused` when the peer has none for us, `Unreachable` when it stalls or the link breaks (what the sink got stays good
    and can be resumed), `RemoteProtocolError` when it breaks the rules, or says another size than `size`.
    """
    stream = await network.open(peer, ProtocolId.BLOB, addresses)
    try:
        total = await _pull(_Taker(stream, sha256, min(piece, MAX_PIECE), size), offset, sink, progress)
    except trio.TooSlowError:
        await stream.reset()
        raise Unreachable(
            f"{peer} stopped sending {sha256[:12]}… (no byte for {STALL_S:g} s, or a piece took over {PIECE_S:g} s)"
        ) from None
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.reset()
        raise Unreachable(f"the link with {peer} broke while {sha256[:12]}… was being fetched") from None
    except BaseException:  # a refusal, the sink's error or a cancellation: the rest must not keep coming
        with trio.CancelScope(shield=True):
            await stream.reset()
        raise
    await stream.aclose()
    return total


async def _pull(taker: _Taker, offset: int, sink: Sink, progress: Progress | None) -> int:
    failure: list[Exception] = []
    done = offset

    async def store(pieces: trio.MemoryReceiveChannel[bytearray]) -> None:
        nonlocal done
        async for data in pieces:
            problem = await trio.to_thread.run_sync(_store, sink, data)
            if problem is not None:
                failure.append(problem)
                nursery.cancel_scope.cancel()
                return
            done += len(data)
            if progress is not None:
                progress(done, taker.total)

    send, receive = trio.open_memory_channel[bytearray](1)
    # Only errors of the stream leave the nursery as such; they are told apart from a group of one here, once.
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store, receive)
            async with send:
                await taker.run(offset, send)
    except* (
        OSError,
        RemoteProtocolError,
        Refused,
        trio.TooSlowError,
        trio.BrokenResourceError,
        trio.ClosedResourceError,
    ) as group:
        raise _single(group) from None
    if failure:
        raise failure[0]
    return taker.total


def _store(sink: Sink, data: bytearray) -> Exception | None:
    try:
        sink(data)
    except (OSError, ValueError) as exc:
        return exc
    return None


def _single(group: BaseExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _single(first) if isinstance(first, BaseExceptionGroup) else first


class _Taker:
    """Asks one piece ahead and reads them in order."""

    def __init__(self, stream: Stream, sha256: str, piece: int, size: int | None) -> None:
        self.total = size or 0
        self._stream = stream
        self._reader = FrameReader(stream)
        self._sha256 = sha256
        self._piece = piece
        self._size = size

    async def run(self, offset: int, pieces: trio.MemorySendChannel[bytearray]) -> None:
        call, end, known = 1, offset, self._size
        await self._ask(call, end)
        end += self._piece
        position = offset
        while True:
            if known is not None and end < known:
                await self._ask(call + 1, end)
                end += self._piece
                ahead = True
            else:
                ahead = False
            data = await self._take(call, position)
            known = self.total
            position += len(data)
            if data:
                await pieces.send(data)
            if position >= known:
                return
            if not data:
                raise RemoteProtocolError(f"{self._stream.peer} sent nothing at byte {position} of {known}")
            call += 1
            if not ahead:
                await self._ask(call, position)
                end = position + self._piece

    async def _ask(self, call: int, offset: int) -> None:
        ask = FetchPiece(sha256=self._sha256, offset=offset, length=self._piece)
        with trio.fail_after(STALL_S):
            await self._stream.send_all(BLOB.encode(Frame(FrameKind.CALL, call, ask)))

    async def _take(self, call: int, position: int) -> bytearray:
        peer = self._stream.peer
        with trio.fail_after(PIECE_S):
            with trio.fail_after(STALL_S):
                frame = await self._reader.frame()
            if frame is None:
                raise trio.BrokenResourceError
            match frame.message:
                case PieceFollows() as head if frame.kind is FrameKind.ANSWER and frame.id == call:
                    pass
                case BlobAbsent() as no:
                    raise Refused(f"{peer} does not give {self._sha256[:12]}…: {no.detail}", reason=no.reason)
                case _:
                    raise RemoteProtocolError(f"{peer} sent a {type(frame.message).__name__} out of turn")
            if head.size != (self._size if self._size is not None else head.size):
                raise RemoteProtocolError(f"{peer} has {head.size} bytes under this hash, not {self._size}")
            expected = max(0, min(self._piece, head.size - position))
            if head.length != expected:
                raise RemoteProtocolError(f"{peer} sent {head.length} bytes where {expected} were asked for")
            self._size = self.total = head.size
            return await self._reader.raw(head.length)
