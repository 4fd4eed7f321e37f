"""What a simulated gate does with its desk: lends places and begins circuits."""

from __future__ import annotations

import trio

from protocol.errors import Refused, Unreachable
from swarm.memory.streams import MemoryLink
from swarm.net.addresses import Address, Circuit, PeerId
from swarm.net.network import Reservation
from swarm.net.reservations import WORDS, CircuitEnd, OpenCircuit, RelayReservations, ReservationDeclined


class MemoryGate:
    """The desk, and which of its circuits are whose links."""

    def __init__(self, me: PeerId, address: Address, desk: RelayReservations) -> None:
        self._me = me
        self._address = address
        self._desk = desk
        self._passages: dict[MemoryLink, OpenCircuit] = {}

    def lend(self, peer: PeerId, ip: str) -> Reservation:
        """A place for `peer`. Raises `Refused`."""
        try:
            slot = self._desk.reserve(peer, ip, trio.current_time())
        except ReservationDeclined as declined:
            raise Refused(
                f"the gate {self._me} lends no place: {declined.reason.value}", reason=WORDS[declined.reason]
            ) from declined
        limits = self._desk.limits
        ttl_s = slot.until - trio.current_time()
        circuit = str(Circuit(self._me, self._address))
        return Reservation(self._me, circuit, ttl_s, limits.circuit_bytes, limits.circuit_s)

    def release(self, peer: PeerId) -> None:
        """The connection with `peer` is gone."""
        self._desk.release(peer)

    def begin(self, source: PeerId, ip: str, target: PeerId) -> OpenCircuit:
        """A circuit that is to come about. Raises `Unreachable`."""
        for link, passage in list(self._passages.items()):
            if link.dead:
                self._desk.end(passage, CircuitEnd.CLOSED)
                del self._passages[link]
        try:
            return self._desk.begin(source, ip, target, trio.current_time())
        except ReservationDeclined as declined:
            raise Unreachable(f"no way to {target}: its gate says {declined.reason.value}") from declined

    def came_about(self, passage: OpenCircuit, link: MemoryLink) -> None:
        """The circuit is this link."""
        self._passages[link] = passage

    def gave_up(self, passage: OpenCircuit) -> None:
        """The circuit never came about."""
        if passage not in self._passages.values():
            self._desk.end(passage, None)
