"""The gate conversation, `/sark/gate/1`: how does this gate stand, and whose visitor am I?

an operator's command                  a gate
    │ Present(issuer, token) ────────────▶ │   as at a worker: this visitor belongs to a peer that the gate knows
    │ ◀──────────── Presented, or Refused │   with the right `status` if that peer is an operator of the gate
    │ GateStatus ────────────────────────▶ │
    │ ◀───────── GateStanding, or Refused │
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.messages.index import RefusedMessage
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.wire.base import AddressText, Count, Line, Message, PeerName, Seconds
from protocol.wire.codec import Vocabulary

MAX_SEEN: Final = 48
"""Peers, and circuits, that are told of one by one; the counts are of all."""
MAX_TOLD: Final = 64
"""Reasons that are told apart."""

Counts = Annotated[dict[Line, Count], Field(max_length=MAX_TOLD)]


class GateStatus(Message):
    """How do you stand? For operators of the gate."""

    type: Literal["gate-status"] = "gate-status"


class PeerSeen(Message):
    """A connected peer."""

    peer: PeerName
    address: AddressText | None = None
    """Where it is seen to come from; None: through another gate."""
    place: bool = False
    """It holds a place here, where others may call it."""


class CircuitSeen(Message):
    """A circuit that goes through this gate now."""

    source: PeerName
    target: PeerName
    seconds: Seconds
    bytes: Count
    """Carried so far, both ways together."""


class RelayCaps(Message):
    """What the gate lends at most. A network is an IPv4 /24 or an IPv6 /48."""

    reservations: Count
    reservations_per_network: Count
    circuits: Count
    circuits_from_peer: Count
    circuits_to_peer: Count
    circuits_from_network: Count
    circuit_bytes: Count
    circuit_s: Seconds
    bytes_per_s: Count | None = None
    """Of all circuits together; None: as fast as they go."""


class GateSnapshot(Message):
    """How it stands. Counts of what was done are since its start."""

    type: Literal["gate-snapshot"] = "gate-snapshot"
    version: Line
    incarnation: Count
    uptime_s: Seconds
    draining: bool = False
    admit: Line
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=16)] = ()
    connected: Count = 0
    """Peers with a live connection."""
    peers: Annotated[tuple[PeerSeen, ...], Field(max_length=MAX_SEEN)] = ()
    """Some of them, those with a place first."""
    caps: RelayCaps | None = None
    """None: it is no relay."""
    places: Count = 0
    places_given: Count = 0
    circuits: Count = 0
    busiest: Annotated[tuple[CircuitSeen, ...], Field(max_length=MAX_SEEN)] = ()
    """The circuits that have carried most."""
    circuits_begun: Count = 0
    circuits_ended: Counts = {}
    """By how they ended."""
    relayed_bytes: Count = 0
    refused: Counts = {}
    """By desk and reason, such as `relay full` or `index not-allowed`."""
    adverts: Count = 0
    shards: Count = 0
    advert_bytes: Count = 0
    memory_bytes: Count = 0
    """Resident, of the gate's process."""
    cpu_s: Seconds = 0.0
    """Processor seconds of the gate's process since its start."""
    lag_s: Seconds = 0.0
    """By how much the event loop was late at worst in the last minute."""


GATE: Final = Vocabulary(GateStatus, GateSnapshot, ShowCredentials, CredentialsReply, RefusedMessage)
"""All of the above, with `ShowCredentials` and `CredentialsReply` as workers have them, and the index's `RefusedMessage`."""
