"""A node's routing table: holders that answered it, by their XOR distance, as in Kademlia. Pure.

Each bucket holds the contacts at one distance (a power of two), so that a node knows its neighbourhood best. Who is in it stays until it
fails to answer: fresh ids, which cost nothing, displace nobody.
"""

from __future__ import annotations

import heapq
from typing import Final

from swarm.net.addresses import Contact, PeerId, public_network
from swarm.net.identity import routing_key

BUCKET_SIZE: Final = 64
NETWORK_SHARE: Final = 8
"""Contacts of one public network (/24, IPv6 /48) in a bucket."""


class RoutingTable:
    """The table of one node."""

    def __init__(self, own_peer: PeerId) -> None:
        self._own = _position(own_peer)
        self._entries: dict[PeerId, tuple[int, Contact]] = {}

    def get(self, peer: PeerId) -> Contact | None:
        """The contact of a peer in the table."""
        return self._entries.get(peer, (0, None))[1]

    def closest(self, key: bytes, count: int) -> list[Contact]:
        """Up to `count` contacts nearest to the 32-byte `key` by XOR with the sha256 of the peer id's bytes."""
        target = int.from_bytes(key, "big")
        near = heapq.nsmallest(count, self._entries.values(), key=lambda entry: entry[0] ^ target)
        return [contact for _, contact in near]

    def learn(self, contact: Contact) -> None:
        """Add a holder that answered, or update its addresses; nothing where there is no room. Raises ValueError for an invalid id."""
        position = _position(contact.peer)
        if not (contact.holder and contact.addresses) or position == self._own:
            return
        if contact.peer not in self._entries:
            bucket, network = self._bucket(position), public_network(contact.addresses)
            others = [other for at, other in self._entries.values() if self._bucket(at) == bucket]
            share = sum(public_network(other.addresses) == network for other in others) if network else 0
            if len(others) >= BUCKET_SIZE or share >= NETWORK_SHARE:
                return
        self._entries[contact.peer] = position, contact

    def forget(self, peer: PeerId) -> None:
        """Remove a peer that did not answer."""
        self._entries.pop(peer, None)

    def _bucket(self, position: int) -> int:
        return (position ^ self._own).bit_length()


def _position(peer: PeerId) -> int:
    return int.from_bytes(routing_key(peer), "big")
