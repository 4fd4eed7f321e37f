"""Time limits of campaigns, runs, stops and waits, and the end of the time for which workers are set aside."""

from __future__ import annotations

from typing import Final

from protocol.values.attempt import AttemptEvent, AttemptStatus, TaskEvent
from protocol.words import Reason
from scheduler.core.commands import Command, Explain, RecordEvent
from scheduler.core.entries import STOP_S, Attempt, PendingOutcome, RequirementGroup, TaskEntry
from scheduler.core.explain import why_waiting
from scheduler.core.failures import Failures
from scheduler.core.state import State
from swarm.base.units import show_duration

NOT_SENT: Final = "announcing results without sending them"


class TimeLimits:
    def __init__(self, state: State, failures: Failures) -> None:
        self._state = state
        self._failures = failures

    def enforce(self, now: float) -> list[Command]:
        """The commands that time limits require at `now`. Call it a few times each second."""
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
        for entry in state.overdue(now):
            for attempt in entry.attempts():
                if entry.limit_of(attempt) <= now and attempt in entry.attempts():
                    commands += self._limit_run(entry, attempt, now)
        for view in state.workers.values():
            if view.why_aside and view.aside_just_ended(now):
                state.refresh(view)
                fields = {"peer": view.peer, "device": view.device}
                commands.append(RecordEvent(state.users_of(view.peer), "worker.back", fields))
        return commands

    def _limit_run(self, entry: TaskEntry, attempt: Attempt, now: float) -> list[Command]:
        """Handle a run that exceeds its limits or never began, a result that was not sent, and a stop that was not confirmed."""
        failures = self._failures
        view, device = self._state.worker(attempt.worker), self._state.device(attempt.worker)
        if attempt is entry.current and entry.stopping:
            if attempt.stop_at is not None and now < attempt.stop_at + STOP_S:
                return failures.send_stop(entry, now)
            words = f"{device} did not confirm within {STOP_S:g} s that it was stopped"
            return failures.end_stopped(entry, attempt, words, now, goes_on=True)
        if attempt.status is AttemptStatus.REPORTING:
            blame = failures.count_failure(view, NOT_SENT, now, silent=True)
            words = f"{device} ran it, but did not send its result"
            return blame + failures.lose_attempt(entry, attempt, Reason.LOST, words, now)
        blame = []
        if now >= entry.begins_by(attempt):
            blame = failures.count_failure(view, "taking a task that it never started", now, silent=True)
        if entry.hedge is not None:
            return blame + failures.give_up_one(entry, attempt, "it ran far beyond its limits", now)
        attempt.move(AttemptEvent.STOP)
        return failures.send_stop(entry, now) + blame

    def _limit_wait(self, group: RequirementGroup, now: float) -> list[Command]:
        if not group.pending and not group.queued:
            group.hope_at = group.moved_at = now
            return []
        if group.leased:
            group.moved_at = now
        if group.leased or not group.pending or self._state.could_run(group) or self._state.may_return(group):
            group.hope_at = now
        wait_s = self._state.campaigns[group.campaign].limits.wait_s
        searched = group.searched_at is not None and not group.searching
        if searched and not group.explaining and now - group.hope_at >= wait_s:
            group.explaining = True
            return [Explain(group.id, group.requirement)]
        first = next(iter(group.pending or group.queued))
        limit_s = self._state.tasks[first].form.timeouts.queue_s
        if now - group.moved_at <= limit_s:
            return []
        waiting = [self._state.tasks[task] for task in (*group.pending, *group.queued)]
        if now - min(entry.not_before for entry in waiting) <= limit_s:
            return []
        fits = [self._state.worker(peer) for peer in sorted(group.fits)]
        busy = "every device that fits had other tasks"
        if group.pin:
            busy = (
                f"{self._state.device(group.pin)}, which made its first sitting, had other tasks or was away"
            )
        words = why_waiting(fits) or busy
        words = f"no device took it within {show_duration(limit_s)} (timeouts.queue): {words}"
        outcome = PendingOutcome(TaskEvent.FAIL, Reason.TIMED_OUT, words)
        return self._failures.end_tasks([entry.id for entry in waiting], outcome, now)

    def end_unplaceable(self, group: str, reason: Reason, text: str, now: float) -> list[Command]:
        """Answer to `Explain`: end the group's pending tasks, unless a worker appeared meanwhile."""
        waiting = self._state.groups.get(group)
        if waiting is None:
            return []
        waiting.explaining = False
        self._state.reopened[waiting.id] = None
        if self._state.could_run(waiting):
            return []
        return self._failures.end_tasks(
            tuple(waiting.pending), PendingOutcome(TaskEvent.FAIL, reason, text), now
        )
