"""The half of the book that gives out work: what is discovered, who is probed, which task goes where, what moves to an idle worker."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from protocol.attempt import TASK, TaskEvent, TaskState
from protocol.table import step
from scheduler.entries import Course, Entry, Need
from scheduler.orders import CommitTo, Discover, Note, Order, ProbeWorker, ReleaseOn
from scheduler.rank import WorkerView, choose

SEEK_S: Final = 2.0
"""How often the index is asked while nobody that fits can be had."""
LOOK_S: Final = 15.0
"""How often it is asked for more while tasks wait and somebody serves."""
MAX_PROBING: Final = 16
MAX_SKIPPED: Final = 64
"""Tasks that are looked at in one go though nobody may have them yet."""
WANT: Final = (8, 64)


@dataclass(slots=True)
class _Probing:
    """How many more workers may be probed at once."""

    left: int


class Assigning:
    """Part of `scheduler.book.Book`."""

    rng: random.Random
    entries: dict[str, Entry]
    needs: dict[str, Need]
    courses: dict[str, Course]
    views: dict[str, WorkerView]

    def decide(self, now: float) -> list[Order]:
        """What follows from how things stand now."""
        orders: list[Order] = []
        tickets = self._tickets()
        budget = _Probing(MAX_PROBING - sum(1 for view in self.views.values() if view.probing))
        waiting = [need for need in self.needs.values() if need.pending]
        waiting.sort(key=lambda need: -self.courses[need.campaign].terms.priority)
        for need in waiting:
            orders += self._look(need, now, budget)
            if not need.explaining:
                orders += self._hand_out(need, now)
            orders += self._note(need, now)
        for name in dict.fromkeys(entry.need for entry in tickets):
            if not self.needs[name].pending:  # somebody idle may take over what waits at a busy worker
                orders += self._look(self.needs[name], now, budget)
        return orders + self._rebalance(tickets, now)

    def _look(self, need: Need, now: float, budget: _Probing) -> list[Order]:
        orders: list[Order] = []
        for peer in sorted(need.fits) if budget.left > 0 else ():
            view = self.views[peer]
            if view.quoted or view.probing or now < view.retry_at or budget.left <= 0:
                continue
            view.probing = True
            budget.left -= 1
            orders.append(ProbeWorker(peer))
        some = any(self.views[peer].hopeful() for peer in need.fits)
        return orders + self.seek(need, now, self._patience_s(need) if some else SEEK_S)

    @staticmethod
    def _patience_s(need: Need) -> float:
        """Devices may still be coming up while a campaign begins: look for more after 1, 2, 4 … s."""
        return min(LOOK_S, 2.0 ** (need.asks - 1))

    @staticmethod
    def seek(need: Need, now: float, every: float) -> list[Order]:
        """Ask the index, unless it was asked within `every` seconds."""
        if need.asking or (need.asked_at is not None and now - need.asked_at < every):
            return []
        need.asking, need.asked_at, need.asks = True, now, need.asks + 1
        want = max(WANT[0], min(WANT[1], 2 * len(need.pending)))
        return [Discover(need.id, need.requirement, want)]

    def _hand_out(self, need: Need, now: float) -> list[Order]:
        orders: list[Order] = []
        serving = [self.views[peer] for peer in sorted(need.fits) if self.views[peer].serving(now)]
        skipped = 0
        if not any(view.room() > 0 for view in serving):
            return orders
        for task in tuple(need.pending):
            if skipped > MAX_SKIPPED or not any(view.room() > 0 for view in serving):
                break
            entry = self.entries[task]
            view = choose(
                self._candidates(entry, need, serving, now),
                sha256=entry.task.model.sha256,
                size=entry.task.model.size,
                rng=self.rng,
            )
            if view is None:
                skipped += 1
                continue
            del need.pending[task]
            entry.state = step(TASK, entry.state, TaskEvent.COMMIT, story=task)
            entry.attempt += 1
            entry.worker = view.peer
            view.held[task] = None
            key = f"{task}/{entry.attempt}"
            orders.append(CommitTo(view.peer, view.device, entry.task.campaign, task, entry.attempt, key))
        return orders

    def _candidates(
        self, entry: Entry, need: Need, serving: list[WorkerView], now: float
    ) -> list[WorkerView]:
        """Those that have not tried it while there are any, be they busy; else all, after the backoff."""
        if not entry.tried:
            return serving
        fresh = [view for view in serving if view.peer not in entry.tried]
        others = any(self.views[peer].hopeful() for peer in need.fits - entry.tried)
        return fresh if fresh or others or now < entry.not_before else serving

    def _note(self, need: Need, now: float) -> list[Order]:
        """Why tasks wait although nobody has any of them: once for each new reason."""
        words = ""
        if need.pending and not any(self.views[peer].serving(now) for peer in need.fits):
            if not need.fits:
                words = "" if need.asked_at is None or need.asking else "no device that fits is up yet"
            else:
                words = why_waiting([self.views[peer] for peer in sorted(need.fits)])
        if not words or words == need.noted:
            return []
        need.noted = words
        return [Note(tuple(need.pending), words)]

    def _rebalance(self, tickets: list[Entry], now: float) -> list[Order]:
        """An idle worker takes over a ticket that waits at a busy one."""
        orders: list[Order] = []
        if not tickets:
            return orders
        idle = [view for view in self.views.values() if view.serving(now) and view.idle()]
        if not idle:
            return orders
        coming = sum(1 for entry in tickets if entry.releasing)
        for view in idle[coming:]:
            best: Entry | None = None
            for entry in tickets:
                if entry.releasing or entry.doom is not None or view.peer in entry.tried:
                    continue
                if view.peer not in self.needs[entry.need].fits:
                    continue
                assert entry.worker is not None, "a ticket is at a worker"
                load = len(self.views[entry.worker].held)
                if load >= 2 and (best is None or load >= len(self.views[best.worker or ""].held)):
                    best = entry
            held = best.held() if best is not None else None
            if best is None or best.worker is None or held is None:
                continue
            best.releasing = True
            orders.append(ReleaseOn(best.worker, (held,)))
        return orders

    def _tickets(self) -> list[Entry]:
        return [
            entry
            for view in self.views.values()
            if len(view.held) >= 2
            for entry in (self.entries[task] for task in view.held)
            if entry.state is TaskState.QUEUED
        ]


def why_waiting(fits: list[WorkerView]) -> str:
    """What those that fit say; of those that cannot be reached only that: a live line has no room for addresses."""
    gone = [view.device or view.peer[-8:] for view in fits if view.trouble]
    told = [f"{view.device or view.peer[-8:]}: {view.why}" for view in fits if view.why and not view.trouble]
    words = ["; ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")] if told else []
    if gone:
        who = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        words.append(f"{who} {'is' if len(gone) == 1 else 'are'} gone")
    if gone and not told:
        words.append("waiting for a device")
    return "; ".join(words)
