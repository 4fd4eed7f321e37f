"""Launches of the hostile driver in real processes, on a given tier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from drivers.contract import frames
from drivers.contract.base import MIB, Event, Limits, RunFindings, WorkOrder
from drivers.launch.launch import Launch
from drivers.launch.process import ForkedChild, ZygoteProcess
from drivers.sandbox.enter import Tier
from tests.drivers import hostile_zygote

ROOM: Final = 4 * MIB
LIMITS: Final = Limits(load_s=20, run_s=20, memory_bytes=1024 * MIB, output_bytes=ROOM)
COUNTED: Final = 24
"""MiB that one way may hold beyond the limits on memory and files."""


class Stage(ZygoteProcess):
    """A zygote with the hostile driver."""

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """See `ZygoteProcess`."""
        root = str(Path(__file__).parents[2])
        run = f"import runpy, sys; sys.path.insert(0, {root!r}); runpy.run_path({hostile_zygote.__file__!r}, run_name='__main__')"
        return [sys.executable, "-P", "-c", run, *arguments]


class HostileZygote:
    """Like `Zygote`, for the hostile driver."""

    driver = "hostile"

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.process = Stage("hostile", False, True, tier)

    def prepare(self) -> None:
        """Prepare nothing."""

    def launch(self, order: WorkOrder, limits: Limits, job: str) -> ForkedChild:
        """See `Zygote.launch`."""
        return self.process.fork(
            frames.pack_order(order, limits, self.driver, False, job), limits.output_bytes
        )

    def close(self) -> None:
        """End the zygote."""
        self.process.close()


def play(launches: HostileZygote, model: str, limits: Limits = LIMITS) -> list[Event]:
    """All events that one launch of the hostile driver sent."""
    launch = Launch(WorkOrder(model, "CPU (Hostile)", 1, 1), limits, launches)  # type: ignore[arg-type]
    return list(launch.events())


def findings(launches: HostileZygote, model: str) -> dict[str, float]:
    """The figures that one launch found, by name."""
    return next(dict(event.figures) for event in play(launches, model) if isinstance(event, RunFindings))
