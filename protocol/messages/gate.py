"""The gate protocol, `/sark/gate/1`: the status of a gate, for its operators.

an operator's command                  a gate
    │ ShowCredentials ───────────────────▶ │   a token by which a peer that the gate knows answers for the sender
    │ ◀── CredentialsReply, RefusedMessage │   with the right `status` if that peer is an operator of the gate
    │ GateStatus ────────────────────────▶ │
    │ ◀────── GateSnapshot, RefusedMessage │
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.messages.index import RefusedMessage
from protocol.messages.work import CredentialsReply, ShowCredentials
from protocol.wire.base import AddressText, Count, Line, Message, PeerName, Seconds
from protocol.wire.codec import Vocabulary

MAX_LISTED: Final = 48
"""Most peers, and circuits, that are listed; the counts include all."""
MAX_REASONS: Final = 64
"""Most reasons that are counted separately."""

Counts = Annotated[dict[Line, Count], Field(max_length=MAX_REASONS)]


class GateStatus(Message, type="gate-status"):
    """Ask for the status. For operators of the gate."""


class ConnectedPeer(Message):
    """A connected peer."""

    peer: PeerName
    address: AddressText | None = None
    """The address of its connection; None: through another gate."""
    reserved: bool = False
    """It has a reservation: other peers may call it through this gate."""


class LiveCircuit(Message):
    """A circuit through this gate."""

    source: PeerName
    target: PeerName
    seconds: Seconds
    bytes: Count
    """Bytes carried, in both directions together."""


class RelayCaps(Message):
    """Limits of the relay. A network is an IPv4 /24 or an IPv6 /48."""

    reservations: Count
    reservations_per_network: Count
    circuits: Count
    circuits_from_peer: Count
    circuits_to_peer: Count
    circuits_from_network: Count
    circuit_bytes: Count
    circuit_s: Seconds
    bytes_per_s: Count | None = None
    """Rate of all circuits together; None: unlimited."""


class GateSnapshot(Message, type="gate-snapshot"):
    """The gate's status. Totals count from the gate's start."""

    version: Line
    incarnation: Count
    uptime_s: Seconds
    draining: bool = False
    admit: Line
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=16)] = ()
    connected: Count = 0
    """Peers with a live connection."""
    peers: Annotated[tuple[ConnectedPeer, ...], Field(max_length=MAX_LISTED)] = ()
    """Some of them, those with a reservation first."""
    caps: RelayCaps | None = None
    """None: the relay is off."""
    reservations: Count = 0
    reservations_made: Count = 0
    circuits: Count = 0
    busiest: Annotated[tuple[LiveCircuit, ...], Field(max_length=MAX_LISTED)] = ()
    """The circuits that have carried the most bytes."""
    circuits_begun: Count = 0
    circuits_ended: Counts = {}
    """By reason."""
    relayed_bytes: Count = 0
    refused: Counts = {}
    """By service and reason, such as `relay full` or `index not-allowed`."""
    adverts: Count = 0
    shards: Count = 0
    advert_bytes: Count = 0
    memory_bytes: Count = 0
    """Resident bytes of the gate's process."""
    cpu_s: Seconds = 0.0
    """Processor seconds of the gate's process since its start."""
    lag_s: Seconds = 0.0
    """The longest delay of the event loop in the last minute."""


GATE: Final = Vocabulary(
    GateStatus,
    GateSnapshot,
    ShowCredentials,
    CredentialsReply,
    RefusedMessage,
    calls=(GateStatus, ShowCredentials),
)
"""All of the above, with `ShowCredentials` and `CredentialsReply` as workers have them, and the index's `RefusedMessage`."""
