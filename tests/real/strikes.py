"""What can be done to a swarm of real processes: kinds of strikes, how often and how long, and one that was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What can go wrong."""

    WORKER = "worker killed"
    RUN = "run's process killed"
    ZYGOTE = "zygote killed"
    SCHEDULER = "scheduler killed"
    SUPERVISOR = "supervisor killed"
    """What starts a scheduler that crashed again."""
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
"""Seconds until it is put right; the others are over at once."""
ON_WORKER: Final = frozenset(
    {Kind.WORKER, Kind.RUN, Kind.ZYGOTE, Kind.FROZEN_WORKER, Kind.RESET, Kind.SILENT, Kind.REFUSED}
)


@dataclass(frozen=True)
class Plan:
    """How long and how hard. Times in seconds."""

    seed: int
    tasks: int = 300
    task_s: float = 1.5
    every_s: float = 3.0
    """Between two strikes: half of it to one and a half."""
    faults: int | None = None
    """Stop after so many; None: when the campaign ends."""
    lasts_most_s: float = 20.0
    within_s: float = 900.0
    slow: float = 1.0
    """So many times as long as is promised may pass: above 1 on a machine that has other work."""
    slots: int = 1
    """Of each worker."""
    kinds: Sequence[Kind] = tuple(kind for kind in Kind if kind is not Kind.SERVER)


@dataclass(frozen=True)
class Fault:
    """One strike."""

    kind: Kind
    victim: str
    at: float
    """Wall clock."""
    lasts: float
    held: dict[str, int]
    """Tasks that had a place at the victim (of a scheduler: anywhere), with their attempt."""
    over: float
    """When the blow was done, by the wall clock: until then a victim that dies lived on."""
    timed: frozenset[str] = frozenset()
    """Those of them whose run was under way."""
