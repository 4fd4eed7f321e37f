"""Where a model's operators really ran: observes an inference that is not timed, at torch's dispatcher.

Weights and outputs on a GPU prove nothing: a program may copy its inputs to the CPU, compute there, and copy the result back.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from drivers.contract.base import DriverError
from drivers.local.model import ExecutionPlace
from protocol.formats.frameworks import framework_of

MOVES: Final = (
    "to",
    "_to_copy",
    "copy_",
    "detach",
    "alias",
    "lift_fresh",
    "empty",
    "empty_strided",
    "new_empty",
)
"""Operators that compute nothing."""


class Operand(NamedTuple):
    """A tensor that an operator took or returned."""

    device: str
    """Kind of device, such as `cuda`."""
    elements: int


def device_of(name: str, given: Iterable[Operand], taken: Iterable[Operand]) -> str:
    """The kind of device on which an operator ran; empty: it computes nothing, or only single numbers on the CPU, such as sizes and
    constants."""
    given, taken = list(given), list(taken)
    if name in MOVES or not given:
        return ""
    where = given[0].device
    counts = where != "cpu" or any(one.elements > 1 for one in (*given, *taken))
    return where if counts else ""


def watch(torch: Any, infer: Callable[[], object]) -> Counter[str]:
    """Operators of one inference by kind of device; empty if the inference fails, or this torch cannot be observed."""
    ran: Counter[str] = Counter()
    leaves = torch.utils._pytree.tree_leaves
    try:
        mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

        def operands(values: object) -> list[Operand]:
            tensors = [one for one in leaves(values) if isinstance(one, torch.Tensor)]
            return [Operand(one.device.type, one.numel()) for one in tensors]

        class Watching(mode):  # type: ignore[misc]
            def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = operator(*args, **(kwargs or {}))
                name = "alias" if operator.is_view else str(operator).split(".")[1]
                if where := device_of(name, operands(result), operands((args, kwargs))):
                    ran[where] += 1
                return result

        # an optimised graph hides the operators that it fused
        with Watching(), torch.jit.optimized_execution(False):
            infer()
    except (DriverError, ImportError, AttributeError, TypeError, ValueError, LookupError, RuntimeError):
        return Counter()
    return ran


def unit_that_ran(unit: str, device: str, shown: str, operators: Mapping[str, int]) -> ExecutionPlace:
    """The unit that ran the model: a unit other than `unit` if no operator ran on its device. `shown`: name of the unit's device for the
    row. `operators`: by kind of device."""
    kind = device.partition(":")[0]
    if not operators:
        return ExecutionPlace(unit, (shown,), ("torch does not report where the operators ran",))
    others = sorted(set(operators) - {kind}, key=lambda name: (-operators[name], name))
    if kind not in operators:
        return ExecutionPlace(
            f"CPU ({framework_of(unit)})" if others[0] == "cpu" else others[0], tuple(others)
        )
    total = sum(operators.values())
    notes = tuple(f"{operators[name]} of {total} operators ran on the {name}" for name in others)
    return ExecutionPlace(unit, (shown, *others), notes)
