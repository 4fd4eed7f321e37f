"""What goes from the worker to its schedulers over the links they opened: offers, progress, results.

A link may come and go at any time. Results are sent over whatever link there is until they are answered; progress that finds no link,
or a slow one, is dropped, since later progress makes it obsolete. A slow link holds up nobody else's.

Two machines may have one key, as when a campaign was adopted with it while its old scheduler was still up. What is about a campaign goes
over a link that has spoken of it under the newest epoch; over one that has not spoken of it only while there is none that has; and never
over one that has spoken of it under an older epoch, or was refused for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.store.outbox import Outbox, OutboxItem
from protocol.errors import RemoteProtocolError, ResourceError, Unreachable
from protocol.messages.work import Accepted, Preempt, Progress, Ready, Skip, Stale, Start
from protocol.wire.base import MAX_INLINE
from protocol.words import Reason
from swarm.net.addresses import PeerId
from swarm.net.link import Link

OFFER_S = 5.0
"""A scheduler that does not say Start or Skip for so long is taken for gone."""
ASIDE_S: Final = 1.0
"""An offer waits so long for a link when those there are must not carry it."""
RESULT_S = 10.0
LARGE_RESULT_S = 120.0
"""The scheduler pulls a large record before it answers."""
AGAIN_S = 15.0
"""Results that were not settled are sent again so often."""
NOTES: Final = 32
"""That wait for one link."""
WORTHLESS: Final = frozenset({Reason.CANCELLED, Reason.BAD_REQUEST})
"""A result that was stale for another reason is kept as if it had been taken: who adopts the campaign may have use for it. So is one that
another than the campaign's scheduler of now calls stale."""

log = structlog.get_logger("sark.delivery")

About = tuple[str, str]
"""Principal and campaign."""
Speaks = Callable[[Link, About], bool | None]
"""Whether a link has spoken of a campaign under its newest epoch; False: under an older one; None: it has not spoken of it."""


class DeliveryLinks:
    """The live links with schedulers, newest last."""

    def __init__(
        self,
        up: Callable[[PeerId], None],
        down: Callable[[PeerId], None],
        speaks: Speaks = lambda link, about: None,
    ) -> None:
        """`up` and `down` are told of each link once."""
        self._up = up
        self._down = down
        self._speaks = speaks
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

    def any(self, peer: PeerId) -> bool:
        """Whether there is a link with this peer at all."""
        return peer in self._links

    def best(self, peer: PeerId, about: About) -> Link | None:
        """The link to speak on of a campaign: of those that serve best for it the newest."""
        silent = None
        for link in reversed(self._links.get(peer, [])):
            speaks = self._speaks(link, about)
            if speaks:
                return link
            if speaks is None:
                silent = silent or link
        return silent

    def may_carry(self, link: Link, about: About) -> bool:
        """Whether what is about a campaign may go over this link, as things are."""
        speaks = self._speaks(link, about)
        if speaks is None:
            return not any(self._speaks(other, about) for other in self._links.get(link.peer, []))
        return speaks

    def speaks_for(self, link: Link, about: About) -> bool:
        """Whether who has this link is known to be the campaign's scheduler."""
        return self._speaks(link, about) is True


class Delivery:
    """Carries messages of ours to schedulers."""

    def __init__(self, links: DeliveryLinks, outbox: Outbox, settled: Callable[[OutboxItem], None]) -> None:
        """`settled` is told of each result that is over, accepted or not."""
        self._links = links
        self._outbox = outbox
        self._settled = settled
        self._under_way: set[str] = set()
        self._failures: Counter[str] = Counter()
        """How often each result could not be delivered: one that never can be must not stand in the way of the others."""
        self._notes: dict[Link, trio.MemorySendChannel[Progress | Preempt]] = {}

    async def offer(self, peer: PeerId, about: About, ready: Ready) -> Start | Skip | None:
        """The scheduler's answer; None when it could not be asked, and the link it should have come by is then dropped."""
        link = self._links.best(peer, about)
        if link is None and self._links.any(
            peer
        ):  # of another machine: to be tried again, but not over and over
            await trio.sleep(ASIDE_S)
            link = self._links.best(peer, about)
        if link is None:
            return None
        try:
            answer = await link.call(ready, max_wait_s=OFFER_S)
        except Unreachable as exc:
            log.info("offer.unanswered", peer=peer, lease=ready.lease, why=exc.what)
        else:
            if isinstance(answer, (Start, Skip)):
                return answer
            log.warning("offer.odd_answer", peer=peer, answer=type(answer).__name__)
        self._links.remove(link)
        await link.reset()
        return None

    def tell(self, peer: PeerId, about: About, note: Progress | Preempt) -> None:
        """Send it if that is easy. Who misses it hears from a later note, or at the next renewal."""
        link = self._links.best(peer, about)
        notes = self._notes.get(link) if link is not None else None
        if notes is None:
            return
        try:
            notes.send_nowait(note)
        except trio.WouldBlock:
            log.debug("note.dropped", note=note.type, lease=note.lease)

    async def run(self, link: Link) -> None:
        """Send over this link what is to go over it, until it ends or is of no use any more."""
        self._notes[link], notes = trio.open_memory_channel[Progress | Preempt](NOTES)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_notes, link, notes)
                await self.run_results(link)
                nursery.cancel_scope.cancel()
        finally:
            del self._notes[link]

    async def _run_notes(self, link: Link, notes: trio.MemoryReceiveChannel[Progress | Preempt]) -> None:
        async for note in notes:
            try:
                await link.tell(note)
            except Unreachable:
                self._links.remove(link)
                return

    async def run_results(self, link: Link) -> None:
        """Send this scheduler its results, now and as they come, until the link ends."""
        while True:
            changed = self._outbox.changed
            for item in sorted(self._outbox.waiting(link.peer), key=lambda one: self._failures[one.sha256]):
                if (
                    item.sha256 not in self._under_way
                    and self._links.may_carry(link, (item.principal, item.campaign))
                    and not await self._send(link, item)
                ):
                    return
            with trio.move_on_after(AGAIN_S):
                await changed.wait()

    def _still(self, link: Link, item: OutboxItem) -> bool:
        """Whether it is for who has this link, as things are."""
        same_peer = self._outbox.find(link.peer, item.sha256) is not None
        return same_peer and self._links.may_carry(link, (item.principal, item.campaign))

    async def _send(self, link: Link, item: OutboxItem) -> bool:
        """Send one. False: the link is of no use."""
        self._under_way.add(item.sha256)
        keep = False
        try:
            message = await self._outbox.message(item)
            if message is None:
                log.warning("result.gone", task=item.task, attempt=item.attempt)
            else:
                patience = RESULT_S if item.size <= MAX_INLINE else LARGE_RESULT_S
                answer = await link.call(message, max_wait_s=patience)
                if not isinstance(answer, (Accepted, Stale)):
                    raise RemoteProtocolError(f"{link.peer} answered a Result with {type(answer).__name__}")
                keep = (
                    isinstance(answer, Accepted)
                    or answer.reason not in WORTHLESS
                    or not self._links.speaks_for(link, (item.principal, item.campaign))
                )
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
        if message is not None and not self._still(link, item):
            log.info("result.adopted", task=item.task, attempt=item.attempt)
            return True  # while it was under way its campaign was adopted: it stays for who did that
        await self._outbox.settle(item.sha256, keep=keep)
        self._settled(item)
        return True
