"""Invariants of the core's state, whatever workers say. Tests check them after every step."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import LocalProtocolError
from protocol.values.attempt import AttemptStatus, TaskState
from scheduler.core.entries import LEASED_TASK_STATES, POSSIBLY_ENDED_STATUSES, TaskEntry
from scheduler.core.state import State


def check(state: State) -> None:
    """Raises `LocalProtocolError` with the first invariant that does not hold."""
    holders: dict[str, list[str]] = {}
    for view in state.workers.values():
        for task in view.held:
            holders.setdefault(task, []).append(view.peer)
        if (view.peer in state.idle) != (view.quoted and view.idle()):
            raise LocalProtocolError(f"{view.peer} is listed as idle or as busy, and is not")
        if (view.peer in state.unquoted) == view.quoted:
            raise LocalProtocolError(f"{view.peer} is listed as quoted or as unquoted, and is not")
    if missing := holders.keys() - state.tasks.keys():
        raise LocalProtocolError(f"workers hold unknown tasks: {', '.join(sorted(missing))}")
    for entry in state.tasks.values():
        _check_task(state, entry, holders.get(entry.id, []))
    for name, group in state.groups.items():
        states = [state.tasks[task].state for task in group.tasks]
        if group.leased != sum(each in LEASED_TASK_STATES for each in states):
            raise LocalProtocolError(f"{name} counts {group.leased} leases")
    by_device = {
        name: device for device, groups in state.groups_for.items() for name, group in groups.items()
    }
    if by_device != {name: group.device for name, group in state.groups.items()}:
        raise LocalProtocolError("groups are listed under other devices than theirs")
    named = {view.peer: view.advert.device for view in state.workers.values() if view.advert is not None}
    if {peer: device for device, peers in state.peers_at.items() for peer in peers} != named:
        raise LocalProtocolError("workers are listed at other devices than theirs")
    for campaign in state.campaigns.values():
        open_ = sum(1 for task in campaign.tasks if not state.tasks[task].over)
        if open_ != campaign.open or (campaign.done and open_):
            raise LocalProtocolError(f"{campaign.limits.campaign} counts {campaign.open} open of {open_}")
    for replicas in state.replicas.values():
        _check_replicas(state, replicas)


def _check_task(state: State, entry: TaskEntry, holders: list[str]) -> None:
    group, attempts = state.groups[entry.group], entry.attempts()
    if sorted(holders) != sorted(each.worker for each in attempts) or len(set(holders)) != len(holders):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and held by {holders}")
    if entry.hedge is not None and (
        entry.state not in (TaskState.QUEUED, *LEASED_TASK_STATES) or entry.stopping
    ):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and hedged")
    if entry.hedge is not None and entry.state in LEASED_TASK_STATES and not entry.hedge.beside:
        raise LocalProtocolError(f"{entry.id} runs, and has a hedge that was asked for while it was queued")
    if (entry.id in state.leased) != (entry.state in LEASED_TASK_STATES):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and misplaced among those with a lease")
    numbers = {each.number for each in attempts}
    if len(numbers) != len(attempts) or entry.last < max(numbers, default=0):
        raise LocalProtocolError(f"{entry.id} has two attempts of one number")
    if entry.state is TaskState.PENDING and entry.current is not None:
        raise LocalProtocolError(f"{entry.id} is pending and has an attempt")
    lists: tuple[tuple[Mapping[str, None], TaskState], ...] = (
        (group.without_model if entry.model_missing else group.pending, TaskState.PENDING),
        (group.queued, TaskState.QUEUED),
        (state.queued, TaskState.QUEUED),
    )
    withdrawn = entry.id in state.withdrawn
    if withdrawn and (entry.state is not TaskState.PENDING or entry.outcome is None):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and waits to end")
    for tasks, requested in lists:
        if (withdrawn or entry.waits_for_sitting) and entry.id not in tasks:
            continue
        if (entry.id in tasks) != (entry.state is requested):
            raise LocalProtocolError(f"{entry.id} is {entry.state} and misplaced among the {requested}")
    for each in attempts:
        if (each.fence is None) != (each.lease is None):
            raise LocalProtocolError(f"{entry.id} has half a lease")
        if (each.status is AttemptStatus.ASKED) and each.lease is not None:
            raise LocalProtocolError(f"{entry.id} has a lease and waits for its answer")
    if entry.tries > state.campaign_of(entry).limits.attempts:
        raise LocalProtocolError(f"{entry.id} was tried {entry.tries} times")


def _check_replicas(state: State, replicas: list[str]) -> None:
    seen: set[str] = set()
    for entry in map(state.tasks.__getitem__, replicas):
        group, marks = state.groups[entry.group], set[str]()
        for attempt in entry.attempts():
            if attempt.status not in POSSIBLY_ENDED_STATUSES:
                marks |= state.exclusive_keys(group, state.worker(attempt.worker))
        if seen & marks:
            raise LocalProtocolError(f"replicas of {replicas[0]} meet on one device, or with one owner of it")
        seen |= marks
