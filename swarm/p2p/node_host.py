"""libp2p's host with limits for inbound streams. In libp2p's own host, a handler that raises ends the node."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.host.basic_host import BasicHost
from libp2p.host.exceptions import StreamFailure
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.identity.identify_push.identify_push import ID_PUSH as IDENTIFY_PUSH
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from protocol.errors import SarkError
from protocol.words import ProtocolId
from swarm.net.limits import InboundLimits
from swarm.p2p.dialler import STREAM_ERRORS, NodeSwarm, is_relayed, reason_of
from swarm.p2p.yamux import BoundedYamux

NEGOTIATE_WITHIN_S: Final = 5
MAX_OPENED: Final = 4096
CASUAL: Final = frozenset({str(IDENTIFY), ProtocolId.INDEX, ProtocolId.REACH, ProtocolId.HEALTH})
"""Protocols on which another peer can answer as well, or which have their own timeouts."""

log = structlog.get_logger(__name__)


class NodeHost(BasicHost):
    """libp2p's host: opens streams on connections from `NodeSwarm.reach`, and serves inbound streams within each peer's limits."""

    def __init__(self, network: NodeSwarm, **kwargs: Any) -> None:
        super().__init__(network=network, **kwargs)
        self._swarm = network
        self._limits = InboundLimits()
        self._opened: OrderedDict[ID, str] = OrderedDict()
        # peers identify themselves when asked, and push nothing
        self.multiselect.remove_handler(IDENTIFY_PUSH)

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Identify peers that we dialled. A peer that dialled us is asked only when it opens a Sark stream, since it may stay idle."""
        conn = self._swarm.live(peer_id)
        if peer_id in self._opened or conn is None or conn.muxed_conn.is_initiator:
            super()._schedule_identify(peer_id, reason=reason)

    def ask_who(self, peer: ID) -> None:
        """Ask a peer that dialled us which protocols it speaks."""
        super()._schedule_identify(peer, reason="it wants something of us")

    def opened(self, peer: ID, prefix: str) -> bool:
        """Whether `peer` opened a stream of a protocol with this prefix lately."""
        return self._opened.get(peer, "").startswith(prefix)

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> NetStream:
        """Open a stream with the first of `protocol_ids` that the peer supports. Raises SwarmException or StreamFailure."""
        if self._swarm.live(peer_id) is None:
            await self._swarm.dial_peer(peer_id)
        conn = self._swarm.live(peer_id)
        if conn is None:
            raise SwarmException("the connection closed at once")
        try:
            return await self.open_on(conn, protocol_ids)
        except StreamFailure:
            other = self._swarm.live(peer_id)
            if other is None or self._swarm.lives(conn):
                raise
        return await self.open_on(
            other, protocol_ids
        )  # `conn` ended meanwhile, as one does that another replaces

    async def open_on(self, conn: SwarmConn, protocol_ids: Sequence[TProtocol]) -> NetStream:
        """Like `new_stream`, on this connection. A relayed connection that does not answer is dropped: the next caller gets a new one."""
        stream: NetStream | None = None
        try:
            stream = await conn.new_stream()
            try:
                with _expecting(conn, protocol_ids):
                    spoken = await self.multiselect_client.select_one_of(
                        list(protocol_ids), MultiselectCommunicator(stream), NEGOTIATE_WITHIN_S
                    )
            except BaseException:
                with trio.move_on_after(1.0, shield=True):
                    await stream.reset()
                raise
        except BaseLibp2pError as error:
            if is_relayed(conn) and _is_silence(error):
                self._swarm.drop(conn)
            raise StreamFailure(reason_of(error)) from error
        stream.set_protocol(spoken)
        _watch(stream, spoken)
        return stream

    def _note(self, peer: ID, protocol: str) -> None:
        """Remember that the peer uses Sark's protocols; every peer uses libp2p's."""
        if protocol.startswith("/sark/"):
            if peer not in self._opened:
                super()._schedule_identify(peer, reason="used")
            self._opened[peer] = protocol
            self._opened.move_to_end(peer)
            if len(self._opened) > MAX_OPENED:
                self._opened.popitem(last=False)

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Negotiate and serve one inbound stream. A failure ends only this stream."""
        peer = str(net_stream.muxed_conn.peer_id)
        served = False
        try:
            with self._limits.arriving(peer) as accepted:
                if not accepted:
                    return
                protocol, handler = await self.multiselect.negotiate(MultiselectCommunicator(net_stream), 10)
                if protocol is None or handler is None:
                    return
                with self._limits.speaking(peer, protocol) as speaks:
                    if not speaks:
                        log.info("too many streams of one protocol", peer=peer, protocol=protocol)
                        return
                    net_stream.set_protocol(protocol)
                    _watch(net_stream, protocol)
                    self._note(net_stream.muxed_conn.peer_id, protocol)
                    await handler(net_stream)
                    served = True
        except STREAM_ERRORS as error:
            log.debug("inbound stream failed", peer=peer, why=reason_of(error))
        except SarkError as error:
            log.info("inbound stream refused", peer=peer, protocol=net_stream.get_protocol(), why=error.what)
        except Exception:  # a bug in a handler must not let a stranger's stream end the node
            log.exception(
                "a handler failed; its stream is reset", peer=peer, protocol=net_stream.get_protocol()
            )
        finally:
            if not served:
                with trio.move_on_after(1.0, shield=True), contextlib.suppress(BaseLibp2pError, OSError):
                    await net_stream.reset()


def _watch(stream: INetStream, protocol: str) -> None:
    """From now on, notice when the peer is gone, unless nobody waits for this protocol's answers."""
    if protocol not in CASUAL and isinstance(stream.muxed_conn, BoundedYamux):
        stream.muxed_conn.watched = True


@contextlib.contextmanager
def _expecting(conn: SwarmConn, protocols: Sequence[str]) -> Iterator[None]:
    """Expect an answer while negotiating with a peer that may be gone. If it refuses, the connection is not watched."""
    muxed = conn.muxed_conn
    if not isinstance(muxed, BoundedYamux) or CASUAL.issuperset(protocols):
        yield
        return
    muxed.expected += 1
    try:
        yield
    except BaseException as error:
        if not isinstance(error, BaseLibp2pError) or _is_silence(error):
            muxed.watched = True
        raise
    finally:
        muxed.expected -= 1


def _is_silence(error: BaseException) -> bool:
    """Whether there was no answer, rather than a refusal: libp2p raises the same error for both."""
    return str(error).startswith("response timed out")
