"""Questions about one file on one stream, and their answers in order; for `swarm/blobs/swarm_download.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import trio

from protocol.errors import Refused, RemoteProtocolError
from protocol.messages.blobs import (
    BLOB,
    PIECE_SIZE,
    AskPieces,
    BlobAbsent,
    FetchPiece,
    HavePieces,
    PieceFollows,
)
from protocol.signed.transfer_grant import TransferGrant
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from swarm.blobs.pieces import count_of, span, to_bits
from swarm.blobs.wire import STALL_S, FrameReader
from swarm.net.network import Stream

PIECE_S: Final = 300.0
"""A whole piece, however slow the link."""


@dataclass(frozen=True, slots=True)
class PullDeclined:
    """No piece comes, for others have been sent all that we lack; what there is."""

    index: int
    have: HavePieces


class PullClient:
    """Questions about one file on one stream, and their answers in order."""

    def __init__(self, stream: Stream, sha256: str, size: int, grant: TransferGrant | None) -> None:
        self.pending: deque[int | None] = deque()
        """What was asked: a piece, or None for which there are."""
        self.looked_at = trio.current_time()
        self._would_do: frozenset[int] = frozenset()
        self._stream = stream
        self._reader = FrameReader(stream)
        self._sha256, self._size, self._grant = sha256, size, grant
        self._call = 0

    async def fetch(self, index: int, would_do: Collection[int] | None) -> None:
        offset, length = span(index, self._size)
        bits = None if would_do is None else to_bits(would_do, count_of(self._size))
        await self._say(
            FetchPiece(sha256=self._sha256, offset=offset, length=length, grant=self._grant, missing=bits)
        )
        self._would_do = frozenset(would_do or ())
        self.pending.append(index)

    async def which(self) -> None:
        self.looked_at = trio.current_time()
        await self._say(AskPieces(sha256=self._sha256, grant=self._grant))
        self.pending.append(None)

    async def _say(self, message: Message) -> None:
        self._call += 1
        with trio.fail_after(STALL_S):
            await self._stream.send_all(BLOB.encode(Frame(FrameKind.CALL, self._call, message)))

    async def answer(self) -> tuple[int, int, bytearray] | HavePieces | PullDeclined:
        """The next one: the piece that comes, the one that was named, its bytes.

        Raises `Refused`, `RemoteProtocolError`, and as streams do.
        """
        peer = self._stream.peer
        call = self._call - len(self.pending) + 1
        index = self.pending.popleft()
        with trio.fail_after(PIECE_S):
            with trio.fail_after(STALL_S):
                frame = await self._reader.frame()
            if frame is None:
                raise trio.BrokenResourceError
            match frame.message:
                case BlobAbsent() as no:
                    raise Refused(f"{peer} does not give {self._sha256[:12]}…: {no.detail}", reason=no.reason)
                case PieceFollows(size=size) | HavePieces(size=size) if size != self._size:
                    raise RemoteProtocolError(f"{peer} has {size} bytes under this hash, not {self._size}")
                case HavePieces() as held if frame.id == call and (index is None or self._would_do):
                    return held if index is None else PullDeclined(index, held)
                case PieceFollows() as head if index is not None and frame.id == call:
                    sent = index if head.offset is None else head.offset // PIECE_SIZE
                    if sent != index and sent not in self._would_do:
                        raise RemoteProtocolError(f"{peer} sent another piece than was asked for")
                    expected = span(sent, self._size)[1]
                    if head.length != expected:
                        raise RemoteProtocolError(
                            f"{peer} sent {head.length} bytes where {expected} were asked for"
                        )
                    return sent, index, await self._reader.raw(head.length)
                case message:
                    raise RemoteProtocolError(f"{peer} sent a {type(message).__name__} out of turn")
