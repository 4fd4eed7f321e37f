"""The network interface that every role uses.

It has two implementations: `swarm.join.host` (libp2p, between real processes) and `swarm.memory.network` (a simulated network with latency,
loss and partitions on trio's clock). One test suite runs on both.
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
    """The gate of a relayed connection; None for a direct connection, or if the gate is unknown."""
    rtt_ms: float | None
    """The last measured round trip in milliseconds; None before the first measurement."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation at a gate, through which others may connect to this node."""

    gate: PeerId
    address: Address
    """The circuit to announce, with the address by which this node reached the gate."""
    ttl_s: float
    """Lifetime in seconds from the reply on; renew well before it ends."""
    others: tuple[Address, ...] = ()
    """The same circuit through the gate's other announced addresses (a forwarded port, IPv6)."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All circuits of this reservation, best first."""
        return (self.address, *self.others)


class Stream(Protocol):
    """One ordered byte stream with a peer that proved its identity.

    Methods have no time limits: callers set them (`trio.fail_after`). Like trio's own streams, they raise `trio.BrokenResourceError` when
    the peer or the link is gone and `trio.ClosedResourceError` after a local close.
    """

    @property
    def peer(self) -> PeerId: ...

    @property
    def protocol(self) -> str: ...

    @property
    def relayed(self) -> bool:
        """Whether the connection goes through a gate."""
        ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`; waits while the peer's window is full."""
        ...

    async def receive_some(self, max_bytes: int = 262_144) -> bytes:
        """At least one byte, or b"" when the peer has finished sending."""
        ...

    async def send_eof(self) -> None:
        """Finish sending; reading remains possible."""
        ...

    async def aclose(self) -> None:
        """Close both directions, letting sent data arrive. Never raises on a broken stream."""
        ...

    async def reset(self) -> None:
        """Abandon both directions at once. Never raises."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream. The network closes the stream when it returns, and resets the stream when it raises."""


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
        """Limits what peers may cost this node."""
        ...

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where this node can be dialled; empty if it cannot."""
        ...

    def sign(self, body: bytes) -> bytes:
        """64-byte Ed25519 signature of this node over `body`."""
        ...

    def handle(self, protocol: str, handler: Handler) -> None:
        """Serve inbound streams of `protocol`. One handler for each protocol; set it before peers know this node."""
        ...

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        """Connect to `peer` unless it is connected: try all `addresses` concurrently, direct ones with a short head start.

        A relayed connection ends at its gate's limits of bytes and time; the two nodes try to replace it with a direct one. Raises
        `Unreachable` within `max_wait_s`, with the attempts made.
        """
        ...

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Stream:
        """Open a stream, on a direct connection if there is one; connects first if needed. Raises `Unreachable`."""
        ...

    def owner_gave(self, addresses: Iterable[Address]) -> None:
        """Allow dialling these `…/p2p/12D3Koo…` addresses wherever they lead, since the owner gave them, not a stranger."""
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
        """The connection that a new stream to `peer` would use now; None if not connected."""
        ...

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        """Whether `peer` proves its key at exactly this address, on a new connection that is then closed."""
        ...

    @property
    def called_at(self) -> float:
        """When a peer last dialled this node directly (trio's clock); `-inf` before that."""
        ...

    # -- gates as relays -------------------------------------------------------------------------------------------------

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        """Make or renew a reservation at `gate`; connects directly first if needed.

        A reservation ends with its connection, so also when the gate restarts; the caller renews it. Raises `Refused` (by the gate, with
        its reason) or `Unreachable`.
        """
        ...

    def reservations(self) -> tuple[Reservation, ...]:
        """This node's valid reservations."""
        ...

    def serve_relay(self, reservations: RelayReservations) -> None:
        """Serve as a relay for nodes that nobody can dial. Call once, before peers know this node."""
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
    """A path in words; empty without a path. `addresses`: the peer's, which contain the gate's own address."""
    if path is None:
        return ""
    route = "direct" if path.direct else f"via gate {gate_name(path.via, addresses)}"
    if path.rtt_ms is None:
        return route
    return f"{route}, {show_ms(round(path.rtt_ms, None if path.rtt_ms >= 10 else 1))}"


def gate_name(gate: str | None, addresses: Sequence[Address] = ()) -> str:
    """`192.0.2.7:4101` if the gate's address is known, else the end of its id."""
    if gate is None:
        return "?"
    for circuit in circuits(addresses):
        where = parse_tcp(circuit.address)
        if circuit.gate == gate and where is not None:
            return f"[{where.host}]:{where.port}" if where.family == "ip6" else f"{where.host}:{where.port}"
    return f"…{gate[-8:]}"


def path_json(path: Path | None) -> dict[str, Any] | None:
    """`direct`, `gate` (its peer id, None if direct), `rtt_ms`; None without a path."""
    if path is None:
        return None
    rtt_ms = None if path.rtt_ms is None else round(path.rtt_ms, 3)
    return {"direct": path.direct, "gate": path.via, "rtt_ms": rtt_ms}
