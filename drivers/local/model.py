"""The life of a model in a driver's child: load, find inputs that run, warm up, time, describe, check.

A driver's `LocalModel` defines how its runtime does each step; `load` and `run` do the steps in order and make the events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import (
    MAX_TEXT,
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OperatorReport,
    ProgressReport,
    RunFindings,
    SustainedReport,
    Unfit,
    WorkOrder,
)
from drivers.contract.hardware import threads_for
from drivers.inputs.feeds import Shapes, find_runnable, make_feeds, post_run
from drivers.inputs.synthetic import Input
from drivers.local.driver import LocalDriver
from drivers.local.examples import answer_examples, shapes_in
from drivers.measure.check import DEPTH, make_report
from drivers.measure.sketch import report_outputs
from drivers.measure.sustained import sustain_calls
from drivers.measure.timing import TimedLoop, measure_calls
from protocol.formats.phase import Phase

MAX_NOTES: Final = 64
"""Most notes that a record may hold."""


@dataclass(frozen=True, slots=True)
class ExecutionPlace:
    unit: str
    providers: tuple[str, ...]
    """Providers, most important first."""
    notes: tuple[str, ...] = ()
    operators: tuple[OperatorReport, ...] = ()


@dataclass(slots=True)
class Prepared:
    """Inputs that run, and how to run them."""

    loop: Callable[[], TimedLoop]
    """One inference, to be timed."""
    outputs: Callable[[], Mapping[str, Any]]
    """The outputs of the last inference, or of one more."""
    repeat: Callable[[], Mapping[str, Any]]
    """The outputs of one more inference."""
    feeds: Mapping[str, Any]
    shapes: Shapes
    bound: int
    """Synthetic integers are below this bound."""
    pre_ns: int
    """Time of the pre-run steps."""
    first_ns: int
    """Time of the cold inference."""
    peak_was_reset: bool


class LocalModel(ABC):
    """One order's model on its unit, checked but not loaded. Every method may raise a `DriverError`."""

    inputs: tuple[Input, ...]
    """Known once the model is loaded."""
    tolerance: float | None = None
    """Tolerance of the check, as a share; None: the tolerance of each output's type."""
    depth: int = DEPTH
    """Operators on the longest path through the model."""
    sustained: SustainedReport | None = None
    """Report of a sustained run, once it is timed."""
    compute_type: str = ""
    """Type of the floats that the runtime chose to compute in; empty: the model's own type."""
    compared_with: str = ""
    """Source of the reference, once it is made, for the note of the check; empty: the source that the driver's page names."""

    def __init__(self, order: WorkOrder, runtime: str) -> None:
        self.order = order
        self.runtime = runtime
        self.threads = threads_for(order.threads)
        self._example: Mapping[str, Any] | None = None

    @abstractmethod
    def load(self) -> int:
        """Load the model on the unit; returns the nanoseconds that it took."""

    @abstractmethod
    def verify(self) -> None:
        """Raise `WrongUnit` if the model was loaded elsewhere."""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    @abstractmethod
    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        """Make inputs and run them once. Raises `Unfit` if they do not run."""

    def prepare(self) -> Prepared:
        """The first inputs that run."""
        return find_runnable(self.order, self.inputs, self.attempt)

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        loop, first_ns, was_reset = prepared.loop(), prepared.first_ns, prepared.peak_was_reset
        if self.order.sustain_s is None:
            return (yield from measure_calls(loop, self.order, first_ns, was_reset, notes))
        measured, self.sustained = yield from sustain_calls(loop, self.order, first_ns, was_reset, notes)
        return measured

    def figures(self) -> dict[str, float]:
        """Figures other than latency, taken just after the timed inferences."""
        return {}

    def series(self) -> dict[str, tuple[int, ...]]:
        """Nanoseconds by name, such as `ttft`, of the timed inferences in order."""
        return {}

    def feeds(self, shapes: Shapes, bound: int) -> tuple[dict[str, Any], int]:
        """Values of all inputs, and the nanoseconds of the pre-run steps. While an example is answered, the values are the example's, else
        synthetic ones."""
        if self._example is not None:
            return dict(self._example), 0
        return make_feeds(self.order, self.inputs, shapes, bound)

    def outputs_of(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs of one inference with these values, each of which fits its input."""
        self._example = feeds
        try:
            return self.attempt(shapes_in(feeds), 1).outputs()
        finally:
            self._example = None

    def answer_text(self, text: str) -> str:
        """A language model's answer to a prompt, by `drivers.local.greedy`. Raises `Unfit` for a model that takes no texts."""
        raise Unfit(f"models on {self.order.unit} take tensors, and the example is a text")

    @abstractmethod
    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        """Where the model ran. Raises `WrongUnit` if no part of it ran on the unit."""

    @abstractmethod
    def notes(self, prepared: Prepared) -> list[str]:
        """Notes for the row on how the model was run."""

    @abstractmethod
    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs to compare with, for the same inputs."""

    def explain(self, prepared: Prepared, reference: Mapping[str, Any]) -> str:
        """Why the outputs differ from the reference, if known; for the row."""
        return ""


def load(driver: LocalDriver, order: WorkOrder) -> Generator[Event, None, LocalModel]:
    yield ProgressReport(Phase.PREPARE)
    model = driver.open(order)
    yield ProgressReport(Phase.LOAD)
    baseline, was_reset = memory.resident_bytes(), memory.reset_peak()
    took_ns = model.load()
    peak = memory.peak_bytes(was_reset)
    model.verify()
    yield LoadReport(took_ns, baseline, peak)
    return model


def run(driver: LocalDriver, order: WorkOrder) -> Iterator[Event]:
    model = yield from load(driver, order)
    with model.running():
        prepared = model.prepare()
        timing_notes: list[str] = []
        measured = yield from model.time(prepared, timing_notes)
        figures, series = ({}, {}) if order.brief else (model.figures(), model.series())
        outputs = prepared.outputs() if order.witnessed or not order.brief else {}
        if outputs:
            yield report_outputs(outputs, order.seed)
        if order.brief:
            yield measured
            return
        ran_on = model.ran_on(prepared)
        changes: tuple[str, ...] = ()
        if order.pre:
            figures["pre_ms"] = prepared.pre_ns / 1e6
        if order.post:
            post_ns, changes = post_run(order, outputs)
            figures["post_ms"] = post_ns / 1e6
        yield describe(driver, model, prepared, ran_on, timing_notes, changes)
        yield measured
        if model.sustained is not None:
            yield model.sustained
        yield ProgressReport(Phase.CHECK)
        yield check_outputs(model, prepared, outputs)
        if figures or series:
            yield RunFindings(figures, series)


def answer(driver: LocalDriver, order: WorkOrder) -> Iterator[Event]:
    """Load the model, make sure that it runs, and give it the order's examples."""
    model = yield from load(driver, order)
    with model.running():
        model.prepare()
        yield (yield from answer_examples(model))


def check_outputs(model: LocalModel, prepared: Prepared, outputs: Mapping[str, Any]) -> CheckReport:
    """Whether the outputs agree with the reference."""
    made: list[Mapping[str, Any]] = []

    def reference() -> Mapping[str, Any]:
        made.append(model.reference(prepared))
        return made[0]

    report = make_report(model.order, outputs, prepared.repeat, reference, model.tolerance, model.depth)
    why = model.explain(prepared, made[0]) if report.agrees is False and made else ""
    return replace(report, note="; ".join(filter(None, (why, report.note, model.compared_with)))[:MAX_TEXT])


def describe(
    driver: LocalDriver,
    model: LocalModel,
    prepared: Prepared,
    ran_on: ExecutionPlace,
    timing_notes: Sequence[str],
    changes: Sequence[str] = (),
) -> ModelDescription:
    """The description of what ran. `changes`: notes on the post-run steps."""
    notes = [*model.notes(prepared), *timing_notes, *changes, *ran_on.notes]
    return ModelDescription(
        unit=ran_on.unit,
        driver=driver.name,
        runtime=model.runtime,
        providers=ran_on.providers,
        threads=model.threads,
        shapes=prepared.shapes,
        dtypes={one.name: one.dtype for one in model.inputs},
        seed=model.order.seed,
        notes=tuple(note[:500] for note in notes[:MAX_NOTES]),
        batch=model.order.batch,
        operators=ran_on.operators,
        compute_type=model.compute_type,
    )
