"""Made inputs with their pre-run steps done, and the post-run steps on the last outputs: what drivers of any runtime share."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from drivers.contract import steps
from drivers.contract.base import Unfit, WorkOrder
from drivers.inputs.made import DTYPES, Input, Shapes, make

Array = np.ndarray[Any, Any]

NAMES: Final[Mapping[str, str]] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "bool")},
}
"""Element types as people write them → as `onnx_inputs` calls them."""
_FORM: Final = re.compile(r"([a-z0-9]+)\[([A-Za-z0-9_, ]*)\]")


def declared(name: str, form: str) -> Input:
    """An input as an order declares it: `float32[batch, 3, 224, 224]`. Raises `Unfit`."""
    match = _FORM.fullmatch(form)
    if match is None or match[1] not in NAMES:
        raise Unfit(
            f"input {name!r} is declared as {form[:80]!r}: write its type and shape, float32[1, 3, 224, 224]"
        )
    axes = [axis.strip() for axis in match[2].split(",")] if match[2].strip() else []
    if not all(axes):
        raise Unfit(f"input {name!r} is declared as {form[:80]!r}: a size is missing between two commas")
    return Input(name, NAMES[match[1]], tuple(int(axis) if axis.isdecimal() else axis for axis in axes))


def feeds(
    order: WorkOrder, inputs: Sequence[Input], shapes: Shapes, bound: int
) -> tuple[dict[str, Array], int]:
    """Values for all inputs, after the order's pre-run steps, and the nanoseconds that the steps took. Raises `Unfit`."""
    fed: dict[str, Array] = {}
    took = 0
    names = [one.name for one in inputs]
    for one in inputs:
        todo = [step for step in order.pre if steps.of_which(step, names) == one.name]
        shape = shapes.of(one)
        if not todo:
            fed[one.name] = make(one, shape, order.seed, bound)
            continue
        carrier, number = DTYPES[one.dtype]
        if number is not None or one.dtype in ("bool", "string"):
            raise Unfit(f"pre-run steps are not for {one.name!r}, which is {one.dtype}")
        source = steps.raw_type(carrier, todo)
        name = next(name for name, (type_, odd) in DTYPES.items() if type_ == source and odd is None)
        raw = make(Input(one.name, name, one.shape), steps.raw_shape(shape, todo), order.seed, bound)
        began = time.perf_counter_ns()
        done = steps.apply(raw, todo).astype(np.dtype(carrier), copy=False)
        took += time.perf_counter_ns() - began
        if done.shape != shape:
            raise Unfit(f"pre-run steps give {one.name!r} the shape {list(done.shape)}, not {list(shape)}")
        fed[one.name] = done
    return fed, took


def post_run(order: WorkOrder, outputs: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """The post-run steps done to the last outputs: how long they took, and what came of them. Raises `Unfit`."""
    names = list(outputs)
    held = dict(outputs)
    began = time.perf_counter_ns()
    for step in order.post:
        of = steps.of_which(step, names)
        if not isinstance(held[of], np.ndarray):
            raise Unfit(f"post-run steps are for tensors, and output {of!r} is no tensor")
        held[of] = steps.apply(held[of], [step])
    took = time.perf_counter_ns() - began
    touched = dict.fromkeys(steps.of_which(step, names) for step in order.post)
    return took, tuple(f"post-run: {of!r} became {held[of].dtype} {list(held[of].shape)}" for of in touched)
