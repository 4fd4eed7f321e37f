"""The interface of the network that every role uses.

Two implementations: `swarm.join.host` (libp2p, between real processes) and `swarm.memory.network` (a simulated network with latency,
loss and partitions on trio's clock). One test suite runs over both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from protocol.messages import index as index_messages
from swarm.base.units import show_ms
from swarm.net.addresses import Address, Contact, PeerId, circuits, parse_tcp, without_names
from swarm.net.governor import Governor
from swarm.net.identity import routing_key
from swarm.net.routing_table import RoutingTable

if TYPE_CHECKING:
    from swarm.net.reservations import RelayReservations


@dataclass(frozen=True, slots=True)
class Path:
    """How a peer is connected."""

    direct: bool
    via: PeerId | None
    """The gate of a relayed connection; None for a direct one, and where the gate is unknown."""
    rtt_ms: float | None
    """The last measured round trip in milliseconds; None before that."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation at a gate, through which others may connect to this node."""

    gate: PeerId
    address: Address
    """The circuit to announce: through the gate at the address by which this node reached it."""
    ttl_s: float
    """Seconds from the reply on; renew well before."""
    others: tuple[Address, ...] = ()
    """The same circuit through other addresses that the gate announces (a forwarded port, IPv6)."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All circuits of this reservation, best first."""
        return (self.address, *self.others)


class Stream(Protocol):
    """One ordered byte stream with a peer that proved its identity.

    Methods have no deadlines: callers set them (`trio.fail_after`). They raise `trio.BrokenResourceError` when the peer or the link is
    gone and `trio.ClosedResourceError` after a local close, as trio's own streams do.
    """

    @property
    def peer(self) -> PeerId: ...

    @property
    def protocol(self) -> str: ...

    @property
    def relayed(self) -> bool:
        """Whether its connection goes through a gate."""
        ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it; waits while the peer's window is full."""
        ...

    async def receive_some(self, max_bytes: int = 262_144) -> bytes:
        """At least one byte, or b"" when the peer has finished sending."""
        ...

    async def send_eof(self) -> None:
        """Finish sending; reading goes on."""
        ...

    async def aclose(self) -> None:
        """Close both directions, and let what was sent arrive. Never raises on a broken stream."""
        ...

    async def reset(self) -> None:
        """Abandon both directions at once. Never raises."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream; the network resets the stream when it raises and closes it when it returns."""


class Network(Protocol):
    """A running node of the network."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def table(self) -> RoutingTable:
        """The holders that this node knows."""
        ...

    @property
    def governor(self) -> Governor:
        """Bounds what peers may cost this node."""
        ...

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where this node can be dialled; empty when it cannot."""
        ...

    def sign(self, body: bytes) -> bytes:
        """64-byte Ed25519 signature of this node over `body`."""
        ...

    def handle(self, protocol: str, handler: Handler) -> None:
        """Serve inbound streams of `protocol`. One handler for each; set it before peers know this node."""
        ...

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        """Connect to `peer` unless it is connected: by any of `addresses`, tried concurrently, direct ones with a short head start.

        A relayed connection ends at its gate's limits of bytes and time; the two nodes try to replace it by a direct one.
        Raises `Unreachable` within `max_wait_s`, with what was tried.
        """
        ...

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Stream:
        """Open a stream, on the direct connection where there is one; connects first where needed. Raises `Unreachable`."""
        ...

    def owner_gave(self, addresses: Iterable[Address]) -> None:
        """Dial `…/p2p/12D3Koo…` wherever that leads: it is no stranger's word."""
        ...

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection with `peer`; its streams break."""
        ...

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with a live connection."""
        ...

    def remote_address(self, peer: PeerId) -> Address | None:
        """The observed address of a directly connected peer; None for others."""
        ...

    def path(self, peer: PeerId) -> Path | None:
        """The connection that a new stream to `peer` would use now; None when it is not connected."""
        ...

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        """Whether `peer` proves its key at this very address, on a new connection that is closed at once."""
        ...

    @property
    def called_at(self) -> float:
        """When a peer last dialled this node directly (trio's clock); `-inf` before that."""
        ...

    # -- gates as relays -------------------------------------------------------------------------------------------------

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        """Make or renew a reservation at `gate`; connects directly first where needed.

        It ends with its connection, so a gate's restart ends it; the caller renews. Raises `Refused` (by the gate, with its reason) or
        `Unreachable`.
        """
        ...

    def reservations(self) -> tuple[Reservation, ...]:
        """This node's valid reservations."""
        ...

    def serve_relay(self, reservations: RelayReservations) -> None:
        """Be a relay for nodes that nobody can dial. Once; before peers know this node."""
        ...


def read_contacts(
    contacts: tuple[index_messages.ContactInfo, ...] | list[index_messages.ContactInfo],
) -> list[Contact]:
    """The contacts that a peer names, without invalid ids and DNS names."""
    valid = []
    for info in contacts:
        try:
            routing_key(info.peer)
        except ValueError:
            continue
        valid.append(Contact(info.peer, without_names(info.addresses)))
    return valid


def path_words(path: Path | None, addresses: Sequence[Address] = ()) -> str:
    """For people; empty without a path. `addresses`: the peer's, which name the gate's own address."""
    if path is None:
        return ""
    route = "direct" if path.direct else f"via gate {gate_name(path.via, addresses)}"
    if path.rtt_ms is None:
        return route
    return f"{route}, {show_ms(round(path.rtt_ms, None if path.rtt_ms >= 10 else 1))}"


def gate_name(gate: str | None, addresses: Sequence[Address] = ()) -> str:
    """`192.0.2.7:4101` where its address is known, else the end of its id."""
    if gate is None:
        return "?"
    for circuit in circuits(addresses):
        where = parse_tcp(circuit.address)
        if circuit.gate == gate and where is not None:
            return f"[{where.host}]:{where.port}" if where.family == "ip6" else f"{where.host}:{where.port}"
    return f"…{gate[-8:]}"


def path_json(path: Path | None) -> dict[str, Any] | None:
    """`direct`, `gate` (its peer id, None where direct), `rtt_ms`; None without a path."""
    if path is None:
        return None
    rtt_ms = None if path.rtt_ms is None else round(path.rtt_ms, 3)
    return {"direct": path.direct, "gate": path.via, "rtt_ms": rtt_ms}
