"""Delivery of results to their schedulers: one at a time over each link, repeated until the scheduler answers. Pure.

A result that cannot be delivered does not block other results, and a slow link does not delay results on other links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node.conversation.commands import (
    Commands,
    DropLink,
    Flow,
    ReadRecord,
    SchedulerLink,
    SendCall,
    SettleRecords,
)
from node.conversation.links import LinkTable
from node.conversation.outbox import Outbox, OutboxItem
from protocol.messages.work import Accepted, Stale
from protocol.wire.base import MAX_INLINE, Message
from protocol.words import Reason
from swarm.base.event_log import EventLog

RESULT_S: Final = 10.0
LARGE_RESULT_S: Final = 120.0
"""The scheduler pulls a large record before it answers."""
RESEND_S: Final = 15.0
"""Seconds after which unsettled results are sent again."""
DISCARD_REASONS: Final = frozenset({Reason.CANCELLED, Reason.BAD_REQUEST})
"""Reasons for which a stale result is removed. A result that is stale for another reason is kept as if it had been accepted, because an
adopter of the campaign may need it; so is a result that a peer not known to lead the campaign calls stale."""


@dataclass(slots=True, eq=False)
class _Round:
    """One pass over the results that wait for the peer of a link."""

    left: list[OutboxItem]
    repeat: bool = False
    """The outbox has changed since the pass began."""
    resend_at: float | None = None
    """When the next pass begins; None: this pass is not over."""


class ResultDelivery:
    """Sends the waiting results in the outbox over the links in the table."""

    def __init__(
        self,
        commands: Commands,
        links: LinkTable,
        outbox: Outbox,
        now: Callable[[], float],
        *,
        settled: Callable[[OutboxItem], None],
        unreachable: Callable[[SchedulerLink], None],
        log: EventLog,
    ) -> None:
        """`settled`: called when a result need not be sent again. `unreachable`: called when a link is no longer of use."""
        self._commands = commands
        self._links = links
        self._outbox = outbox
        self._now = now
        self._on_settled = settled
        self._on_unreachable = unreachable
        self._log = log
        self._rounds: dict[SchedulerLink, _Round] = {}
        self._sending: set[str] = set()
        self._failures: Counter[str] = Counter()

    @property
    def idle(self) -> bool:
        return not self._sending

    def start(self, link: SchedulerLink) -> None:
        self._begin_round(link)

    def stop(self, link: SchedulerLink) -> None:
        self._rounds.pop(link, None)

    def outbox_changed(self) -> None:
        """New results wait, or a result now waits for another peer."""
        for link, current in tuple(self._rounds.items()):
            if current.resend_at is not None:
                self._begin_round(link)
            else:
                current.repeat = True

    def _begin_round(self, link: SchedulerLink) -> None:
        waiting = self._outbox.waiting(link.peer)
        self._rounds[link] = _Round(sorted(waiting, key=lambda item: self._failures[item.sha256]))
        self._next(link)

    def _next(self, link: SchedulerLink) -> None:
        current = self._rounds.get(link)
        if current is None:
            return
        while current.left:
            item = current.left.pop(0)
            if item.sha256 not in self._sending and self._belongs(link, item):
                self._sending.add(item.sha256)
                self._commands.start(self._send(link, item))
                return
        if current.repeat:
            self._begin_round(link)
            return
        current.resend_at = self._now() + RESEND_S
        self._commands.start(self._resend(link, current, current.resend_at))

    def _resend(self, link: SchedulerLink, after: _Round, when: float) -> Flow[None]:
        yield when
        if self._rounds.get(link) is after:
            self._begin_round(link)

    def _belongs(self, link: SchedulerLink, item: OutboxItem) -> bool:
        """Whether `item` may now go over `link` to the scheduler at its other end."""
        return self._outbox.is_for(link.peer, item.sha256) and self._links.may_carry(
            link, (item.principal, item.campaign)
        )

    def _send(self, link: SchedulerLink, item: OutboxItem) -> Flow[None]:
        body, error = self._outbox.in_memory(item.sha256), ""
        if body is None:
            body, error = yield ReadRecord(item)
            if error:  # keep the result: the next read may succeed
                self._log.warning("result.unreadable", task=item.task, why=error)
                self._failures[item.sha256] += 1
            elif body is None:
                self._log.warning("result.gone", task=item.task, attempt=item.attempt)
                self._settle(item, keep=False)
        if body is None or error or link not in self._rounds:
            self._sending.discard(item.sha256)
            self._next(link)
            return
        large = item.size > MAX_INLINE
        message = item.result(None if large else body)
        self._answered(link, item, (yield SendCall(link, message, LARGE_RESULT_S if large else RESULT_S)))

    def _answered(self, link: SchedulerLink, item: OutboxItem, reply: Message | None) -> None:
        self._sending.discard(item.sha256)
        if not isinstance(reply, (Accepted, Stale)):
            why = "no answer" if reply is None else f"answered with {type(reply).__name__}"
            self._log.info("result.undelivered", task=item.task, attempt=item.attempt, why=why)
            self._failures[item.sha256] += 1
            self._on_unreachable(link)
            self._commands.emit(DropLink(link))
            return
        if self._belongs(link, item):
            self._log.info("result.settled", task=item.task, attempt=item.attempt, answer=reply.type)
            leads = self._links.speaks_for(link, (item.principal, item.campaign))
            keep = isinstance(reply, Accepted) or reply.reason not in DISCARD_REASONS or not leads
            self._settle(item, keep=keep)
        else:  # the campaign was adopted meanwhile: keep the result for the adopter
            self._log.info("result.adopted", task=item.task, attempt=item.attempt)
        self._next(link)

    def _settle(self, item: OutboxItem, *, keep: bool) -> None:
        del self._failures[item.sha256]
        settled, removed = self._outbox.settle(item.sha256, keep=keep)
        if settled or removed:
            self._commands.to_disk(SettleRecords(settled, removed))
        self._on_settled(item)
