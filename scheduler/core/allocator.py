"""The part of the book that gives out work: what is discovered, who is probed, which task goes where.

`decide` follows every stimulus, so it looks only at what the stimulus touched; a few times each second it looks at everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocol.messages.work import MAX_PREEMPTIONS
from protocol.values.attempt import TaskEvent, TaskState
from scheduler.core.commands import CommitTo, Discover, Order, ProbeWorker, RecordProgress
from scheduler.core.ranking import FETCH_RATE, WorkerView, choose
from scheduler.core.state import CommitTicket, RequirementGroup, TaskEntry
from scheduler.core.transitions import Transitions

SEEK_S: Final = 2.0
"""How often the index is asked while nobody that fits can be had."""
LOOK_S: Final = 15.0
"""How often it is asked for more while tasks wait and somebody serves."""
MAX_PROBING: Final = 16
AGAIN_S: Final = 2.0
"""While tasks wait, a worker that was busy with others' work is asked how it stands so often."""
ELSEWHERE_S: Final = 30.0
"""How long after its backoff a task waits for a worker that has not tried it, while one that has would take it."""
WORTH_WAITING: Final = 3 * int(FETCH_RATE)
"""Bytes of a model from which on a fetch is guessed to take longer than a probe's answer."""
MAX_SKIPPED: Final = 64
"""Tasks that are looked at in one go though nobody may have them yet."""
FEW: Final = 8
"""Workers that fit are gone through by themselves, in order, where there are so many times more others."""
WANT: Final = (8, 64)
REPLICAS_WAIT: Final = "its other replicas have every device that fits"


@dataclass(slots=True)
class _Pools:
    """Workers that may be given a task now."""

    idle: list[WorkerView]
    others: list[WorkerView]
    """They have work, and room for more."""

    def took(self, view: WorkerView) -> None:
        """It was given one."""
        if view in self.idle:
            self.idle.remove(view)
            if view.room() > 0:
                self.others.append(view)
        elif view.room() <= 0:
            self.others.remove(view)


class Allocator(Transitions):
    """Part of `scheduler.book.Book`."""

    def decide(self, now: float, *, whole: bool = False) -> list[Order]:
        """What follows from how things stand now. `whole`: whatever was touched; else what has changed since the last time."""
        orders = self._probe(now)
        around = self._around(now, whole=whole)
        able = {peer: view for peer, view in around.items() if view.room() > 0}
        changed = {peer: view for peer, view in able.items() if peer in self.touched}
        restless = self._restless(around, now) if whole else []
        for need in [need for need in self.ranked if need.pending]:
            if whole:
                orders += self._look(need, restless, now)
            if need.explaining:
                pass
            elif whole or need.id in self.stirred:
                orders += self._hand_out(need, now, self._pools(need, able))
            elif changed:
                orders += self._hand_out(need, now, self._pools(need, changed))
            if whole:
                orders += self._note(need, around)
        for need in self.ranked if whole else ():
            if need.queued and not need.pending:  # somebody idle may have what waits at a busy worker
                orders += self._look(need, restless, now)
        self.touched.clear()
        self.stirred.clear()
        self.stirred.update(self.warming)  # when the answer comes, all are looked at again
        self.warming.clear()
        return orders + self._seconds(now, whole=whole)

    def _seconds(self, now: float, *, whole: bool) -> list[Order]:
        """Second tickets; see `scheduler.core.hedging`."""
        raise NotImplementedError

    # -- whom to ask --------------------------------------------------------------------------------------------------------------------

    def _probe(self, now: float) -> list[Order]:
        """Ask workers how they stand that somebody waits for: in random order, so that schedulers do not all begin with the same."""
        budget = MAX_PROBING - sum(1 for peer in self.strangers if self.views[peer].probing)
        if budget <= 0 or not self.strangers:
            return []
        wanting = [need for need in self.ranked if need.pending or need.queued]
        due = [peer for peer in self.strangers if self._due(self.views[peer], now)] if wanting else []
        if len(due) > MAX_PROBING * MAX_PROBING:
            due = self.rng.sample(due, MAX_PROBING * MAX_PROBING)  # the rest will have its turn
        else:
            self.rng.shuffle(due)
        orders: list[Order] = []
        for peer in due:
            if len(orders) >= budget:
                break
            if any(peer in need.fits for need in wanting):
                orders.append(self._ask(self.views[peer]))
        return orders

    @staticmethod
    def _due(view: WorkerView, now: float) -> bool:
        return not view.probing and now >= view.retry_at

    @staticmethod
    def _ask(view: WorkerView) -> ProbeWorker:
        view.probing = True
        return ProbeWorker(view.peer)

    def _around(self, now: float, *, whole: bool) -> dict[str, WorkerView]:
        """Workers that serve us now; but for a whole decision, or for tasks that came back, only those that were touched."""
        views = self.views
        peers = views if whole or self.stirred else self.touched
        return {peer: views[peer] for peer in peers if views[peer].serving(now)}

    @staticmethod
    def _near(need: RequirementGroup, views: Mapping[str, WorkerView]) -> Iterable[WorkerView]:
        """At least those of `views` that fit, in an order that is the same in every run: where they are few, without going through all."""
        if len(need.fits) * FEW < len(views):
            return [views[peer] for peer in sorted(need.fits) if peer in views]
        return views.values()

    @staticmethod
    def _restless(around: Mapping[str, WorkerView], now: float) -> list[WorkerView]:
        """Those that were busy with others' work when they last said so, a while ago."""
        views = around.values()
        return [view for view in views if view.others and not view.held and now - view.quoted_at >= AGAIN_S]

    def _look(self, need: RequirementGroup, restless: Iterable[WorkerView], now: float) -> list[Order]:
        """For tasks that nobody has: ask those again that were busy with others' work, and the index for more."""
        orders: list[Order] = []
        for view in restless:
            if view.peer in need.fits and self._due(view, now) and len(orders) < MAX_PROBING:
                orders.append(self._ask(view))
        some = any(self.views[peer].hopeful() for peer in need.fits)
        return orders + self.seek(need, now, self._patience_s(need) if some else SEEK_S)

    @staticmethod
    def _patience_s(need: RequirementGroup) -> float:
        """Devices may still be coming up while a campaign begins: look for more after 1, 2, 4 … s."""
        return min(LOOK_S, 2.0 ** (need.asks - 1))

    @staticmethod
    def seek(need: RequirementGroup, now: float, every: float) -> list[Order]:
        """Ask the index, unless it was asked within `every` seconds."""
        if need.asking or (need.asked_at is not None and now - need.asked_at < every):
            return []
        need.asking, need.asked_at, need.asks = True, now, need.asks + 1
        want = max(WANT[0], min(WANT[1], 2 * len(need.pending)))
        return [Discover(need.id, need.requirement, want)]

    # -- who gets what ------------------------------------------------------------------------------------------------------------------

    def _pools(self, need: RequirementGroup, around: Mapping[str, WorkerView]) -> _Pools:
        pools = _Pools([], [])
        for view in self._near(need, around):
            if view.peer in need.fits and view.room() > 0:
                (pools.idle if view.peer in self.free else pools.others).append(view)
        return pools

    def _hand_out(self, need: RequirementGroup, now: float, pools: _Pools) -> list[Order]:
        orders: list[Order] = []
        if not pools.idle and not pools.others:
            return orders
        room = sum(view.room() for view in (*pools.idle, *pools.others))
        skipped: list[str] = []
        for task in tuple(islice(need.pending, room + MAX_SKIPPED)):
            if not pools.idle and not pools.others:
                break
            entry = self.entries[task]
            view = choose(
                self._candidates(entry, need, pools.idle, now),
                self._candidates(entry, need, pools.others, now),
                sha256=entry.task.model.sha256,
                size=entry.task.model.size,
                rng=self.rng,
            )
            if view is None or self._comes_warm(entry, view, need):
                if view is not None:
                    self.warming[need.id] = None
                skipped.append(task)
                continue
            orders.append(self._commit(entry, view, now))
            pools.took(view)
        if len(skipped) >= MAX_SKIPPED:  # else nobody would look at those behind them
            for task in skipped:
                need.pending.move_to_end(task)
        return orders

    def _comes_warm(self, entry: TaskEntry, view: WorkerView, need: RequirementGroup) -> bool:
        """Whether a device that has a large model is just being asked how it stands: to wait for its answer is sooner than a fetch."""
        sha256 = entry.task.model.sha256
        if sha256 in view.warm or entry.task.model.size < WORTH_WAITING:
            return False
        near = (self.views[peer] for peer in need.fits)
        return any(
            each.probing and not each.quoted and sha256 in each.warm and each.hopeful() and not each.held
            for each in near
        )

    def _candidates(
        self, entry: TaskEntry, need: RequirementGroup, serving: list[WorkerView], now: float
    ) -> list[WorkerView]:
        """Those of `serving` that may have it: not where a replica of it is or was; none that has tried it while there is one that has
        not, be it busy, or before the backoff is over.
        """
        if entry.lacks_model:
            return []
        if not (entry.tried or entry.cell):
            return serving
        taken = self._taken(entry)
        serving = [view for view in serving if view.place() not in taken]
        if not entry.tried:
            return serving
        fresh = [view for view in serving if view.peer not in entry.tried]
        if fresh or now < entry.not_before:
            return fresh
        if now >= entry.not_before + ELSEWHERE_S:  # those that have not tried it do not come to it
            return serving
        others = (self.views[peer] for peer in need.fits - entry.tried)
        return fresh if any(view.hopeful() and view.place() not in taken for view in others) else serving

    def _taken(self, entry: TaskEntry) -> set[str]:
        """Devices that other replicas of the task are at, or have their result from."""
        taken: set[str] = set()
        for task in self.cells.get(entry.cell, ()) if entry.cell else ():
            other = self.entries[task]
            if other is entry:
                continue
            taken |= {self.view(ticket.worker).place() for ticket in other.tickets()}
            if other.state is TaskState.SUCCEEDED:
                taken.add(other.ran_on)
                if other.worker is not None:  # its device was perhaps not known when the result came
                    taken.add(self.view(other.worker).place())
        return taken

    def _commit(self, entry: TaskEntry, view: WorkerView, now: float, *, second: bool = False) -> CommitTo:
        """Ask this worker to take the task: as its only one so far, or as a second one."""
        entry.last += 1
        ticket = CommitTicket(entry.last, view.peer, told_at=now)
        if second:
            entry.spare = ticket
        else:
            self._move(entry, TaskEvent.COMMIT)
            entry.take(ticket)
        self._hold(view.peer, entry.id)
        terms = self.courses[entry.task.campaign].terms
        return CommitTo(
            view.peer,
            view.device,
            entry.task.campaign,
            entry.id,
            entry.last,
            f"{entry.id}/{entry.last}",
            preempted=min(entry.preempted, MAX_PREEMPTIONS),
            left_s=None if terms.ends_at is None else max(0.0, terms.ends_at - now),
            second=second,
        )

    # -- why tasks wait -----------------------------------------------------------------------------------------------------------------

    def _note(self, need: RequirementGroup, around: Mapping[str, WorkerView]) -> list[Order]:
        """Why tasks wait although nobody has any of them: once for each new reason."""
        words = ""
        if not need.pending:
            pass
        elif need.fits.isdisjoint(around):
            looking = need.asked_at is None or need.asking
            none = "" if looking else "no device that fits is up yet"
            words = why_waiting([self.views[peer] for peer in sorted(need.fits)]) if need.fits else none
        else:
            taken = self._taken(self.entries[next(iter(need.pending))])
            if taken and all(self.views[peer].place() in taken for peer in need.fits):
                words = REPLICAS_WAIT
        if not words or words == need.noted:
            return []
        need.noted = words
        return [RecordProgress(tuple(need.pending), words)]


def why_waiting(fits: list[WorkerView]) -> str:
    """What those that fit say; of those that cannot be reached only that: a live line has no room for addresses."""
    gone = [view.device or view.peer[-8:] for view in fits if view.trouble]
    told = [
        f"{view.device or view.peer[-8:]}: {view.why_aside or view.why}"
        for view in fits
        if (view.why_aside or view.why) and not view.trouble
    ]
    words = ["; ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")] if told else []
    if gone:
        who = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        words.append(f"{who} {'is' if len(gone) == 1 else 'are'} gone")
    if gone and not told:
        words.append("waiting for a device")
    return "; ".join(words)
