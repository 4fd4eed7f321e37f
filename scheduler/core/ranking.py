"""Which of the workers that fit is asked next. Pure: what is known of each worker, and two rules on top of it.

An idle device comes first; among equals two are drawn at random and the one that would start sooner is taken (so that schedulers that
know the same do not all run to the same device). A device that has the model starts sooner by the time a fetch would take.

One that fails quickly and often, or takes work and is not heard of again, is set aside: for 30 s, then twice as long each time, up to
600 s; a result makes that forgotten.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.values.advert import Advert
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
SAME_S: Final = 2.0
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
    rose: bool = False
    """It said a higher one over the present link: a process has one only."""
    state: WorkerState | None = None
    says: str = ""
    """Why it takes no work now, in its own words."""
    quoted: bool = False
    """It answered a probe over the present link."""
    quoted_at: float = 0.0
    """When it last said how it stands."""
    probing: bool = False
    others: int = 0
    """Tasks of others before ours, when it last said so."""
    run_s: float | None = None
    """What a run took there lately, by its own account."""
    held: dict[str, None] = field(default_factory=dict)
    """Our live tasks there, oldest first; second tickets among them."""
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
    why_aside: str = ""
    """In words; empty: it is not set aside."""

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

    def place(self) -> str:
        """The device it works on: by its id where it is known, else it stands for itself."""
        return self.advert.device if self.advert is not None else self.peer

    def room(self) -> int:
        """How many more tasks to hand it now."""
        return depth(self.mean_s) - len(self.held)

    def idle(self) -> bool:
        """Nobody's work is there, as far as we know."""
        return not self.held and self.others == 0

    def start_s(self, sha256: str, size: int) -> float:
        """Guess of the seconds until a task given now would start to measure."""
        each = self.mean_s if self.mean_s is not None else self.run_s if self.run_s is not None else 1.0
        wait = (len(self.held) + self.others) * each
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

    def failed(self, now: float, what: str, *, silent: bool = False, once: bool = False) -> float | None:
        """It failed once more. The seconds it is set aside for, when that is the last straw.

        `what` happened, in words, such as "quick failures, the last one crashed". `silent`: it took work and was not heard of again,
        which costs more time than a failure and so counts double; whatever was lost in the same silence counts once, as does whatever
        comes at the same time where it is to count `once`.
        """
        same = bool(self.failures) and now - self.failures[-1] < SAME_S
        if now < self.aside_until or ((silent or once) and same):
            return None
        self.failures = [at for at in self.failures if now - at < WINDOW_S]
        self.failures += [now, now] if silent else [now]
        if len(self.failures) < QUICK_FAILURES:
            return None
        self.failures.clear()
        seconds = min(ASIDE_MOST_S, ASIDE_S * 2.0**self.asides)
        self.asides += 1
        self.aside_until = now + seconds
        self.why_aside = self.why = f"set aside for {seconds:g} s after {what}"
        return seconds

    def back(self, now: float) -> bool:
        """Whether the time that it was set aside for is over, told once."""
        if not self.why_aside or now < self.aside_until:
            return False
        if self.why == self.why_aside:
            self.why = ""
        self.why_aside = ""
        return True


def depth(mean_s: float | None) -> int:
    """Tasks to keep at a worker, the running one included."""
    if mean_s is None:
        return LEAST_AHEAD
    return max(LEAST_AHEAD, min(MOST_AHEAD, 1 + math.ceil(AHEAD_S / max(mean_s, 0.001))))


def choose(
    idle: Sequence[WorkerView],
    others: Sequence[WorkerView],
    *,
    sha256: str,
    size: int,
    rng: random.Random,
) -> WorkerView | None:
    """The worker to ask: of two random `idle` ones the sooner; where there is none, of two random ones of `others`. None: there is nobody.

    Where one has the model already and the two have not, it is drawn too.
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
