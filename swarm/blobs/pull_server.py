"""What only the scheduler that speaks for a task is asked about its model: the hash of each piece, and who else has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.blobs import (
    BLOB,
    HASH_SIZE,
    AskHolders,
    AskPieceHashes,
    BlobAbsent,
    Holders,
    PieceFollows,
)
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId
from swarm.blobs.pieces import Hashes, count_of, parted
from swarm.blobs.wire import STALL_S, FrameReader
from swarm.net.addresses import PeerId
from swarm.net.network import Network

HASHES_S: Final = 120.0
"""It may have to read a file of many GB before it can tell."""
AGAIN_S: Final = 1.0

log = structlog.get_logger("sark.blobs")


class PullServer:
    """Questions about one file, each on a stream of its own. Who is asked may change from one to the next."""

    def __init__(self, network: Network, sha256: str, size: int, peer: Callable[[], PeerId]) -> None:
        self._network, self._sha256, self._size = network, sha256, size
        self.peer = peer
        """Who speaks for the task at the moment; there is a connection with it."""

    async def others(self) -> Holders | None:
        """Who else has it, and the transfer grant that lets us have it from there; None: not to be known now."""
        try:
            answer, _ = await self._ask(AskHolders(sha256=self._sha256), STALL_S)
        except (Unreachable, Refused, RemoteProtocolError) as exc:
            log.debug("model.others_not_told", sha256=self._sha256, why=exc.what)
            return None
        return answer if isinstance(answer, Holders) and answer.grant is not None else None

    async def hashes(self) -> Hashes | None:
        """What each piece must be, asked for until there is an answer; None: it does not tell."""
        while True:
            try:
                head, data = await self._ask(AskPieceHashes(sha256=self._sha256), HASHES_S)
            except Unreachable:
                await trio.sleep(AGAIN_S)
                continue
            except (Refused, RemoteProtocolError) as exc:  # an older one does not know the question
                log.info("model.pieces_not_told", sha256=self._sha256, why=exc.what)
                return None
            expected = (self._size, count_of(self._size) * HASH_SIZE)
            if not isinstance(head, PieceFollows) or (head.size, len(data)) != expected:
                log.warning("model.pieces_odd", sha256=self._sha256, bytes=len(data))
                return None
            return parted(bytes(data))

    async def _ask(self, message: Message, max_wait_s: float) -> tuple[Message, bytearray]:
        peer = self.peer()
        stream = await self._network.open(peer, ProtocolId.BLOB, ())
        try:
            with trio.fail_after(max_wait_s):
                await stream.send_all(BLOB.encode(Frame(FrameKind.CALL, 1, message)))
                reader = FrameReader(stream)
                frame = await reader.frame()
                if frame is None:
                    raise Unreachable(f"{peer} hung up")
                answer = frame.message
                if isinstance(answer, BlobAbsent):
                    raise Refused(answer.detail or str(answer.reason), reason=answer.reason)
                return answer, await reader.raw(answer.length if isinstance(answer, PieceFollows) else 0)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise Unreachable(f"{peer} did not answer") from exc
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()
