"""The ONNX driver: models in one file or folder, on the CPU and on whatever else this onnxruntime really runs on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

from drivers.contract.base import (
    CheckReport,
    DriverError,
    Event,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.hardware import threads_notes
from drivers.onnx.units import CPU, UNITS, ProviderPlacement, place_for
from protocol.formats.phase import Phase

if TYPE_CHECKING:
    from drivers.onnx.profile import ProfiledNodes
    from drivers.onnx.ready import PreparedModel, PreparedRuntime

MAX_NOTES: Final = 64
"""As many as a record takes."""


class OnnxDriver:
    """See `drivers.base.Driver`."""

    name = "onnx"

    def preload(self) -> tuple[str, ...]:
        """onnxruntime with numpy, its C interface, and our own modules that need them."""
        return (
            "drivers.onnx.ready",
            "drivers.onnx.check",
            "drivers.onnx.profile",
            "drivers.measure.timing",
            "numpy.random",
            "onnxruntime",
        )

    def units(self) -> tuple[UnitInfo, ...]:
        """The units whose provider has just run a one-line model, not those that the package promises."""
        from drivers.onnx import session as edge

        ort = edge.runtime()
        available = ort.get_available_providers()
        found: list[UnitInfo] = []
        for known in UNITS:
            for provider in known.names:
                if provider in available and _runs(known.unit, place_for(known, provider, "")):
                    found.append(UnitInfo(known.unit, self.name, f"onnxruntime {ort.__version__}", provider))
                    break
        return tuple(found)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this fresh process."""
        from drivers.onnx.ready import PreparedModel

        yield ProgressReport(Phase.PREPARE)
        model = PreparedModel(order)
        yield ProgressReport(Phase.LOAD)
        yield model.load()[1]

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, find shapes, warm up, time, check. See `drivers.base.Driver`."""
        from drivers.onnx.ready import PreparedModel

        yield ProgressReport(Phase.PREPARE)
        model, made = PreparedModel(order), list[Any]()
        yield ProgressReport(Phase.LOAD)
        session, loaded = model.load()
        made.append(session)
        del session  # `made` alone holds it: it may have to be opened again
        yield loaded
        ready = model.ready(made)
        ready.runner.settle_outputs()
        timed_notes: list[str] = []
        measured = yield from _timed(order, ready, timed_notes)
        if order.brief:
            yield measured
            return
        yield from self._told(model, ready, [*_notes(order, ready), *timed_notes], measured)

    def _told(
        self, model: PreparedModel, ready: PreparedRuntime, notes: list[str], measured: MeasureReport
    ) -> Iterator[Event]:
        """What is told once for a task: what ran, whether it is right, what its steps took."""
        from drivers.inputs.feeds import post_run
        from drivers.onnx import session as edge

        order = model.order
        ran = _where_it_ran(model, ready)
        outputs = ready.runner.outputs()
        yield ModelDescription(
            unit=ran.unit,
            driver=self.name,
            runtime=f"onnxruntime {edge.runtime().__version__}",
            providers=ran.providers,
            threads=model.threads,
            shapes={one.name: ready.shapes.of(one) for one in ready.inputs},
            dtypes={one.name: one.dtype for one in ready.inputs},
            seed=order.seed,
            notes=tuple(note[:500] for note in (*notes, *ran.notes)[:MAX_NOTES]),
            batch=order.batch,
        )
        yield measured
        yield ProgressReport(Phase.CHECK)
        yield _checked(model, ready, outputs)
        figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
        if order.post:
            yield ProgressReport(Phase.CLEANUP)
            took, _ = post_run(order, outputs)
            figures["post_ms"] = took / 1e6
        if figures:
            yield RunFindings(figures)


def _notes(order: WorkOrder, ready: PreparedRuntime) -> list[str]:
    from drivers.inputs.made import unused

    notes = [
        *threads_notes(order.threads),
        *ready.shapes.notes(),
        *unused(ready.inputs, order.dims),
        *ready.runner.notes,
        "intra-op threads do not spin",
    ]
    if any("int" in one.dtype and not one.rows for one in ready.inputs):
        notes.append(f"made integers are below {ready.bound}")
    notes += [
        f"ids of {one.name!r} are below {one.rows}, the rows of their table"
        for one in ready.inputs
        if one.rows
    ]
    return notes


def _timed(
    order: WorkOrder, ready: PreparedRuntime, notes: list[str]
) -> Generator[ProgressReport, None, MeasureReport]:
    from drivers.measure import timing
    from drivers.onnx import session as edge

    def once() -> Generator[ProgressReport, None, MeasureReport]:
        story = timing.measure_calls(ready.runner.loop, order, ready.first_ns, ready.resetting)
        return timing.gathered(story, notes)

    try:
        try:
            return (yield from once())
        except edge.runtime_errors():
            if not ready.runner.renew_outputs():
                raise
            # outputs that kept to their shapes until here: all of it again, with each inference allocating its own
            notes.clear()
            return (yield from once())
    except edge.runtime_errors() as why:
        raise edge.plain_words(why) from why


def _runs(unit: str, place: ProviderPlacement) -> bool:
    import numpy as np

    from drivers.onnx import session as edge

    try:
        session = edge.open_session(edge.TINY_MODEL, place, edge.options(1, optimise=True))
        edge.verify_provider(unit, place.provider, session.get_providers())
        told = edge.translated(lambda: session.run(None, {"x": np.array([21], np.float32)}))
    except DriverError:
        return False
    return bool(told[0][0] == 42)


def _where_it_ran(model: PreparedModel, ready: PreparedRuntime) -> ProfiledNodes:
    """Told by a profile where there is more than one place to run."""
    from drivers.onnx.profile import ProfiledNodes, profiled, what_ran

    unit, live = model.order.unit, tuple(ready.session.get_providers())
    if model.place.provider == CPU:
        return ProfiledNodes(unit, live)
    nodes = profiled(model.path, model.place, model.threads, ready.feeds, ready.inputs)
    return what_ran(unit, model.place.provider, live, nodes)


def _checked(model: PreparedModel, ready: PreparedRuntime, outputs: dict[str, Any]) -> CheckReport:
    """The outputs of the last timed inference against a session on the CPU without graph optimisation."""
    from drivers.onnx.check import check, digest, unstable
    from drivers.onnx.runner import Runner

    if not model.order.check:
        return CheckReport(None, digest(outputs), None, None, "not asked for")
    ready.runner.first()
    if unstable(outputs, ready.runner.outputs()):
        words = "the model answers differently each time: nothing to compare with"
        return CheckReport(None, digest(outputs), None, None, words)
    try:
        reference = Runner(model.plain(), ready.feeds, ready.inputs)
        reference.first()
    except DriverError as why:
        return CheckReport(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
    return check(outputs, reference.outputs())
