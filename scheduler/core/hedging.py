"""Hedged requests: a second request for a queued task, at a worker that has become idle, or at a busy one while no other task waits. For
the hedge beside a run see `scheduler.core.deadlines`.

    queued at A ──▶ asked at B too ─▶ A is ready first: start there, release B's lease (and skip it, should B be ready meanwhile)
                                    └▶ B is ready first, or grants a lease at once: B's attempt becomes the current one, A's is released

Each request is an attempt with its own number. Before a start is sent, the end of the other attempt is on disk: no crash can make two
workers start the same task.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.allocator import Allocator
from scheduler.core.commands import CancelOn, Command, EndHedge, ReleaseOn, SwitchAttempt
from scheduler.core.entries import Attempt, TaskEntry
from scheduler.core.ranking import WorkerView
from scheduler.core.retry import ELSEWHERE_S
from scheduler.core.state import State

NO_HEDGE_WITHIN_S: Final = 1.0
"""Seconds; a queued lease expected to start within them is not hedged."""
MAX_HEDGES: Final = 16
"""Most hedges requested at busy workers in one decision."""
LOOKED_AT: Final = 64
"""Queued leases checked in one decision, newest first, since those wait longest."""
LAST_HEDGE: Final = 500
"""From this attempt number on a task is not hedged; the remaining numbers are for current attempts."""
SOONER: Final = "another worker was first"


class Hedging:
    def __init__(self, state: State, allocator: Allocator) -> None:
        self._state = state
        self._allocator = allocator

    def decide(self, now: float) -> list[Command]:
        """Hedge at idle workers at any time; at busy ones only in a full decision while every task has a queued lease."""
        state, whole = self._state, self._state.unsettled
        state.unsettled = False
        if not state.queued:
            return []
        idle = {peer: state.workers[peer] for peer in state.idle if state.workers[peer].serving(now)}
        tail = whole and not any(group.pending for group in state.ranked)
        commands: list[Command] = []
        if not idle and not tail:
            return commands
        queued_leases = [state.tasks[task] for task in islice(reversed(state.queued), LOOKED_AT)]
        queued_leases.sort(key=lambda entry: -state.campaign_of(entry).limits.priority)
        for entry in queued_leases if idle else ():
            if not self._may_hedge(entry, now) or not self._waits_behind(entry, now):
                continue
            if entry.hedge is not None and entry.hedge.lease is None:
                continue  # another worker is already being asked
            near = self._allocator.fitting_candidates(state.groups[entry.group], idle)
            fitting = [view for view in near if self._may_take(view, entry, now)]
            if not fitting:
                continue
            drawn = fitting if len(fitting) <= 2 else state.rng.sample(fitting, 2)
            model = entry.form.model
            best = min(drawn, key=lambda view: (view.start_s(model.sha256, model.size), state.rng.random()))
            commands += self.release(entry, "an idle worker was found")
            commands.append(self._allocator.commit(entry, best, now, hedge=True))
            del idle[best.peer]
        return commands + (self._hedge_at_busy(queued_leases, now) if tail else [])

    def _hedge_at_busy(self, queued_leases: list[TaskEntry], now: float) -> list[Command]:
        """Hedge tasks that still wait for a while, at workers where they are expected to start about as soon."""
        state = self._state
        commands: list[Command] = []
        for entry in queued_leases:
            if len(commands) >= MAX_HEDGES:
                break
            current = entry.current
            if current is None or entry.hedge is not None or not self._may_hedge(entry, now):
                continue
            wait = current.wait_s(now)
            if now - current.since < NO_HEDGE_WITHIN_S or (wait is not None and wait < NO_HEDGE_WITHIN_S):
                continue
            model = entry.form.model
            views = [state.workers[peer] for peer in sorted(state.groups[entry.group].fits)]
            able = [
                (view.start_s(model.sha256, model.size), view)
                for view in views
                if view.serving(now) and view.space() > 0 and self._may_take(view, entry, now)
            ]
            soon = [pair for pair in able if wait is None or pair[0] <= 2 * wait]
            if soon:
                best = min(soon, key=lambda pair: (pair[0], state.rng.random()))[1]
                commands.append(self._allocator.commit(entry, best, now, hedge=True))
        return commands

    def _may_hedge(self, entry: TaskEntry, now: float) -> bool:
        return (
            entry.outcome is None
            and entry.current is not None
            and entry.current.status is AttemptStatus.QUEUED
            and entry.last < LAST_HEDGE
            and not self._state.is_sitting_too_soon(entry, now)
        )

    def _may_take(self, view: WorkerView, entry: TaskEntry, now: float) -> bool:
        """Whether this worker may be asked for the task's hedge."""
        group = self._state.groups[entry.group]
        return (
            view.peer in group.fits
            and self._state.admits(group, view.peer)
            and (view.peer not in entry.tried or now >= entry.not_before + ELSEWHERE_S)
            and entry.at(view.peer) is None
            and (
                not entry.replica_set
                or self._state.keys_of_replicas(entry).isdisjoint(self._state.exclusive_keys(group, view))
            )
        )

    def _waits_behind(self, entry: TaskEntry, now: float) -> bool:
        """Whether the queued task waits behind another task of ours, or behind work that takes longer than `NO_HEDGE_WITHIN_S`."""
        if entry.current is None:
            return False
        view = self._state.worker(entry.current.worker)
        if len(view.held) >= 2 or view.others > 0:
            return True
        wait = entry.current.wait_s(now)
        return (
            wait >= NO_HEDGE_WITHIN_S if wait is not None else now - entry.current.since >= NO_HEDGE_WITHIN_S
        )

    # -- which of the two ---------------------------------------------------------------------------------------------------------------

    def release(self, entry: TaskEntry, words: str) -> list[Command]:
        """End the hedge, if any, on disk, and release its queued lease or stop its run. A lease granted for it later is cancelled."""
        hedge = entry.hedge
        if hedge is None:
            return []
        event = TaskEvent.CANCEL if entry.runs(hedge) else TaskEvent.REFUSE
        release = self.stop(entry, hedge)
        return [*self.drop(entry, None, words, event), *release]

    def drop(
        self, entry: TaskEntry, reason: Reason | None, detail: str, event: TaskEvent = TaskEvent.REFUSE
    ) -> list[Command]:
        """The hedge, if any, is gone. The task keeps its state and loses no try."""
        hedge = entry.hedge
        if hedge is None:
            return []
        entry.hedge = None
        self._state.release(hedge.worker, entry.id)
        return [EndHedge(entry.id, hedge.number, reason, detail, event)]

    def switch(
        self, entry: TaskEntry, reason: Reason | None, detail: str, event: TaskEvent = TaskEvent.REFUSE
    ) -> list[Command]:
        """The hedge becomes the current attempt. The previous one ended by `event`, or the caller releases it. The task loses no try."""
        hedge, before = entry.hedge, entry.current
        assert hedge is not None, "there is a hedge"
        assert before is not None, "a hedge has a current attempt"
        waits, runs = hedge.lease is not None, entry.runs(hedge)
        entry.hedge = None
        self._state.release(before.worker, entry.id)
        entry.current = hedge
        if runs:
            self._state.move(entry, TaskEvent.GRANT)
            if hedge.status is AttemptStatus.RUNNING:
                self._state.move(entry, TaskEvent.PROGRESS)
        elif not waits:
            self._state.move(entry, TaskEvent.COMMIT)
        elif entry.state is not TaskState.QUEUED:
            self._state.move(entry, TaskEvent.ENQUEUE)
        self._state.watch(entry)
        return [SwitchAttempt(entry.id, hedge.number, before.number, reason, detail, event)]

    def end(
        self, entry: TaskEntry, attempt: Attempt, event: TaskEvent, reason: Reason | None, detail: str
    ) -> list[Command]:
        """One of two attempts is over, and the task goes on with the other and loses no try. The ended attempt's worker is not asked
        again for now.
        """
        if event is not TaskEvent.REFUSE:
            entry.tried |= {attempt.worker}
        if attempt is entry.hedge:
            return self.drop(entry, reason, detail, event)
        return self.switch(entry, reason, detail, event)

    def prefer(self, entry: TaskEntry) -> list[Command]:
        """Make the hedge the current attempt, and release the other attempt, or stop it if it runs."""
        before = entry.current
        assert before is not None, "a hedge has a current attempt"
        event = TaskEvent.CANCEL if entry.runs(before) else TaskEvent.REFUSE
        release = self.stop(entry, before)
        return [*self.switch(entry, None, SOONER, event), *release]

    @staticmethod
    def stop(entry: TaskEntry, attempt: Attempt) -> list[Command]:
        """Stop an attempt that is no longer wanted, or return its queued lease; do nothing if it has no lease yet."""
        held = attempt.held(entry.epoch)
        if held is None:
            return []
        if entry.runs(attempt):
            return [CancelOn(attempt.worker, (held,), Reason.FENCED)]
        return [ReleaseOn(attempt.worker, (held,))]

    def rival_asked(self, peer: str, lease: str) -> bool:
        """Whether another worker was asked for this queued task and has not answered: it may already have granted a lease."""
        for entry, attempt in self._state.held_at(peer):
            if attempt.lease == lease and entry.state is TaskState.QUEUED:
                return any(other.worker != peer and other.lease is None for other in entry.attempts())
        return False
