"""Series of kills with -9 over real processes, and their effects: tasks lost, results recorded twice, wasted runs, time to recover."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.real.aftermath import Figures, figures, history, percentiles, wait_until_quiet
from tests.real.apart import can_be_apart
from tests.real.chaos import Storm
from tests.real.lab import Lab, marked, until
from tests.real.strikes import Kind, Plan
from tests.simulation.invariants import check

ROUND: Final = 15
"""Kills in one campaign; the next campaign begins with a fresh swarm."""


@dataclass(frozen=True, slots=True)
class Series:
    """The processes to kill, and the swarm they belong to."""

    name: str
    kinds: tuple[Kind, ...]
    share: int
    """Share of each 200 kills."""
    homes: tuple[str, ...] = ("ada",)
    workers: int = 3
    slots: int = 1
    """Slots of each worker."""
    task_s: float = 1.0
    rate: float = 1.0
    """Tasks that the swarm ends per second, approximately, so that a campaign lasts as long as its kills."""


SERIES: Final = (
    Series("worker", (Kind.WORKER,), 40),
    Series("scheduler", (Kind.SCHEDULER, Kind.SUPERVISOR), 40),
    Series("child", (Kind.RUN, Kind.ZYGOTE), 30),
    Series("gate", (Kind.GATE,), 10),
    Series("server", (Kind.SERVER, Kind.SCHEDULER), 25),
    Series("two homes", (Kind.WORKER, Kind.RUN, Kind.SCHEDULER), 30, homes=("ada", "bob")),
    Series("64 slots", (Kind.WORKER, Kind.RUN, Kind.SCHEDULER), 25, workers=1, slots=64, task_s=0.3),
)


def kills_of(series: Sequence[Series], kills: int) -> dict[Series, int]:
    """Divide the kills among the series by their shares, at least one each."""
    whole = sum(one.share for one in series)
    return {one: max(1, round(kills * one.share / whole)) for one in series}


@dataclass
class Toll:
    """The effects of one series. Times in seconds."""

    kills: Counter[Kind] = field(default_factory=Counter)
    tasks: int = 0
    lost: int = 0
    """Tasks without a result at the end, and acknowledged results that are not stored."""
    twice: int = 0
    """Tasks with two ends, or with two records of one attempt."""
    begun: int = 0
    wall: float = 0.0
    back: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times until recovery; `again`: where another kill came in between."""
    again: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    breaches: list[str] = field(default_factory=list)

    def add(self, found: Figures, breaches: Sequence[str], unended: int) -> None:
        """Add one campaign."""
        self.kills += found.faults
        self.tasks += found.tasks
        self.lost += unended + sum(breach.startswith("acknowledged_is_durable") for breach in breaches)
        self.twice += found.twice
        self.begun += found.begun
        self.wall += found.wall
        self.breaches += breaches
        for mine, theirs in ((self.back, found.recovery), (self.again, found.again)):
            for kind, values in theirs.items():
                mine[kind] += values

    @property
    def reruns(self) -> int:
        """Number of runs that workers began beyond one per task. On a device of many slots this includes runs that waited for their turn
        there.
        """
        return self.begun - self.tasks

    def rows(self, name: str) -> list[str]:
        """Rows of a Markdown table: the total, and each kind of kill."""
        count = sum(self.kills.values())
        rows = [
            f"| **{name}** | {count} | {self.tasks} | {self.lost} | {self.twice} | {self.reruns / max(1, count):.2f} | | |"
        ]
        for kind, number in sorted(self.kills.items()):
            times = " | ".join(_times(lists[kind]) for lists in (self.back, self.again))
            rows.append(f"| {kind} | {number} | | | | | {times} |")
        return rows


HEADS: Final = (
    "| series | kills | tasks | lost | twice | reruns per kill | back, s: p50 / p90 / max (n) | struck again meanwhile |",
    "|---|---:|---:|---:|---:|---:|---|---|",
)


def _times(values: Sequence[float]) -> str:
    return "–" if not values else "{} / {} / {} ({})".format(*percentiles(values).split())


def storm_over(
    lab: Lab, plan: Plan, folder: Path, say: Callable[[str], object]
) -> tuple[Figures, list[str], int]:
    """Run one storm from the first process to the last. Returns its figures, the breaches, and the number of tasks without a result."""
    storm = Storm(lab, plan, say=say)
    try:
        with storm.swarm():
            storm.run(folder)
            storm.breaches += wait_until_quiet(storm)
            past = history(storm)
            result = figures(storm)
    finally:
        lab.close()
    breaches = storm.breaches + [str(breach) for breach in check(past)]
    ended = Counter((past.final or {}).values())
    if set(ended) != {"succeeded"}:
        breaches.append(f"not every task has a result: {dict(ended)}")
    if result.twice:
        breaches.append(f"{result.twice} tasks have more than one end, or more than one record of an attempt")
    try:
        until(lambda: not marked(lab.mark), "nothing is left", within=5 * plan.slow)
    except AssertionError:
        breaches.append(f"processes are left: {marked(lab.mark)}")
    return result, breaches, ended.total() - ended["succeeded"]


def run_series(
    series: Series,
    kills: int,
    seed: int,
    folder: Path,
    *,
    every_s: float,
    slow: float,
    say: Callable[[str], object],
) -> Toll:
    """Run rounds until the series has this many kills."""
    rng, toll, number = random.Random(f"{seed} {series.name}"), Toll(), 0
    while (left := kills - sum(toll.kills.values())) > 0:
        number += 1
        faults = min(left, ROUND)
        plan = Plan(
            rng.getrandbits(32), tasks=round(faults * every_s * series.rate) + 20, task_s=series.task_s, every_s=every_s,
            faults=faults, within_s=600 + 30 * faults, slow=slow, slots=series.slots, kinds=series.kinds,
        )  # fmt: skip
        place = folder / f"{series.name.replace(' ', '-')}-{number}"
        place.mkdir(parents=True)
        lab = Lab(
            place, series.homes, workers=[f"worker-{n}" for n in range(1, series.workers + 1)], apart=can_be_apart(),
            settings={"SARK_SLOTS": str(series.slots)},
        )  # fmt: skip
        say(f"{series.name}, round {number}: up to {faults} kills over {plan.tasks} tasks, seed {plan.seed}")
        found = storm_over(lab, plan, place, say)
        toll.add(*found)
        for breach in found[1]:
            say(f"BREACH {breach}")
    return toll
