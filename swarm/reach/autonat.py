"""AutoNAT, `/sark/reach/1`: gates, and other nodes that can be dialled, dial a node to find out whether it can be dialled.

A caller can make this node dial only the address of the caller's own connection, so it cannot direct dials at others. Dials are rare,
short, and to few ports. `ask` is the client.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.index import ContactInfo, RefusedMessage
from protocol.messages.reach import MAX_GATES, MAX_PORTS, REACH, DialBack, DialBackReply
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.net.addresses import Address, Contact, PeerId, is_private, parse_tcp, public_network, usable
from swarm.net.limits import RateLimit
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Network, read_contacts

KNOCK_WITHIN_S: Final = 2.5
KNOCKS: Final = 16
"""Ports dialled at once, for all callers together."""
PER_PEER: Final = (4, 15.0)
"""Answers to one peer: a burst of this many, then one every this many seconds."""
PER_NETWORK: Final = (32, 2.0)
"""As `PER_PEER`, for each public network."""
ANSWER_WITHIN_S: Final = 6.0
MAX_TRIED: Final = 4
"""How many addresses of a named gate are tried."""

log = structlog.get_logger("sark.reach")

Knock = Callable[[PeerId, Address], Awaitable[bool]]
"""Whether the peer answers a new connection at that address and proves its key."""


@dataclass(eq=False)
class AutoNatServer:
    """Dials nodes that request it. Every node has one; it refuses while the node itself cannot be dialled."""

    seen_at: Callable[[PeerId], Address | None]
    """The remote address of a peer's direct connection."""
    knock: Knock
    _: KW_ONLY
    serving: Callable[[], bool]
    """Whether this node can be dialled itself."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    meet: Callable[[Contact], None] = lambda contact: None
    """Try a gate that a caller named."""

    def __post_init__(self) -> None:
        self._peers = RateLimit(*PER_PEER)
        self._networks = RateLimit(*PER_NETWORK)
        self._free = KNOCKS

    def serve(self, network: Network) -> None:
        """Answer on `network` from now on."""
        serve_links(network, ProtocolId.REACH, REACH, self.answer)

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call."""
        if not isinstance(message, DialBack):
            raise RemoteProtocolError(f"a {type(message).__name__} is an answer, not a call")
        ports = tuple(dict.fromkeys(message.ports))
        observed = self._refusal(link.peer, len(ports))
        if isinstance(observed, RefusedMessage):
            return observed
        for contact in read_contacts(message.gates):
            if addresses := _allowed(contact.addresses, observed):
                self.meet(Contact(contact.peer, addresses))
        reached = await self._dial(link.peer, observed, ports)
        return DialBackReply(observed=observed, reached=reached, wall_ms=math.floor(self.wall() * 1000))

    def _refusal(self, peer: PeerId, ports: int) -> RefusedMessage | Address:
        """The refusal, or the address of the peer if it is served."""
        observed = self.seen_at(peer)
        if not self.serving():
            why = "this node does not know whether other nodes can dial it"
            return RefusedMessage(reason=Reason.NOT_SERVING, detail=why)
        if observed is None or parse_tcp(observed) is None:
            why = "your connection comes through a relay, so your address is unknown"
            return RefusedMessage(reason=Reason.NOT_SERVING, detail=why)
        now, network = trio.current_time(), public_network([observed])
        wait = self._peers.wait(now, peer)
        if not wait and network:
            wait = self._networks.wait(now, network)
        if not wait and self._free < ports:
            wait = KNOCK_WITHIN_S
        if wait:
            why = "too many requests; try again later"
            return RefusedMessage(reason=Reason.OVERLOADED, detail=why, retry_after_s=wait)
        return observed

    async def _dial(self, peer: PeerId, observed: Address, ports: Sequence[int]) -> tuple[int, ...]:
        """The ports at which the peer was reached; all are dialled at once."""
        where = parse_tcp(observed)
        assert where is not None
        reached: set[int] = set()

        async def one(port: int) -> None:
            with trio.move_on_after(KNOCK_WITHIN_S):
                if await self.knock(peer, f"/{where.family}/{where.host}/tcp/{port}"):
                    reached.add(port)

        self._free -= len(ports)
        try:
            async with trio.open_nursery() as nursery:
                for port in ports:
                    nursery.start_soon(one, port)
        finally:
            self._free += len(ports)
        return tuple(port for port in ports if port in reached)


def _allowed(addresses: Sequence[Address], observed: Address) -> tuple[Address, ...]:
    """The addresses to try of a gate that a caller names: only a few, and none on our LAN unless the caller is on it."""
    from_afar = not is_private(observed)
    return tuple(each for each in usable(addresses) if not (from_afar and is_private(each)))[:MAX_TRIED]


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    """The answer of one gate, and the offset of its clock."""

    gate: PeerId
    observed: Address
    reached: tuple[int, ...]
    rtt_s: float
    """Round-trip time including the dials, so an upper bound."""
    ahead_s: float
    """The gate's wall clock minus ours; accurate to `rtt_s`."""


async def ask(
    network: Network,
    gate: Contact,
    ports: Sequence[int],
    others: Sequence[Contact] = (),
    *,
    wall: Callable[[], float],
    max_wait_s: float = ANSWER_WITHIN_S,
) -> DialBackAnswer:
    """Ask `gate` to dial this node at `ports`. `others`: gates to make known to it.

    Raises `Unreachable` if there is no answer, `Refused`, and `RemoteProtocolError` for an invalid answer.
    """
    requested = tuple(dict.fromkeys(ports))[:MAX_PORTS]
    named = tuple(
        ContactInfo(peer=other.peer, addresses=other.addresses[:8])
        for other in others
        if other.peer != gate.peer and other.addresses
    )[:MAX_GATES]
    answer: Message | Unreachable | RemoteProtocolError
    took = 0.0
    async with trio.open_nursery() as nursery:
        links = Links(network, ProtocolId.REACH, REACH, nursery)
        try:
            link = await links.get(gate.peer, gate.addresses, max_wait_s=max_wait_s)
            began = trio.current_time()
            answer = await link.call(DialBack(ports=requested, gates=named), max_wait_s=max_wait_s)
            took = trio.current_time() - began
            await link.aclose()
        except (Unreachable, RemoteProtocolError) as error:
            answer = error
        nursery.cancel_scope.cancel()
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, RefusedMessage):
        raise Refused(
            f"…{gate.peer[-8:]} does not test it: {answer.detail or answer.reason}",
            reason=answer.reason,
            retry_after_s=answer.retry_after_s,
        )
    if not isinstance(answer, DialBackReply):
        raise RemoteProtocolError(f"{gate.peer} answered DialBack with {type(answer).__name__}")
    reached = tuple(port for port in answer.reached if port in requested)
    return DialBackAnswer(gate.peer, answer.observed, reached, took, answer.wall_ms / 1000 - wall())
