"""Inbound handshakes take turns and use a limited share of the processor.

A handshake costs milliseconds before anything is known about the peer. Once a peer has sent its first message, it waits for a turn, with
peers grouped by network, so that a flood from one network delays that network. Handshakes beyond a short queue are closed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import Transport as NoiseTransport

from swarm.net.cost import Bucket, FairQueue, Share
from swarm.net.limits import decrement
from swarm.p2p.session import BatchSession, CarriedConnection

HANDSHAKE_US: Final = 5_000.0
"""To prove both keys and set up the muxer and its tasks (an estimate)."""
HANDSHAKES: Final = Share(250_000, 50_000)
"""A quarter of a core: 10 handshakes at once, then 50 per second. Other handshakes wait for their turn."""
FIRST_MESSAGE: Final = 2 + 32
"""Bytes of the shortest first message: its length, and a key."""
MOST_WAITING: Final = 256
MOST_WAITING_OF_ONE: Final = 32
"""Handshakes of one network that may wait; fewer if many networks wait."""
WORKED_WEIGHT: Final = 4.0
"""Weight in the queue of an address from which a connection was used before."""


class CrowdedError(BaseLibp2pError):
    """Too many handshakes of one network are waiting."""


class HandshakeTurns:
    """Lets handshakes begin at the rate of `share`."""

    def __init__(self, share: Share = HANDSHAKES) -> None:
        self.share = share
        self._bucket = Bucket()
        self._queue: FairQueue[trio.Event] = FairQueue()
        self._waiting: Counter[str] = Counter()
        self._left: set[trio.Event] = set()
        """Queue entries whose callers have given up."""
        self._dispatching = False

    async def turn(self, network: str, weight: float = 1.0) -> None:
        """Wait until a handshake with a peer of this network may begin. Returns at once, without a checkpoint, while nobody waits. Raises
        CrowdedError if too many handshakes of the network wait."""
        if not self._dispatching and not self._bucket.wait_s(trio.current_time(), self.share, HANDSHAKE_US):
            self._bucket.charge(trio.current_time(), self.share, HANDSHAKE_US)
            return
        networks = len(self._waiting) + (network not in self._waiting)
        if self._waiting[network] >= min(MOST_WAITING_OF_ONE, max(1, MOST_WAITING // networks)):
            raise CrowdedError(f"too many handshakes with {network} wait")
        self._waiting[network] += 1
        begins = trio.Event()
        self._queue.push(network, weight, HANDSHAKE_US, begins)
        if not self._dispatching:
            self._dispatching = True
            trio.lowlevel.spawn_system_task(self._dispatch)
        try:
            await begins.wait()
        finally:
            decrement(self._waiting, network)
            if not begins.is_set():
                self._left.add(begins)

    async def _dispatch(self) -> None:
        while self._queue:
            if wait := self._bucket.wait_s(trio.current_time(), self.share, HANDSHAKE_US):
                await trio.sleep(wait)
                continue
            _, begins = self._queue.pop()
            if begins in self._left:
                self._left.discard(begins)
                continue
            self._bucket.charge(trio.current_time(), self.share, HANDSHAKE_US)
            begins.set()
        self._dispatching = False


class PacedNoise(NoiseTransport):
    """Noise whose inbound handshakes wait for their turn after the peer's first message."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Secure `conn` as libp2p does; after that, many messages are sent at once."""
        remote = conn.get_remote_address()
        if remote is None:
            return _batched(await self._shake(conn), conn)
        paced = PacedConnection(conn, partial(self.may_begin, remote[0]))
        return BatchSession(await self._shake(paced), conn)

    async def _shake(self, conn: IRawConnection) -> ISecureConn:
        """Answer a handshake. Raises HandshakeFailure for invalid bytes, for which the libraries below raise errors of their own."""
        try:
            return await super().secure_inbound(conn)
        except (BaseLibp2pError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:
            raise HandshakeFailure(f"no handshake: {error!r}") from error

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Like `secure_inbound`, as the dialling side."""
        return _batched(await super().secure_outbound(conn, peer_id), conn)

    async def may_begin(self, ip: str) -> None:
        """Wait for the turn of an address; a node replaces this method."""


def _batched(session: ISecureConn, conn: IRawConnection) -> BatchSession:
    """`session` in the form used after its handshake."""
    if isinstance(conn, CarriedConnection):
        conn.secured()
    return BatchSession(session)


class PacedConnection(RawConnection):
    """A connection during its handshake. A peer that sent no first message only costs a Noise state (50 µs), and no turn of its address."""

    def __init__(self, conn: IRawConnection, turn: Callable[[], Awaitable[None]]) -> None:
        """`turn`: waits until the handshake may begin."""
        super().__init__(conn, False, conn.get_connection_type())
        self._turn = turn
        self._missing = FIRST_MESSAGE

    async def read(self, n: int | None = None) -> bytes:
        """Like the connection's own `read`. The data that completes the first message waits for its turn."""
        data = await super().read(n)
        if self._missing > 0 and data:
            self._missing -= len(data)
            if self._missing <= 0:
                await self._turn()
        return data
