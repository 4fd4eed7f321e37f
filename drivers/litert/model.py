"""One order's model: loaded, run and checked by LiteRT's interpreter. The runtime's module is an argument."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from drivers.contract import memory
from drivers.contract.base import Unfit, WorkOrder
from drivers.contract.formats import broken_is_unfit
from drivers.contract.hardware import threads_notes
from drivers.contract.registry import BROKEN_DRIVER_ERRORS
from drivers.inputs.feeds import Shapes, blame_sizes, shapes_of
from drivers.litert.placement import Placement, place, read_nodes
from drivers.litert.tensors import TensorPort, read_ports
from drivers.litert.units import check_unit, version
from drivers.local.examples import shapes_in
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls
from protocol.formats.model_files import ModelFormat, read_format

QUANTISED: Final = 2e-2
"""Tolerance of outputs that are steps of a scale: kernels may round either way."""
_UNKNOWN: Final = re.compile(r"unresolved custom op: ?(\S*?)\.?(\s|$)")
_FLEX: Final = "Select TensorFlow op"


class LiteRtModel(LocalModel):
    _interpreter: Any
    _inputs: tuple[TensorPort, ...]
    _outputs: tuple[TensorPort, ...]
    _placement: Placement
    _signatures: int

    def __init__(self, order: WorkOrder, runtime: Any) -> None:
        check_unit(order.unit)
        super().__init__(order, version())
        self._runtime = runtime
        with broken_is_unfit():
            kind = read_format(Path(order.model))
        if kind is not ModelFormat.TFLITE:
            raise Unfit(f"LiteRT runs .tflite files; this is not one ({kind})")

    def load(self) -> int:
        """Open the file, set the sizes, and let the delegate pack the weights; LiteRT's own tools call this initialisation."""
        before = psutil.Process().num_threads()
        began = time.perf_counter_ns()
        self._interpreter = interpreter = self._open("AUTO")
        self._read_ports(interpreter)
        self._allocate(interpreter, shapes_of(self.order, self.inputs))
        took_ns = time.perf_counter_ns() - began
        started = psutil.Process().num_threads() - before
        with translated():
            self._placement = place(read_nodes(interpreter._get_ops_details()))
        if self._placement.taken and 0 <= started < self.threads:
            self.threads = started + 1
        return took_ns

    def _open(self, kernels: str) -> Any:
        """An interpreter. `kernels`: the set that the runtime chooses from, by its name in `OpResolverType`."""
        with translated():
            return self._runtime.Interpreter(
                model_path=self.order.model,
                num_threads=self.threads,
                experimental_op_resolver_type=self._runtime.OpResolverType[kernels],
            )

    def _read_ports(self, interpreter: Any) -> None:
        """Read the inputs and outputs, under the names of the model's signature if it has exactly one."""
        with translated():
            inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
            signatures = list(interpreter.get_signature_list())
            given, taken = dict[int, str](), dict[int, str]()
            if len(signatures) == 1:
                runner = interpreter.get_signature_runner(signatures[0])
                given = _names(runner.get_input_details(), inputs)
                taken = _names(runner.get_output_details(), outputs)
            self._signatures = len(signatures)
            self._inputs, self._outputs = read_ports(inputs, given), read_ports(outputs, taken)
        self.inputs = tuple(port.as_input() for port in self._inputs)
        if any(port.scale is not None for port in self._outputs):
            self.tolerance = QUANTISED

    def _allocate(self, interpreter: Any, shapes: Shapes) -> None:
        """Set the sizes that the model leaves open. Raises `Unfit`, or `Unshaped` if the sizes may be to blame."""
        try:
            with translated():
                for port in self._inputs:
                    if None in port.shape:
                        interpreter.resize_tensor_input(port.index, shapes[port.name], strict=True)
                interpreter.allocate_tensors()
        except Unfit as why:
            raise blame_sizes(self.order, self.inputs, shapes, why) from why

    def verify(self) -> None:
        """Do nothing: no delegate other than the CPU's own is ever loaded."""

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = self.feeds(shapes, bound)
        interpreter = self._interpreter
        self._feed(interpreter, feeds)
        was_reset = memory.reset_peak()
        with translated():
            began = time.perf_counter_ns()
            interpreter.invoke()
            first_ns = time.perf_counter_ns() - began
        outputs, repeat = self._last, self._again
        if self._placement.keeps_state:
            first = self._last()
            outputs, repeat = (lambda: first), (lambda: self._fresh("AUTO", feeds, shapes))

        def loop() -> TimedCalls:
            return TimedCalls(lambda _: interpreter.invoke())

        return Prepared(loop, outputs, repeat, feeds, shapes, bound, pre_ns, first_ns, was_reset)

    def outputs_of(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs for an example, with its own sizes and without state from the previous example."""
        self._allocate(self._interpreter, shapes_in(feeds))
        with translated():
            self._interpreter.reset_all_variables()
        return super().outputs_of(feeds)

    def _feed(self, interpreter: Any, feeds: Mapping[str, Any]) -> None:
        with translated():
            for port in self._inputs:
                value = feeds[port.name]
                interpreter.set_tensor(
                    port.index, value.astype(np.bytes_) if port.dtype == "string" else value
                )

    def _last(self) -> Mapping[str, Any]:
        return self._read(self._interpreter)

    def _again(self) -> Mapping[str, Any]:
        with translated():
            self._interpreter.invoke()
        return self._last()

    def _read(self, interpreter: Any) -> Mapping[str, Any]:
        with translated():
            outputs = {port.name: port.real(interpreter.get_tensor(port.index)) for port in self._outputs}
        if not outputs:
            raise Unfit("the model has no outputs: nothing to check")
        return outputs

    def _fresh(self, kernels: str, feeds: Mapping[str, Any], shapes: Shapes) -> Mapping[str, Any]:
        """The first outputs of a new interpreter."""
        interpreter = self._open(kernels)
        self._allocate(interpreter, shapes)
        self._feed(interpreter, feeds)
        with translated():
            interpreter.invoke()
        return self._read(interpreter)

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        placement = self._placement
        return ExecutionPlace(self.order.unit, placement.providers, (placement.note(),), placement.reports())

    def notes(self, prepared: Prepared) -> list[str]:
        notes = [*threads_notes(self.order.threads)]
        if self._signatures > 1:
            notes.append(f"the model has {self._signatures} signatures: its first graph was run")
        if self._placement.keeps_state:
            notes.append("the model keeps a state: its first inference is compared")
        return [*notes, *(port.note() for port in self._outputs if port.scale is not None)]

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs of the runtime's own kernels without the delegate; if the delegate took nothing, of its reference kernels."""
        plain = "BUILTIN_WITHOUT_DEFAULT_DELEGATES" if self._placement.taken else "BUILTIN_REF"
        return self._fresh(plain, prepared.feeds, prepared.shapes)


def _names(signed: Mapping[str, Any], details: Iterable[Any]) -> dict[int, str]:
    """The signature's names by tensor, if its tensors are those of the first graph."""
    names = {int(one["index"]): str(name) for name, one in signed.items()}
    return names if set(names) == {int(one["index"]) for one in details} else {}


@contextmanager
def translated() -> Iterator[None]:
    """Turn LiteRT's errors into `Unfit`, with advice if there is any."""
    try:
        yield
    except BROKEN_DRIVER_ERRORS as why:
        raise Unfit(explain(str(why))) from why


def explain(text: str) -> str:
    """LiteRT's message in one line."""
    if _FLEX in text:
        return "the model has operators of TensorFlow's own, which LiteRT lacks: convert it without SELECT_TF_OPS"
    if found := _UNKNOWN.search(text):
        return (
            f"the model has the custom operator {found[1][:100]!r}, which LiteRT lacks: "
            "convert it with only built-in operators"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"LiteRT: {' '.join(lines[:3])[:500]}"
