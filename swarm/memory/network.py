"""A whole network in one process, on trio's clock: latency, loss, bandwidth, partitions, silent cuts and killed nodes.

For tests and for the cluster simulator. Nodes are cheap objects without tasks of their own (only handlers run), so a
thousand of them fit in one process, and under trio's autojump clock an hour of theirs takes seconds.

    async with MemorySwarm(random.Random(1), latency_s=0.02) as swarm:
        gate = swarm.node(Identity.from_seed(1))
        node = swarm.node(Identity.from_seed(2))
        await node.connect(gate.peer_id, gate.addresses)

Behind a NAT (`node(identity, behind="home")`) a node dials everybody and is dialled by its neighbours alone; others reach it
through a gate where it holds a place, as in the real network, but without limits on what one circuit carries and for how long.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import trio

from protocol.errors import Unreachable
from swarm.memory.node import MemoryNetwork
from swarm.memory.streams import MemoryLink, MemoryStream, stream_pair
from swarm.net.addresses import Address, PeerId
from swarm.net.identity import Identity

__all__ = ["MemoryNetwork", "MemorySwarm"]

CONNECT_ROUND_TRIPS: Final = 4
"""TCP, then the names of the security and the muxer, with Noise in between: what libp2p needs before the first stream."""
OPEN_ROUND_TRIPS: Final = 2
RETRANSMIT_S: Final = 0.2
"""A lost packet comes so much later (the least retransmission time of TCP)."""
NOTICE_S: Final = 8.0
"""How long a silent link seems alive; as in the real network."""
Latency = float | Callable[[PeerId, PeerId], float]


class MemorySwarm:
    """The network itself: who is there, who reaches whom, and how fast."""

    def __init__(
        self,
        rng: random.Random,
        *,
        latency_s: Latency = 0.0,
        loss: float = 0.0,
        bytes_per_s: float | None = None,
        notice_s: float = NOTICE_S,
    ) -> None:
        """`latency_s`: one way, for all links or as a function of (from, to). `loss`: share of chunks that come
        RETRANSMIT_S late. `bytes_per_s`: of each link and direction; None for no limit."""
        self._rng = rng
        self._latency = latency_s
        self._loss = loss
        self._bytes_per_s = bytes_per_s
        self._notice_s = notice_s
        self.strays: Counter[Address] = Counter()
        """Dials to addresses where the peer that was meant is not: what a victim whose address is told by liars would get."""
        self._nodes: dict[PeerId, MemoryNetwork] = {}
        self._links: dict[tuple[PeerId, PeerId], MemoryLink] = {}
        """The direct ones."""
        self._relayed: dict[tuple[PeerId, PeerId], MemoryLink] = {}
        self._cuts: set[tuple[PeerId, PeerId]] = set()
        self._made = 0
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if error is not None and list(group.exceptions) == [error]:
                return  # the nursery wraps what the caller's own block raised; let it go on as it was
            raise

    def node(self, identity: Identity, holder: bool = True, behind: str | None = None) -> MemoryNetwork:
        """A new node. One that is no `holder` has no address: it dials, and nobody dials it.

        `behind`: the NAT it sits behind; it is dialled by those behind the same one alone, and packets of others vanish.
        """
        self._made += 1
        address = f"/ip4/10.{self._made >> 16 & 255}.{self._made >> 8 & 255}.{self._made & 255}/tcp/4001"
        node = MemoryNetwork(self, identity, (address,) if holder else (), behind)
        self._nodes[node.peer_id] = node
        return node

    # -- what can go wrong -----------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """The process is gone at once: its handlers stop, its links break, new dials are refused."""
        links = self._links_of(peer) + [link for link in self._relayed.values() if link.via == peer]
        node = self._nodes.pop(peer, None)
        if node is not None:
            node.stop()
        for link in links:
            link.sever()

    def cut_silently(self, a: PeerId, b: PeerId) -> None:
        """Packets between the two vanish; both notice after `notice_s`. Circuits that lead through one of them vanish with it."""
        pair = _pair(a, b)
        self._cuts.add(pair)
        if pair in self._links:
            self._links[pair].cut()
        for link in self._relayed.values():
            if (link.via == a and b in link.ends) or (link.via == b and a in link.ends):
                link.cut()

    def translate(self, peer: PeerId, behind: str | None) -> None:
        """Put a node behind a NAT, or in the open (None). Links that live go on."""
        node = self._nodes[peer]
        node.behind = behind

    def punch(self, a: PeerId, b: PeerId) -> None:
        """Give the two a direct link beside their circuit, as hole punching does. New streams take it."""
        low, high = _pair(a, b)
        if self._live(self._links, low, high) is None:
            self._links[low, high] = MemoryLink(low, high, self._delay, self._notice_s)
            self._nodes[a].met(b)
            self._nodes[b].met(a)

    def partition(self, a: Iterable[PeerId], b: Iterable[PeerId]) -> None:
        """Packets between the two groups vanish."""
        others = tuple(b)
        for one in a:
            for other in others:
                self.cut_silently(one, other)

    def heal(self) -> None:
        """All packets pass again. Links that were given up stay broken; the others go on where they were."""
        self._cuts.clear()
        for link in (*self._links.values(), *self._relayed.values()):
            if link.cut_at is not None:
                link.mend()

    # -- for the nodes -----------------------------------------------------------------------------------------------------

    def latency(self, a: PeerId, b: PeerId) -> float:
        """One-way seconds."""
        return self._latency if isinstance(self._latency, float | int) else self._latency(a, b)

    def is_cut(self, a: PeerId, b: PeerId) -> bool:
        """Do packets between the two vanish?"""
        return _pair(a, b) in self._cuts

    def alive(self, peer: PeerId) -> MemoryNetwork | None:
        return self._nodes.get(peer)

    def link(self, a: PeerId, b: PeerId) -> MemoryLink | None:
        """The live connection of the two; the direct one where there are both kinds."""
        low, high = _pair(a, b)
        return self._live(self._links, low, high) or self._live(self._relayed, low, high)

    def direct(self, a: PeerId, b: PeerId) -> MemoryLink | None:
        """The live direct connection of the two."""
        return self._live(self._links, *_pair(a, b))

    def dialable(self, a: PeerId, b: PeerId) -> bool:
        """Would `b` answer if `a` dialled it now at its address?"""
        node, other = self._nodes.get(a), self._nodes.get(b)
        return (
            node is not None
            and other is not None
            and bool(other.addresses)
            and other.behind in {None, node.behind}
            and not self.is_cut(a, b)
        )

    @staticmethod
    def _live(links: dict[tuple[PeerId, PeerId], MemoryLink], low: PeerId, high: PeerId) -> MemoryLink | None:
        found = links.get((low, high))
        if found is not None and found.dead:
            del links[low, high]
            return None
        return found

    def links_of(self, peer: PeerId) -> list[MemoryLink]:
        """Its live connections."""
        return [link for link in self._links_of(peer) if not link.dead]

    async def dial(self, a: PeerId, b: PeerId) -> MemoryLink:
        """Connect; waits for ever across a cut, as packets without an answer do."""
        await self._round_trips(a, b, CONNECT_ROUND_TRIPS)
        if b not in self._nodes:
            raise Unreachable(f"no way to {b}: connection refused", refused=True)
        if a not in self._nodes:
            raise Unreachable("this node was killed")
        if self._nodes[b].behind not in {None, self._nodes[a].behind}:
            await trio.sleep_forever()  # its NAT drops what was not asked for
        link = self.direct(a, b)
        if link is None:
            low, high = _pair(a, b)
            link = self._links[low, high] = MemoryLink(low, high, self._delay, self._notice_s)
            self._nodes[a].met(b)
            self._nodes[b].met(a)
            self._nodes[b].called()
        return link

    async def knock(self, a: PeerId, b: PeerId, address: Address) -> bool:
        """Does `b` answer `a` at that very address?"""
        await self._round_trips(a, b, OPEN_ROUND_TRIPS)
        other = self._nodes.get(b)
        if other is None or address not in other.addresses:
            return False
        if not self.dialable(a, b):
            await trio.sleep_forever()
        other.called()
        return True

    async def call(self, a: PeerId, b: PeerId, gate: PeerId) -> MemoryLink:
        """Connect through a gate to which `a` has a link, and where `b` holds a place."""
        await self._round_trips(a, gate, OPEN_ROUND_TRIPS)
        caller, server = self._nodes.get(a), self._nodes.get(gate)
        if caller is None or server is None or server.gate is None or self.direct(a, gate) is None:
            raise Unreachable(f"no way to {b}: the connection with the gate broke, or it lends no places")
        if self.direct(gate, b) is None:
            server.gate.release(b)
        passage = server.gate.begin(a, caller.seen_ip, b)
        try:
            await self._round_trips(b, gate, OPEN_ROUND_TRIPS)
            await self._round_trips(a, gate, CONNECT_ROUND_TRIPS)
            if a not in self._nodes or b not in self._nodes or gate not in self._nodes:
                raise Unreachable(f"no way to {b}: the connection with the gate broke")
            low, high = _pair(a, b)
            found = self._live(self._relayed, low, high)
            if found is not None:
                return found
            link = self._relayed[low, high] = MemoryLink(low, high, self._delay, self._notice_s, gate)
            server.gate.came_about(passage, link)
            self._nodes[a].met(b)
            self._nodes[b].met(a)
            return link
        finally:
            server.gate.gave_up(passage)

    async def ask(self, a: PeerId, b: PeerId) -> None:
        """The time of a question and its answer on a fresh stream."""
        await self._round_trips(a, b, OPEN_ROUND_TRIPS + 1)

    async def open(self, link: MemoryLink, opener: PeerId, protocol: str) -> MemoryStream:
        """Ask the other end for a stream."""
        other = link.other(opener)
        await self._round_trips(opener, other, OPEN_ROUND_TRIPS, link.via)
        server = self._nodes.get(other)
        if server is None or link.dead:
            raise Unreachable(f"no way to {other}: the connection broke")
        assert self._nursery is not None
        ours, theirs = stream_pair(link, opener, protocol)
        server.accept(self._nursery, theirs)
        return ours

    async def _round_trips(self, a: PeerId, b: PeerId, count: int, via: PeerId | None = None) -> None:
        late = RETRANSMIT_S if self._rng.random() < self._loss else 0.0
        await trio.sleep(2 * count * self.one_way(a, b, via) + late)
        legs = (_pair(a, b),) if via is None else (_pair(a, via), _pair(via, b))
        if not self._cuts.isdisjoint(legs):
            await trio.sleep_forever()

    def one_way(self, a: PeerId, b: PeerId, via: PeerId | None) -> float:
        """Seconds from `a` to `b`, through a gate or not."""
        return self.latency(a, b) if via is None else self.latency(a, via) + self.latency(via, b)

    def _delay(
        self, sender: PeerId, receiver: PeerId, size: int, via: PeerId | None = None
    ) -> tuple[float, float]:
        """Seconds that `size` bytes are under way, and seconds that they keep the line busy."""
        late = RETRANSMIT_S if self._loss and self._rng.random() < self._loss else 0.0
        on_the_line = size / self._bytes_per_s if self._bytes_per_s else 0.0
        return self.one_way(sender, receiver, via) + late, on_the_line

    def _links_of(self, peer: PeerId) -> list[MemoryLink]:
        node = self._nodes.get(peer)
        others = (
            node.others()
            if node is not None
            else [end for pair in (*self._links, *self._relayed) if peer in pair for end in pair]
        )
        pairs = [_pair(peer, other) for other in others]
        return [
            link
            for links in (self._links, self._relayed)
            for pair in pairs
            if (link := links.get(pair)) is not None
        ]


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)
