"""Which of the workers that fit is asked next. Pure: what is known of each worker, and two rules on top of it.

An idle device comes first; among equals two are drawn at random and the one that would start sooner is taken (so that schedulers that
know the same do not all run to the same device). A device that has the model starts sooner by the time a fetch would take.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.advert import Advert
from protocol.words import Reason, WorkerState

AHEAD_S: Final = 1.0
"""Work to keep waiting at a worker, so that it goes from task to task without asking us."""
LEAST_AHEAD: Final = 2
MOST_AHEAD: Final = 8
FETCH_RATE: Final = 20e6
"""Bytes a second, for guessing what a fetch costs."""
QUICK_S: Final = 10.0
"""A failure within this time is a quick one."""
QUICK_FAILURES: Final = 3
WINDOW_S: Final = 120.0
ASIDE_S: Final = 30.0
ASIDE_MOST_S: Final = 600.0
TURNED_MOST_S: Final = 30.0
RESTING: Final = (WorkerState.FAULTY, WorkerState.DRAINING)
_SERVING: Final = (WorkerState.ACTIVE, WorkerState.BUSY, WorkerState.CLEANUP)


@dataclass(slots=True)
class WorkerView:
    """What this scheduler knows of one worker. Instants are the scheduler's monotonic seconds."""

    peer: str
    addresses: tuple[str, ...] = ()
    device: str = ""
    """Its name, for people."""
    advert: Advert | None = None
    incarnation: int | None = None
    state: WorkerState | None = None
    quoted: bool = False
    """It answered a probe over the present link."""
    probing: bool = False
    others: int = 0
    """Tasks of others before ours, when it last said so."""
    held: dict[str, None] = field(default_factory=dict)
    """Our live tasks there, oldest first."""
    warm: set[str] = field(default_factory=set)
    refused: Reason | None = None
    """It does not serve us; `why` has its words."""
    why: str = ""
    retry_at: float = 0.0
    turned_s: float = 0.0
    """How long it was left alone after it last said no; 0 once it takes something."""
    trouble: int = 0
    """Times in a row that it could not be reached."""
    mean_s: float | None = None
    """Seconds from start to result, a moving mean."""
    failures: list[float] = field(default_factory=list)
    aside_until: float = 0.0
    asides: int = 0

    def serving(self, now: float) -> bool:
        """Whether it may be given work now."""
        return (
            self.quoted
            and self.refused is None
            and self.state in _SERVING
            and now >= self.retry_at
            and now >= self.aside_until
        )

    def hopeful(self) -> bool:
        """Whether it may be given work at all, be it later: it answers, does not refuse, and is not out of order or leaving."""
        return self.refused is None and self.trouble == 0 and self.state not in RESTING

    def room(self) -> int:
        """How many more tasks to hand it now."""
        return depth(self.mean_s) - len(self.held)

    def idle(self) -> bool:
        """Nobody's work is there, as far as we know."""
        return not self.held and self.others == 0

    def start_s(self, sha256: str, size: int) -> float:
        """Guess of the seconds until a task given now would start to measure."""
        wait = (len(self.held) + self.others) * (self.mean_s if self.mean_s is not None else 1.0)
        return wait + (0.0 if sha256 in self.warm else 0.05 + size / FETCH_RATE)

    def took(self, seconds: float) -> None:
        """A task of ours took this long from start to result."""
        self.mean_s = seconds if self.mean_s is None else 0.7 * self.mean_s + 0.3 * seconds

    def unreachable(self, now: float, why: str) -> None:
        """It did not answer: try again in 1, 2, 4 … 30 s."""
        self.trouble += 1
        self.quoted = False
        self.why = why
        self.retry_at = now + min(30.0, 2.0 ** (self.trouble - 1))

    def turned_away(self, now: float, seconds: float) -> None:
        """It said no and may be asked again after `seconds`, or later: each time in a row the wait doubles, up to 30 s."""
        self.turned_s = max(seconds, min(TURNED_MOST_S, 2 * self.turned_s))
        self.retry_at = now + self.turned_s

    def succeeded(self) -> None:
        """A result came: earlier trouble is forgotten."""
        self.failures.clear()
        self.asides = 0

    def failed_quickly(self, now: float) -> float | None:
        """One more quick failure. The seconds it is set aside for, when it is the last straw."""
        self.failures = [at for at in self.failures if now - at < WINDOW_S]
        self.failures.append(now)
        if len(self.failures) < QUICK_FAILURES:
            return None
        self.failures.clear()
        seconds = min(ASIDE_MOST_S, ASIDE_S * 2.0**self.asides)
        self.asides += 1
        self.aside_until = now + seconds
        return seconds


def depth(mean_s: float | None) -> int:
    """Tasks to keep at a worker, the running one included."""
    if mean_s is None:
        return LEAST_AHEAD
    return max(LEAST_AHEAD, min(MOST_AHEAD, 1 + math.ceil(AHEAD_S / max(mean_s, 0.001))))


def choose(
    candidates: Sequence[WorkerView], *, sha256: str, size: int, rng: random.Random
) -> WorkerView | None:
    """The worker to ask: of two random idle ones the sooner; where none is idle, of two random ones with room. None: none has room."""
    idle = [view for view in candidates if view.idle()]
    pool = idle or [view for view in candidates if view.room() > 0]
    if not pool:
        return None
    drawn = pool if len(pool) <= 2 else rng.sample(pool, 2)
    if len(pool) > 2:
        warm = [view for view in pool if sha256 in view.warm]
        if warm:
            drawn = [*drawn, rng.choice(warm)]
    return min(drawn, key=lambda view: (view.start_s(sha256, size), rng.random()))
