"""A relay's reservations and circuits, and their limits. Pure: peer, address and time are arguments.

`swarm.relay.hop` uses it between real processes, `swarm.memory` in the simulated network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.words import Reason
from swarm.net.addresses import PeerId, network_of
from swarm.net.limits import RateLimit, decrement

MAX_RATED: Final = 8192
"""Peers whose rate is tracked; the least recently seen one goes first."""
PURGE_EVERY_S: Final = 1.0
BURST_S: Final = 1.0


class DeclineReason(StrEnum):
    """Why a gate declines a request."""

    DRAINING = "draining"
    """The gate is about to stop."""
    NOT_ALLOWED = "not-allowed"
    """This gate does not serve the peer."""
    RELAYED = "relayed"
    """The peer calls through a circuit; a circuit cannot pass through two gates."""
    TOO_OFTEN = "too-often"
    FULL = "full"
    """All reservations, or all circuits, are taken."""
    NETWORK_SHARE = "network-share"
    """The peer's network (/24 or /48) has used up its share."""
    PEER_SHARE = "peer-share"
    """One of the two peers has used up its share of circuits."""
    NO_RESERVATION = "no-reservation"
    """The target has no reservation here."""
    TARGET_SILENT = "target-silent"
    """The target did not accept the circuit."""
    MALFORMED = "malformed"
    """The message was too large, too slow or invalid."""


class CircuitEnd(StrEnum):
    """Why a circuit ended."""

    CLOSED = "closed"
    """One of the two peers closed it, or disconnected."""
    BYTES = "bytes"
    TIME = "time"
    IDLE = "idle"
    """One of the two peers read nothing for too long."""
    STOPPED = "stopped"
    """The gate stopped."""
    NOT_ALLOWED = "not-allowed"
    """This gate no longer serves one of the two peers."""


WORDS: Final[Mapping[DeclineReason, Reason]] = {
    DeclineReason.DRAINING: Reason.NOT_SERVING,
    DeclineReason.NOT_ALLOWED: Reason.NOT_ALLOWED,
    DeclineReason.RELAYED: Reason.NOT_ALLOWED,
    DeclineReason.TOO_OFTEN: Reason.OVERLOADED,
    DeclineReason.FULL: Reason.OVERLOADED,
    DeclineReason.NETWORK_SHARE: Reason.OVERLOADED,
    DeclineReason.PEER_SHARE: Reason.OVERLOADED,
    DeclineReason.NO_RESERVATION: Reason.UNKNOWN,
    DeclineReason.TARGET_SILENT: Reason.LOST,
    DeclineReason.MALFORMED: Reason.BAD_REQUEST,
}
"""The reason in the reply: as precise as libp2p's status codes allow."""


class ReservationDeclined(Exception):
    """A request was declined; nothing has changed."""

    def __init__(self, reason: DeclineReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of a relay. A network is an IPv4 /24 or an IPv6 /48: what one household or attacker has at no extra cost."""

    reservations: int = 1024
    reservations_per_network: int = 256
    ttl_s: float = 3600.0
    """Lifetime of a reservation without renewal; it ends at once if its peer's connection ends."""
    circuits: int = 1024
    circuits_from_peer: int = 256
    """A scheduler calls all its workers; few call a worker."""
    circuits_to_peer: int = 32
    circuits_of_pair: int = 4
    """Two peers need one circuit; there are more for a moment when one peer reconnects before the other notices the loss."""
    circuits_from_network: int = 512
    circuit_bytes: int = 1 << 30
    """In both directions together."""
    circuit_s: float = 7200.0
    bytes_per_s: int | None = None
    """Rate of all circuits together; None: unlimited."""
    reserve_burst: int = 10
    """Reservation requests that one peer may make in a burst; it regains one every `reserve_every_s`."""
    reserve_every_s: float = 5.0
    connect_burst: int = 512
    connect_every_s: float = 0.2


@dataclass(frozen=True, slots=True)
class RelayReservation:
    """A peer's reservation: other peers may call it through this gate."""

    peer: PeerId
    network: str
    until: float
    """In seconds on the caller's clock."""
    principal: PeerId
    """The peer on whose behalf the gate keeps the reservation: the reserving peer, or the one that answers for it."""


@dataclass(slots=True, eq=False)
class OpenCircuit:
    """A live circuit."""

    source: PeerId
    target: PeerId
    principals: tuple[PeerId, PeerId]
    """The peers on whose behalf the gate keeps the circuit."""
    network: str
    """Public network of the source."""
    began: float
    ends_at: float
    bytes_left: int
    carried: int = 0


class RelayReservations:
    """The reservations and circuits of one gate, and its counters since the start."""

    def __init__(
        self,
        limits: RelayLimits | None = None,
        allow: Callable[[PeerId], bool] = lambda peer: True,
        answers_for: Callable[[PeerId], PeerId] = lambda peer: peer,
    ) -> None:
        """`allow`: whether this gate serves a peer; checked for each reservation, each caller and all bytes. `answers_for`: the principal
        of a peer, usually the peer itself. A live circuit ends when a principal is no longer allowed, but not when a visitor's token
        expires.
        """
        self.limits = limits or RelayLimits()
        self.draining = False
        """Nothing new is accepted; live circuits continue."""
        self.circuits: dict[OpenCircuit, None] = {}
        self.reserved = self.renewed = 0
        """New reservations, and renewals."""
        self.connected = self.bytes = 0
        """Circuits begun, and bytes carried by all circuits, ended or live."""
        self.declined: Counter[DeclineReason] = Counter()
        self.ended: Counter[CircuitEnd] = Counter()
        self._allow = allow
        self._answers_for = answers_for
        self._reservations: dict[PeerId, RelayReservation] = {}
        self._per_network: Counter[str] = Counter()
        self._shares: Counter[tuple[str, ...]] = Counter()
        """Circuits by source, target, pair and network."""
        self._reserve_rate = RateLimit(self.limits.reserve_burst, self.limits.reserve_every_s, most=MAX_RATED)
        self._connect_rate = RateLimit(self.limits.connect_burst, self.limits.connect_every_s, most=MAX_RATED)
        self._purged_at = float("-inf")
        self._free_at = float("-inf")

    # -- reservations --------------------------------------------------------------------------------------------------------

    def reserve(self, peer: PeerId, ip: str | None, now: float) -> RelayReservation:
        """Make or renew a reservation for `peer`, whose id the channel proved. Raises `ReservationDeclined`.

        `ip`: the address of its connection; None if the connection is a circuit.
        """
        self._purge(now)
        network = self._check(peer, ip, self._reserve_rate, now)
        held = self._reservations.get(peer)
        if held is None and len(self._reservations) >= self.limits.reservations:
            raise self.decline(DeclineReason.FULL)
        moved = held is None or held.network != network
        if moved and self._per_network[network] >= self.limits.reservations_per_network:
            raise self.decline(DeclineReason.NETWORK_SHARE)
        self.release(peer)
        until = now + self.limits.ttl_s
        reservation = self._reservations[peer] = RelayReservation(
            peer, network, until, self._answers_for(peer)
        )
        self._per_network[network] += 1
        if held is None:
            self.reserved += 1
        else:
            self.renewed += 1
        return reservation

    def release(self, peer: PeerId) -> None:
        """Drop the peer's reservation, if any, since its connection ended."""
        reservation = self._reservations.pop(peer, None)
        if reservation is not None:
            decrement(self._per_network, reservation.network)

    def holds(self, peer: PeerId, now: float) -> bool:
        """Whether `peer` has a reservation."""
        reservation = self._reservations.get(peer)
        return reservation is not None and self._is_valid(reservation, now)

    def _is_valid(self, reservation: RelayReservation, now: float) -> bool:
        return reservation.until > now and self._allow(reservation.principal)

    # -- circuits ------------------------------------------------------------------------------------------------------

    def begin(self, source: PeerId, ip: str | None, target: PeerId, now: float) -> OpenCircuit:
        """Begin a circuit, which the caller must always `end`. Raises `ReservationDeclined`."""
        limits = self.limits
        network = self._check(source, ip, self._connect_rate, now)
        if not self.holds(target, now):
            raise self.decline(DeclineReason.NO_RESERVATION)
        if len(self.circuits) >= limits.circuits:
            raise self.decline(DeclineReason.FULL)
        of_source, of_target, of_pair, of_network = _shares(source, target, network)
        if (
            self._shares[of_source] >= limits.circuits_from_peer
            or self._shares[of_target] >= limits.circuits_to_peer
            or self._shares[of_pair] >= limits.circuits_of_pair
        ):
            raise self.decline(DeclineReason.PEER_SHARE)
        if self._shares[of_network] >= limits.circuits_from_network:
            raise self.decline(DeclineReason.NETWORK_SHARE)
        self.connected += 1
        principals = (self._answers_for(source), self._reservations[target].principal)
        ends_at = now + limits.circuit_s
        circuit = OpenCircuit(source, target, principals, network, now, ends_at, limits.circuit_bytes)
        self.circuits[circuit] = None
        self._shares.update(_shares(source, target, network))
        return circuit

    def carry(self, circuit: OpenCircuit, size: int) -> CircuitEnd | None:
        """Count `size` bytes before they pass. Returns None, or the reason why the circuit may not carry them and ends."""
        if not all(map(self._allow, circuit.principals)):
            return CircuitEnd.NOT_ALLOWED
        if size > circuit.bytes_left:
            return CircuitEnd.BYTES
        circuit.bytes_left -= size
        circuit.carried += size
        self.bytes += size
        return None

    def pace(self, size: int, now: float) -> float:
        """Seconds to wait before passing these bytes on, so that all circuits together keep to `bytes_per_s`, in the order of the calls. Up
        to a second's worth passes at once."""
        if self.limits.bytes_per_s is None:
            return 0.0
        self._free_at = max(self._free_at, now - BURST_S) + size / self.limits.bytes_per_s
        return max(0.0, self._free_at - now)

    def end(self, circuit: OpenCircuit, why: CircuitEnd | None) -> None:
        """Record that `circuit` ended; `why` is None if it was never established. Safe to call twice."""
        if circuit not in self.circuits:
            return
        del self.circuits[circuit]
        for share in _shares(circuit.source, circuit.target, circuit.network):
            decrement(self._shares, share)
        if why is None:
            self.connected -= 1
        else:
            self.ended[why] += 1

    # -- for the operator ----------------------------------------------------------------------------------------------

    def decline(self, reason: DeclineReason) -> ReservationDeclined:
        """Count a refusal; returns the exception to raise."""
        self.declined[reason] += 1
        return ReservationDeclined(reason)

    def reservations(self, now: float) -> tuple[RelayReservation, ...]:
        """The valid reservations."""
        return tuple(each for each in self._reservations.values() if self._is_valid(each, now))

    def _check(self, peer: PeerId, ip: str | None, rate: RateLimit, now: float) -> str:
        """Checks common to all requests; returns the peer's network."""
        if self.draining:
            raise self.decline(DeclineReason.DRAINING)
        if ip is None:
            raise self.decline(DeclineReason.RELAYED)
        if not self._allow(peer):
            raise self.decline(DeclineReason.NOT_ALLOWED)
        if rate.wait(now, peer):
            raise self.decline(DeclineReason.TOO_OFTEN)
        return network_of(ip)

    def _purge(self, now: float) -> None:
        if now - self._purged_at < PURGE_EVERY_S:
            return
        self._purged_at = now
        for reservation in list(self._reservations.values()):
            if not self._is_valid(reservation, now):
                self.release(reservation.peer)


def _shares(source: PeerId, target: PeerId, network: str) -> tuple[tuple[str, ...], ...]:
    """The shares that a circuit counts against."""
    return ("from", source), ("to", target), ("pair", source, target), ("network", network)
