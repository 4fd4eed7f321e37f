"""Hands out work: which groups to search for, which workers to probe, and which worker gets which task.

A decision follows every event, so it looks only at what the event changed; a few times each second a decision looks at everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocol.values.attempt import TaskEvent
from protocol.values.lease import MAX_PREEMPTIONS
from scheduler.core.commands import Command, CommitTo, Discover, ProbeWorker, RecordWaitReason
from scheduler.core.entries import LEASED_TASK_STATES, Attempt, RequirementGroup, TaskEntry
from scheduler.core.explain import listed, why_untrusted, why_waiting
from scheduler.core.ranking import WorkerView, choose, most_proven
from scheduler.core.retry import ELSEWHERE_S, doubled_s
from scheduler.core.run_times import FETCH_RATE
from scheduler.core.state import State

SEEK_S: Final = 2.0
"""Seconds between searches of the index while no fitting worker is available."""
LOOK_S: Final = 15.0
"""Seconds between searches for more workers while tasks wait and some worker serves."""
RARELY_S: Final = 300.0
"""Seconds between searches for a known device that does not serve: another key may have the device by now."""
MAX_PROBING: Final = 16
MAX_HEARSAY: Final = 4
"""Most simultaneous probes of hearsay (see the glossary), in addition to `MAX_PROBING`."""
AGAIN_S: Final = 2.0
"""Seconds between probes, while tasks wait, of a worker that was busy with others' work."""
WORTH_WAITING: Final = 3 * int(FETCH_RATE)
"""Model size in bytes from which a fetch is expected to take longer than a probe."""
MAX_SKIPPED: Final = 64
"""Tasks that one decision may skip because no worker may have them yet."""
MAX_HANDED_OUT: Final = 16
"""Most tasks that one decision hands out, since each is stored in the same step. The next decision continues."""
FEW: Final = 8
"""If there are this many times more workers than fit, only those that fit are visited, in sorted order."""
WANT: Final = (8, 64)
REPLICAS_WAIT: Final = "its other replicas use every device that fits"
AWAY: Final = "waits for {}, which made its first sitting"
ROOTS_WAIT: Final = (
    "its other replicas use a device of every owner that fits. This campaign admits strangers, so replicas count only if different "
    "owners answer for them: a device of another pool, a listed device, or a stranger of another network is needed"
)


@dataclass(slots=True)
class _Pools:
    """Workers that may be given a task now."""

    idle: list[WorkerView]
    busy: list[WorkerView]
    """Workers that have work, and space for more."""

    def use(self, view: WorkerView) -> None:
        """The worker was given a task: move it to `busy`, or drop it if it has no more space."""
        if view in self.idle:
            self.idle.remove(view)
            if view.space() > 0:
                self.busy.append(view)
        elif view.space() <= 0:
            self.busy.remove(view)


class Allocator:
    def __init__(self, state: State) -> None:
        self._state = state

    def decide(self, now: float) -> list[Command]:
        """Searches, probes and commits that follow from the changes since the last decision, or from the whole state if
        `State.unsettled`.
        """
        state, whole = self._state, self._state.unsettled
        commands = self._probe(now)
        serving = self._serving(now, whole=whole)
        able = {peer: view for peer, view in serving.items() if view.space() > 0}
        changed = {peer: view for peer, view in able.items() if peer in state.changed}
        stale = self._stale_quotes(serving, now) if whole else []
        left, later = MAX_HANDED_OUT, list[str]()
        for group in [group for group in state.ranked if group.pending]:
            if whole or group.searched_at is None:
                commands += self._look(group, stale, now)
            views = able if whole or group.id in state.reopened else changed
            if views and not group.explaining and not views.keys().isdisjoint(group.fits):
                handed_out = self._hand_out(group, now, self._pools(group, views), left) if left else []
                commands += handed_out
                left -= len(handed_out)
                if not left:
                    later.append(group.id)
                elif handed_out:
                    able = {peer: view for peer, view in able.items() if view.space() > 0}
                    changed = {peer: view for peer, view in changed.items() if view.space() > 0}
            if whole:
                commands += self._explain_wait(group, serving, now)
        for group in state.ranked if whole else ():
            if group.queued and not group.pending:  # an idle worker may take a task that waits at a busy one
                commands += self._look(group, stale, now)
        state.changed.clear()
        state.reopened.clear()
        state.reopened.update(state.warming)  # look at all of them again when the quote comes
        state.warming.clear()
        state.reopened.update(dict.fromkeys(later))
        state.unfinished = bool(later)
        return commands

    # -- probes and searches ------------------------------------------------------------------------------------------------------------

    def _probe(self, now: float) -> list[Command]:
        """Probe workers for which a task waits, in random order, so that schedulers do not all begin with the same worker. Hearsay is
        probed in addition to known workers, a few at a time, so that invented devices delay nobody.
        """
        state = self._state
        groups = [group for group in state.ranked if group.pending or group.queued] if state.unquoted else []
        if not groups:
            return []
        probing = [view for peer in state.unquoted if (view := state.workers[peer]).probing]
        beside = sum(self._hearsay(view) for view in probing)
        room = max(0, MAX_PROBING - len(probing) + beside)
        due = [peer for peer in state.unquoted if _due(state.workers[peer], now)]
        if len(due) > MAX_PROBING * MAX_PROBING:
            met = [peer for peer in due if state.workers[peer].incarnation is not None]
            due = met[:MAX_PROBING] + state.rng.sample(due, MAX_PROBING * MAX_PROBING)
        else:
            state.rng.shuffle(due)
        for_any = [group for group in groups if group.device is None]
        fitting = [peer for peer in dict.fromkeys(due) if self._is_wanted(peer, for_any)]
        hearsay = [peer for peer in fitting if self._hearsay(state.workers[peer])]
        unseen = set(hearsay)
        known = [peer for peer in fitting if peer not in unseen][:room]
        some = bool(known) or any(
            view.may_serve_soon() and not self._hearsay(view)
            for group in groups
            for view in map(state.workers.__getitem__, group.fits)
        )
        hearsay = hearsay[: max(0, (MAX_HEARSAY if some else MAX_PROBING) - beside)]
        return [_probe(state.workers[peer]) for peer in (*known, *hearsay)]

    def _is_wanted(self, peer: str, for_any: Iterable[RequirementGroup]) -> bool:
        """Whether the worker fits a group with waiting tasks. `for_any`: groups not for one device; each device may have a group of its
        own.
        """
        advert = self._state.workers[peer].advert
        for_it = () if advert is None else self._state.groups_for.get(advert.device, {}).values()
        return any(peer in group.fits for group in for_any) or any(
            peer in group.fits for group in for_it if group.pending or group.queued
        )

    def _hearsay(self, view: WorkerView) -> bool:
        """Whether this worker is a stranger that only other strangers report and that has never answered."""
        state = self._state
        return view.incarnation is None and state.hearsay(view.peer) and state.trust_of(view.peer).stranger

    def _serving(self, now: float, *, whole: bool) -> dict[str, WorkerView]:
        """Workers that serve now. A partial decision without reopened groups gets only those that changed."""
        workers = self._state.workers
        peers = workers if whole or self._state.reopened else self._state.changed
        return {peer: workers[peer] for peer in peers if workers[peer].serving(now)}

    @staticmethod
    def _stale_quotes(serving: Mapping[str, WorkerView], now: float) -> list[WorkerView]:
        """Workers whose quote is old and said that they were busy with others' work."""
        views = serving.values()
        return [view for view in views if view.others and not view.held and now - view.quoted_at >= AGAIN_S]

    def _look(self, group: RequirementGroup, stale: Iterable[WorkerView], now: float) -> list[Command]:
        """For waiting tasks: probe workers with a stale quote, and search the index for more."""
        commands: list[Command] = []
        for view in stale:
            if view.peer in group.fits and _due(view, now) and len(commands) < MAX_PROBING:
                commands.append(_probe(view))
        some = any(self._state.workers[peer].may_serve_soon() for peer in group.fits)
        if some and group.device is not None:  # no other device could have these tasks
            group.searched_at = now if group.searched_at is None else group.searched_at
            serves = any(self._state.workers[peer].serving(now) for peer in group.fits)
            return commands if serves else commands + self.search(group, now, RARELY_S)
        # While a campaign begins, devices may still be starting: search after 1, 2, 4 … s.
        return commands + self.search(
            group, now, doubled_s(1.0, group.searches - 1, LOOK_S) if some else SEEK_S
        )

    def search_for(self, peer: str, now: float) -> list[Command]:
        """A worker with tasks of ours cannot be reached at its known addresses: search the index for new ones."""
        groups = dict.fromkeys(entry.group for entry, _ in self._state.held_at(peer))
        return [
            command for group in groups for command in self.search(self._state.groups[group], now, SEEK_S)
        ]

    @staticmethod
    def search(group: RequirementGroup, now: float, every: float) -> list[Command]:
        """Search the index, unless it was searched within `every` seconds."""
        if group.searching or (group.searched_at is not None and now - group.searched_at < every):
            return []
        group.searching, group.searched_at, group.searches = True, now, group.searches + 1
        want = max(WANT[0], min(WANT[1], 2 * len(group.pending)))
        return [Discover(group.id, group.sought, want, group.trust)]

    # -- who gets what ------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def fitting_candidates(group: RequirementGroup, views: Mapping[str, WorkerView]) -> Iterable[WorkerView]:
        """A superset of the fitting `views`, in an order that is the same in every run."""
        if len(group.fits) * FEW < len(views):
            return [views[peer] for peer in sorted(group.fits) if peer in views]
        return views.values()

    def _pools(self, group: RequirementGroup, able: Mapping[str, WorkerView]) -> _Pools:
        pools = _Pools([], [])
        for view in self.fitting_candidates(group, able):
            if view.peer in group.fits and view.space() > 0 and self._state.admits(group, view.peer):
                (pools.idle if view.peer in self._state.idle else pools.busy).append(view)
        return pools

    def _hand_out(self, group: RequirementGroup, now: float, pools: _Pools, most: int) -> list[Command]:
        commands: list[Command] = []
        space = sum(view.space() for view in (*pools.idle, *pools.busy))
        skipped: list[str] = []
        for task in tuple(islice(group.pending, space + MAX_SKIPPED)):
            if len(commands) == most or not (pools.idle or pools.busy):
                break
            entry = self._state.tasks[task]
            trust_of = self._state.trust_of
            view = choose(
                most_proven(self.candidates(entry, group, pools.idle, now), trust_of),
                most_proven(self.candidates(entry, group, pools.busy, now), trust_of),
                sha256=entry.form.model.sha256,
                size=entry.form.model.size,
                rng=self._state.rng,
            )
            if view is None or self._comes_warm(entry, view, group):
                if view is not None:
                    self._state.warming[group.id] = None
                skipped.append(task)
                continue
            commands.append(self.commit(entry, view, now))
            pools.use(view)
        if len(skipped) >= MAX_SKIPPED:  # otherwise tasks behind them would never be checked
            for task in skipped:
                group.pending.move_to_end(task)
        return commands

    def _comes_warm(self, entry: TaskEntry, view: WorkerView, group: RequirementGroup) -> bool:
        """Whether a device that has this large model is being probed: waiting for its quote is quicker than a fetch."""
        sha256 = entry.form.model.sha256
        if sha256 in view.warm or entry.form.model.size < WORTH_WAITING:
            return False
        fitting = (self._state.workers[peer] for peer in group.fits)
        return any(
            each.probing
            and not each.quoted
            and sha256 in each.warm
            and each.may_serve_soon()
            and not each.held
            for each in fitting
        )

    def candidates(
        self, entry: TaskEntry, group: RequirementGroup, serving: list[WorkerView], now: float
    ) -> list[WorkerView]:
        """The workers of `serving` that may have the task. Left out are workers where its model is set aside, and devices of its replicas
        (where strangers are admitted, also workers with the same trust root). A worker that has tried the task is left out until the
        backoff is over, and while any worker that has not tried it can be expected soon, even a busy one.
        """
        serving = [view for view in serving if not view.avoids(entry.model_key, now)]
        if not (entry.tried or entry.replica_set):
            return serving
        taken = self._state.keys_of_replicas(entry)
        apart = self._state.exclusive_keys
        serving = [view for view in serving if taken.isdisjoint(apart(group, view))]
        if not entry.tried:
            return serving
        serving = self._trusted_first(entry, group, serving)
        fresh = [view for view in serving if view.peer not in entry.tried]
        if fresh or now < entry.not_before:
            return fresh
        if now >= entry.not_before + ELSEWHERE_S:
            return serving
        others = (self._state.workers[peer] for peer in group.fits - entry.tried)
        return (
            fresh
            if any(self._soon(view, entry, now) and taken.isdisjoint(apart(group, view)) for view in others)
            else serving
        )

    @staticmethod
    def _soon(view: WorkerView, entry: TaskEntry, now: float) -> bool:
        """Whether a worker can be expected to take this task soon."""
        return view.may_serve_soon() and not view.avoids(entry.model_key, now)

    def _trusted_first(
        self, entry: TaskEntry, group: RequirementGroup, serving: list[WorkerView]
    ) -> list[WorkerView]:
        """While a trusted worker has not tried the task, leave out strangers that have tried it, since their failures cost no try; and
        leave out all strangers once as many strangers have tried it as the campaign allows attempts.
        """
        if not group.trust.anyone or not self._state.trusted_may_try(entry):
            return serving
        strangers = {peer for peer in entry.tried if self._state.trust_in(group, peer).stranger}
        enough = len(strangers) >= self._state.campaign_of(entry).limits.attempts
        return [
            view
            for view in serving
            if not self._state.trust_in(group, view.peer).stranger or not (enough or view.peer in strangers)
        ]

    def commit(self, entry: TaskEntry, view: WorkerView, now: float, *, hedge: bool = False) -> CommitTo:
        """Ask this worker to take the task, as its current attempt or as a hedge."""
        entry.last += 1
        trust = self._state.trust_in(self._state.groups[entry.group], view.peer)
        attempt = Attempt(
            entry.last,
            view.peer,
            updated_at=now,
            since=now,
            beside=entry.state in LEASED_TASK_STATES,
            hedged=entry.hedged,
        )
        if hedge:
            entry.hedge = attempt
        else:
            self._state.move(entry, TaskEvent.COMMIT)
            entry.current = attempt
        self._state.hold(view.peer, entry.id)
        ends_at = self._state.campaign_of(entry).limits.ends_at
        return CommitTo(
            entry.id,
            entry.last,
            f"{entry.id}/{entry.last}",
            view.peer,
            view.device,
            entry.epoch or 0,
            hedge=hedge,
            preempted=min(entry.preempted, MAX_PREEMPTIONS),
            left_s=None if ends_at is None else max(0.0, ends_at - now),
            trust=trust,
        )

    # -- why tasks wait -----------------------------------------------------------------------------------------------------------------

    def _explain_wait(
        self, group: RequirementGroup, serving: Mapping[str, WorkerView], now: float
    ) -> list[Command]:
        """Record why no task of the group has a worker, once for each new reason."""
        words, workers = "", self._state.workers
        if not group.pending:
            pass
        elif group.fits.isdisjoint(serving):
            if clash := self._clash(group):
                words = clash
            elif group.fits:
                words = why_waiting([workers[peer] for peer in sorted(group.fits)])
            elif group.searched:
                words = why_untrusted(group.untrusted) if group.untrusted else "no device that fits is up yet"
                words = AWAY.format(self._state.device(group.pin)) if group.pin else words
        else:
            taken = self._state.keys_of_replicas(self._state.tasks[next(iter(group.pending))])
            if taken and not any(
                taken.isdisjoint(self._state.exclusive_keys(group, workers[peer])) for peer in group.fits
            ):
                free = any(self._state.device_of(workers[peer]) not in taken for peer in group.fits)
                words = ROOTS_WAIT if free else REPLICAS_WAIT
            else:
                words = self._why_aside(group, serving, now)
        if words == group.wait_reason:
            return []
        group.wait_reason = words
        return [RecordWaitReason(tuple(group.pending), words)]

    def _why_aside(self, group: RequirementGroup, serving: Mapping[str, WorkerView], now: float) -> str:
        """Text saying that the model of the next task is set aside at every worker that could have the task now; empty: it is not."""
        task = self._state.tasks[next(iter(group.pending))]
        views = [serving[peer] for peer in sorted(group.fits) if peer in serving]
        if not all(view.avoids(task.model_key, now) for view in views):
            return ""
        names = listed([view.device or view.peer[-8:] for view in views], ", ")
        return f"{task.form.model.name} is set aside after quick failures on {names}"

    def _clash(self, group: RequirementGroup) -> str:
        """Text saying that a worker wrongly claims the device that the group names; empty: no worker does."""
        state = self._state
        if not group.names_device:
            return ""
        words = (
            state.clash(advert.device, advert.peer)
            for advert in state.claimants(group.device)
            if group.met_by(advert)
        )
        return next(filter(None, words), "")


def _due(view: WorkerView, now: float) -> bool:
    return not view.probing and now >= view.retry_at


def _probe(view: WorkerView) -> ProbeWorker:
    view.probing = True
    return ProbeWorker(view.peer)
