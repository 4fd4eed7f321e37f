"""Download files by sha256 over `/sark/blob/1`. The downloader requests piece by piece; the holder sends nothing unrequested.

    await fetch_blob(network, peer, addresses, sha256, offset=0, sink=file.write)

`BlobClient` handles one stream's requests and their replies in order, for every downloader. `fetch_blob` reads a file in order from one
peer: records, manifests, and models of a cancelled campaign. `swarm_download.py` reads a model from several peers at once, in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.blobs import (
    BLOB,
    MAX_PIECE,
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
from protocol.wire.busy import Busy
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from swarm.base.threads import DISK
from swarm.blobs.pieces import count_of, from_bits, span
from swarm.blobs.wire import STALL_S, FrameReader, PieceMemory
from swarm.net.addresses import Address, PeerId
from swarm.net.network import Network, Stream

PIECE: Final = 2 * 1024 * 1024
"""Bytes in one request of `fetch_blob`: large compared with a round trip, small compared with memory."""
PIECE_S: Final = 120.0
"""Time limit of one request of `fetch_blob`, however slow the link."""

Sink = Callable[[bytearray], object]
"""Stores the next bytes, in order, keeping no reference. Called in a worker thread; its OSError or ValueError goes to the caller."""
Progress = Callable[[int, int], None]
"""(bytes so far, total bytes)"""
Request = FetchPiece | AskPieces | AskPieceHashes | AskHolders


@dataclass
class BlobClient:
    """Requests for one file on one stream, and their replies in order. Methods raise as streams do, and `trio.TooSlowError`."""

    stream: Stream
    sha256: str
    size: int | None
    """Bytes of the whole file; None until the first reply states them."""
    grant: TransferGrant | None
    piece_s: float
    """Time limit of one reply, including its bytes."""
    memory: PieceMemory
    """Memory for the pieces that arrive."""
    pending: deque[Request] = field(default_factory=deque)
    _calls: int = 0

    def __post_init__(self) -> None:
        self._reader = FrameReader(self.stream)

    async def fetch(self, offset: int, length: int, missing: bytes | None = None) -> None:
        """Request a piece. `missing`: bits of the pieces, any of which the holder may send instead."""
        await self.request(
            FetchPiece(sha256=self.sha256, offset=offset, length=length, grant=self.grant, missing=missing)
        )

    async def ask_pieces(self) -> None:
        """Ask which pieces the peer has."""
        await self.request(AskPieces(sha256=self.sha256, grant=self.grant))

    async def request(self, message: Request) -> None:
        self._calls += 1
        with trio.fail_after(STALL_S):
            await self.stream.send_all(BLOB.encode(Frame(FrameKind.CALL, self._calls, message)))
        self.pending.append(message)

    async def reply(self, *, first_byte_s: float = STALL_S) -> tuple[Request, Message, bytearray]:
        """The oldest pending request, its reply, and the bytes that follow. The `offset` of a `PieceFollows` is always filled in.

        Raises `Refused` if the peer has no such file for us, `RemoteProtocolError` if it breaks the rules.
        """
        peer = self.stream.peer
        call = self._calls - len(self.pending) + 1
        request = self.pending.popleft()
        with trio.fail_after(self.piece_s):
            with trio.fail_after(first_byte_s):
                frame = await self._reader.frame()
            if frame is None:
                raise trio.BrokenResourceError
            match frame.message:
                case BlobAbsent() as absent:
                    raise Refused(
                        f"{peer} does not send {self.sha256[:12]}…: {absent.detail or absent.reason}",
                        reason=absent.reason,
                    )
                case Busy(retry_after_s=wait):
                    why = f"{peer} is overloaded; try again in {wait:.1f} s"
                    raise Refused(why, reason=Reason.OVERLOADED, retry_after_s=wait)
                case PieceFollows(size=size) | HavePieces(size=size) if self.size not in (None, size):
                    raise RemoteProtocolError(f"{peer} has {size} bytes under this hash, not {self.size}")
                case _ if frame.kind is not FrameKind.ANSWER or frame.id != call:
                    pass
                case PieceFollows() as head if isinstance(request, FetchPiece):
                    self.size = head.size
                    head = head.model_copy(update={"offset": self._check_piece(request, head)})
                    return request, head, await self._bytes(head.length)
                case PieceFollows() as head if isinstance(request, AskPieceHashes):
                    return request, head, await self._bytes(head.length)
                case HavePieces() as have if isinstance(request, AskPieces) or (
                    isinstance(request, FetchPiece) and request.missing is not None
                ):
                    return request, have, bytearray()
                case Holders() as holders if isinstance(request, AskHolders):
                    return request, holders, bytearray()
                case _:
                    pass
        raise RemoteProtocolError(f"{peer} sent an unexpected {type(frame.message).__name__}")

    async def _bytes(self, length: int) -> bytearray:
        data = self.memory.take(length)
        await self._reader.raw(data)
        return data

    def _check_piece(self, request: FetchPiece, head: PieceFollows) -> int:
        """The offset of the piece that follows."""
        offset, expected = request.offset, max(0, min(request.length, head.size - request.offset))
        if head.offset is not None and head.offset != offset:
            index = head.offset // PIECE_SIZE
            if request.missing is None or index not in from_bits(request.missing, count_of(head.size)):
                raise RemoteProtocolError(f"{self.stream.peer} sent a piece that was not requested")
            offset, expected = span(index, head.size)
        if head.length != expected:
            raise RemoteProtocolError(
                f"{self.stream.peer} sent {head.length} bytes instead of the {expected} requested"
            )
        return offset


@asynccontextmanager
async def blob_client(
    network: Network,
    peer: PeerId,
    addresses: Sequence[Address],
    sha256: str,
    *,
    size: int | None = None,
    grant: TransferGrant | None = None,
    piece_s: float = PIECE_S,
    memory: PieceMemory | None = None,
) -> AsyncIterator[BlobClient]:
    """A stream for requests for one file. The block raises `Unreachable` if the peer stalls or the link breaks."""
    stream = await network.open(peer, ProtocolId.BLOB, addresses)
    try:
        yield BlobClient(stream, sha256, size, grant, piece_s, memory or PieceMemory(1))
    except trio.TooSlowError:
        slow = f"no byte for {STALL_S:g} s, or a piece took over {piece_s:g} s"
        raise Unreachable(f"{peer} stopped sending {sha256[:12]}… ({slow})") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise Unreachable(f"the link with {peer} broke while {sha256[:12]}… was being fetched") from None
    finally:  # after a refusal, an error or a cancellation, stop the remaining bytes
        with trio.CancelScope(shield=True):
            await stream.reset()


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
    """Read a file from byte `offset` into `sink`, with at most three pieces in memory. Returns the size of the whole file.

    The caller checks the hash of the whole file; after a resume, that includes the first part. Raises `Refused` if the peer has no such
    file for us, `Unreachable` if it stalls or the link breaks (the sink's bytes stay valid, and the download can be resumed), and
    `RemoteProtocolError` if it breaks the rules or reports a size other than `size`.
    """
    length = min(piece, MAX_PIECE)
    async with blob_client(network, peer, addresses, sha256, size=size) as client:
        position = requested = offset
        while True:
            while len(client.pending) < 2 and (
                requested == position or (client.size is not None and requested < client.size)
            ):
                await client.fetch(requested, length)  # one ahead, so that the link never waits for the disk
                requested += length
            _, _, data = await client.reply()
            assert client.size is not None
            if data:
                await DISK.run(sink, data)
                position += len(data)
                client.memory.give(data)
                if progress is not None:
                    progress(position, client.size)
            if position >= client.size:
                return client.size
            if not data:
                raise RemoteProtocolError(f"the peer sent nothing at byte {position} of {client.size}")
