"""A bounded store of what is known about peers: libp2p's own store keeps every address and protocol that strangers claim.

Without limits, a thousand visitors push this node's own key out of the store, and from then on nobody learns who it is. A peer that claims
1,000 addresses costs a quarter of a second for each claim. Addresses that are two hours old hide newer ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from libp2p.crypto.keys import KeyPair
from libp2p.peer.id import ID
from libp2p.peer.peerdata import PeerData
from libp2p.peer.peerstore import PeerRecordState, PeerStore, PeerStoreError
from multiaddr import Multiaddr

MAX_PEERS: Final = 4_096
"""Peers remembered. Of those that are not connected, the one heard least recently makes room."""
MAX_ADDRESSES: Final = 16
"""Addresses remembered for one peer: as many as are ever dialled."""
MAX_PROTOCOLS: Final = 64
MAX_PROTOCOL_CHARS: Final = 128

V = TypeVar("V")


class KnownPeer(PeerData):
    """What is remembered of one peer. Anything beyond the limits is left out."""

    def add_addrs(self, addrs: Sequence[Multiaddr]) -> None:
        """Add addresses while there is room."""
        for address in addrs:
            if len(self.addrs) >= MAX_ADDRESSES:
                return
            if address not in self.addrs:
                self.addrs.append(address)

    def add_protocols(self, protocols: Sequence[str]) -> None:
        """Add protocol names while there is room."""
        for name in protocols:
            if len(self.protocols) >= MAX_PROTOCOLS:
                return
            if len(name) <= MAX_PROTOCOL_CHARS and name not in self.protocols:
                self.protocols.append(name)

    def set_protocols(self, protocols: Sequence[str]) -> None:
        """Replace the protocol names, as far as there is room."""
        self.protocols = []
        self.add_protocols(protocols)


class _Bounded(OrderedDict[ID, V]):
    """At most `MAX_PEERS` peers, but a peer for which `stays` is true is never removed."""

    def __init__(self, stays: Callable[[ID], bool]) -> None:
        super().__init__()
        self._stays = stays

    def __setitem__(self, peer: ID, value: V) -> None:
        super().__setitem__(peer, value)
        self.move_to_end(peer)
        for _ in range(len(self)):
            if len(self) <= MAX_PEERS:
                return
            oldest = next(iter(self))
            if self._stays(oldest):
                self.move_to_end(oldest)
            else:
                del self[oldest]


class _Peers(_Bounded[PeerData]):
    """Stores a `KnownPeer` for each peer, whatever libp2p passes."""

    def setdefault(self, key: ID, default: Any = None) -> PeerData:
        """The existing entry or a new one; either way the peer counts as just heard."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        fresh = self[key] = KnownPeer()
        return fresh


class BoundedPeerStore(PeerStore):
    """libp2p's store with limits, from which this node itself is never removed."""

    def __init__(self, me: ID, keys: KeyPair, connected: Callable[[ID], bool] = lambda peer: False) -> None:
        """`connected`: whether a peer is connected, and therefore kept."""
        super().__init__(max_peers=2 * MAX_PEERS)  # libp2p's own limit would drop this node first
        self.connected = connected

        def stays(peer: ID) -> bool:
            return peer == me or self.connected(peer)

        self.peer_data_map = _Peers(stays)
        self.peer_record_map: dict[ID, PeerRecordState] = _Bounded(stays)
        self.add_key_pair(me, keys)

    def addrs(self, peer_id: ID) -> list[Multiaddr]:
        """The known addresses of a peer; empty if all are too old. Raises PeerStoreError for an unknown peer."""
        entry = self.peer_data_map.get(peer_id)
        if entry is None:
            raise PeerStoreError("peer ID not found")
        if entry.is_expired():
            entry.clear_addrs()
        return list(entry.get_addrs())
