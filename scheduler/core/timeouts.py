"""Limits in time: of campaigns, runs, stops and waits, and of workers that were set aside."""

from __future__ import annotations

from typing import Final

from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.words import Reason
from scheduler.core.commands import Command, Explain, RecordEvent
from scheduler.core.failures import Failures
from scheduler.core.state import LEASED, PendingOutcome, RequirementGroup, State, TaskEntry

BEGIN_S: Final = 120.0
"""A worker that granted a lease, and of whose run nothing is heard for so long, is considered not to begin."""
STOP_AGAIN_S: Final = 12.0
"""A worker that has not confirmed a stop by then is told again."""
STOP_S: Final = 30.0
"""After so long the task goes on without the worker, and its lease is left to lapse."""
NOT_SENT: Final = "saying that it has results and not sending them"


class TimeLimits:
    def __init__(self, state: State, failures: Failures) -> None:
        self._state = state
        self._failures = failures

    def enforce(self, now: float) -> list[Command]:
        """To be called a few times each second."""
        state = self._state
        commands: list[Command] = []
        for campaign in state.campaigns.values():
            ends_at = campaign.limits.ends_at
            if ends_at is not None and now >= ends_at and not campaign.timed_out and not campaign.done:
                campaign.timed_out = True
                outcome = PendingOutcome(TaskEvent.FAIL, Reason.TIMED_OUT, "the campaign's time limit passed")
                commands += self._failures.end_tasks(campaign.tasks, outcome, now)
        for group in state.ranked:
            commands += self._limit_wait(group, now)
        for view in tuple(state.workers.values()):
            for entry, attempt in state.held_at(view.peer):
                if attempt is entry.current:
                    commands += self._limit_run(entry, now)
            if view.end_aside(now):
                state.refresh(view)
                fields = {"peer": view.peer, "device": view.device}
                commands.append(RecordEvent(state.users_of(view.peer), "worker.back", fields))
        return commands

    def _limit_run(self, entry: TaskEntry, now: float) -> list[Command]:
        """A run that exceeds its limits or never began, a result that is not sent, or a stop that is not confirmed."""
        attempt, failures = entry.current, self._failures
        assert attempt is not None, "a live task has an attempt"
        if entry.state not in LEASED and not entry.stopping and attempt.status is not AttemptStatus.REPORTING:
            return []
        view, late = self._state.worker(attempt.worker), now - entry.since > entry.max_run_s()
        if entry.stopping:
            if attempt.stop_at is None:
                return []
            if now - attempt.stop_at >= STOP_S:
                words = f"{self._state.device(attempt.worker)} did not say within {STOP_S:g} s that it was stopped"
                return failures.end_stopped(entry, words, now)
            return failures.send_stop(entry, now) if now - attempt.stop_sent_at >= STOP_AGAIN_S else []
        if attempt.status is AttemptStatus.REPORTING:
            if attempt.due is not None and now < attempt.due and not late:
                return []
            blame = failures.count_failure(view, NOT_SENT, now, silent=True)
            words = f"{self._state.device(attempt.worker)} ran it, but did not send its result"
            return blame + failures.lose(entry, Reason.LOST, words, now)
        unheard = entry.state is TaskState.LEASED and attempt.status in (
            AttemptStatus.GRANTED,
            AttemptStatus.RESTORED,
        )
        never_began = unheard and now - entry.since > BEGIN_S
        if not never_began and not late:
            return []
        commands = failures.stop_overdue(entry, now)
        if never_began:
            commands += failures.count_failure(view, "taking a task that it never began", now, silent=True)
        return commands

    def _limit_wait(self, group: RequirementGroup, now: float) -> list[Command]:
        if not group.pending and not group.queued:
            group.hope_at = group.moved_at = now
            return []
        if not group.pending or self._has_hope(group):
            group.hope_at = now
        if group.leased:
            group.moved_at = group.hope_at = now
        wait_s = self._state.campaigns[group.campaign].limits.wait_s
        searched = group.searched_at is not None and not group.searching
        if searched and not group.explaining and now - group.hope_at >= wait_s:
            group.explaining = True
            return [Explain(group.id, group.requirement)]
        first = next(iter(group.pending or group.queued))
        limit_s = self._state.tasks[first].task.timeouts.queue_s
        if now - group.moved_at > limit_s:
            words = f"no device came free within {limit_s:g} s"
            waiting = (*group.pending, *group.queued)
            outcome = PendingOutcome(TaskEvent.FAIL, Reason.TIMED_OUT, words)
            return self._failures.end_tasks(waiting, outcome, now)
        return []

    def end_hopeless(self, group: str, reason: Reason, text: str, now: float) -> list[Command]:
        """The answer to `Explain`: end the group's pending tasks, unless a worker turned up meanwhile."""
        waiting = self._state.groups.get(group)
        if waiting is None:
            return []
        waiting.explaining = False
        self._state.reopened[waiting.id] = None
        if self._has_hope(waiting):
            return []
        return self._failures.end_tasks(
            tuple(waiting.pending), PendingOutcome(TaskEvent.FAIL, reason, text), now
        )

    def _has_hope(self, group: RequirementGroup) -> bool:
        return any(self._state.worker(peer).hopeful() for peer in group.fits)
