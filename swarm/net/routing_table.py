"""A node's routing table: holders that answered it, ordered by XOR distance, as in Kademlia. Pure.

Each bucket holds the contacts at one distance (a power of two), so a node knows its neighbourhood best. A contact stays until it fails to
answer, so fresh ids, which cost nothing, displace nobody. A newcomer that finds no room waits until a contact is gone.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Final

from swarm.net.addresses import Contact, PeerId, public_network
from swarm.net.identity import routing_key

BUCKET_SIZE: Final = 64
NETWORK_SHARE: Final = 8
"""Contacts of one public network (/24, IPv6 /48) in a bucket."""
CHECK_AFTER_S: Final = 300.0
"""A contact that answered within this many seconds is not asked again to make room for a newcomer."""


@dataclass(slots=True)
class _Entry:
    position: int
    contact: Contact
    answered_at: float


class RoutingTable:
    """The table of one node. Time is an argument."""

    def __init__(self, own_peer: PeerId) -> None:
        self._own = _position(own_peer)
        self._entries: dict[PeerId, _Entry] = {}
        self.version = 0
        """Counts changes to the contacts."""
        self._waiting: dict[tuple[int, str], tuple[Contact, float]] = {}
        """The newest newcomer that found no room in a bucket, or in a network's share of it, and when it answered."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, peer: PeerId) -> Contact | None:
        """The contact of a peer in the table."""
        entry = self._entries.get(peer)
        return entry.contact if entry is not None else None

    def closest(self, key: bytes, count: int) -> list[Contact]:
        """Up to `count` contacts nearest to the 32-byte `key` by XOR with the sha256 of the peer id's bytes."""
        target = int.from_bytes(key, "big")
        near = heapq.nsmallest(count, self._entries.values(), key=lambda entry: entry.position ^ target)
        return [entry.contact for entry in near]

    def contacts(self) -> list[Contact]:
        """All contacts."""
        return [entry.contact for entry in self._entries.values()]

    def oldest(self, before: float, count: int) -> list[Contact]:
        """Up to `count` contacts that have not answered since `before`, longest silent first."""
        old = (entry for entry in self._entries.values() if entry.answered_at < before)
        return [entry.contact for entry in heapq.nsmallest(count, old, key=lambda entry: entry.answered_at)]

    def learn(self, contact: Contact, now: float = -math.inf) -> Contact | None:
        """Add a holder that answered at `now` (default: unknown), or update its addresses. Raises ValueError for an invalid id.

        If there is no room, the holder waits. The least recently heard contact in its way is returned if it was heard long ago; the caller
        asks that contact, and forgets it if it does not answer.
        """
        position = _position(contact.peer)
        if not (contact.holder and contact.addresses) or position == self._own:
            return None
        entry = self._entries.get(contact.peer)
        if entry is None:
            bucket, network = self._bucket(position), public_network(contact.addresses)
            others = [other for other in self._entries.values() if self._bucket(other.position) == bucket]
            same = [o for o in others if network and public_network(o.contact.addresses) == network]
            crowded = len(same) >= NETWORK_SHARE
            if crowded or len(others) >= BUCKET_SIZE:
                self._waiting[bucket, network if crowded else ""] = contact, now
                oldest = min(same if crowded else others, key=lambda other: other.answered_at)
                return oldest.contact if oldest.answered_at < now - CHECK_AFTER_S else None
        self._wait_no_more(contact.peer)
        if entry is None or entry.contact != contact:
            self.version += 1
        self._entries[contact.peer] = _Entry(position, contact, max(now, entry.answered_at) if entry else now)
        return None

    def answered(self, peer: PeerId, now: float) -> None:
        """Record that a peer answered; it need not be in the table."""
        if peer in self._entries:
            self._entries[peer].answered_at = now

    def forget(self, peer: PeerId) -> None:
        """Remove a peer that did not answer. A waiting newcomer takes its place."""
        self._wait_no_more(peer)
        entry = self._entries.pop(peer, None)
        if entry is not None:
            self.version += 1
            for place in [place for place in self._waiting if place[0] == self._bucket(entry.position)]:
                self.learn(*self._waiting.pop(place))

    def _wait_no_more(self, peer: PeerId) -> None:
        for place in [place for place, (contact, _) in self._waiting.items() if contact.peer == peer]:
            del self._waiting[place]

    def _bucket(self, position: int) -> int:
        return (position ^ self._own).bit_length()


def _position(peer: PeerId) -> int:
    return int.from_bytes(routing_key(peer), "big")
