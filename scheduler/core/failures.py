"""The part of the book that ends things: verdicts on records, lost leases, cancels, stops, and campaigns that went elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.messages.work import MAX_PREEMPTIONS, Denied, HeldLease
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.record import Record
from protocol.words import Reason, RunOutcome
from scheduler.core.commands import CampaignDone, CancelOn, EndAttempt, EndPending, Order, SetAside, TellUser
from scheduler.core.hedging import Hedging
from scheduler.core.ranking import QUICK_S, WorkerView
from scheduler.core.state import HAS_PLACE, CampaignRun, ModelEvidence, PendingOutcome, TaskEntry
from scheduler.core.transitions import LIMITS

MAX_ATTEMPTS: Final = 990
"""Attempts are numbered up to 1,000 on the wire; refusals count in the number, not in the tries."""
_BLAMELESS: Final = (*LIMITS, Reason.CANCELLED, Reason.PREEMPTED)
_DEVICES: Final = (Reason.WRONG_UNIT, Reason.CHECK_FAILED)
"""What is the device's own: another one may do better."""
MAX_RETURNED: Final = 3
"""A worker that took a task into its queue and had it no more so often counts as one that has tried it."""
RETURNED_S: Final = 0.5
"""One that did so is left alone for so long at least."""
GAVE_BACK: Final = "taking tasks into its queue and having them no more"
ELSEWHERE: Final = "carried on elsewhere (adopted)"


class Failures(Hedging):
    """Part of `scheduler.book.Book`."""

    # -- results ------------------------------------------------------------------------------------------------------------------------

    def judge(
        self, record: Record, amiss: tuple[Reason, str] | None = None
    ) -> tuple[TaskEvent, Reason | None, str]:
        """What a verified record would do to its task. Changes nothing; `settled` does, once it is on disk.

        `amiss`: why a complete one is no measurement of what was asked for.
        """
        entry = self.entries[record.task]
        reason, detail = amiss or (record.reason or Reason.CRASHED, record.detail)
        if record.outcome is RunOutcome.COMPLETE and amiss is None:
            return TaskEvent.SUCCEED, None, ""
        if record.outcome is RunOutcome.CANCELLED:
            if entry.doom is not None:
                return entry.doom.event, entry.doom.reason, entry.doom.detail
            if record.reason is Reason.PREEMPTED and _may_yield(entry):
                return TaskEvent.PREEMPT, Reason.PREEMPTED, self._yielded(entry)
            reason = record.reason or Reason.LOST
            if entry.overtime:
                reason = Reason.TIMED_OUT if entry.begun else Reason.LOST
        elif reason in _DEVICES or record.permanent:
            agreed = reason not in _DEVICES and self._agreed(entry, record.worker)
            if agreed or not self._hope_elsewhere(entry, record.worker):
                return TaskEvent.FAIL, reason, detail
        if entry.doom is not None and record.outcome is not RunOutcome.CANCELLED:
            return entry.doom.event, entry.doom.reason, entry.doom.detail
        return self._after_failure(entry, record.worker, reason, detail)

    def _said(self, entry: TaskEntry) -> ModelEvidence:
        model = (entry.task.model.sha256, entry.task.unit, entry.task.measure.batch)
        return self.courses[entry.task.campaign].said.setdefault(model, ModelEvidence())

    def _agreed(self, entry: TaskEntry, peer: str) -> bool:
        """Whether another device says of the model too that it can run nowhere, and none has run it: one may be at fault itself."""
        said = self._said(entry)
        return not said.good and bool(said.broken - {self.view(peer).place()})

    def _hope_elsewhere(self, entry: TaskEntry, peer: str) -> bool:
        """Whether another device may do better with it."""
        here = {self.view(other).place() for other in entry.doubted | {peer}}
        views = (self.view(other) for other in self.needs[entry.need].fits)
        return any(view.hopeful() and view.place() not in here for view in views)

    def _yielded(self, entry: TaskEntry) -> str:
        for_whom = "" if entry.yields_to is None else f" of priority {entry.yields_to}"
        return f"{self._named(entry.worker or '')} needed its place for a task{for_whom}"

    def _after_failure(
        self, entry: TaskEntry, peer: str, reason: Reason, detail: str
    ) -> tuple[TaskEvent, Reason, str]:
        tries = entry.tries + 1
        terms = self.courses[entry.task.campaign].terms
        fits = self.needs[entry.need].fits
        others = any(p != peer and self.view(p).hopeful() for p in fits)
        if reason in LIMITS and (len(entry.limits | {peer}) >= 2 or not others):
            return TaskEvent.FAIL, reason, detail
        if tries >= terms.attempts or entry.last >= MAX_ATTEMPTS:
            return TaskEvent.FAIL, reason, detail if tries < 2 else f"attempt {tries} of {tries}: {detail}"
        return TaskEvent.RETRY, reason, detail

    def settled(
        self, task: str, event: TaskEvent, reason: Reason | None, now: float, *, permanent: bool = False
    ) -> list[Order]:
        """The result is on disk: move the task by the event that was judged. `permanent`: the worker says that it is the model's fault."""
        entry = self.entries[task]
        orders = self._shed(entry, "its result is there")
        if entry.worker is not None:
            view = self.view(entry.worker)
            if event is TaskEvent.SUCCEED:
                if entry.seen:
                    view.took(now - entry.since)
                view.succeeded()
                view.warm.add(entry.task.model.sha256)
                self._said(entry).good = True
            elif event in (TaskEvent.RETRY, TaskEvent.FAIL) and entry.doom is None:
                if self._its_own(entry, view, reason, permanent=permanent):
                    orders += self._blame(view, entry, reason, now)
                if permanent or reason in _DEVICES:
                    entry.doubted.add(view.peer)
        self._apply(entry, event, reason, now)
        return orders + self._end_if_done(self.courses[entry.task.campaign]) + self.decide(now)

    def _its_own(self, entry: TaskEntry, view: WorkerView, reason: Reason | None, *, permanent: bool) -> bool:
        """Whether a failure counts against the worker. One that says it of the model counts once for each model, while no other device has
        run it or says so too; and where no other device could do better nothing is won by leaving this one alone.
        """
        if not permanent and reason not in _DEVICES:
            return True
        hope = self._hope_elsewhere(entry, view.peer)
        if reason in _DEVICES:
            return hope
        said, first = self._said(entry), view.place() not in self._said(entry).broken
        said.broken.add(view.place())
        return hope and not self._agreed(entry, view.peer) and (first or said.good)

    def _blame(self, view: WorkerView, entry: TaskEntry, reason: Reason | None, now: float) -> list[Order]:
        if reason in _BLAMELESS or now - entry.since > QUICK_S:
            return []
        return self._failed(view, f"quick failures, the last one {reason}", now)

    def _failed(
        self, view: WorkerView, what: str, now: float, *, silent: bool = False, once: bool = False
    ) -> list[Order]:
        seconds = view.failed(now, what, silent=silent, once=once)
        if seconds is None:
            return []
        uses = {need.campaign for need in self.ranked if view.peer in need.fits}
        using = tuple(course for course in self.courses if course in uses and not self.courses[course].done)
        return [SetAside(view.peer, view.device, seconds, view.why_aside, using)]

    # -- losing and stopping ------------------------------------------------------------------------------------------------------------

    def lost(
        self, peer: str, leases: Iterable[str], reason: Reason, now: float, detail: str = ""
    ) -> list[Order]:
        """These leases or tickets are gone without a result."""
        gone = set(leases)
        orders: list[Order] = []
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            ticket = entry.at(peer)
            if ticket is not None and ticket.lease in gone:
                orders += self._gave_back(entry, peer, now)
                orders += self._lose_at(entry, peer, reason, detail or f"{self._named(peer)}: {reason}", now)
        return orders + self.decide(now)

    def _gave_back(self, entry: TaskEntry, peer: str, now: float) -> list[Order]:
        """It took the task into its queue and has it no more: no try is lost, so it is remembered against the worker.

        Else one that does nothing but that has a task for as long as it likes, and drives up the numbers of its attempts.
        """
        if entry.state is not TaskState.QUEUED or entry.restored or entry.stopping:
            return []
        entry.returned[peer] = entry.returned.get(peer, 0) + 1
        if entry.returned[peer] >= MAX_RETURNED:
            entry.tried.add(peer)
            entry.not_before = max(entry.not_before, now + self.courses[entry.task.campaign].terms.backoff_s)
        view = self.view(peer)
        if now >= view.retry_at:
            view.turned_away(now, RETURNED_S)
        return [] if now - entry.since > QUICK_S else self._failed(view, GAVE_BACK, now, once=True)

    def all_lost(
        self, peer: str, reason: Reason, detail: str, now: float, *, silent: bool = False
    ) -> list[Order]:
        """The worker has not been heard of for a lease's time: whatever it has of ours is lost. `silent`: it takes links, and is silent."""
        view = self.view(peer)
        orders = (
            self._failed(view, "being silent about what it had taken", now, silent=True) if silent else []
        )
        for task in tuple(view.held):
            entry = self.entries[task]
            ticket = entry.at(peer)
            if ticket is not None and (ticket.lease is not None or ticket.restored):
                orders += self._lose_at(
                    entry, peer, reason, detail, now
                )  # a commit on its way has its own patience
        return orders + self.decide(now)

    def _lose_at(self, entry: TaskEntry, peer: str, reason: Reason, detail: str, now: float) -> list[Order]:
        """What this worker has of the task is gone: its second ticket, or the current one."""
        if entry.spare is not None and entry.spare.worker == peer:
            return self._drop(entry, reason, detail)
        return self._lose(entry, reason, detail, now)

    def _lose(self, entry: TaskEntry, reason: Reason, detail: str, now: float) -> list[Order]:
        blame: list[Order] = []
        if reason is Reason.BAD_REQUEST and entry.worker is not None:  # what it sent was no result
            blame = self._blame(self.view(entry.worker), entry, reason, now)
        event = TaskEvent.LOSE
        if entry.state is TaskState.QUEUED or entry.claimed or reason is Reason.STALE_EPOCH:
            event = TaskEvent.REFUSE  # nothing ran, or we had never asked for it, or it is not asked again
        elif reason is Reason.PREEMPTED and entry.state in HAS_PLACE and _may_yield(entry):
            event, detail = TaskEvent.PREEMPT, self._yielded(entry)
        return blame + self._let_go(entry, event, reason, detail, now)

    def cancel(self, tasks: Iterable[str], now: float) -> list[Order]:
        """Somebody wants these cancelled."""
        return self._doom(tasks, PendingOutcome(TaskEvent.CANCEL, Reason.CANCELLED), now) + self.decide(now)

    def _doom(self, tasks: Iterable[str], doom: PendingOutcome, now: float) -> list[Order]:
        pending: list[str] = []
        stops: dict[str, list[HeldLease]] = {}
        courses: dict[str, CampaignRun] = {}
        orders: list[Order] = []
        for task in tasks:
            entry = self.entries.get(task)
            if entry is None or entry.over or entry.doom is not None:
                continue
            if entry.state is TaskState.PENDING:
                pending.append(task)
                self._apply(entry, doom.event, doom.reason, now)
                courses[entry.task.campaign] = self.courses[entry.task.campaign]
                continue
            orders += self._shed(entry, "the task is not wanted any more")
            entry.doom = doom
            held = entry.held()
            if held is not None and entry.worker is not None:
                entry.stop_at = entry.stop_told_at = now
                stops.setdefault(entry.worker, []).append(held)
        if pending:
            orders.append(EndPending(tuple(pending), doom.event, doom.reason, doom.detail))
        orders += [CancelOn(peer, tuple(held), doom.reason) for peer, held in stops.items()]
        for course in courses.values():
            orders += self._end_if_done(course)
        return orders

    def stopped(self, peer: str, leases: Iterable[str], now: float) -> list[Order]:
        """The worker confirms that nothing runs under these any more."""
        gone = set(leases)
        orders: list[Order] = []
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            ticket = entry.at(peer)
            if ticket is None or ticket.lease not in gone:
                continue
            if entry.is_spare(ticket.attempt):
                orders += self._drop(entry, Reason.LOST, f"{self._named(peer)} gave its ticket up")
            else:
                orders += self._gave_back(entry, peer, now)
                orders += self._stop_ended(entry, f"{self._named(peer)} gave it up", now)
        return orders + self.decide(now)

    def _stop_ended(self, entry: TaskEntry, detail: str, now: float) -> list[Order]:
        """What was to be stopped runs no more, or is waited for no more."""
        if not entry.overtime or entry.doom is not None or entry.worker is None or entry.claimed:
            return self._lose(entry, Reason.LOST, detail, now)
        if not entry.begun:
            words = f"{self._named(entry.worker)} took it and never began"
            return self._lose(entry, Reason.LOST, words, now)
        words = "it ran far beyond its limits and was stopped"
        event, reason, detail = self._after_failure(entry, entry.worker, Reason.TIMED_OUT, words)
        order = EndAttempt(entry.id, entry.attempt, event, reason, detail)
        self._apply(entry, event, reason, now)
        return [order, *self._end_if_done(self.courses[entry.task.campaign])]

    def _stop_again(self, entry: TaskEntry, now: float) -> list[Order]:
        """Tell its worker to stop what is not wanted any more: as soon as its lease is known, and again whenever a link comes up."""
        held = entry.held()
        if not entry.stopping or entry.worker is None or held is None:
            return []
        entry.stop_at, entry.stop_told_at = now if entry.stop_at is None else entry.stop_at, now
        return [CancelOn(entry.worker, (held,), entry.doom.reason if entry.doom else Reason.TIMED_OUT)]

    def _let_go(
        self, entry: TaskEntry, event: TaskEvent, reason: Reason, detail: str, now: float
    ) -> list[Order]:
        """The current ticket ended without a record: refused, given back or lost. A second one takes its place, if there is one.

        Else what is doomed ends, and what used all its tries fails.
        """
        if entry.spare is not None:
            return self._switch(entry, reason, detail)
        if entry.doom is not None:
            event, reason, detail = entry.doom.event, entry.doom.reason, entry.doom.detail
        elif event is TaskEvent.LOSE and entry.worker is not None:
            verdict, reason, detail = self._after_failure(entry, entry.worker, reason, detail)
            event = TaskEvent.FAIL if verdict is TaskEvent.FAIL else event
        elif entry.last >= MAX_ATTEMPTS:
            event, reason, detail = TaskEvent.FAIL, Reason.GAVE_UP, f"refused too often, last: {detail}"
        order = EndAttempt(entry.id, entry.attempt, event, reason, detail)
        self._apply(entry, event, reason, now)
        return [order, *self._end_if_done(self.courses[entry.task.campaign])]

    # -- elsewhere ----------------------------------------------------------------------------------------------------------------------

    def superseded(self, peer: str, campaign: str, now: float) -> list[Order]:
        """It is proven that another scheduler carries this campaign on, under a higher epoch; see `scheduler.run.epochs`.

        It ends here, and nothing is touched at any worker. `peer` is who passed the proof on.
        """
        course = self.courses.get(campaign)
        return [] if course is None or course.done else self._end_here(course, now)

    def disowned(self, peer: str, campaign: str, now: float) -> list[Order]:
        """A worker says so without a proof: it gets no more of the campaign, which goes on."""
        course = self.courses.get(campaign)
        if course is None or course.done:
            return []
        name = self._named(peer)
        words = f"{name} says that it is {ELSEWHERE}, without a proof"
        told: dict[str, str | int | float] = {"peer": peer, "device": name, "why": words}
        orders: list[Order] = [TellUser((campaign,), "worker.refused", told)]
        for need in self.ranked:
            if need.campaign == campaign:
                need.fits.discard(peer)
                need.declined[peer] = Denied(reason=Reason.STALE_EPOCH, detail=words)
        for task in tuple(self.view(peer).held):
            entry = self.entries[task]
            if entry.task.campaign == campaign:
                orders += self._lose_at(entry, peer, Reason.STALE_EPOCH, words, now)
        return orders + self.decide(now)

    def _end_here(self, course: CampaignRun, now: float) -> list[Order]:
        orders: list[Order] = []
        pending: list[str] = []
        for task in course.tasks:
            entry = self.entries[task]
            if entry.over:
                continue
            orders += self._drop(entry, Reason.ADOPTED, ELSEWHERE)
            if entry.state is TaskState.PENDING:
                pending.append(task)
            else:
                orders.append(EndAttempt(task, entry.attempt, TaskEvent.CANCEL, Reason.ADOPTED, ELSEWHERE))
            self._apply(entry, TaskEvent.CANCEL, Reason.ADOPTED, now)
        if pending:
            orders.append(EndPending(tuple(pending), TaskEvent.CANCEL, Reason.ADOPTED, ELSEWHERE))
        course.done = True
        return [*orders, CampaignDone(course.terms.campaign, ELSEWHERE), *self.decide(now)]


def _may_yield(entry: TaskEntry) -> bool:
    """Whether giving way is no try. A worker that says so more often than is allowed has lost the task like any other."""
    return entry.preempted < MAX_PREEMPTIONS
