"""The ONNX driver: models in one file, on the CPU and on whatever GPU providers this onnxruntime really runs on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from drivers.base import (
    Checked,
    Described,
    DriverError,
    Event,
    Loaded,
    Phase,
    Progressed,
    Unfit,
    UnitInfo,
    WorkOrder,
)
from drivers.hardware import usable_cores

FOLDER: Final = "model"
"""Below the child's private working directory."""


class OnnxDriver:
    """See `drivers.base.Driver`."""

    name = "onnx"

    def preload(self) -> tuple[str, ...]:
        """onnxruntime with numpy, and our own modules that need them."""
        return ("drivers.onnx_session", "drivers.onnx_check", "drivers.timing", "numpy.random", "onnxruntime")

    def units(self) -> tuple[UnitInfo, ...]:
        """The units whose provider has just run a one-line model, not those that the package promises."""
        from drivers import onnx_session as edge

        ort = edge.runtime()
        available = ort.get_available_providers()
        found: list[UnitInfo] = []
        for known in edge.PROVIDERS:
            for provider in known.names:
                if provider in available and _runs(known.unit, provider):
                    found.append(UnitInfo(known.unit, self.name, f"onnxruntime {ort.__version__}", provider))
                    break
        return tuple(found)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load in this fresh process."""
        yield from self._load(order, [])

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, find shapes, warm up, time, check. See `drivers.base.Driver`."""
        from drivers import memory, timing
        from drivers import onnx_session as edge
        from drivers.onnx_inputs import unused

        made: list[Any] = []
        yield from self._load(order, made)
        session = made[0]
        inputs = edge.inputs_of(session)
        resetting = memory.reset_peak()
        runner, shapes, bound, first_ns = _first_that_runs(session, order)
        runner.settle_outputs()
        notes = [*shapes.notes(), *unused(inputs, order.dims), *runner.notes, "intra-op threads do not spin"]
        if any("int" in one.dtype for one in inputs):
            notes.append(f"made integers are below {bound}")
        measured = None
        try:
            for said in timing.measure_calls(
                runner.call, runner.argument, order.runs, order.warmup, first_ns, resetting
            ):
                if isinstance(said, str):
                    notes.append(said)
                elif isinstance(said, Progressed):
                    yield said
                else:
                    measured = said
        except edge.runtime_errors() as why:
            raise edge.plain_words(why) from why
        assert measured is not None
        yield Described(
            unit=order.unit,
            driver=self.name,
            runtime=f"onnxruntime {edge.runtime().__version__}",
            providers=tuple(session.get_providers()),
            threads=order.threads or usable_cores(),
            shapes={one.name: shapes.of(one) for one in inputs},
            dtypes={one.name: one.dtype for one in inputs},
            seed=order.seed,
            notes=tuple(note[:500] for note in notes),
        )
        yield measured
        yield Progressed(Phase.CHECK)
        yield _checked(order, runner, inputs, shapes, bound)

    def _load(self, order: WorkOrder, made: list[Any]) -> Iterator[Event]:
        """Create the session, timed alone, and leave it in `made`."""
        from drivers import memory
        from drivers import onnx_session as edge

        yield Progressed(Phase.PREPARE)
        provider = edge.provider_for(order.unit, edge.runtime().get_available_providers())
        model = str(edge.private_copy(order.model, Path(FOLDER)))
        chosen = edge.options(order.threads or usable_cores(), optimise=True)
        yield Progressed(Phase.LOAD)
        baseline = memory.resident_bytes()
        resetting = memory.reset_peak()
        began = time.perf_counter_ns()
        session = edge.open_session(model, provider, chosen)
        took = time.perf_counter_ns() - began
        peak = memory.peak_bytes(resetting)
        edge.verify_provider(order.unit, provider, session.get_providers())
        made.append(session)
        yield Loaded(took, baseline, peak)


def _runs(unit: str, provider: str) -> bool:
    import numpy as np

    from drivers import onnx_session as edge

    try:
        session = edge.open_session(edge.TINY_MODEL, provider, edge.options(1, optimise=True))
        edge.verify_provider(unit, provider, session.get_providers())
        told = edge.translated(lambda: session.run(None, {"x": np.array([21], np.float32)}))
    except DriverError:
        return False
    return bool(told[0][0] == 42)


def _feeds(inputs: Any, shapes: Any, seed: int, bound: int) -> dict[str, Any]:
    from drivers.onnx_inputs import make

    return {one.name: make(one, shapes.of(one), seed, bound) for one in inputs}


def _first_that_runs(session: Any, order: WorkOrder) -> tuple[Any, Any, int, int]:
    """A runner, its shapes, its bound for integers and the time of the cold inference, for the first inputs that run.

    Raises what the best guess failed with when nothing runs.
    """
    from drivers import onnx_session as edge
    from drivers.onnx_inputs import attempts

    inputs = edge.inputs_of(session)
    metadata = dict(session.get_modelmeta().custom_metadata_map)
    why: DriverError | None = None
    for shapes, bound in attempts(inputs, order.dims, metadata):
        try:
            runner = edge.Runner(session, _feeds(inputs, shapes, order.seed, bound), inputs)
            began = time.perf_counter_ns()
            runner.first()
            return runner, shapes, bound, time.perf_counter_ns() - began
        except Unfit as failed:
            why = why or failed
    assert why is not None
    raise why


def _checked(order: WorkOrder, runner: Any, inputs: Any, shapes: Any, bound: int) -> Checked:
    """The outputs of the last timed inference against a session on the CPU without graph optimisation."""
    from drivers import onnx_session as edge
    from drivers.onnx_check import check, digest, unstable

    outputs = runner.outputs()
    if not order.check:
        return Checked(None, digest(outputs), None, None, "not asked for")
    runner.first()
    if unstable(outputs, runner.outputs()):
        return Checked(
            None,
            digest(outputs),
            None,
            None,
            "the model answers differently each time: nothing to compare with",
        )
    try:
        plain = edge.open_session(
            str(Path(FOLDER) / edge.PRIVATE_NAME),
            edge.CPU,
            edge.options(order.threads or usable_cores(), optimise=False),
        )
        reference = edge.Runner(plain, _feeds(inputs, shapes, order.seed, bound), inputs)
        reference.first()
    except DriverError as why:
        return Checked(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
    return check(outputs, reference.outputs())
