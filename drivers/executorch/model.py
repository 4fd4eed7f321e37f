"""One order's program: loaded, run and checked by ExecuTorch's runtime, which is an argument."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract import memory
from drivers.contract.base import MAX_OPERATORS, OperatorReport, OutOfMemory, Unfit, WorkOrder
from drivers.contract.formats import broken_is_unfit
from drivers.contract.hardware import threads_notes
from drivers.contract.registry import BROKEN_DRIVER_ERRORS
from drivers.executorch.program import XNNPACK_ID, ProgramTensor, read_program
from drivers.executorch.sizes import inputs_for, larger, sizes_note
from drivers.executorch.units import KERNELS, XNNPACK, ExecuTorchRuntime, check_parts, check_unit, set_threads
from drivers.inputs.feeds import Shapes, make_feeds
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.check import check
from drivers.measure.timing import TimedCalls
from protocol.formats.model_files import ModelFormat, read_format

ERRORS: Final[Mapping[int, str]] = {
    0x01: "an internal error",
    0x02: "a state in which this is not possible",
    0x10: "not supported",
    0x11: "not implemented",
    0x12: "an invalid argument",
    0x13: "a value of the wrong type",
    0x14: "an operator is missing",
    0x20: "something is missing",
    0x21: "no memory",
    0x22: "it cannot be read",
    0x23: "the program is broken",
    0x24: "external data are missing or broken",
    0x25: "too few resources",
    0x30: "a part has a form that its backend does not accept",
    0x31: "no memory for a backend",
    0x32: "a part is broken",
}
"""Errors in `executorch::runtime::Error`, in words."""
MEMORY: Final = frozenset({0x21, 0x31})
_CODE: Final = re.compile(r"error:? *0x:?([0-9a-f]{1,8})", re.IGNORECASE)


class ExecuTorchModel(LocalModel):
    _method: Any

    def __init__(self, order: WorkOrder, runtime: ExecuTorchRuntime) -> None:
        check_unit(order.unit)
        super().__init__(order, runtime.title)
        self._lib, self._torch = runtime.lib, runtime.torch
        with broken_is_unfit():
            kind = read_format(Path(order.model))
            if kind is not ModelFormat.EXECUTORCH:
                raise Unfit(f"ExecuTorch runs .pte programs; this is not one ({kind})")
            self._plan = read_program(Path(order.model))
        check_parts(self._plan, self._lib)
        self.inputs = inputs_for(order, self._plan.tensors)
        if not self._plan.outputs:
            raise Unfit("the program has no outputs: nothing to check")

    def load(self) -> int:
        """Open the file and load its method; XNNPACK packs the weights in this step. The thread pool is made before."""
        with translated():
            self.threads = set_threads(self._lib, self.threads)
            began = time.perf_counter_ns()
            whole = self._lib.Verification.InternalConsistency
            self._program = self._lib._load_program(self.order.model, program_verification=whole)
            self._method = self._program.load_method(self._plan.method)
            return time.perf_counter_ns() - began

    def verify(self) -> None:
        """Do nothing: programs name the backends of their parts, and no other backend runs them."""

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = make_feeds(self.order, self.inputs, shapes, bound)
        given, call = self._tensors(feeds), partial(self._method.call, clone_outputs=False)
        was_reset = memory.reset_peak()
        with translated():
            began = time.perf_counter_ns()
            call(given)
            first_ns = time.perf_counter_ns() - began

        def outputs() -> Mapping[str, Any]:
            return self._outputs(given)

        return Prepared(
            lambda: TimedCalls(call, given),
            outputs,
            outputs,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def _tensors(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The method's inputs in order."""
        with translated():
            return [
                to_tensor(self._torch, feeds[one.name], one) if isinstance(one, ProgramTensor) else one.value
                for one in self._plan.inputs
            ]

    def _outputs(self, given: list[Any]) -> Mapping[str, Any]:
        """Outputs of one inference, as copies."""
        with translated():
            made = self._method.call(given, clone_outputs=True)
            return {
                name: to_array(self._torch, value)
                for name, value in zip(self._plan.outputs, made, strict=True)
            }

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        plan = self._plan
        counts = Counter({(op, KERNELS): count for op, count in plan.kernels.items()})
        counts.update({(op, XNNPACK): count for op, count in plan.delegated.items()})
        if plan.parts and not plan.delegated:
            counts[XNNPACK_ID, XNNPACK] = plan.parts.total()
        lines = sorted(counts.items(), key=lambda line: (-line[1], line[0]))[:MAX_OPERATORS]
        operators = tuple(
            OperatorReport(op=op[:200], provider=where, nodes=count) for (op, where), count in lines
        )
        providers = [name for name, ops in ((XNNPACK, plan.parts), (KERNELS, plan.kernels)) if ops]
        note = f"parts of the program on {XNNPACK}: {plan.parts.total()}; operators on {KERNELS}: {plan.kernels.total()}"
        return ExecutionPlace(self.order.unit, tuple(providers or [KERNELS]), (note,), operators)

    def notes(self, prepared: Prepared) -> list[str]:
        notes = [*threads_notes(self.order.threads)]
        constants = [one for one in self._plan.inputs if not isinstance(one, ProgramTensor)]
        if constants:
            values = ", ".join(f"{one.name} = {one.value!r}"[:60] for one in constants[:4])
            notes.append(f"inputs that are plain values keep the values of the export: {values}")
        if note := sizes_note(self._plan.tensors, prepared.shapes):
            notes.append(note)
        if self._plan.keeps_state:
            notes.append("the program keeps a state from one inference to the next")
        return notes

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """Outputs for the same inputs in memory that held other values before, if they differ.

        Raises `Unfit` if they do not differ: ExecuTorch has only one implementation of a program, and nothing that shows whether its
        outputs are right.
        """
        if self._plan.keeps_state:
            raise Unfit("the program keeps a state, and ExecuTorch has no other kernels for it")
        before = prepared.outputs()
        other = replace(self.order, seed=self.order.seed + 1, pre=())
        filling, _ = make_feeds(
            other, self.inputs, larger(self._plan.tensors, prepared.shapes), prepared.bound
        )
        self._outputs(self._tensors(filling))
        again = prepared.outputs()
        if check(before, again).agrees:
            raise Unfit(
                "ExecuTorch has no other kernels for this program; with other values left in memory it gave the same outputs"
            )
        return again

    def explain(self, prepared: Prepared, reference: Mapping[str, Any]) -> str:
        why = "the outputs depend on values left in memory"
        if not (sizes := sizes_note(self._plan.tensors, prepared.shapes)):
            return why
        return f"{why}, as those of {XNNPACK} do when an axis that the program fixes gets a smaller size; {sizes}"


def to_tensor(torch: Any, values: Any, one: ProgramTensor) -> Any:
    """A tensor with the input's order of axes in memory. `values`: as `drivers.inputs.synthetic` carries them."""
    order = one.order or tuple(range(values.ndim))
    tensor = torch.from_numpy(np.array(values.transpose(order), order="C"))
    if one.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.permute(tuple(int(axis) for axis in np.argsort(order)))


def to_array(torch: Any, value: Any) -> Any:
    """An output as an array; bfloat16 becomes float32, which can hold its values. Plain values stay."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


@contextmanager
def translated() -> Iterator[None]:
    """Turn ExecuTorch's errors into errors of the contract."""
    try:
        yield
    except BROKEN_DRIVER_ERRORS as why:
        code = error_code(str(why))
        kind = OutOfMemory if code in MEMORY else Unfit
        raise kind(explain_error(str(why), code)) from why


def error_code(text: str) -> int | None:
    found = _CODE.search(text)
    return None if found is None else int(found[1], 16)


def explain_error(text: str, code: int | None) -> str:
    """ExecuTorch's message in one line, with its error code in words."""
    words = ERRORS.get(code or 0)
    return f"ExecuTorch: {' '.join(text.split())[:300]}" + (f" ({words})" if words else "")
