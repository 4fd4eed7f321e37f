"""Keeps links open: one for each peer and family that we call, and those that peers open.

A relayed link is replaced by a direct one as soon as a direct connection exists; pending calls finish on the old link.

    async with nursery: links = Links(network, vocabulary, nursery, answer);  reply = await links.call(peer, addresses, message)
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

import structlog
import trio

from protocol.errors import RemoteProtocolError, Unreachable, first_error
from protocol.wire.base import Message
from protocol.wire.codec import Vocabulary
from swarm.net.addresses import Address, PeerId
from swarm.net.link import Answer, Cost, Link, light, refuse_all
from swarm.net.network import Network, Stream

LEAVE_CHECK_S = 1.0
"""A replaced link is closed after two successive checks find it at rest."""

log = structlog.get_logger("sark.link")


@dataclass
class Links:
    """Links of one family that we dial: one for each peer, opened on first use, dropped when it breaks."""

    network: Network
    family: str
    vocabulary: Vocabulary
    nursery: trio.Nursery
    answer: Answer = refuse_all
    _: KW_ONLY
    cost: Cost = light
    keep: float = math.inf
    """Most links kept; the least recently used one goes first."""
    _links: dict[PeerId, Link] = field(default_factory=dict)
    _opening: dict[PeerId, trio.Lock] = field(default_factory=dict)

    def peek(self, peer: PeerId) -> Link | None:
        """The open link with `peer`, if there is one. No I/O."""
        link = self._links.get(peer)
        return link if link is not None and not link.closed.is_set() else None

    async def get(self, peer: PeerId, addresses: Sequence[Address] = (), *, max_wait_s: float = 5.0) -> Link:
        """The open link with `peer`, or a new one; a relayed link is replaced if possible. Raises `Unreachable`."""
        link = self.peek(peer)
        if link is not None and not self.is_needlessly_relayed(link):
            return link
        lock = self._opening.setdefault(peer, trio.Lock())
        try:
            async with lock:
                old = self.peek(peer)
                if old is not None and not self.is_needlessly_relayed(old):
                    return old
                try:
                    stream = await self.network.open(peer, self.family, addresses, max_wait_s=max_wait_s)
                except Unreachable:
                    if (link := self.peek(peer)) is not None:
                        return link
                    raise
                payer = self.network.governor.payer(peer)
                link = Link(stream, self.vocabulary, self.answer, cost=self.cost, payer=payer)
                if peer not in self._links and len(self._links) >= self.keep:
                    await self.drop(next(iter(self._links)))
                self._links[peer] = link
                await self.nursery.start(self._run, link)
                if old is not None:
                    log.info("link.direct", peer=peer, family=self.family)
                    self.nursery.start_soon(self._leave, old)
                return link
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._opening.pop(peer, None)

    def is_needlessly_relayed(self, link: Link) -> bool:
        """Whether a link is relayed although its peer is now connected directly. No I/O."""
        if not link.relayed:
            return False
        path = self.network.path(link.peer)
        return path is not None and path.direct

    async def call(
        self, peer: PeerId, addresses: Sequence[Address], message: Message, *, max_wait_s: float = 5.0
    ) -> Message:
        """Make one call, opening a link if needed. Raises `Unreachable`, `RemoteProtocolError`."""
        link = await self.get(peer, addresses, max_wait_s=max_wait_s)
        self._links[peer] = self._links.pop(peer, link)  # most recently used last
        return await link.call(message, max_wait_s=max_wait_s)

    async def drop(self, peer: PeerId) -> None:
        """Close the link with `peer`, if any."""
        link = self._links.pop(peer, None)
        if link is not None:
            await link.reset()

    async def _leave(self, link: Link) -> None:
        """Close a replaced link once it is at rest."""
        silent = 0
        while silent < 2 and not link.closed.is_set():
            await trio.sleep(LEAVE_CHECK_S)
            silent = silent + 1 if link.at_rest else 0
        await link.aclose()

    async def _run(self, link: Link, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await link.run(task_status=task_status)
        except RemoteProtocolError as exc:
            log.warning("link.broken", peer=link.peer, family=self.family, why=exc.what)
        finally:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]


def serve_links(
    network: Network,
    family: str,
    vocabulary: Vocabulary,
    answer: Answer,
    *,
    cost: Cost = light,
    admit: Callable[[PeerId], bool] | None = None,
    opened: Callable[[Link], Awaitable[None]] | None = None,
) -> None:
    """Serve links of `family` that peers open. `cost`: the cost of a call without reading and answering it; `admit`: decides before a byte
    is read; `opened`: runs until the link ends.

    A peer that breaks the protocol is disconnected, and one line is logged. Bugs are not caught.
    """

    async def handler(stream: Stream) -> None:
        if admit is not None and not admit(stream.peer):
            log.info("link.refused", peer=stream.peer, family=family)
            await stream.reset()
            return
        payer = network.governor.payer(stream.peer)
        link = Link(stream, vocabulary, answer, cost=cost, payer=payer, opened_by_peer=True)
        try:
            if opened is None:
                await link.run()
            else:
                async with trio.open_nursery() as nursery:
                    await nursery.start(link.run)
                    nursery.start_soon(opened, link)
                    await link.closed.wait()
                    nursery.cancel_scope.cancel()
        except* RemoteProtocolError as group:
            log.warning("link.broken", peer=link.peer, family=family, why=first_error(group).what)

    network.handle(family, handler)
