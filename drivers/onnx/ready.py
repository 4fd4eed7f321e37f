"""From an order to an inference that runs: the model in its private folder, a session, shapes and values that it takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from drivers.contract import memory, steps
from drivers.contract.base import DriverError, LoadReport, Unfit, WorkOrder
from drivers.contract.hardware import threads_for
from drivers.inputs.batching import dims_of, failed_with
from drivers.inputs.feeds import feeds
from drivers.inputs.made import Input, Shapes, attempts
from drivers.native import ort_api
from drivers.onnx import native
from drivers.onnx import session as edge
from drivers.onnx.runner import Array, InPlace, in_place
from drivers.onnx.units import CPU, ProviderPlacement
from protocol.formats.onnx import read_table_rows
from protocol.formats.steps import POST, PRE

FOLDER: Final = "model"
"""Below the child's private working directory."""


@dataclass(slots=True)
class PreparedRuntime:
    """Inputs that run, in a session that has seen no others."""

    session: Any
    place: ProviderPlacement
    inputs: tuple[Input, ...]
    runner: InPlace
    shapes: Shapes
    bound: int
    """Made integers lie below it."""
    feeds: Mapping[str, Array]
    pre_ns: int
    """What the pre-run steps took."""
    first_ns: int
    """The cold inference."""
    resetting: bool
    """The peak of memory was started anew before it."""


class PreparedModel:
    """One order's model on its unit, as a private file that any number of sessions can be made of.

    Raises `Unfit` or `WrongUnit` where the order cannot be met.
    """

    def __init__(self, order: WorkOrder) -> None:
        self.order = order
        self.threads = threads_for(order.threads)
        self.place = edge.place_of(order.unit, order.gpu)
        self.path = str(edge.private_copy(order.model, Path(FOLDER)))
        if self._runtime is not None:
            self._runtime.start()

    @property
    def _runtime(self) -> ort_api.Runtime | None:
        return native.RUNTIME if self.place.provider == CPU else None

    def load(self) -> tuple[Any, LoadReport]:
        """Create the session that is measured, timed alone."""
        chosen = edge.options(self.threads, optimise=True)
        baseline = memory.resident_bytes()
        resetting = memory.reset_peak()
        session, took = self._open(chosen)
        peak = memory.peak_bytes(resetting)
        edge.verify_provider(self.order.unit, self.place.provider, session.get_providers())
        return session, LoadReport(took, baseline, peak)

    def _open(self, chosen: Any) -> tuple[Any, int]:
        """By the C interface on the CPU: its session is then the one that is timed. Elsewhere by the Python package."""
        if self._runtime is not None:
            session = native.open_session(self._runtime, self.path, self.threads)
            return session, session.load_ns
        began = time.perf_counter_ns()
        opened = edge.open_session(self.path, self.place, chosen)
        return opened, time.perf_counter_ns() - began

    def again(self, like: Any) -> Any:
        """Another session of the same kind as `like`, unless its inputs or outputs are none that the C interface binds."""
        chosen = edge.options(self.threads, optimise=True)
        if isinstance(like, ort_api.NativeSession) and like.plain:
            return self._open(chosen)[0]
        return edge.open_session(self.path, self.place, chosen)

    def plain(self) -> Any:
        """The reference: on the CPU, without graph optimisation."""
        return edge.open_session(
            self.path, ProviderPlacement(CPU), edge.options(self.threads, optimise=False)
        )

    def ready(self, made: list[Any]) -> PreparedRuntime:
        """The first inputs that run, in the session in `made`. One that failed with others is opened again, because it keeps
        the memory they took: what failed is no part of any figure. Leaves the session in `made`.

        Raises what the best guess failed with when nothing runs.
        """
        if isinstance(made[0], ort_api.NativeSession) and not made[0].plain:
            made.append(self.again(made.pop()))
        inputs = self._inputs_of(made[0])
        steps.check(self.order.pre, PRE, [one.name for one in inputs])
        steps.check(self.order.post, POST, [one.name for one in made[0].get_outputs()])
        why: DriverError | None = None
        for shapes, bound in attempts(inputs, dims_of(self.order, inputs), edge.metadata_of(made[0])):
            try:
                found = self._try(made[0], inputs, shapes, bound)
            except Unfit as failed:
                why = why or failed
                continue
            if why is not None:
                del found, why  # an error holds on to the session by its traceback
                fresh = self.again(made.pop())
                gc.collect()
                made.append(fresh)
                found = self._try(made[0], inputs, shapes, bound)
            return found
        assert why is not None
        raise failed_with(self.order, why)

    def _inputs_of(self, session: Any) -> tuple[Input, ...]:
        """The model's inputs, with the rows of the tables that whole numbers index where that can be seen."""
        inputs = edge.inputs_of(session)
        names = tuple(one.name for one in inputs if one.dtype in ("int32", "int64"))
        rows = read_table_rows(Path(self.path), names) if names else {}
        return tuple(replace(one, rows=rows.get(one.name)) for one in inputs)

    def _try(self, session: Any, inputs: tuple[Input, ...], shapes: Shapes, bound: int) -> PreparedRuntime:
        fed, pre_ns = feeds(self.order, inputs, shapes, bound)
        resetting = memory.reset_peak()
        runner = in_place(session, fed, inputs, self.place)
        began = time.perf_counter_ns()
        runner.first()
        first = time.perf_counter_ns() - began
        return PreparedRuntime(
            session, self.place, inputs, runner, shapes, bound, fed, pre_ns, first, resetting
        )
