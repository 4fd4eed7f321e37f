"""Calls between nodes of the memory swarm without frames and streams: a fifth of the processor time, where a test or benchmark is about
where adverts are stored and what queries find.

    wires = Wires();  Index(network, …, open_links=wires.links, serve_links=wires.serve)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import Unreachable
from protocol.wire.base import Message
from swarm.index.server import own_turn
from swarm.memory.network import OPEN_ROUND_TRIPS, MemoryNetwork
from swarm.memory.streams import MemoryLink
from swarm.net.addresses import Address, PeerId
from swarm.net.link import Answer


@dataclass(slots=True)
class _Caller:
    """The answering end of a call."""

    peer: PeerId
    turn: object = own_turn


@dataclass
class Wires:
    """Passes messages from node to node as values."""

    answers: dict[PeerId, Answer] = field(default_factory=dict)

    def serve(
        self, network: MemoryNetwork, family: str, vocabulary: object, answer: Answer, **_: object
    ) -> None:
        """Replaces `serve_links`."""
        self.answers[network.peer_id] = answer

    def links(self, network: MemoryNetwork, *_: object, **__: object) -> Any:
        """Replaces `Links`."""
        return _WireLinks(self.answers, network)


class _WireLinks:
    def __init__(self, answers: dict[PeerId, Answer], network: MemoryNetwork) -> None:
        self.network = network
        self._answers = answers
        self._open: dict[PeerId, MemoryLink] = {}

    def peek(self, peer: PeerId) -> MemoryLink | None:
        link = self._open.get(peer)
        return link if link is not None and not link.dead else None

    async def drop(self, peer: PeerId) -> None:
        self._open.pop(peer, None)

    async def call(
        self, peer: PeerId, addresses: Sequence[Address], message: Message, *, max_wait_s: float = 5.0
    ) -> Message:
        swarm, own = self.network._swarm, self.network.peer_id
        link = self.peek(peer)
        if link is None:
            await self.network.connect(peer, addresses, max_wait_s=max_wait_s)
            await swarm.round_trips(own, peer, OPEN_ROUND_TRIPS)
            link = swarm.link(own, peer)
        await swarm.round_trips(own, peer, 1)
        if link is None or link.dead or swarm.alive(peer) is None:
            raise Unreachable(f"no way to {peer}: the connection broke")
        self._open[peer] = link
        caller: Any = _Caller(own)
        return await self._answers[peer](caller, message)
