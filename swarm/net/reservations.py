"""What a gate lends to nodes that nobody can dial: places to be called at, and bytes and seconds of each circuit.

Pure: who asks, from where and when are arguments, and the answer is a place, or `ReservationDeclined` with its reason. `relay_hop` is the
shell around it between real processes, `memory` the one in the simulated network; operators read `snapshot`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protocol.words import Reason
from swarm.net.addresses import network_of

PeerId = str

MAX_PACED: Final = 8192
"""Peers whose pace is remembered; the one that was seen least lately makes room."""
PURGE_EVERY_S: Final = 1.0
BURST_S: Final = 1.0


class DeclineReason(StrEnum):
    """Why a gate said no."""

    DRAINING = "draining"
    """The gate is about to stop."""
    NOT_ALLOWED = "not-allowed"
    """Not a peer of a swarm, or not one that this gate serves."""
    RELAYED = "relayed"
    """It asks through a circuit; circuits do not go through two gates."""
    TOO_OFTEN = "too-often"
    FULL = "full"
    """All places, or all circuits, are taken."""
    NETWORK_SHARE = "network-share"
    """Its network (/24 or /48) has its share already."""
    PEER_SHARE = "peer-share"
    """One of the two peers has its share of circuits already."""
    NO_RESERVATION = "no-reservation"
    """The peer that is called holds no place here."""
    TARGET_SILENT = "target-silent"
    """The peer that is called did not take the call."""
    MALFORMED = "malformed"
    """A message that is too large, too slow or none at all."""


class CircuitEnd(StrEnum):
    """Why a circuit ended."""

    CLOSED = "closed"
    """One of the two peers was done, or went away."""
    BYTES = "bytes"
    TIME = "time"
    IDLE = "idle"
    """One of the two took no bytes for too long."""
    STOPPED = "stopped"
    """The gate stopped."""
    NOT_ALLOWED = "not-allowed"
    """One of the two is not served here any more."""


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
"""What who asked is told: no more than libp2p's own status codes can say."""


class ReservationDeclined(Exception):
    """The desk says no; nothing was taken."""

    def __init__(self, reason: DeclineReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a gate lends at most. A network is an IPv4 /24 or an IPv6 /48: what one household or attacker has at no cost."""

    reservations: int = 1024
    reservations_per_network: int = 256
    ttl_s: float = 3600.0
    """Seconds that a place is kept without being asked for again; it ends at once when its peer's connection ends."""
    circuits: int = 1024
    circuits_from_peer: int = 256
    """A scheduler calls all its workers; a worker is called by few."""
    circuits_to_peer: int = 32
    circuits_of_pair: int = 4
    """Two peers need one; more are there for a moment, when one of them has come back before the other noticed that it was gone."""
    circuits_from_network: int = 512
    circuit_bytes: int = 1 << 30
    """Both ways together."""
    circuit_s: float = 7200.0
    bytes_per_s: int | None = None
    """Of all circuits together; None: as fast as they go."""
    reserve_burst: int = 10
    """Reservations that one peer may ask for at once; each comes back after `reserve_every_s`."""
    reserve_every_s: float = 5.0
    connect_burst: int = 512
    connect_every_s: float = 0.2


@dataclass(frozen=True, slots=True)
class ReservationSlot:
    """A peer's place: it may be called here."""

    peer: PeerId
    network: str
    until: float
    """On the clock of who asks the desk, in seconds."""
    by: PeerId
    """Who answers for the peer: as a rule the peer itself."""


@dataclass(slots=True, eq=False)
class OpenCircuit:
    """A circuit under way: what it may still carry, and what it has carried."""

    number: int
    source: PeerId
    target: PeerId
    by: tuple[PeerId, PeerId]
    """Who answers for the two."""
    network: str
    """Of the source."""
    began: float
    ends_at: float
    left: int
    """Bytes."""
    carried: int = 0


@dataclass(frozen=True, slots=True)
class PassageSeen:
    """A circuit as operators see it."""

    source: PeerId
    target: PeerId
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class RelaySnapshot:
    """The desk at one moment, and what it has done since it began."""

    draining: bool
    limits: RelayLimits
    slots: tuple[ReservationSlot, ...]
    passages: tuple[PassageSeen, ...]
    reserved: int
    """Places given since the start; those asked for again are not counted twice."""
    renewed: int
    connected: int
    """Circuits begun since the start."""
    bytes: int
    """Carried since the start, by ended and live circuits."""
    declined: Mapping[DeclineReason, int]
    ended: Mapping[CircuitEnd, int]


@dataclass(slots=True)
class _Pace:
    """Tokens that come back with time."""

    burst: int
    every_s: float
    _left: OrderedDict[PeerId, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, peer: PeerId, now: float) -> bool:
        left, at = self._left.pop(peer, (float(self.burst), now))
        left = min(float(self.burst), left + max(0.0, now - at) / self.every_s)
        granted = left >= 1.0
        self._left[peer] = (left - 1.0 if granted else left, now)
        if len(self._left) > MAX_PACED:
            self._left.popitem(last=False)
        return granted


class RelayReservations:
    """Who holds a place at this gate, which circuits go through it, and the count of everything."""

    def __init__(
        self,
        limits: RelayLimits | None = None,
        allow: Callable[[PeerId], bool] = lambda peer: True,
        answers_for: Callable[[PeerId], PeerId] = lambda peer: peer,
    ) -> None:
        """`allow`: whom this gate serves, asked at each reservation, for the caller of each circuit, and for whatever passes.

        `answers_for`: because of whom a peer is served, itself as a rule. A permission that ends by itself ends nothing that runs;
        one that is taken back does.
        """
        self.limits = limits or RelayLimits()
        self._allow = allow
        self._answers_for = answers_for
        self._slots: dict[PeerId, ReservationSlot] = {}
        self._slots_of: Counter[str] = Counter()
        self._passages: dict[int, OpenCircuit] = {}
        self._from_peer: Counter[PeerId] = Counter()
        self._to_peer: Counter[PeerId] = Counter()
        self._of_pair: Counter[str] = Counter()
        self._from_network: Counter[str] = Counter()
        self._reserve_pace = _Pace(self.limits.reserve_burst, self.limits.reserve_every_s)
        self._connect_pace = _Pace(self.limits.connect_burst, self.limits.connect_every_s)
        self._purged_at = float("-inf")
        self._road_free_at = float("-inf")
        self._draining = False
        self._reserved = self._renewed = self._connected = self._bytes = 0
        self._declined: Counter[DeclineReason] = Counter()
        self._ended: Counter[CircuitEnd] = Counter()

    # -- places --------------------------------------------------------------------------------------------------------

    def reserve(self, peer: PeerId, ip: str | None, now: float) -> ReservationSlot:
        """A place for `peer`, whose id the channel has proved, or its place for longer. Raises `ReservationDeclined`.

        `ip`: where its connection comes from; None when that is no socket but a circuit.
        """
        self._purge(now)
        network = self._ask(peer, ip, self._reserve_pace, now)
        held = self._slots.get(peer)
        if held is None and len(self._slots) >= self.limits.reservations:
            raise self.decline(DeclineReason.FULL)
        if (held is None or held.network != network) and self._slots_of[
            network
        ] >= self.limits.reservations_per_network:
            raise self.decline(DeclineReason.NETWORK_SHARE)
        self.release(peer)
        until = now + self.limits.ttl_s
        slot = self._slots[peer] = ReservationSlot(peer, network, until, self._answers_for(peer))
        self._slots_of[network] += 1
        if held is None:
            self._reserved += 1
        else:
            self._renewed += 1
        return slot

    def release(self, peer: PeerId) -> None:
        """Its connection is gone, and its place with it. Safe to call for anybody."""
        slot = self._slots.pop(peer, None)
        if slot is not None:
            _less(self._slots_of, slot.network)

    def holds(self, peer: PeerId, now: float) -> bool:
        """May `peer` be called here?"""
        slot = self._slots.get(peer)
        return slot is not None and self._stands(slot, now)

    def _stands(self, slot: ReservationSlot, now: float) -> bool:
        return slot.until > now and self._allow(slot.by)

    # -- circuits ------------------------------------------------------------------------------------------------------

    def begin(self, source: PeerId, ip: str | None, target: PeerId, now: float) -> OpenCircuit:
        """A circuit from `source` to `target`, to be ended by `end` whatever becomes of it. Raises `ReservationDeclined`."""
        limits = self.limits
        network = self._ask(source, ip, self._connect_pace, now)
        if not self.holds(target, now):
            raise self.decline(DeclineReason.NO_RESERVATION)
        if len(self._passages) >= limits.circuits:
            raise self.decline(DeclineReason.FULL)
        if (
            self._from_peer[source] >= limits.circuits_from_peer
            or self._to_peer[target] >= limits.circuits_to_peer
            or self._of_pair[f"{source} {target}"] >= limits.circuits_of_pair
        ):
            raise self.decline(DeclineReason.PEER_SHARE)
        if self._from_network[network] >= limits.circuits_from_network:
            raise self.decline(DeclineReason.NETWORK_SHARE)
        self._connected += 1
        by = (self._answers_for(source), self._slots[target].by)
        ends_at = now + limits.circuit_s
        passage = OpenCircuit(
            self._connected, source, target, by, network, now, ends_at, limits.circuit_bytes
        )
        self._passages[passage.number] = passage
        self._from_peer[source] += 1
        self._to_peer[target] += 1
        self._of_pair[f"{source} {target}"] += 1
        self._from_network[network] += 1
        return passage

    def carry(self, passage: OpenCircuit, size: int) -> CircuitEnd | None:
        """Count `size` bytes that are about to pass; or why the circuit may not carry them, and ends."""
        if not all(map(self._allow, passage.by)):
            return CircuitEnd.NOT_ALLOWED
        if size > passage.left:
            return CircuitEnd.BYTES
        passage.left -= size
        passage.carried += size
        self._bytes += size
        return None

    def pace(self, size: int, now: float) -> float:
        """Seconds that who passes these bytes on has to wait, so that all together keep to `bytes_per_s`; up to a second's worth goes
        at once. Those who wait are served in the order in which they came."""
        if self.limits.bytes_per_s is None:
            return 0.0
        self._road_free_at = max(self._road_free_at, now - BURST_S) + size / self.limits.bytes_per_s
        return max(0.0, self._road_free_at - now)

    def end(self, passage: OpenCircuit, why: CircuitEnd | None) -> None:
        """The circuit is over; None for one that never came about. Safe to call again."""
        if self._passages.pop(passage.number, None) is None:
            return
        _less(self._from_peer, passage.source)
        _less(self._to_peer, passage.target)
        _less(self._of_pair, f"{passage.source} {passage.target}")
        _less(self._from_network, passage.network)
        if why is None:
            self._connected -= 1
        else:
            self._ended[why] += 1

    # -- for the operator ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Lend nothing new; what runs may end by itself."""
        self._draining = True

    def decline(self, reason: DeclineReason) -> ReservationDeclined:
        """Count a refusal, of the desk's own or of the shell around it; gives what is to be raised."""
        self._declined[reason] += 1
        return ReservationDeclined(reason)

    def snapshot(self, now: float) -> RelaySnapshot:
        """All there is to tell."""
        return RelaySnapshot(
            draining=self._draining,
            limits=self.limits,
            slots=tuple(slot for slot in self._slots.values() if self._stands(slot, now)),
            passages=tuple(
                PassageSeen(p.source, p.target, now - p.began, p.carried) for p in self._passages.values()
            ),
            reserved=self._reserved,
            renewed=self._renewed,
            connected=self._connected,
            bytes=self._bytes,
            declined=dict(self._declined),
            ended=dict(self._ended),
        )

    def _ask(self, peer: PeerId, ip: str | None, pace: _Pace, now: float) -> str:
        """What every question is asked first; gives the network of who asks."""
        if self._draining:
            raise self.decline(DeclineReason.DRAINING)
        if ip is None:
            raise self.decline(DeclineReason.RELAYED)
        if not self._allow(peer):
            raise self.decline(DeclineReason.NOT_ALLOWED)
        if not pace.take(peer, now):
            raise self.decline(DeclineReason.TOO_OFTEN)
        return network_of(ip)

    def _purge(self, now: float) -> None:
        if now - self._purged_at < PURGE_EVERY_S:
            return
        self._purged_at = now
        for slot in [slot for slot in self._slots.values() if not self._stands(slot, now)]:
            self.release(slot.peer)


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
