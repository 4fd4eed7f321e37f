"""The book: where every task stands, and what is to be done next. Pure: stimuli go in as calls with the time, orders come out.

    found, quoted, refused, unreachable ─▶ ┌──────┐ ─▶ Discover, ProbeWorker, CommitTo
    granted, denied, ready, progress ────▶ │ book │ ─▶ KeepGrant, Switch, EndAttempt, EndPending
    judge + settled, lost, stopped, tick ─▶└──────┘ ─▶ CancelOn, ReleaseOn, Explain, CampaignDone

Orders are carried out in their order; those for the disk before anything else happens. A task moves only by `protocol.attempt.TASK`.
In parts: `moving` what is counted, `assign` who gets what, `spares` second tickets, `ending` verdicts and losses, `limits` the clock,
`standing` the workers, `answers` what they have of ours, and here campaigns and what runs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from protocol.formats.phase import Phase
from protocol.messages.work import HeldLease, Progress
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Task
from scheduler.core.commands import LiveAttempt, Order, TellUser, WorkerPlace
from scheduler.core.invariants import check
from scheduler.core.ranking import WorkerView
from scheduler.core.reconciler import Reconciler
from scheduler.core.state import FORGET_S, CampaignRun, RequirementGroup, TaskEntry, TaskLimits

TAKEN_BACK_S: Final = 10.0
"""A run that goes on for so long after its worker warned of giving way does not give way."""
MAX_WARNED: Final = 8
"""Warnings of giving way that are taken down for one attempt."""
MAX_ASKED: Final = 16
"""Tasks of one need that a probe asks about."""


class SchedulerState(Reconciler):
    """All campaigns of one scheduler, and all workers it knows of."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.entries: dict[str, TaskEntry] = {}
        self.needs: dict[str, RequirementGroup] = {}
        self.ranked: list[RequirementGroup] = []
        self.courses: dict[str, CampaignRun] = {}
        self.views: dict[str, WorkerView] = {}
        self.cells: dict[str, list[str]] = {}
        self.queued: dict[str, None] = {}
        self.strangers: dict[str, None] = {}
        self.free: dict[str, None] = {}
        self.touched: dict[str, None] = {}
        self.stirred: dict[str, None] = {}
        self.warming: dict[str, None] = {}
        self.places: dict[str, WorkerPlace] = {}

    # -- campaigns ----------------------------------------------------------------------------------------------------------------------

    def add(self, terms: TaskLimits, entries: Iterable[TaskEntry], now: float) -> list[Order]:
        """A campaign with its tasks, as submitted or as left behind by an earlier scheduler."""
        course = self.courses[terms.campaign] = CampaignRun(terms)
        for entry in entries:
            self.entries[entry.id], entry.epoch = entry, terms.epoch
            course.tasks.append(entry.id)
            need = self.needs.get(entry.need) or self._new_need(entry, now)
            need.tasks.append(entry.id)
            if entry.cell:
                self.cells.setdefault(entry.cell, []).append(entry.id)
            if entry.state is TaskState.SUCCEEDED and entry.worker is not None:
                entry.ran_on = entry.ran_on or self.view(entry.worker).place()
                self._said(entry).good = True
            if entry.over:
                continue
            course.open += 1
            self._count(entry, entry.state, +1)
            for ticket in entry.tickets():
                self._hold(ticket.worker, entry.id)
            if entry.live:  # nor since when others could have had it
                entry.since = entry.not_before = now
            elif entry.tries:  # how much of its wait was over is not known
                entry.not_before = now + terms.backoff_s * 2.0 ** (entry.tries - 1)
        self.ranked = sorted(
            self.needs.values(), key=lambda need: -self.courses[need.campaign].terms.priority
        )
        return self._end_if_done(course) + self.decide(now, whole=True)

    def brought(self, entries: Iterable[TaskEntry], now: float) -> list[Order]:
        """The models of these are on this disk now: those that wait may be handed out."""
        for entry in entries:
            need = self.needs.get(entry.need)
            if need is not None and entry.id in need.lacking:
                del need.lacking[entry.id]
                need.pending[entry.id] = self.stirred[need.id] = None
        return self.decide(now) if self.stirred else []

    def _new_need(self, entry: TaskEntry, now: float) -> RequirementGroup:
        need = RequirementGroup(
            entry.need, entry.task.campaign, entry.task.requirement, hope_at=now, moved_at=now
        )
        self.needs[need.id] = need
        adverts = (view.advert for view in self.views.values())
        need.fits = {advert.peer for advert in adverts if advert is not None and need.met_by(advert)}
        return need

    def forget(self, now: float) -> list[CampaignRun]:
        """Drop campaigns that ended a while ago, and say which. What is still said of them afterwards is of nobody's task."""
        old: list[CampaignRun] = []
        for course in self.courses.values():
            if course.done and course.done_at is None:
                course.done_at = now
            elif course.done_at is not None and now - course.done_at >= FORGET_S:
                old.append(course)
        for course in old:
            for task in course.tasks:
                entry = self.entries.pop(task)
                self.needs.pop(entry.need, None)
                self.cells.pop(entry.cell, None)
                self.places.pop(task, None)
            del self.courses[course.terms.campaign]
        if old:
            self.ranked = [need for need in self.ranked if need.id in self.needs]
        return old

    @property
    def idle(self) -> bool:
        """Every campaign has ended."""
        return all(course.done for course in self.courses.values())

    # -- what a worker has --------------------------------------------------------------------------------------------------------------

    def held_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Leases and tickets we have there."""
        view = self.views.get(peer)
        kept = [self.entries[task] for task in view.held] if view is not None else []
        return _held(kept, peer)

    def wanted_on(self, peer: str) -> tuple[HeldLease, ...]:
        """Those of them that are to be renewed: not what is being stopped."""
        view = self.views.get(peer)
        kept = [self.entries[task] for task in view.held] if view is not None else []
        return _held((entry for entry in kept if not entry.stopping and entry.owed_until is None), peer)

    def waiting_for(self, peer: str) -> list[Task]:
        """Tasks to ask this worker about: that wait for a device, or as tickets at a worker that is busier than it may be."""
        found: list[Task] = []
        for need in self.ranked:
            if peer in need.fits:
                found += [self.entries[task].task for task in islice(need.pending or need.queued, MAX_ASKED)]
        return found

    def campaigns_of(self, peer: str, leases: Collection[str]) -> tuple[str, ...]:
        """Campaigns that these leases there are of."""
        view = self.views.get(peer)
        there = [(self.entries[task], self.entries[task].at(peer)) for task in view.held] if view else []
        found = [e.task.campaign for e, ticket in there if ticket is not None and ticket.lease in leases]
        return tuple(dict.fromkeys(found))

    def campaigns_on(self, peer: str) -> tuple[str, ...]:
        """Campaigns with a live task there."""
        view = self.views.get(peer)
        return tuple(dict.fromkeys(self.entries[task].task.campaign for task in view.held)) if view else ()

    def may_fetch(self, peer: str, sha256: str) -> bool:
        """Whether a worker holds a live task of ours that needs this model."""
        view = self.views.get(peer)
        return view is not None and any(self.entries[task].task.model.sha256 == sha256 for task in view.held)

    # -- running ------------------------------------------------------------------------------------------------------------------------

    def ready(self, peer: str, lease: str, fence: Fence, now: float) -> tuple[str | None, list[Order]]:
        """A ticket's place is up: the task to start there, None to skip it. The orders are to be carried out before that is said."""
        entry = self._by_lease(peer, lease, fence)
        if entry is None or entry.doom is not None:
            return None, []
        orders: list[Order] = []
        if entry.state is TaskState.QUEUED:
            here = entry.at(peer)
            second = here is not None and entry.is_spare(here.attempt)
            orders = self._prefer_spare(entry) if second else self._shed(entry, SOONER_HERE)
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now)
        return entry.id, orders

    def _by_lease(self, peer: str, lease: str, fence: Fence) -> TaskEntry | None:
        view = self.views.get(peer)
        for task in view.held if view is not None else ():
            ticket = self.entries[task].at(peer)
            if ticket is not None and ticket.lease == lease and ticket.fence == fence:
                return self.entries[task]
        return None

    def progress(self, peer: str, told: Progress, now: float) -> LiveAttempt | None:
        """A run moved on. None when it is not ours any more."""
        entry = self._by_lease(peer, told.lease, told.fence)
        if entry is None or entry.worker != peer or entry.spare is not None:
            return None  # nobody was told to start one of two tickets: it is not to be believed
        if entry.state is TaskState.QUEUED:  # we said Start and were restarted before that was on disk
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now, seen=False)
        self._move(entry, TaskEvent.PROGRESS)
        entry.begun = True
        if told.phase is not Phase.QUEUED and not entry.at_work:
            entry.at_work = True
            entry.since = now if entry.waits_there else entry.since
        entry.waits_there = told.phase is Phase.QUEUED and not entry.at_work
        if now - entry.yields_at > TAKEN_BACK_S:
            entry.yields_to = None
        note = told.note or ("" if entry.yields_to is None else _yields(entry.yields_to))
        return LiveAttempt(entry.id, entry.attempt, told.phase, told.done, told.total, told.median_ms, note)

    def preempt(self, peer: str, lease: str, fence: Fence, priority: int, now: float) -> list[Order]:
        """A worker says that a run is about to give way to a task of this priority."""
        entry = self._by_lease(peer, lease, fence)
        if entry is None or entry.worker != peer:
            return []
        if entry.yields_to == priority or entry.warned >= MAX_WARNED:
            return []
        entry.yields_to, entry.yields_at, entry.warned = priority, now, entry.warned + 1
        fields: dict[str, str | int | float] = {
            "attempt": entry.attempt,
            "device": self._named(peer),
            "priority": priority,
        }
        return [TellUser((entry.task.campaign,), "task.yields", fields, entry.id)]

    def check(self) -> None:
        """The invariants. Raises `LocalProtocolError` with the first one that does not hold."""
        check(self)


SOONER_HERE: Final = "it starts at the other worker"


def _yields(priority: int) -> str:
    return f"gives way to a task of priority {priority}"


def _held(entries: Iterable[TaskEntry], peer: str) -> tuple[HeldLease, ...]:
    """What a worker has of these, as far as its leases are known."""
    found = (ticket.held(entry.epoch) for entry in entries if (ticket := entry.at(peer)) is not None)
    return tuple(item for item in found if item is not None)
