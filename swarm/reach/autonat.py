"""Dialling a node back to see whether it can be dialled: what gates, and nodes that can be dialled themselves, answer on `/sark/reach/1`.

Whoever asks can have us dial nothing but the address his own connection comes from, so nobody else is bothered through us; and that
seldom, on few ports, for a short while. `ask` is the other side.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages.index import ContactInfo
from protocol.messages.index import RefusedMessage as RefusedMessage
from protocol.messages.reach import MAX_GATES, MAX_PORTS, REACH, DialBack, DialBackReply
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.net.addresses import Address, Contact, PeerId, is_private, parse_tcp, public_network, usable
from swarm.net.limits import RateLimit
from swarm.net.link import Link, serve_links
from swarm.net.network import Network, read_contacts

KNOCK_WITHIN_S: Final = 2.5
KNOCKS: Final = 16
"""Ports dialled at a time, whoever asks."""
PER_PEER: Final = (4, 15.0)
"""So many answers at once, then one every so many seconds."""
PER_NETWORK: Final = (32, 2.0)
"""The same for each public network."""
ANSWER_WITHIN_S: Final = 6.0
MAX_TRIED: Final = 4
"""Addresses of a gate that is named."""
WHOLE_MS: Final = 1000

log = structlog.get_logger("sark.reach")

Knock = Callable[[PeerId, Address], Awaitable[bool]]
"""Whether the peer, with its key, answers a fresh connection at that address."""


class AutoNatServer:
    """Answers those who want to know. One for each node, whether it may answer now or not."""

    def __init__(
        self,
        seen_at: Callable[[PeerId], Address | None],
        knock: Knock,
        *,
        serving: Callable[[], bool],
        wall: Callable[[], float],
        meet: Callable[[Contact], None] = lambda contact: None,
    ) -> None:
        """`seen_at`: where a peer's direct connection comes from; `serving`: whether this node can be dialled itself;
        `wall`: seconds since 1970; `meet`: get to know a gate that was named, if it is one."""
        self._seen_at = seen_at
        self._knock = knock
        self._serving = serving
        self._wall = wall
        self._meet = meet
        self._peers = RateLimit(*PER_PEER)
        self._networks = RateLimit(*PER_NETWORK)
        self._free = KNOCKS
        self.answered = 0
        self.refused = 0

    def serve(self, network: Network) -> None:
        """Answer on `network` from now on."""
        serve_links(network, ProtocolId.REACH, REACH, self.answer)

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call."""
        if not isinstance(message, DialBack):
            raise RemoteProtocolError(f"a {type(message).__name__} is an answer, not a call")
        refusal = self._refusal(link.peer, len(set(message.ports)))
        if isinstance(refusal, RefusedMessage):
            self.refused += 1
            return refusal
        for contact in read_contacts(message.gates[:MAX_GATES]):
            if addresses := _decent(contact.addresses, refusal):
                self._meet(Contact(contact.peer, addresses))
        reached = await self._dial(link.peer, refusal, message.ports)
        self.answered += 1
        return DialBackReply(observed=refusal, reached=reached, wall_ms=math.floor(self._wall() * WHOLE_MS))

    def _refusal(self, peer: PeerId, ports: int) -> RefusedMessage | Address:
        """Why not; or where the peer is seen."""
        if not self._serving():
            return RefusedMessage(
                reason=Reason.NOT_SERVING, detail="this node does not know that it can be dialled itself"
            )
        observed = self._seen_at(peer)
        if observed is None or parse_tcp(observed) is None:
            return RefusedMessage(
                reason=Reason.NOT_SERVING, detail="you come through a relay: your own address is not seen"
            )
        now = trio.current_time()
        wait = self._peers.wait(now, peer)
        network = public_network([observed])
        if not wait and network:
            wait = self._networks.wait(now, network)
        if not wait and self._free < ports:
            wait = KNOCK_WITHIN_S
        if wait:
            return RefusedMessage(
                reason=Reason.OVERLOADED, detail="asked too often; try again later", retry_after_s=wait
            )
        return observed

    async def _dial(self, peer: PeerId, observed: Address, ports: Sequence[int]) -> tuple[int, ...]:
        """The ports that led to the peer, all tried side by side."""
        where = parse_tcp(observed)
        assert where is not None
        reached: set[int] = set()

        async def one(port: int) -> None:
            with trio.move_on_after(KNOCK_WITHIN_S):
                if await self._knock(peer, f"/{where.family}/{where.host}/tcp/{port}"):
                    reached.add(port)

        wanted = tuple(dict.fromkeys(ports))[:MAX_PORTS]
        self._free -= len(wanted)
        try:
            async with trio.open_nursery() as nursery:
                for port in wanted:
                    nursery.start_soon(one, port)
        finally:
            self._free += len(wanted)
        return tuple(port for port in wanted if port in reached)


def _decent(addresses: Sequence[Address], observed: Address) -> tuple[Address, ...]:
    """Where a gate that somebody names may be tried: few addresses, and none of our own LAN if he is not of it."""
    from_afar = not is_private(observed)
    return tuple(each for each in usable(addresses) if not (from_afar and is_private(each)))[:MAX_TRIED]


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    """What one gate answered, and how its clock stands to ours."""

    gate: PeerId
    observed: Address
    reached: tuple[int, ...]
    rtt_s: float
    """All of it, the dial-back included: an upper bound."""
    ahead_s: float
    """The gate's wall clock less ours, as of the answer: good to `rtt_s`."""


async def ask(
    network: Network,
    gate: Contact,
    ports: Sequence[int],
    others: Sequence[Contact] = (),
    *,
    wall: Callable[[], float],
    max_wait_s: float = ANSWER_WITHIN_S,
) -> DialBackAnswer:
    """Have `gate` dial this node back at `ports`. `others`: gates to make known to it.

    Raises `Unreachable` for no answer, `Refused` for a no, `RemoteProtocolError` for nonsense.
    """
    wanted = tuple(dict.fromkeys(ports))[:MAX_PORTS]
    named = tuple(
        ContactInfo(peer=other.peer, addresses=other.addresses[:8])
        for other in others
        if other.peer != gate.peer and other.addresses
    )[:MAX_GATES]
    stream = await network.open(gate.peer, ProtocolId.REACH, gate.addresses, max_wait_s=max_wait_s)
    link = Link(stream, REACH)
    answer: Message | Unreachable
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(_read, link)
        try:
            answer = await link.call(DialBack(ports=wanted, gates=named), max_wait_s=max_wait_s)
        except Unreachable as error:
            answer = error
        took = trio.current_time() - began
        await link.aclose()
        nursery.cancel_scope.cancel()
    if isinstance(answer, Unreachable):
        raise answer
    if isinstance(answer, RefusedMessage):
        raise Refused(
            f"…{gate.peer[-8:]} does not dial back: {answer.detail or answer.reason}",
            reason=answer.reason,
            retry_after_s=answer.retry_after_s,
        )
    if not isinstance(answer, DialBackReply):
        raise RemoteProtocolError(f"{gate.peer} answered DialBack with {type(answer).__name__}")
    reached = tuple(port for port in answer.reached if port in wanted)
    return DialBackAnswer(gate.peer, answer.observed, reached, took, answer.wall_ms / WHOLE_MS - wall())


async def _read(link: Link, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await link.run(task_status=task_status)
    except RemoteProtocolError as error:
        log.info("link.broken", peer=link.peer, family=ProtocolId.REACH, why=error.what)
