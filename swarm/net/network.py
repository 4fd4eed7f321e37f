"""The face of the network: what every role may ask of it, and nothing of how it is done.

Two things have this face: `swarm.join.host` (libp2p, between real processes) and `swarm.memory.network` (a simulated network with
latency, loss and partitions on trio's clock). One test suite runs over both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocol.messages import index as say
from swarm.net.addresses import Address, Contact, PeerId
from swarm.net.identity import routing_key

if TYPE_CHECKING:
    from swarm.net.reservations import RelayReservations


@dataclass(frozen=True, slots=True)
class Path:
    """By which way a connected peer is spoken with."""

    direct: bool
    via: PeerId | None
    """The gate that a relayed connection goes through; None for a direct one, and where the gate is not known."""
    rtt_ms: float | None
    """Milliseconds there and back as last measured; None before that."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place at a gate, where others may call this node."""

    gate: PeerId
    address: Address
    """The circuit to be told to others: through the gate at the address by which this node reached it."""
    ttl_s: float
    """Seconds from the answer on; ask again well before."""
    limit_bytes: int | None = None
    """What one circuit may carry, both ways together; None where the gate names no limit."""
    limit_s: float | None = None
    others: tuple[Address, ...] = ()
    """The same circuit through the gate's other addresses, as the gate tells them (a forwarded port, IPv6)."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All circuits through this place, best first."""
        return (self.address, *self.others)


class Stream(Protocol):
    """One ordered byte stream with a peer whose identity the channel has proved.

    No method has a deadline of its own: callers wrap them (`trio.fail_after`). All raise `trio.BrokenResourceError` when the
    peer or the link is gone and `trio.ClosedResourceError` after a local close, as trio's own streams do.
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
        """Say that nothing more will be sent; reading goes on."""
        ...

    async def aclose(self) -> None:
        """Close both ways, giving what was sent a chance to arrive. Never raises on a broken stream."""
        ...

    async def reset(self) -> None:
        """Abandon both ways at once. Never raises."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream; the network resets the stream when it raises and closes it when it returns."""


class Network(Protocol):
    """A started node of the network, open for dialling and being dialled."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where this node can be dialled; empty when it cannot."""
        ...

    def sign(self, body: bytes) -> bytes:
        """64-byte Ed25519 signature of this node over `body`."""
        ...

    def handle(self, protocol: str, handler: Handler) -> None:
        """Serve inbound streams of `protocol`. One handler for each; set before peers are told of us."""
        ...

    async def connect(self, peer: PeerId, addresses: Sequence[Address], *, max_wait_s: float = 5.0) -> None:
        """Have a connection to `peer`: the one there is, or a new one by any of `addresses`, tried side by side.

        Direct addresses have a short head start over circuits. A relayed connection is good until it ends: gates
        limit its bytes and its time, and the two nodes try by themselves to replace it by a direct one.
        Raises `Unreachable` with what was tried; never takes longer than `max_wait_s`.
        """
        ...

    async def open(
        self, peer: PeerId, protocol: str, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Stream:
        """A fresh stream, on the direct connection where there is one; connects first where needed. Raises `Unreachable`."""
        ...

    async def disconnect(self, peer: PeerId) -> None:
        """Drop every connection with `peer`; its streams break."""
        ...

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with a live connection."""
        ...

    def remote_address(self, peer: PeerId) -> Address | None:
        """Where a connected peer is seen to come from, whatever it says of itself.

        None when it is not connected, or through a gate alone: the gate's address says nothing of the peer.
        """
        ...

    def path(self, peer: PeerId) -> Path | None:
        """By which way a new stream to `peer` would go now; None when it is not connected."""
        ...

    async def knock(self, peer: PeerId, address: Address, *, max_wait_s: float = 3.0) -> bool:
        """Whether `peer` answers at this very address, and shows its key: by a fresh connection of its own, closed again at once."""
        ...

    @property
    def called_at(self) -> float:
        """When somebody last connected with this node directly, of his own accord (trio's clock); `-inf` before that."""
        ...

    # -- gates as relays -------------------------------------------------------------------------------------------------

    async def reserve(
        self, gate: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0
    ) -> Reservation:
        """Take a place at `gate`, or keep it for longer; connects directly first where needed.

        The place ends with the connection on which it was taken, so a gate's restart or a cut ends it; asking again is
        the caller's business. Raises `Refused` (by the gate, with its reason) or `Unreachable`.
        """
        ...

    def reservations(self) -> tuple[Reservation, ...]:
        """The places this node holds now: not run out, and their connections live."""
        ...

    def serve_relay(self, desk: RelayReservations) -> None:
        """Be a gate for nodes that nobody can dial, lending what `desk` allows. Once; before peers are told of us."""
        ...

    def route(self, serve: bool) -> None:
        """Be one through whom others find their way, or no longer. No I/O; what is known of others stays."""
        ...

    # -- the routing table: libp2p's Kademlia in the real network --------------------------------------------------------

    def closest(self, key: bytes, count: int) -> tuple[Contact, ...]:
        """Up to `count` known peers nearest to the 32-byte `key` by XOR with sha256 of the peer id's bytes. No I/O."""
        ...

    def learn(self, contact: Contact) -> None:
        """A peer answered us: keep it as a way to others. No I/O; safe to call often."""
        ...

    def forget(self, peer: PeerId) -> None:
        """A peer did not answer: take it out of the routing table. No I/O."""
        ...

    async def refresh(self) -> None:
        """Look around our own id so that the table fills; called after connecting to a first peer."""
        ...


def read_contacts(contacts: tuple[say.ContactInfo, ...] | list[say.ContactInfo]) -> list[Contact]:
    """Contacts as they were named by a peer; ids that make no sense are left out."""
    found = []
    for info in contacts:
        try:
            routing_key(info.peer)
        except ValueError:
            continue
        found.append(Contact(info.peer, tuple(info.addresses)))
    return found
