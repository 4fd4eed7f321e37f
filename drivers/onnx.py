"""The ONNX driver: models in one file, on the CPU and on whatever GPU providers this onnxruntime really runs on."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from drivers.hardware import threads_for, threads_notes
from drivers.onnx_units import CPU, UNITS

if TYPE_CHECKING:
    from drivers.onnx_profile import Ran

FOLDER: Final = "model"
"""Below the child's private working directory."""
MAX_NOTES: Final = 64
"""As many as a record takes."""


class OnnxDriver:
    """See `drivers.base.Driver`."""

    name = "onnx"

    def preload(self) -> tuple[str, ...]:
        """onnxruntime with numpy, and our own modules that need them."""
        return (
            "drivers.onnx_session",
            "drivers.onnx_check",
            "drivers.onnx_profile",
            "drivers.timing",
            "numpy.random",
            "onnxruntime",
        )

    def units(self) -> tuple[UnitInfo, ...]:
        """The units whose provider has just run a one-line model, not those that the package promises."""
        from drivers import onnx_session as edge

        ort = edge.runtime()
        available = ort.get_available_providers()
        found: list[UnitInfo] = []
        for known in UNITS:
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
        from drivers import onnx_session as edge
        from drivers import timing
        from drivers.onnx_inputs import unused

        made: list[Any] = []
        yield from self._load(order, made)
        found = _first_that_runs(made, order)
        session, runner, shapes, bound = made[0], found.runner, found.shapes, found.bound
        inputs = edge.inputs_of(session)
        runner.settle_outputs()
        notes = [
            *threads_notes(order.threads),
            *shapes.notes(),
            *unused(inputs, order.dims),
            *runner.notes,
            "intra-op threads do not spin",
        ]
        if any("int" in one.dtype for one in inputs):
            notes.append(f"made integers are below {bound}")
        measured = None
        try:
            loop = timing.Calls(runner.call, runner.argument)
            for said in timing.measure_calls(loop, order, found.first_ns, found.resetting):
                if isinstance(said, str):
                    notes.append(said)
                elif isinstance(said, Progressed):
                    yield said
                else:
                    measured = said
        except edge.runtime_errors() as why:
            raise edge.plain_words(why) from why
        assert measured is not None
        ran = _where_it_ran(order, session, inputs, shapes, bound)
        notes += ran.notes
        yield Described(
            unit=ran.unit,
            driver=self.name,
            runtime=f"onnxruntime {edge.runtime().__version__}",
            providers=ran.providers,
            threads=threads_for(order.threads),
            shapes={one.name: shapes.of(one) for one in inputs},
            dtypes={one.name: one.dtype for one in inputs},
            seed=order.seed,
            notes=tuple(note[:500] for note in notes[:MAX_NOTES]),
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
        chosen = edge.options(threads_for(order.threads), optimise=True)
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


@dataclass(slots=True)
class _Found:
    """Inputs that run, in a session that has seen no others."""

    runner: Any
    shapes: Any
    bound: int
    """Made integers lie below it."""
    first_ns: int
    """The cold inference."""
    resetting: bool
    """The peak of memory was started anew before it."""


def _first_that_runs(made: list[Any], order: WorkOrder) -> _Found:
    """The first inputs that run. A session that failed with others is opened again, because it keeps the memory they took:
    what failed is no part of any figure. Leaves the session in `made`.

    Raises what the best guess failed with when nothing runs.
    """
    from drivers import onnx_session as edge
    from drivers.onnx_inputs import attempts

    inputs = edge.inputs_of(made[0])
    why: DriverError | None = None
    for shapes, bound in attempts(inputs, order.dims, edge.metadata_of(made[0])):
        try:
            found = _try(made[0], order, inputs, shapes, bound)
        except Unfit as failed:
            why = why or failed
            continue
        if why is not None:
            del found, why  # an error holds on to the session by its traceback
            made.clear()
            gc.collect()
            made.append(_session_again(order))
            found = _try(made[0], order, inputs, shapes, bound)
        return found
    assert why is not None
    raise why


def _try(session: Any, order: WorkOrder, inputs: Any, shapes: Any, bound: int) -> _Found:
    from drivers import memory
    from drivers import onnx_session as edge

    resetting = memory.reset_peak()
    runner = edge.Runner(session, _feeds(inputs, shapes, order.seed, bound), inputs)
    began = time.perf_counter_ns()
    runner.first()
    return _Found(runner, shapes, bound, time.perf_counter_ns() - began, resetting)


def _session_again(order: WorkOrder) -> Any:
    """Another session like the one whose load was timed."""
    from drivers import onnx_session as edge

    provider = edge.provider_for(order.unit, edge.runtime().get_available_providers())
    chosen = edge.options(threads_for(order.threads), optimise=True)
    return edge.open_session(str(Path(FOLDER) / edge.PRIVATE_NAME), provider, chosen)


def _where_it_ran(order: WorkOrder, session: Any, inputs: Any, shapes: Any, bound: int) -> Ran:
    """Told by a profile where there is more than one place to run."""
    from drivers import onnx_session as edge
    from drivers.onnx_profile import Ran, profiled, what_ran

    live = tuple(session.get_providers())
    provider = edge.provider_for(order.unit, edge.runtime().get_available_providers())
    if provider == CPU:
        return Ran(order.unit, live)
    model = str(Path(FOLDER) / edge.PRIVATE_NAME)
    feeds = _feeds(inputs, shapes, order.seed, bound)
    return what_ran(
        order.unit, provider, live, profiled(model, provider, threads_for(order.threads), feeds, inputs)
    )


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
            CPU,
            edge.options(threads_for(order.threads), optimise=False),
        )
        reference = edge.Runner(plain, _feeds(inputs, shapes, order.seed, bound), inputs)
        reference.first()
    except DriverError as why:
        return Checked(None, digest(outputs), None, None, f"no reference: {why}"[:1000])
    return check(outputs, reference.outputs())
