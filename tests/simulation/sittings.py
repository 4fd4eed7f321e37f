"""Sittings in simulated campaigns, and what must hold of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from protocol.values.sitting import Sitting
from protocol.values.task import Task
from tests.simulation.history import Breach, History, Kind

SHARE: Final = 0.25
"""Of the campaigns without replicas."""
APART_S: Final = 6.0
SLACK: Final = 0.9
"""No scheduler's clock runs so much faster than the kernel's."""


def with_sittings(tasks: Sequence[Task], seed: int, history: History) -> list[Task]:
    """The same tasks; in some campaigns the first two or three are sittings of one. Draws nothing from the run's own chance."""
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
    """A scheduler asks for a sitting only when the one before has ended there, `apart` ago by its own clock.

    A copy of a home and an adopter did not see the end themselves: for them it is that of whoever did.
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
