"""Sittings in simulated campaigns, and their invariant."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from protocol.values.sitting import Sitting
from protocol.values.task import Task
from tests.simulation.history import Breach, History, Kind

SHARE: Final = 0.25
"""Share of the campaigns without replicas."""
APART_S: Final = 6.0
SLACK: Final = 0.9
"""No scheduler's clock runs faster than 1 / SLACK times the kernel's."""


def with_sittings(tasks: Sequence[Task], seed: int, history: History) -> list[Task]:
    """These tasks; in some campaigns the first two or three become sittings of one task. Draws nothing from the run's own random source."""
    rng = random.Random(f"{seed} {tasks[0].campaign if tasks else ''} sittings")
    most = min(len(tasks), 3)
    if most < 2 or tasks[0].replica is not None or rng.random() >= SHARE:
        return list(tasks)
    count, model = rng.randint(2, most), tasks[0].model
    sitting = [
        task.model_copy(
            update={"model": model, "sitting": Sitting(number=n, of=count, step=1, apart_s=APART_S)}
        )
        for n, task in enumerate(tasks[:count], 1)
    ]
    history.sittings |= {one.task: other.task for one, other in zip(sitting[1:], sitting, strict=False)}
    return [*sitting, *tasks[count:]]


def sittings_are_apart(history: History) -> Iterator[Breach]:
    """A scheduler asks for a sitting only `apart` after the end of the one before, by its own clock.

    A copy of a home and an adopter did not see that end themselves: for them the end at the scheduler that saw it counts.
    """
    ended: dict[tuple[str, str], float] = {}
    ended_anywhere: dict[str, float] = {}
    for event in history.of(Kind.COMMITTED, Kind.RECORDED, Kind.ENDED):
        before = history.sittings.get(event.task)
        if event.kind is not Kind.COMMITTED:
            if event.kind is Kind.ENDED or event.word in ("succeeded", "failed", "cancelled"):
                ended.setdefault((event.who, event.task), event.decided_at - (event.number or 0) / 1000)
                ended_anywhere.setdefault(event.task, event.decided_at)
        elif before is not None and event.number is not None:
            at = ended.get((event.who, before), ended_anywhere.get(before))
            if at is None:
                yield Breach(
                    "sittings_are_apart", f"{event.task} is asked for before {before} has ended", event.at
                )
            elif event.decided_at - at < SLACK * APART_S:
                yield Breach(
                    "sittings_are_apart",
                    f"{event.task} is asked for {event.decided_at - at:.1f} s after {before}",
                    event.at,
                )
