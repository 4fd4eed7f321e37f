"""The ONNX driver: models in one file or folder, on the CPU and on whatever else this onnxruntime really runs on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

from drivers.contract.base import (
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
from drivers.onnx.units import CPU, UNITS, ProviderPlacement, placement_for
from protocol.formats.phase import Phase

if TYPE_CHECKING:
    from drivers.onnx.profile import ProfiledNodes
    from drivers.onnx.runner import PreparedModel, PreparedRuntime

MAX_NOTES: Final = 64
"""Limit of a record."""


class OnnxDriver:
    """See `drivers.contract.base.Driver`."""

    name = "onnx"

    def preload(self) -> tuple[str, ...]:
        """onnxruntime with numpy, its C interface, and our own modules that need them."""
        return (
            "drivers.onnx.runner",
            "drivers.measure.check",
            "drivers.onnx.profile",
            "drivers.measure.timing",
            "numpy.random",
            "onnxruntime",
        )

    def units(self) -> tuple[UnitInfo, ...]:
        """The units whose provider has just run a tiny model, not those that the package promises."""
        from drivers.onnx import session as edge

        ort = edge.runtime()
        available = ort.get_available_providers()
        units: list[UnitInfo] = []
        for known in UNITS:
            for provider in known.names:
                if provider in available and _runs(known.unit, placement_for(known, provider, "")):
                    units.append(UnitInfo(known.unit, self.name, f"onnxruntime {ort.__version__}", provider))
                    break
        return tuple(units)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this fresh process."""
        from drivers.onnx.runner import PreparedModel

        yield ProgressReport(Phase.PREPARE)
        model = PreparedModel(order)
        yield ProgressReport(Phase.LOAD)
        yield model.load()[1]

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, find shapes, warm up, time, check."""
        from drivers.onnx.runner import PreparedModel

        yield ProgressReport(Phase.PREPARE)
        model, sessions = PreparedModel(order), list[Any]()
        yield ProgressReport(Phase.LOAD)
        session, loaded = model.load()
        sessions.append(session)
        del session  # the list alone holds it: it may have to be opened again
        yield loaded
        ready = model.ready(sessions)
        ready.runner.preallocate_outputs()
        timing_notes: list[str] = []
        measured = yield from _timed(order, ready, timing_notes)
        if order.brief:
            yield measured
            return
        yield from self._reports(model, ready, [*_notes(order, ready), *timing_notes], measured)

    def _reports(
        self, model: PreparedModel, ready: PreparedRuntime, notes: list[str], measured: MeasureReport
    ) -> Iterator[Event]:
        """What is reported once for a task: what ran, whether it is right, what its steps took."""
        from drivers.inputs.feeds import post_run
        from drivers.measure.check import make_report
        from drivers.onnx import session as edge
        from drivers.onnx.runner import Runner

        order = model.order
        nodes = _where_it_ran(model, ready)
        outputs = ready.runner.outputs()
        yield ModelDescription(
            unit=nodes.unit,
            driver=self.name,
            runtime=f"onnxruntime {edge.runtime().__version__}",
            providers=nodes.providers,
            threads=model.threads,
            shapes={one.name: ready.shapes.of(one) for one in ready.inputs},
            dtypes={one.name: one.dtype for one in ready.inputs},
            seed=order.seed,
            notes=tuple(note[:500] for note in (*notes, *nodes.notes)[:MAX_NOTES]),
            batch=order.batch,
        )
        yield measured
        yield ProgressReport(Phase.CHECK)

        def repeat() -> dict[str, Any]:
            ready.runner.first()
            return ready.runner.outputs()

        def reference() -> dict[str, Any]:
            """A session on the CPU without graph optimisation."""
            plain = Runner(model.plain(), ready.feeds, ready.inputs)
            plain.first()
            return plain.outputs()

        yield make_report(order, outputs, repeat, reference)
        figures = {"pre_ms": ready.pre_ns / 1e6} if order.pre else {}
        if order.post:
            yield ProgressReport(Phase.CLEANUP)
            figures["post_ms"] = post_run(order, outputs)[0] / 1e6
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
        events = timing.measure_calls(ready.runner.loop, order, ready.first_ns, ready.peak_was_reset)
        return timing.collect(events, notes)

    try:
        try:
            return (yield from once())
        except edge.runtime_errors():
            if not ready.runner.allocate_each_time():
                raise
            # the outputs kept their shapes until here: time it again, with each inference allocating its outputs
            notes.clear()
            return (yield from once())
    except edge.runtime_errors() as why:
        raise edge.to_driver_error(why) from why


def _runs(unit: str, place: ProviderPlacement) -> bool:
    import numpy as np

    from drivers.onnx import session as edge

    try:
        session = edge.open_session(edge.TINY_MODEL, place, edge.options(1, optimise=True))
        edge.verify_provider(unit, place.provider, session.get_providers())
        outputs = edge.translated(lambda: session.run(None, {"x": np.array([21], np.float32)}))
    except DriverError:
        return False
    return bool(outputs[0][0] == 42)


def _where_it_ran(model: PreparedModel, ready: PreparedRuntime) -> ProfiledNodes:
    """From a profile, unless there is only the CPU."""
    from drivers.onnx.profile import ProfiledNodes, profile, unit_that_ran

    unit, providers = model.order.unit, tuple(ready.session.get_providers())
    if model.place.provider == CPU:
        return ProfiledNodes(unit, providers)
    nodes = profile(model.path, model.place, model.threads, ready.feeds, ready.inputs)
    return unit_that_ran(unit, model.place.provider, providers, nodes)
