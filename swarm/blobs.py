"""Moving files named by their sha256, `/sark/blob/1`: the taker pulls piece by piece, the holder sends nothing unasked.

    serve_blobs(network, find)                                 find(peer, sha256) -> Path | bytes | Reason | None
    await fetch_blob(network, peer, addresses, sha256, offset=0, sink=file.write)

The next piece is asked for before the last one is stored, so neither side waits for the other; files are read, and the sink is
called, in worker threads. At most three pieces are in memory at once. Whether the whole is what its name says is for the taker
to check: it hashes what the sink got, and a resumed file from its first byte.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import structlog
import trio

from protocol.base import MAX_FRAME, Message
from protocol.blob_messages import BLOB, MAX_PIECE, WRITE_SIZE, Absent, Fetch, Sending
from protocol.codec import PREFIX, Frame, Kind
from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.words import Family, Reason
from swarm.network import Address, Network, PeerId, Stream

PIECE: Final = 2 * 1024 * 1024
"""Bytes asked for at once: large against a round trip, small against memory."""
STALL_S: Final = 10.0
"""A peer that sends, or takes, no byte for so long is given up."""
BURST: Final = 8 * WRITE_SIZE
"""Bytes handed to the stream under one deadline: whole frames, and few timers."""
PIECE_S: Final = 120.0
"""A whole piece, however slow the link."""
IDLE_S: Final = 60.0
"""A taker may think for so long between two pieces."""

Find = Callable[[PeerId, str], Path | bytes | Reason | None]
"""The content for a peer that may have it, or why not; None is `unknown`. Must not block."""
Sink = Callable[[bytearray], object]
"""Stores the next bytes, in order. Called in a worker thread; what it raises goes to the caller of `fetch_blob`."""
Progress = Callable[[int, int], None]
"""(bytes so far, bytes in all)"""

log = structlog.get_logger("sark.blobs")


# -- the holder ----------------------------------------------------------------------------------------------------------


def serve_blobs(network: Network, find: Find) -> None:
    """Answer everybody who asks for files that `find` gives them."""

    async def handler(stream: Stream) -> None:
        try:
            await _serve(stream, find)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("blob.gone", peer=stream.peer)
        except trio.TooSlowError:
            log.info("blob.stalled", peer=stream.peer)
            await stream.reset()
        except RemoteProtocolError as exc:
            log.warning("blob.broken", peer=stream.peer, why=exc.what)
            await stream.reset()

    network.handle(Family.BLOB, handler)


async def _serve(stream: Stream, find: Find) -> None:
    reader = _Reader(stream)
    opened: tuple[str, BinaryIO, int] | None = None
    try:
        while True:
            with trio.fail_after(IDLE_S):
                frame = await reader.frame()
            if frame is None:
                return
            if frame.kind is not Kind.CALL or not isinstance(frame.message, Fetch):
                raise RemoteProtocolError(f"a {type(frame.message).__name__} where only Fetch is for us")
            ask = frame.message
            if opened is None or opened[0] != ask.sha256:
                if opened is not None:
                    opened[1].close()
                    opened = None
                found = find(stream.peer, ask.sha256)
                if isinstance(found, Reason):
                    await _say(stream, frame.id, Absent(reason=found, detail="not served to this peer"))
                    continue
                opened = await _open(found, ask.sha256)
            if opened is None:
                await _say(stream, frame.id, Absent(reason=Reason.UNKNOWN, detail="no such file here"))
                continue
            _, file, size = opened
            try:
                data = await trio.to_thread.run_sync(_read, file, size, ask.offset, ask.length)
            except OSError as exc:
                log.warning("blob.unreadable", sha256=ask.sha256, why=str(exc))
                await _say(stream, frame.id, Absent(reason=Reason.UNKNOWN, detail="it cannot be read here"))
                continue
            await _say(stream, frame.id, Sending(size=size, length=len(data)))
            view = memoryview(data)
            for start in range(0, len(view), BURST):
                with trio.fail_after(STALL_S):
                    await stream.send_all(view[start : start + BURST])
    finally:
        if opened is not None:
            opened[1].close()


async def _open(content: Path | bytes | None, sha256: str) -> tuple[str, BinaryIO, int] | None:
    if content is None:
        return None
    if isinstance(content, bytes):
        return sha256, io.BytesIO(content), len(content)
    try:
        file, size = await trio.to_thread.run_sync(_open_file, content)
    except OSError as exc:
        log.warning("blob.unreadable", path=str(content), why=str(exc))
        return None
    return sha256, file, size


def _open_file(path: Path) -> tuple[BinaryIO, int]:
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(path.open("rb", buffering=0))
        size = file.seek(0, io.SEEK_END)
        undo.pop_all()
    return file, size


def _read(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    if offset >= size:  # an offset may be larger than any file: the system would refuse to go there
        return b""
    file.seek(offset)
    return file.read(length)


async def _say(stream: Stream, call: int, message: Message) -> None:
    with trio.fail_after(STALL_S):
        await stream.send_all(BLOB.encode(Frame(Kind.ANSWER, call, message)))


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
    stream = await network.open(peer, Family.BLOB, addresses)
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
        self._reader = _Reader(stream)
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
        ask = Fetch(sha256=self._sha256, offset=offset, length=self._piece)
        with trio.fail_after(STALL_S):
            await self._stream.send_all(BLOB.encode(Frame(Kind.CALL, call, ask)))

    async def _take(self, call: int, position: int) -> bytearray:
        peer = self._stream.peer
        with trio.fail_after(PIECE_S):
            with trio.fail_after(STALL_S):
                frame = await self._reader.frame()
            if frame is None:
                raise trio.BrokenResourceError
            match frame.message:
                case Sending() as head if frame.kind is Kind.ANSWER and frame.id == call:
                    pass
                case Absent() as no:
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


class _Reader:
    """Frames and raw bytes, in turns, from one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def frame(self) -> Frame | None:
        """The next frame; None when the peer has finished."""
        if not await self._have(PREFIX):
            if self._buffer:
                raise RemoteProtocolError("the stream ended in the middle of a frame")
            return None
        size = int.from_bytes(self._buffer[:PREFIX], "big")
        if size > MAX_FRAME:
            raise RemoteProtocolError(f"a frame of {size} bytes is above the cap of {MAX_FRAME}")
        if not await self._have(PREFIX + size):
            raise RemoteProtocolError("the stream ended in the middle of a frame")
        body = bytes(self._buffer[PREFIX : PREFIX + size])
        del self._buffer[: PREFIX + size]
        return BLOB.decode(body)

    async def raw(self, count: int) -> bytearray:
        """Exactly `count` bytes. Each read may wait `STALL_S`."""
        data = bytearray(count)
        filled = min(count, len(self._buffer))
        data[:filled] = self._buffer[:filled]
        del self._buffer[:filled]
        view = memoryview(data)
        with trio.fail_after(STALL_S) as patience:
            while filled < count:
                part = await self._stream.receive_some(count - filled)
                if not part:
                    raise trio.BrokenResourceError
                view[filled : filled + len(part)] = part
                filled += len(part)
                patience.deadline = trio.current_time() + STALL_S
        return data

    async def _have(self, count: int) -> bool:
        while len(self._buffer) < count:
            part = await self._stream.receive_some(PREFIX + MAX_FRAME)
            if not part:
                return False
            self._buffer += part
        return True
