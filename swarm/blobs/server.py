"""The holder's side of `/sark/blob/1`: sends pieces of files to peers that may have them, and says which pieces and holders there are.

    serve_blobs(network, find)                                 find(peer, sha256) -> Path | bytes | Reason | None
    serve_blobs(network, find, shared=…, where=…, resting=…)   a worker also shares models, a scheduler knows who has them

Files are read in worker threads, a part of a piece at a time; at most one part for each peer is in memory. The holder sends nothing
unrequested.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import structlog
import trio

from protocol.errors import RemoteProtocolError
from protocol.messages.blobs import (
    BLOB,
    PIECE_SIZE,
    AskHolders,
    AskPieceHashes,
    AskPieces,
    BlobAbsent,
    FetchPiece,
    HavePieces,
    Holders,
    PieceFollows,
    TransferGrant,
)
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.base.threads import HASHING, SERVING
from swarm.blobs.pieces import count_of, covered, divides, from_bits, hashes_of, span, to_bits
from swarm.blobs.wire import BURST, STALL_S, FrameReader
from swarm.net.addresses import PeerId
from swarm.net.cost import BYTE_US, CALL_US
from swarm.net.governor import Payer
from swarm.net.network import Network, Stream

IDLE_S: Final = 60.0
"""How long a peer may pause between two requests."""
PIECE_US: Final = 0.2
"""Processor time to look at one piece of a file, in µs (an estimate)."""
NO_WAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""Flag to read only bytes that are in memory; exists on Linux."""
MAX_COUNTED: Final = 64
"""Files for which the pieces sent are recorded."""
MAX_HASHED: Final = 16
"""Files whose piece hashes are kept."""


class PartialBlob(Protocol):
    """A file that is still arriving: the verified part of it."""

    @property
    def path(self) -> Path: ...

    @property
    def total(self) -> int:
        """Bytes of the whole file."""
        ...

    def has(self, index: int) -> bool: ...

    def held(self) -> frozenset[int]: ...


Content = Path | bytes | PartialBlob
Find = Callable[[PeerId, str], Path | bytes | Reason | None]
"""The content for a peer that may have it, or the reason why not; None means `unknown`. Must not block."""
Shared = Callable[[PeerId, str, TransferGrant], Content | Reason | None]
"""As `Find`, for a peer that shows a grant. Must not block."""
Knows = Callable[[PeerId, str], Awaitable[Holders | None]]
"""The other holders of a file, if this peer may have the file; None if it may not."""

log = structlog.get_logger("sark.blobs")


def serve_blobs(
    network: Network,
    find: Find,
    *,
    shared: Shared | None = None,
    where: Knows | None = None,
    resting: Callable[[], bool] = lambda: False,
) -> BlobServer:
    """Answer every peer that requests files which `find`, or `shared` for a grant, gives it. `resting`: whether to share nothing now."""
    holder = BlobServer(find, shared, where, resting)

    async def handler(stream: Stream) -> None:
        try:
            await holder.serve(stream, network.governor.payer(stream.peer))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("blob.gone", peer=stream.peer)
        except trio.TooSlowError:
            log.info("blob.stalled", peer=stream.peer)
            await stream.reset()
        except RemoteProtocolError as exc:
            log.warning("blob.broken", peer=stream.peer, why=exc.what)
            await stream.reset()

    network.handle(ProtocolId.BLOB, handler)
    return holder


class _Absent(Exception):
    """The reply to a request is `BlobAbsent`."""

    def __init__(self, detail: str, reason: Reason = Reason.UNKNOWN) -> None:
        self.message = BlobAbsent(reason=reason, detail=detail)


@dataclass(slots=True)
class _Open:
    """A file being sent on one stream."""

    sha256: str
    grant: TransferGrant | None
    file: BinaryIO
    size: int
    partial: PartialBlob | None = None


@dataclass
class BlobServer:
    """Answers requests for the pieces, piece hashes and holders of files."""

    find: Find
    shared: Shared | None
    where: Knows | None
    resting: Callable[[], bool]
    _sent: OrderedDict[str, set[int]] = field(default_factory=OrderedDict)
    """File (sha256) → its pieces that were sent to some peer."""
    _hashes: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _hashing: trio.Lock = field(default_factory=trio.Lock)
    _sharing: int = 0
    """Pieces being sent to peers that showed a grant."""
    _settled: trio.Event = field(default_factory=trio.Event)

    async def settled(self) -> None:
        """Wait until nothing is being sent for a grant; while `resting`, no new piece begins."""
        while self._sharing:
            await self._settled.wait()

    async def serve(self, stream: Stream, payer: Payer) -> None:
        """Serve one peer until it leaves. Its requests are served one after another, so a peer that owes only waits for its answer."""
        reader = FrameReader(stream)
        opened: _Open | None = None
        try:
            while True:
                with trio.fail_after(IDLE_S):
                    frame = await reader.frame()
                if frame is None:
                    return
                if frame.kind is not FrameKind.CALL:
                    raise RemoteProtocolError(f"a {type(frame.message).__name__} that is not a call")
                payer.charge(CALL_US + frame.size * BYTE_US + self._cost_us(frame.message, opened))
                if owes := payer.owes_s():
                    await trio.sleep(owes)
                await payer.turn(CALL_US)
                try:
                    match frame.message:
                        case FetchPiece() | AskPieces() as ask:
                            if opened is None or (opened.sha256, opened.grant) != (ask.sha256, ask.grant):
                                if opened is not None:
                                    opened.file.close()
                                    opened = None
                                opened = await self._open(stream.peer, ask)
                            if ask.grant is not None and self.resting():
                                raise _Absent("a measurement is running here", Reason.BUSY)
                            if isinstance(ask, AskPieces):
                                await _say(stream, frame.id, self._pieces_of(opened))
                            else:
                                await self._send(stream, frame.id, opened, ask)
                        case AskPieceHashes(sha256=sha256):
                            await self._send_hashes(stream, frame.id, sha256)
                        case AskHolders(sha256=sha256):
                            holders = (
                                await self.where(stream.peer, sha256) if self.where is not None else None
                            )
                            if holders is None:
                                raise _Absent("no other node is known to have it")
                            await _say(stream, frame.id, holders)
                        case message:
                            raise RemoteProtocolError(
                                f"a {type(message).__name__} is not a call that this node answers"
                            )
                except _Absent as absent:
                    await _say(stream, frame.id, absent.message)
        finally:
            if opened is not None:
                opened.file.close()

    def _cost_us(self, message: Message, opened: _Open | None) -> float:
        """The cost of finding pieces, in µs of processor time. Bytes are not charged: a peer that may have them gets them at full speed."""
        match message:
            case FetchPiece(missing=bytes() as missing):
                return 8 * len(missing) * PIECE_US
            case AskPieces() if opened is not None:
                return count_of(opened.size) * PIECE_US
        return 0.0

    # -- contents --------------------------------------------------------------------------------------------------------

    async def _open(self, peer: PeerId, ask: FetchPiece | AskPieces) -> _Open:
        content: Content | Reason | None = self.find(peer, ask.sha256)
        if ask.grant is not None and self.shared is not None and isinstance(content, Reason | None):
            content = self.shared(peer, ask.sha256, ask.grant)
        if isinstance(content, Reason):
            raise _Absent("not served to this peer", content)
        if content is None:
            raise _Absent("no such file here")
        if isinstance(content, bytes):
            return _Open(ask.sha256, ask.grant, io.BytesIO(content), len(content))
        partial = None if isinstance(content, Path) else content
        path = content if isinstance(content, Path) else content.path
        try:
            file, size = await SERVING.run(_open_file, path)
        except FileNotFoundError:
            log.info("blob.not_here", path=str(path))
            raise _Absent("no such file here") from None
        except OSError as exc:
            log.warning("blob.unreadable", path=str(path), why=str(exc))
            raise _Absent("no such file here") from None
        return _Open(ask.sha256, ask.grant, file, size if partial is None else partial.total, partial)

    def _pieces_of(self, opened: _Open) -> HavePieces:
        count = count_of(opened.size)
        have = None if opened.partial is None else to_bits(opened.partial.held(), count)
        sent = self._sent.get(opened.sha256, set())
        fresh = to_bits(set(range(count)).difference(sent), count) if opened.partial is None else None
        return HavePieces(size=opened.size, pieces=have, fresh=fresh)

    # -- sending ---------------------------------------------------------------------------------------------------------

    async def _send(self, stream: Stream, call: int, opened: _Open, ask: FetchPiece) -> None:
        self._sharing += ask.grant is not None
        try:
            chosen = self._unsent(opened, ask.missing) if ask.missing is not None else None
            if ask.missing is not None and chosen is None:
                await _say(stream, call, self._pieces_of(opened))
            else:
                await self._send_piece(stream, call, opened, ask, chosen)
        finally:
            self._sharing -= ask.grant is not None
            if not self._sharing:
                self._settled.set()
                self._settled = trio.Event()

    async def _send_piece(
        self, stream: Stream, call: int, opened: _Open, ask: FetchPiece, chosen: int | None
    ) -> None:
        """`chosen`: a piece to send instead of the requested one."""
        offset, length = (ask.offset, ask.length) if chosen is None else span(chosen, opened.size)
        length = max(0, min(length, opened.size - offset))
        partial = opened.partial
        if partial is not None and not all(partial.has(index) for index in covered(offset, length)):
            raise _Absent("that piece is not here yet")
        if offset % PIECE_SIZE == 0 and length == min(PIECE_SIZE, opened.size - offset):
            sent = self._sent.setdefault(opened.sha256, set())
            sent.add(offset // PIECE_SIZE)
            self._sent.move_to_end(opened.sha256)
            if len(self._sent) > MAX_COUNTED:
                self._sent.popitem(last=False)
        part = memoryview(bytearray(min(BURST, length)))
        for start in range(0, max(length, 1), BURST):
            data = part[: length - start]
            try:
                size = await _read(opened.file, offset + start, data)
            except OSError as exc:
                log.warning("blob.unreadable", sha256=ask.sha256, why=str(exc))
                if not start:
                    raise _Absent("it cannot be read here") from None
                raise trio.BrokenResourceError from None
            if size != len(data):  # the file was truncated meanwhile
                raise trio.BrokenResourceError
            if not start:
                moved = None if chosen is None else offset
                await _say(stream, call, PieceFollows(size=opened.size, length=length, offset=moved))
            with trio.fail_after(STALL_S):
                await stream.send_all(data)

    def _unsent(self, opened: _Open, missing: bytes) -> int | None:
        """The first piece in `missing` that was sent to nobody yet; None: this node has no such piece."""
        sent = self._sent.get(opened.sha256, set())
        requested = from_bits(missing, count_of(opened.size)).difference(sent)
        partial = opened.partial
        return min((index for index in requested if partial is None or partial.has(index)), default=None)

    async def _send_hashes(self, stream: Stream, call: int, sha256: str) -> None:
        """Send the piece hashes, which are computed at the first request and shared by all later ones."""
        content = self.find(stream.peer, sha256)
        if isinstance(content, Reason | None):
            raise _Absent("not served to this peer", content or Reason.UNKNOWN)
        data = b""
        try:
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            if divides(size):
                async with self._hashing:
                    if sha256 not in self._hashes:
                        hashes = await HASHING.run(hashes_of, content)
                        self._hashes[sha256] = b"".join(hashes)
                        if len(self._hashes) > MAX_HASHED:
                            self._hashes.popitem(last=False)
                    data = self._hashes[sha256]
        except OSError as exc:
            log.warning("blob.unreadable", sha256=sha256, why=str(exc))
            raise _Absent("it cannot be read here") from None
        await _say(stream, call, PieceFollows(size=size, length=len(data)))
        await _send_bytes(stream, data)


def _open_file(path: Path) -> tuple[BinaryIO, int]:
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(path.open("rb", buffering=0))  # a partial file changes meanwhile
        size = file.seek(0, io.SEEK_END)
        undo.pop_all()
    return file, size


async def _read(file: BinaryIO, offset: int, into: memoryview) -> int:
    """Read from `offset`; returns how many bytes there were. Runs in a worker thread unless the bytes are in memory."""
    size = _read_memory(file, offset, into)
    return size if size == len(into) else await SERVING.run(_read_file, file, offset, into)


def _read_memory(file: BinaryIO, offset: int, into: memoryview) -> int:
    """Read what the system holds of the file in memory, if it can tell."""
    if isinstance(file, io.BytesIO):
        return _read_file(file, offset, into)
    if not (NO_WAIT and into):
        return 0
    with contextlib.suppress(OSError):  # the bytes are on the disk, or the file system cannot tell
        return os.preadv(file.fileno(), [into], offset, NO_WAIT)
    return 0


def _read_file(file: BinaryIO, offset: int, into: memoryview) -> int:
    if not into:  # an offset may be larger than any file: the system would reject it
        return 0
    file.seek(offset)
    size = 0
    while size < len(into) and (count := file.readinto(into[size:])):  # type: ignore[attr-defined]  # files without a buffer have it
        size += count
    return size


async def _send_bytes(stream: Stream, data: bytes) -> None:
    view = memoryview(data)
    for at in range(0, len(view), BURST):
        with trio.fail_after(STALL_S):
            await stream.send_all(view[at : at + BURST])


async def _say(stream: Stream, call: int, message: Message) -> None:
    with trio.fail_after(STALL_S):
        await stream.send_all(BLOB.encode(Frame(FrameKind.ANSWER, call, message)))
