"""The routing table of a simulated node: whom it knows, by their keys."""

from __future__ import annotations

import heapq
from typing import Final

import trio

from swarm.net.addresses import Address, Contact, PeerId
from swarm.net.identity import routing_key

FORGOTTEN_S: Final = 60.0
"""How long a peer that did not answer is left out, whoever names it again."""


class MemoryTable:
    """Known peers and their addresses."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._book: dict[PeerId, set[Address]] = {}
        self._table: dict[PeerId, tuple[int, Contact]] = {}
        self._forgotten: dict[PeerId, float] = {}

    def book(self, peer: PeerId) -> set[Address]:
        """The direct addresses of a peer as far as they were heard; to be added to."""
        return self._book.setdefault(peer, set())

    def closest(self, key: bytes, count: int) -> tuple[Contact, ...]:
        """The nearest by XOR."""
        target = int.from_bytes(key, "big")
        near = heapq.nsmallest(count, self._table.values(), key=lambda entry: entry[0] ^ target)
        return tuple(contact for _, contact in near)

    def learn(self, contact: Contact) -> None:
        """Keep a peer that answered."""
        if not contact.holder or contact.peer == self._me or not contact.addresses:
            return
        self._forgotten.pop(contact.peer, None)
        self.book(contact.peer).update(contact.addresses)
        self._table[contact.peer] = (int.from_bytes(routing_key(contact.peer), "big"), contact)

    def hear_of(self, contact: Contact) -> None:
        """Keep a peer that another one names, unless it did not answer lately."""
        if self._forgotten.get(contact.peer, 0.0) <= trio.current_time():
            self.learn(contact)

    def forget(self, peer: PeerId) -> None:
        """Leave a peer out for a while."""
        self._table.pop(peer, None)
        self._forgotten[peer] = trio.current_time() + FORGOTTEN_S
