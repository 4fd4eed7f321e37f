"""Strikes against a swarm of real processes: their kinds, frequency and duration, and the record of one strike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Kinds of faults."""

    WORKER = "worker killed"
    RUN = "run's process killed"
    ZYGOTE = "zygote killed"
    SCHEDULER = "scheduler killed"
    SUPERVISOR = "supervisor killed"
    """The process that restarts a crashed scheduler."""
    SERVER = "server killed"
    """`serve`, right after it confirmed a campaign."""
    GATE = "gate killed"
    TERMINAL = "terminal killed"
    FROZEN_WORKER = "worker frozen"
    FROZEN_SCHEDULER = "scheduler frozen"
    RESET = "link reset"
    SILENT = "link silent"
    REFUSED = "link refused"


WEIGHTS: Final = {
    Kind.WORKER: 5, Kind.RUN: 3, Kind.ZYGOTE: 1, Kind.SCHEDULER: 3, Kind.SUPERVISOR: 1, Kind.SERVER: 3,
    Kind.GATE: 1, Kind.TERMINAL: 1,
    Kind.FROZEN_WORKER: 2, Kind.FROZEN_SCHEDULER: 1, Kind.RESET: 3, Kind.SILENT: 2, Kind.REFUSED: 2,
}  # fmt: skip
LASTS: Final = {
    Kind.WORKER: (0.3, 4.0),
    Kind.GATE: (0.3, 6.0),
    Kind.TERMINAL: (0.1, 2.0),
    Kind.SERVER: (0.1, 4.0),
    Kind.FROZEN_WORKER: (1.0, 20.0),
    Kind.FROZEN_SCHEDULER: (1.0, 20.0),
    Kind.SILENT: (1.0, 20.0),
    Kind.REFUSED: (0.5, 6.0),
}
"""Seconds until the fault is repaired; other kinds are over at once."""
ON_WORKER: Final = frozenset(
    {Kind.WORKER, Kind.RUN, Kind.ZYGOTE, Kind.FROZEN_WORKER, Kind.RESET, Kind.SILENT, Kind.REFUSED}
)


@dataclass(frozen=True)
class Plan:
    """Duration and severity of a storm. Times in seconds."""

    seed: int
    tasks: int = 300
    task_s: float = 1.5
    every_s: float = 3.0
    """Mean time between two strikes; the actual time is half to one and a half times as long."""
    faults: int | None = None
    """Stop after this many strikes; None: when the campaign ends."""
    lasts_most_s: float = 20.0
    within_s: float = 900.0
    slow: float = 1.0
    """Factor on the promised times: above 1 on a machine that has other work."""
    slots: int = 1
    """Slots of each worker."""
    kinds: Sequence[Kind] = tuple(kind for kind in Kind if kind is not Kind.SERVER)


@dataclass(frozen=True)
class Fault:
    """One strike."""

    kind: Kind
    victim: str
    at: float
    """Wall-clock time."""
    lasts: float
    held: dict[str, int]
    """Task → attempt, for the tasks that had a slot at the victim (for a scheduler: anywhere)."""
    over: float
    """Wall-clock time at which the strike was complete: a victim that dies was alive until then."""
    timed: frozenset[str] = frozenset()
    """The tasks in `held` whose run was under way."""
