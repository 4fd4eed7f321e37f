"""A complete driver, to copy and change: python -m pip install ./examples/driver, then: sark-node bench small.mine --unit "CPU (Mine)".

Its models are files that begin with the word mine; an inference is a sum that takes longer for longer files. Contract: drivers/README.md.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from drivers.contract import memory
from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    ModelDescription,
    ProgressReport,
    Unfit,
    UnitInfo,
    WorkOrder,
    WrongUnit,
)
from drivers.measure.timing import TimedCalls, measure_calls
from protocol.formats.phase import Phase

UNIT = "CPU (Mine)"
RUNTIME = "mine 1.0"


class MineDriver:
    """Named by the entry point. See `drivers.contract.base.Driver`."""

    name = "mine"  # the same as the entry point's name
    formats = ("mine",)  # what its units take: campaigns leave models of other formats out

    def units(self) -> tuple[UnitInfo, ...]:
        """Only units on which something has just run."""
        return (UnitInfo(UNIT, self.name, RUNTIME),) if infer(1) else ()

    def preload(self) -> tuple[str, ...]:
        """Modules worth importing once, before each fork."""
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this process."""
        yield ProgressReport(Phase.PREPARE)
        if order.unit != UNIT:
            raise WrongUnit(f"{order.unit} is not one of this driver")
        yield ProgressReport(Phase.LOAD)
        before, peak_was_reset = memory.resident_bytes(), memory.reset_peak()
        began = time.perf_counter_ns()
        self.model = load(order.model)
        yield LoadReport(time.perf_counter_ns() - began, before, memory.peak_bytes(peak_was_reset))

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, warm up, time, check."""
        yield from self.load_only(order)
        peak_was_reset = memory.reset_peak()
        began = time.perf_counter_ns()
        answer = infer(self.model)
        first_ns = time.perf_counter_ns() - began
        notes: list[str] = []
        loop = TimedCalls(infer, self.model)
        measured = yield from measure_calls(loop, order, first_ns, peak_was_reset, notes)
        yield ModelDescription(
            unit=order.unit,
            driver=self.name,
            runtime=RUNTIME,
            providers=("plain Python",),  # what really ran it
            threads=1,
            shapes={"x": (self.model,)},
            dtypes={"x": "int64"},
            seed=order.seed,
            notes=tuple(notes),  # includes how the warm-up ended
        )
        yield measured
        yield ProgressReport(Phase.CHECK)
        digest = hashlib.sha256(str(answer).encode()).hexdigest()
        yield CheckReport(None, digest, None, None, "nothing to compare with")


def load(path: str) -> int:
    """The model. Raises `Unfit`."""
    try:
        data = Path(path).read_bytes()
    except OSError as why:
        raise Unfit(f"model {path}: {why.strerror}") from None
    if not data.startswith(b"mine"):
        raise Unfit(f"model {path} is not one of this driver's: they begin with the word mine")
    return len(data)


def infer(model: int) -> int:
    """One inference."""
    return sum(range(1000 * model))
