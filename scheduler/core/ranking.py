"""The view of one worker, and the choice among workers that fit.

Idle devices come first. Of two drawn at random, the device that would start sooner is chosen, so that schedulers with the same knowledge do
not all choose the same one. A device that has the model saves the time of a fetch.

A worker that takes work and falls silent, or on which one model after another fails quickly, is set aside for 30 s, then twice as long each
time, up to 600 s; a result resets this. A model that repeatedly fails quickly on one worker is set aside on that worker alone. Failed runs
set nothing aside where no other worker could do better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.values.advert import Advert
from protocol.values.trust import Trust
from protocol.words import Reason, WorkerState
from scheduler.core.retry import doubled_s
from scheduler.core.run_times import FETCH_RATE

AHEAD_S: Final = 1.0
"""Seconds of work to keep queued at a worker, so that it goes from task to task without a round trip."""
LEAST_AHEAD: Final = 2
MOST_AHEAD: Final = 8
QUICK_S: Final = 10.0
"""Seconds within which a failure counts as quick."""
QUICK_FAILURES: Final = 3
WINDOW_S: Final = 120.0
SAME_S: Final = 2.0
ASIDE_S: Final = 30.0
ASIDE_MOST_S: Final = 600.0
BACKOFF_MOST_S: Final = 30.0
UNAVAILABLE_STATES: Final = (WorkerState.FAULTY, WorkerState.DRAINING)
_SERVING: Final = (WorkerState.ACTIVE, WorkerState.BUSY, WorkerState.CLEANUP)


ModelKey = tuple[str, str]
"""A model's hash and its unit."""


@dataclass(slots=True)
class ModelFailures:
    """Quick failures of one model at one worker."""

    at: list[float] = field(default_factory=list)
    counted: bool = False
    """Whether one of the failures counts against the worker."""
    times_set_aside: int = 0
    aside_until: float = 0.0


@dataclass(slots=True)
class WorkerView:
    """What this scheduler knows of one worker. Instants are the scheduler's monotonic seconds."""

    peer: str
    addresses: tuple[str, ...] = ()
    device: str = ""
    """Its name, for people."""
    advert: Advert | None = None
    incarnation: int | None = None
    restarted: bool = False
    """It reported a higher incarnation over the current link; a process has only one."""
    state: WorkerState | None = None
    state_why: str = ""
    """Why it takes no work now, in its own words."""
    quoted: bool = False
    """It answered a probe over the current link."""
    quoted_at: float = 0.0
    """When it last gave a quote."""
    probing: bool = False
    others: int = 0
    """Number of other schedulers' tasks ahead of ours, as of the worker's last report."""
    run_s: float | None = None
    """Duration of a recent run, as reported by the worker."""
    held: dict[str, None] = field(default_factory=dict)
    """Our live tasks there, oldest first; hedges included."""
    warm: set[str] = field(default_factory=set)
    refused: Reason | None = None
    """Why the worker does not serve this scheduler (`why` has its words); None: it has not refused."""
    why: str = ""
    retry_at: float = 0.0
    backoff_s: float = 0.0
    """Seconds of pause after the worker's last refusal; 0 once it takes something."""
    unreachable: int = 0
    """Consecutive failures to reach it."""
    mean_s: float | None = None
    """Seconds from start to result, a moving mean."""
    slots: int = 1
    """A lower bound on the worker's number of slots: the most that were free or ours at once."""
    depth: int = LEAST_AHEAD
    """Tasks to keep there, including the running one."""
    failures: list[float] = field(default_factory=list)
    failed_models: dict[ModelKey, ModelFailures] = field(default_factory=dict)
    """Models with quick failures here since the last result."""
    aside_until: float = 0.0
    asides: int = 0
    why_aside: str = ""
    """Why the worker is set aside; empty: it is not."""

    def serving(self, now: float) -> bool:
        """Whether it may be given work now."""
        return (
            self.quoted
            and self.refused is None
            and self.state in _SERVING
            and now >= self.retry_at
            and now >= self.aside_until
        )

    def may_serve_soon(self) -> bool:
        """Whether it may be given work soon: it answers, does not refuse, and is neither faulty nor draining."""
        return self.could_run() and self.unreachable == 0 and self.state not in UNAVAILABLE_STATES

    def could_run(self) -> bool:
        """Whether it could run a task, now or when it returns: it has not refused this scheduler. It may be busy, set aside, paused by its
        owner, in quiet hours, restarting or unreachable.
        """
        return self.refused is None

    def space(self) -> int:
        """How many more tasks to hand to it now."""
        return self.depth - len(self.held)

    def idle(self) -> bool:
        """Whether the worker has no work, as far as known."""
        return not self.held and self.others == 0

    def start_s(self, sha256: str, size: int) -> float:
        """Estimated seconds until a task handed out now would start to measure."""
        each = self.mean_s if self.mean_s is not None else self.run_s if self.run_s is not None else 1.0
        wait = (len(self.held) + self.others) // self.slots * each
        return wait + (0.0 if sha256 in self.warm else 0.05 + size / FETCH_RATE)

    def add_duration(self, seconds: float) -> None:
        """Count a task that took this many `seconds` from lease to result."""
        self.mean_s = seconds if self.mean_s is None else 0.7 * self.mean_s + 0.3 * seconds
        self.depth = depth(self.mean_s, self.slots)

    def add_slots(self, slots: int) -> None:
        """The worker has at least this many `slots`."""
        if slots > self.slots:
            self.slots = slots
            self.depth = slots - 1 + LEAST_AHEAD if self.mean_s is None else depth(self.mean_s, slots)

    def mark_unreachable(self, now: float, why: str) -> None:
        """Schedule the next contact after 1, 2, 4 … 30 s."""
        self.unreachable += 1
        self.quoted = False
        self.why = why
        self.retry_at = now + doubled_s(1.0, self.unreachable - 1, BACKOFF_MOST_S)

    def back_off(self, now: float, seconds: float) -> None:
        """The worker refused: ask it again after `seconds` or later. Each consecutive refusal doubles the wait, up to 30 s."""
        self.backoff_s = max(seconds, min(BACKOFF_MOST_S, 2 * self.backoff_s))
        self.retry_at = now + self.backoff_s

    def forget_failures(self, model: ModelKey) -> None:
        """A result of `model` came: clear the worker's failures and those of the model there."""
        self.failures.clear()
        self.asides = 0
        for key, failed in list(self.failed_models.items()):
            if key == model:
                del self.failed_models[key]
            else:
                failed.counted = False

    def add_model_failure(self, model: ModelKey, now: float) -> bool:
        """Count a quick failure of a model. True: it is the model's first since a result came, and so may be the worker's fault."""
        failed = self.failed_models.setdefault(model, ModelFailures())
        failed.at = [at for at in failed.at if now - at < WINDOW_S] + [now]
        first, failed.counted = not failed.counted, True
        return first

    def set_model_aside(self, model: ModelKey, now: float) -> float | None:
        """Set a model aside here if it failed quickly too often. Returns for how many seconds."""
        failed = self.failed_models.get(model)
        if failed is None or len(failed.at) < QUICK_FAILURES or now < failed.aside_until:
            return None
        failed.at.clear()
        seconds = min(ASIDE_MOST_S, ASIDE_S * 2.0**failed.times_set_aside)
        failed.times_set_aside += 1
        failed.aside_until = now + seconds
        return seconds

    def avoids(self, model: ModelKey, now: float) -> bool:
        """Whether the model is set aside here."""
        failed = self.failed_models.get(model)
        return failed is not None and now < failed.aside_until

    def add_failure(
        self, now: float, what: str, *, silent: bool = False, once: bool = False, double: bool = False
    ) -> float | None:
        """Count a failure. Returns the seconds for which the worker is set aside, if this failure was one too many.

        `what`: in words, such as "quick failures, the last one crashed". `silent`: the worker took work and fell silent, which costs more
        time and counts `double`. Losses of one silence count once, as do simultaneous failures marked `once`.
        """
        same = bool(self.failures) and now - self.failures[-1] < SAME_S
        if now < self.aside_until or ((silent or once) and same):
            return None
        self.failures = [at for at in self.failures if now - at < WINDOW_S]
        self.failures += [now, now] if silent or double else [now]
        if len(self.failures) < QUICK_FAILURES:
            return None
        self.failures.clear()
        seconds = min(ASIDE_MOST_S, ASIDE_S * 2.0**self.asides)
        self.asides += 1
        self.aside_until = now + seconds
        self.why_aside = self.why = f"set aside for {seconds:g} s after {what}"
        return seconds

    def aside_just_ended(self, now: float) -> bool:
        """Whether the time for which the worker was set aside has just ended; true once."""
        if not self.why_aside or now < self.aside_until:
            return False
        if self.why == self.why_aside:
            self.why = ""
        self.why_aside = ""
        return True


def depth(mean_s: float, slots: int = 1) -> int:
    """Tasks to keep at a worker whose runs take `mean_s` seconds: one in each of its `slots`, and those queued behind them."""
    ahead = math.ceil(slots * AHEAD_S / max(mean_s, 0.001))
    return slots + max(LEAST_AHEAD - 1, min(max(MOST_AHEAD - 1, slots), ahead))


PROVEN: Final = 3
"""From this many confirmed results on, a stranger ranks like a trusted worker."""


def most_proven(views: Sequence[WorkerView], trust_of: Callable[[str], Trust]) -> list[WorkerView]:
    """The workers with the most confirmed results; trusted workers count as `PROVEN`. Unproven strangers come only where there is nobody
    else.
    """

    def rank(view: WorkerView) -> int:
        trust = trust_of(view.peer)
        return min(trust.confirmed, PROVEN) if trust.stranger else PROVEN

    best = max(map(rank, views), default=0)
    return [view for view in views if rank(view) == best]


def choose(
    idle: Sequence[WorkerView],
    others: Sequence[WorkerView],
    *,
    sha256: str,
    size: int,
    rng: random.Random,
) -> WorkerView | None:
    """The worker to ask: of two random `idle` ones the one that starts sooner, else of two random `others`. None: there is no worker.

    If neither of the two has the model, a worker that has it is drawn as well.
    """
    pool = idle or others
    if not pool:
        return None
    drawn = list(pool) if len(pool) <= 2 else rng.sample(pool, 2)
    if len(pool) > 2 and not any(sha256 in view.warm for view in drawn):
        warm = [view for view in pool if sha256 in view.warm]
        if warm:
            drawn.append(rng.choice(warm))
    return min(drawn, key=lambda view: (view.start_s(sha256, size), rng.random()))
