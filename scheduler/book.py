"""The book: where every task stands, and what is to be done next. Pure: stimuli go in as calls with the time, orders come out.

    found, quoted, refused, unreachable ─▶ ┌──────┐ ─▶ Discover, ProbeWorker, CommitTo
    granted, denied, ready, progress ────▶ │ book │ ─▶ KeepGrant, EndAttempt, EndPending
    judge + settled, lost, stopped, tick ─▶└──────┘ ─▶ CancelOn, ReleaseOn, Explain, CampaignDone

Orders are carried out in their order; those for the disk before anything else happens. A task moves only by `protocol.attempt.TASK`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from protocol.advert import Advert
from protocol.attempt import TaskEvent, TaskState
from protocol.lease import Fence
from protocol.messages import Conflict, Denied, Held, LiveLease, Progress, Quote, Shape
from protocol.task import Task
from protocol.words import Reason, WorkerState
from scheduler.assign import SEEK_S
from scheduler.ending import Ending
from scheduler.entries import FORGET_S, HAS_PLACE, Course, Entry, Need, Terms
from scheduler.orders import (
    CancelOn,
    KeepGrant,
    Order,
)
from scheduler.rank import RESTING, WorkerView
from scheduler.stored import Live

MAX_ASKED: Final = 16
"""Tasks of one need that a probe asks about."""
LEAST_RETRY_S: Final = 1.0
"""A worker that says no is not asked sooner again, whatever it says; each time in a row the wait doubles."""


class Book(Ending):
    """All campaigns of one scheduler, and all workers it knows of."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.entries: dict[str, Entry] = {}
        self.needs: dict[str, Need] = {}
        self.courses: dict[str, Course] = {}
        self.views: dict[str, WorkerView] = {}

    # -- what is to be done at all ------------------------------------------------------------------------------------------------------

    def add(self, terms: Terms, entries: Iterable[Entry], now: float) -> list[Order]:
        """A campaign with its tasks, as submitted or as left behind by an earlier scheduler."""
        course = self.courses[terms.campaign] = Course(terms)
        for entry in entries:
            self.entries[entry.id] = entry
            course.tasks.append(entry.id)
            name = entry.need
            need = self.needs.get(name)
            if need is None:
                need = Need(name, terms.campaign, entry.task.requirement, hope_at=now, moved_at=now)
                self.needs[name] = need
                need.fits = {
                    view.peer
                    for view in self.views.values()
                    if view.advert is not None and need.met_by(view.advert)
                }
            need.tasks.append(entry.id)
            if entry.over:
                continue
            course.open += 1
            if entry.state is TaskState.PENDING:
                need.pending[entry.id] = None
            elif entry.worker is not None:
                entry.since = now
                self.view(entry.worker).held[entry.id] = None
        return self._end_if_done(course) + self.decide(now)

    def forget(self, now: float) -> list[Course]:
        """Drop campaigns that ended a while ago, and say which. What is still said of them afterwards is of nobody's task."""
        old: list[Course] = []
        for course in self.courses.values():
            if course.done and course.done_at is None:
                course.done_at = now
            elif course.done_at is not None and now - course.done_at >= FORGET_S:
                old.append(course)
        for course in old:
            for task in course.tasks:
                self.needs.pop(self.entries.pop(task).need, None)
            del self.courses[course.terms.campaign]
        return old

    def held_on(self, peer: str) -> tuple[Held, ...]:
        """Leases and tickets we have there."""
        view = self.views.get(peer)
        found = (self.entries[task].held() for task in view.held) if view is not None else ()
        return tuple(held for held in found if held is not None)

    def wanted_on(self, peer: str) -> tuple[Held, ...]:
        """Those of them that are to be renewed: not what is being stopped."""
        view = self.views.get(peer)
        kept = [self.entries[task] for task in view.held] if view is not None else []
        found = (entry.held() for entry in kept if not entry.stopping)
        return tuple(held for held in found if held is not None)

    def waiting_for(self, peer: str) -> list[Task]:
        """Tasks to ask this worker about: that wait for a device, or as tickets at a worker that is busier than it may be."""
        found: list[Task] = []
        for need in self.needs.values():
            if peer in need.fits:
                queued = (task for task in need.tasks if self.entries[task].state is TaskState.QUEUED)
                names = list(islice(need.pending or queued, MAX_ASKED))
                found += [self.entries[task].task for task in names]
        return found

    def campaigns_on(self, peer: str) -> tuple[str, ...]:
        """Campaigns with a live task there."""
        view = self.views.get(peer)
        return tuple(dict.fromkeys(self.entries[task].task.campaign for task in view.held)) if view else ()

    def may_fetch(self, peer: str, sha256: str) -> bool:
        """Whether a worker holds a live task of ours that needs this model."""
        view = self.views.get(peer)
        return view is not None and any(self.entries[task].task.model.sha256 == sha256 for task in view.held)

    @property
    def idle(self) -> bool:
        """Every campaign has ended."""
        return all(course.done for course in self.courses.values())

    # -- finding ------------------------------------------------------------------------------------------------------------------------

    def found(self, need: str, adverts: Sequence[Advert], now: float) -> list[Order]:
        """The index answered; adverts serve every need they fit."""
        asked = self.needs.get(need)
        if asked is not None:
            asked.asking = False
        for advert in adverts:
            view = self.view(advert.peer)
            newer = view.advert is None or advert.seq >= view.advert.seq
            if not newer or advert.gone or advert == view.advert:
                continue
            if view.advert is not None and advert.seq > view.advert.seq and view.trouble:
                view.retry_at = now  # it is back, or elsewhere
            view.advert, view.addresses, view.device = advert, advert.addresses, advert.name
            view.warm.update(advert.models)
            for each in self.needs.values():
                if advert.peer not in each.declined and each.met_by(advert):
                    each.fits.add(advert.peer)
                else:
                    each.fits.discard(advert.peer)
        return self.decide(now)

    def quoted(self, peer: str, quote: Quote, now: float, asked: Sequence[Shape] = ()) -> list[Order]:
        """A worker told how it stands, and for each shape it was asked about whether it fits and the model is there."""
        view = self.view(peer)
        told = tuple(zip(asked, quote.shapes, strict=False))
        view.warm.update(shape.model for shape, answer in told if answer.warm)
        fitting = [shape.requirement for shape, answer in told if answer.fits]
        for shape, answer in told:
            if shape.requirement not in fitting:
                denied = Denied(reason=Reason.DOES_NOT_FIT, detail="; ".join(answer.unmet)[:2000])
                for need in self.needs.values():
                    if need.requirement == shape.requirement:
                        need.fits.discard(peer)
                        need.declined[peer] = denied
        view.probing, view.quoted, view.refused, view.why, view.trouble = False, True, None, "", 0
        orders = self._see(view, quote.incarnation, now)
        self._stand(view, quote, now)
        return orders + self.decide(now)

    def _stand(self, view: WorkerView, quote: Quote, now: float) -> None:
        view.state = quote.state
        places = sum(1 for task in view.held if self.entries[task].state in HAS_PLACE)
        tickets = sum(1 for task in view.held if self.entries[task].state is TaskState.QUEUED)
        taken = 1 if quote.free == 0 else 0
        view.others = max(0, taken - places) + max(0, quote.queue - tickets)
        self._rest(view, now)

    @staticmethod
    def _rest(view: WorkerView, now: float) -> None:
        """One that cannot work now is asked again later."""
        if view.state in RESTING:
            view.quoted, view.retry_at, view.why = False, now + 10.0, f"it is {view.state}"

    def refused(self, peer: str, denied: Denied, now: float) -> list[Order]:
        """A worker does not serve us, or not now."""
        view = self.view(peer)
        view.probing, view.quoted, view.trouble = False, False, 0
        view.why = f"{denied.reason}: {denied.detail}" if denied.detail else str(denied.reason)
        view.turned_away(now, 10.0 if denied.retry_s is None else max(denied.retry_s, LEAST_RETRY_S))
        if denied.retry_s is None and denied.reason is not Reason.NOT_SERVING:
            view.refused = denied.reason
        return self.decide(now)

    def broken(self, peer: str, now: float) -> list[Order]:
        """Its link ended. What it holds of ours is not lost by that."""
        self.view(peer).quoted = False
        return self.decide(now)

    def missing(self, peer: str, now: float) -> list[Order]:
        """A worker with tasks of ours cannot be reached where it was: the index may know where it is now."""
        held = self.view(peer).held
        needs = dict.fromkeys(self.entries[task].need for task in held)
        return [order for need in needs for order in self.seek(self.needs[need], now, SEEK_S)]

    def unreachable(self, peer: str, why: str, now: float) -> list[Order]:
        """No link could be had."""
        view = self.view(peer)
        view.probing = False
        view.unreachable(now, why)
        return self.decide(now)

    # -- agreeing -----------------------------------------------------------------------------------------------------------------------

    def granted(
        self, peer: str, task: str, attempt: int, lease: str, fence: Fence, now: float, *, queued: bool
    ) -> list[Order]:
        """`peer` gave a lease or a ticket. One that is not wanted any more is given back at once."""
        entry = self._asked(task, attempt)
        if entry is None or entry.worker != peer:
            known = self.entries.get(task)
            if known is not None and known.live and (known.worker, known.lease) == (peer, lease):
                return []
            return [CancelOn(peer, (Held(lease=lease, fence=fence),), Reason.FENCED)]
        entry.lease, entry.fence, entry.restored = lease, fence, False
        self._move(entry, TaskEvent.ENQUEUE if queued else TaskEvent.GRANT)
        if not queued:
            self._placed(entry, now)
        self.view(peer).turned_s = 0.0
        orders: list[Order] = [KeepGrant(task, attempt, lease, fence, queued), *self._stop_again(entry, now)]
        orders += self._see(self.view(peer), fence.incarnation, now)
        return orders + self.decide(now)

    def _asked(self, task: str, attempt: int) -> Entry | None:
        """The task, if this attempt of it waits for a worker's answer; the answer may also come when all of that is over."""
        entry = self.entries.get(task)
        waits = entry is not None and entry.attempt == attempt and entry.state is TaskState.COMMITTING
        return entry if waits else None

    def _placed(self, entry: Entry, now: float) -> None:
        entry.since, entry.releasing = now, False
        self.needs[entry.need].moved_at = now

    def conflict(self, task: str, attempt: int, conflict: Conflict, now: float) -> list[Order]:
        """Somebody was faster. The worker's new standing came with the answer."""
        entry = self._asked(task, attempt)
        if entry is None or entry.worker is None:
            return []
        view = self.view(entry.worker)
        view.turned_away(now, 0.2 + 0.3 * self.rng.random())
        orders = self._let_go(entry, TaskEvent.REFUSE, conflict.reason, "", now)
        self._stand(view, conflict.quote, now)
        return orders + self.decide(now)

    def denied(self, task: str, attempt: int, denied: Denied, now: float) -> list[Order]:
        """The worker does not take it. A stale epoch means another scheduler has the campaign: that is for the service to judge."""
        entry = self._asked(task, attempt)
        if entry is None or entry.worker is None:
            return []
        peer = entry.worker
        orders = self._let_go(entry, TaskEvent.REFUSE, denied.reason, denied.detail, now)
        if denied.reason in (Reason.DOES_NOT_FIT, Reason.BAD_REQUEST):  # this task, not all of ours
            need = self.needs[entry.need]
            need.fits.discard(peer)
            need.declined[peer] = denied
            return orders + self.decide(now)
        return orders + self.refused(peer, denied, now)

    def not_committed(self, task: str, attempt: int, why: str, now: float, *, sent: bool) -> list[Order]:
        """No answer to a commit. `sent`: it may have arrived, so the attempt counts as lost; else nothing has happened."""
        entry = self._asked(task, attempt)
        if entry is None:
            return []
        event = TaskEvent.LOSE if sent else TaskEvent.REFUSE
        return self._let_go(entry, event, Reason.LOST, why, now) + self.decide(now)

    def ready(self, peer: str, lease: str, fence: Fence, now: float) -> str | None:
        """A ticket's place is up: the task to start there, None to skip it."""
        entry = self._by_lease(peer, lease, fence)
        if entry is None or entry.releasing or entry.doom is not None:
            return None
        if entry.state is TaskState.QUEUED:
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now)
        return entry.id

    def _by_lease(self, peer: str, lease: str, fence: Fence) -> Entry | None:
        view = self.views.get(peer)
        for task in view.held if view is not None else ():
            entry = self.entries[task]
            if entry.lease == lease and entry.fence == fence:
                return entry
        return None

    # -- running ------------------------------------------------------------------------------------------------------------------------

    def progress(self, peer: str, told: Progress, now: float) -> Live | None:
        """A run moved on. None when it is not ours any more."""
        entry = self._by_lease(peer, told.lease, told.fence)
        if entry is None:
            return None
        if entry.state is TaskState.QUEUED:  # we said Start and were restarted before that was on disk
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now)
        self._move(entry, TaskEvent.PROGRESS)
        return Live(entry.id, entry.attempt, told.phase, told.done, told.total, told.median_ms, told.note)

    def _see(self, view: WorkerView, incarnation: int, now: float) -> list[Order]:
        """A new incarnation voids what an older one gave."""
        if view.incarnation is not None and incarnation < view.incarnation:
            return []
        view.incarnation = incarnation
        orders: list[Order] = []
        for task in tuple(view.held):
            entry = self.entries[task]
            if entry.fence is not None and entry.fence.incarnation < incarnation:
                orders += self._lose(entry, Reason.LOST, f"{self._named(view.peer)} was restarted", now)
        return orders

    def seen(self, peer: str, incarnation: int, state: WorkerState, now: float) -> list[Order]:
        """A renewal was answered."""
        view = self.view(peer)
        orders = self._see(view, incarnation, now)
        if state is view.state and not orders:
            return []  # with a thousand workers most of what is heard says nothing new
        if state is not view.state:
            view.state = state
            self._rest(view, now)
        return orders + self.decide(now)

    def adopted(
        self,
        peer: str,
        campaign: str,
        incarnation: int,
        leases: Sequence[LiveLease],
        now: float,
        *,
        asked: frozenset[str],
    ) -> list[Order]:
        """What a worker holds of a campaign, after a link came up: what is known goes on, the rest is lost or stopped.

        `asked`: the leases we had when the question was sent; what was granted since may be missing from the answer.
        """
        view = self.view(peer)
        told = {(lease.task, lease.attempt): lease for lease in leases}
        orders: list[Order] = []
        for task in tuple(view.held):
            entry = self.entries[task]
            if entry.task.campaign != campaign:
                continue
            lease = told.pop((task, entry.attempt), None)
            if lease is not None:
                orders += self._carry_on(entry, lease, now)
            elif entry.lease in asked:
                orders += self._lose(entry, Reason.LOST, f"{self._named(peer)} has it no more", now)
            elif entry.restored:  # the intent never reached it
                orders += self._let_go(entry, TaskEvent.REFUSE, Reason.LOST, "never asked", now)
        zombies = tuple(
            Held(lease=lease.lease, fence=lease.fence) for lease in told.values() if not lease.reporting
        )
        if zombies:
            orders.append(CancelOn(peer, zombies, Reason.FENCED))
        view.incarnation = max(incarnation, view.incarnation or 0)
        return orders + self.decide(now)

    def _carry_on(self, entry: Entry, lease: LiveLease, now: float) -> list[Order]:
        entry.restored = entry.releasing = False
        orders: list[Order] = []
        if entry.state is TaskState.COMMITTING and entry.worker is not None:
            return self.granted(
                entry.worker, entry.id, entry.attempt, lease.lease, lease.fence, now, queued=lease.queued
            )
        if entry.state is TaskState.QUEUED and not lease.queued:
            self._move(entry, TaskEvent.GRANT)
            self._placed(entry, now)
        return orders + self._stop_again(entry, now)
