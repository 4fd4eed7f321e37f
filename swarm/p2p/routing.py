"""The way to other peers: libp2p's Kademlia, spoken under our own name and with its inbound side made safe.

Only the routing table and FIND_NODE are used. The index of adverts is a protocol of its own; values and provider records,
which anybody may squat, are refused outright.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IncompleteReadError, IOException
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.kad_dht.routing_table import KBucket, _subnet_key
from libp2p.network.stream.exceptions import StreamReset
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from swarm.net.addresses import Address, observed_addresses, usable
from swarm.net.limits import decrement
from swarm.p2p.framing import read_prefixed

KAD_PROTOCOL: Final = "/sark/kad/1"
"""Our own network. libp2p's `/ipfs/kad/1.0.0` would mix us with the public IPFS table."""
MESSAGE_WITHIN_S: Final = 10.0
MAX_MESSAGES: Final = 64
"""Messages served on one stream."""
MAX_MESSAGE_BYTES: Final = 16_384
"""A FIND_NODE holds a key and a signed address record: well under 4 KiB."""
SLOTS: Final = 64
"""Streams served at a time; when there are more, the one that has said nothing for longest makes room."""
SLOTS_PER_PEER: Final = 2
_SERVED: Final = frozenset({Message.FIND_NODE, Message.PING})


class QueryStream:
    """An inbound stream as Kademlia's server reads it: whole, allowed messages only, each within its deadline."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        self._ready = bytearray()
        self._served = 0
        self._patience: trio.CancelScope | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes of the present message; b"" at the end of the stream."""
        if not self._ready:
            with trio.move_on_after(MESSAGE_WITHIN_S) as deadline:
                self._patience = deadline
                self._ready = await self._message()
            self._patience = None
            if deadline.cancelled_caught:
                raise StreamReset(f"no whole message within {MESSAGE_WITHIN_S:g} s")
        part = bytes(self._ready[:n])
        del self._ready[: len(part)]
        return part

    @property
    def gives_up_at(self) -> float:
        """When waiting for the present message ends; never, while one is served."""
        return math.inf if self._patience is None else self._patience.deadline

    def give_up(self) -> None:
        """Wait for the present message no longer."""
        if self._patience is not None:
            self._patience.cancel()

    async def _message(self) -> bytearray:
        try:
            body = await read_prefixed(self._stream, MAX_MESSAGE_BYTES)
        except (ParseError, IncompleteReadError) as error:
            raise StreamReset(str(error)) from error
        if body is None:
            return bytearray()
        try:
            kind = Message.FromString(body).type
        except DecodeError as error:
            raise StreamReset("not a message") from error
        if kind not in _SERVED or self._served >= MAX_MESSAGES:
            raise StreamReset("too many, or values and provider records, which are not kept here")
        self._served += 1
        return bytearray(encode_uvarint(len(body)) + body)


class OwnKad(KadDHT):
    """libp2p's Kademlia with a guarded server side. `harden()` must have put the protocol name in place before."""

    def __init__(self, host: IHost, *, server: bool) -> None:
        super().__init__(
            host,
            DHTMode.SERVER if server else DHTMode.CLIENT,
            strict_validation=True,
            enable_random_walk=False,
        )
        # more than SLOTS: those that make room are still on their way out
        self._inbound_limiter = trio.CapacityLimiter(2 * SLOTS)
        self._open_by_peer: Counter[ID] = Counter()
        self._open: set[QueryStream] = set()

    async def handle_stream(self, stream: INetStream) -> None:
        """Serve one inbound stream; a peer that holds its two slots gets no third."""
        peer = stream.muxed_conn.peer_id
        if self._open_by_peer[peer] >= SLOTS_PER_PEER:
            await stream.reset()
            return
        if len(self._open) >= SLOTS:
            idle = min(self._open, key=lambda one: one.gives_up_at)
            idle.give_up()
            self._open.discard(idle)
        self._open_by_peer[peer] += 1
        query = QueryStream(stream)
        self._open.add(query)
        try:
            await super().handle_stream(cast(INetStream, query))
        except IOException:
            await stream.reset()
        finally:
            self._open.discard(query)
            decrement(self._open_by_peer, peer)

    async def add_peer(self, peer_id: ID, *, skip_server_mode_check: bool = False) -> bool:
        """Add a peer that is known to serve this very protocol. That it asked us something does not make it a server."""
        store = self.host.get_peerstore()
        if not store.has_peer(peer_id) or KAD_PROTOCOL not in store.get_protocols(peer_id):
            return False
        addresses = self._own_addresses(peer_id, usable(store.addrs(peer_id)))
        if not addresses:
            return False
        info = PeerInfo(peer_id, [Multiaddr(address) for address in addresses])
        return bool(await self.routing_table.add_peer(info, skip_server_mode_check=True))

    def _own_addresses(self, peer_id: ID, said: Sequence[Address]) -> tuple[Address, ...]:
        """What of the addresses that were heard of a peer lies where it is seen: only that goes on to others."""
        observed = (
            where
            for conn in self.host.get_network().connections.get(peer_id, ())
            for where in usable(conn.get_transport_addresses())
        )
        return tuple(
            dict.fromkeys(address for where in observed for address in observed_addresses(said, where))
        )

    def serve(self, serve: bool) -> None:
        """Answer others' questions, or no longer. libp2p's own switch throws our table away."""
        requested = DHTMode.SERVER if serve else DHTMode.CLIENT
        if requested is self.mode:
            return
        self.mode = requested
        if serve:
            self.host.set_stream_handler(TProtocol(KAD_PROTOCOL), self.handle_stream)
        else:
            self.host.remove_stream_handler(TProtocol(KAD_PROTOCOL))

    # -- the table, without waiting ------------------------------------------------------------------------------------

    def insert(self, info: PeerInfo) -> bool:
        """Put a peer that has just answered us into the table, or freshen it. False when its bucket or subnet is full."""
        table = self.routing_table
        if info.peer_id == table.local_id:
            return False
        bucket = table.find_bucket(info.peer_id)
        while (
            len(bucket.peers) >= bucket.bucket_size
            and info.peer_id not in bucket.peers
            and table._should_split_bucket(bucket)
            and table._split_bucket(bucket)
        ):
            bucket = table.find_bucket(info.peer_id)
        known = bucket.peers.pop(info.peer_id, None)
        if known is None and (len(bucket.peers) >= bucket.bucket_size or _subnet_full(bucket, info)):
            return False
        bucket.peers[info.peer_id] = (info, time.time())
        return True

    def remove(self, peer: ID) -> None:
        """Take a peer out of the table."""
        self.routing_table.remove_peer(peer)

    def peers(self) -> Sequence[PeerInfo]:
        """Everybody in the table."""
        return self.routing_table.get_peer_infos()


def _subnet_full(bucket: KBucket, info: PeerInfo) -> bool:
    limit = bucket._subnet_limit()
    subnet = _subnet_key(info) if limit > 0 else None
    return subnet is not None and bucket._peers_in_subnet(subnet) >= limit
