"""What goes from the worker to its schedulers over the links they opened: offers, progress, results.

A link may come and go at any time. Results are sent over whatever link there is until they are answered; progress that finds no link,
or a slow one, is dropped, since later progress makes it obsolete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.outbox import Item, Outbox
from protocol.base import MAX_INLINE
from protocol.errors import RemoteProtocolError, ResourceError, Unreachable
from protocol.messages import Accepted, Preempt, Progress, Ready, Skip, Stale, Start
from protocol.words import Reason
from swarm.link import Link
from swarm.network import PeerId

OFFER_S = 5.0
"""A scheduler that does not say Start or Skip for so long is taken for gone."""
RESULT_S = 10.0
LARGE_RESULT_S = 120.0
"""The scheduler pulls a large record before it answers."""
AGAIN_S = 15.0
"""Results that were not settled are sent again so often."""
WORTHLESS: Final = frozenset({Reason.CANCELLED, Reason.BAD_REQUEST})
"""A result that was stale for another reason is kept as if it had been taken: who adopts the campaign may have use for it."""

log = structlog.get_logger("sark.delivery")


class Links:
    """The live links with schedulers, newest last."""

    def __init__(self, up: Callable[[PeerId], None], down: Callable[[PeerId], None]) -> None:
        """`up` and `down` are told of each link once."""
        self._up = up
        self._down = down
        self._links: dict[PeerId, list[Link]] = {}

    def add(self, link: Link) -> None:
        """A scheduler opened a link."""
        self._links.setdefault(link.peer, []).append(link)
        self._up(link.peer)

    def remove(self, link: Link) -> None:
        """It is gone, or of no use any more."""
        links = self._links.get(link.peer, [])
        if link in links:
            links.remove(link)
            if not links:
                del self._links[link.peer]
            self._down(link.peer)

    def newest(self, peer: PeerId) -> Link | None:
        """The link to speak on."""
        links = self._links.get(peer)
        return links[-1] if links else None


class Delivery:
    """Carries messages of ours to schedulers."""

    def __init__(self, links: Links, outbox: Outbox, settled: Callable[[Item], None]) -> None:
        """`settled` is told of each result that is over, accepted or not."""
        self._links = links
        self._outbox = outbox
        self._settled = settled
        self._under_way: set[str] = set()
        self._failures: Counter[str] = Counter()
        """How often each result could not be delivered: one that never can be must not stand in the way of the others."""
        self._send_progress, self._progress = trio.open_memory_channel[tuple[PeerId, Progress | Preempt]](32)

    async def offer(self, peer: PeerId, ready: Ready) -> Start | Skip | None:
        """The scheduler's answer; None when it could not be asked, and the link it should have come by is then dropped."""
        link = self._links.newest(peer)
        if link is None:
            return None
        try:
            answer = await link.call(ready, patience_s=OFFER_S)
        except Unreachable as exc:
            log.info("offer.unanswered", peer=peer, lease=ready.lease, why=exc.what)
        else:
            if isinstance(answer, (Start, Skip)):
                return answer
            log.warning("offer.odd_answer", peer=peer, answer=type(answer).__name__)
        self._links.remove(link)
        await link.reset()
        return None

    def tell(self, peer: PeerId, note: Progress | Preempt) -> None:
        """Send it if that is easy. Who misses it hears from a later note, or at the next renewal."""
        try:
            self._send_progress.send_nowait((peer, note))
        except trio.WouldBlock:
            log.debug("note.dropped", note=note.type, lease=note.lease)

    async def run_progress(self) -> None:
        """Send progress, for ever."""
        async for peer, note in self._progress:
            link = self._links.newest(peer)
            if link is None:
                continue
            try:
                await link.tell(note)
            except Unreachable:
                self._links.remove(link)

    async def run_results(self, link: Link) -> None:
        """Send this scheduler its results, now and as they come, until the link ends."""
        while True:
            changed = self._outbox.changed
            for item in sorted(self._outbox.waiting(link.peer), key=lambda one: self._failures[one.sha256]):
                if item.sha256 not in self._under_way and not await self._send(link, item):
                    return
            with trio.move_on_after(AGAIN_S):
                await changed.wait()

    async def _send(self, link: Link, item: Item) -> bool:
        """Send one. False: the link is of no use."""
        self._under_way.add(item.sha256)
        keep = False
        try:
            message = await self._outbox.message(item)
            if message is None:
                log.warning("result.gone", task=item.task, attempt=item.attempt)
            else:
                patience = RESULT_S if item.size <= MAX_INLINE else LARGE_RESULT_S
                answer = await link.call(message, patience_s=patience)
                if not isinstance(answer, (Accepted, Stale)):
                    raise RemoteProtocolError(f"{link.peer} answered a Result with {type(answer).__name__}")
                keep = isinstance(answer, Accepted) or answer.reason not in WORTHLESS
                log.info("result.settled", task=item.task, attempt=item.attempt, answer=answer.type)
        except ResourceError as exc:  # it is kept: what lacks now may be there at the next try
            log.warning("result.unreadable", task=item.task, why=exc.what)
            self._failures[item.sha256] += 1
            return True
        except (Unreachable, RemoteProtocolError) as exc:
            log.info("result.undelivered", task=item.task, attempt=item.attempt, why=exc.what)
            self._failures[item.sha256] += 1
            self._links.remove(link)
            await link.reset()
            return False
        finally:
            self._under_way.discard(item.sha256)
        del self._failures[item.sha256]
        await self._outbox.settle(item.sha256, keep=keep)
        self._settled(item)
        return True
