"""Shared by drivers of all runtimes: the first inputs that run, pre-run steps on them, post-run steps on the last outputs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from drivers.contract import steps
from drivers.contract.base import Unfit, Unshaped, WorkOrder
from drivers.inputs.synthetic import DTYPES, Input, id_bounds, make
from protocol.formats.shapes import GivenSizes, ShapeError, dim_keys, resolve, show_shape
from protocol.formats.steps import PRE

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each input, by name."""
T = TypeVar("T")

NAMES: Final[Mapping[str, str]] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "bool")},
}
"""Element types as people write them → their ONNX names."""
_FORM: Final = re.compile(r"([a-z0-9]+)\[([A-Za-z0-9_, ]*)\]")


def read_declared(name: str, form: str) -> Input:
    """An input declared as `float32[batch, 3, 224, 224]`. Raises `Unfit`."""
    match = _FORM.fullmatch(form)
    if match is None or match[1] not in NAMES:
        raise Unfit(
            f"input {name!r} is declared as {form[:80]!r}: write its type and shape, such as float32[1, 3, 224, 224]"
        )
    axes = [axis.strip() for axis in match[2].split(",")] if match[2].strip() else []
    if not all(axes):
        raise Unfit(f"input {name!r} is declared as {form[:80]!r}: a size is missing between two commas")
    return Input(name, NAMES[match[1]], tuple(int(axis) if axis.isdecimal() else axis for axis in axes))


def shapes_of(order: WorkOrder, inputs: Sequence[Input]) -> Shapes:
    """The shape of each input, by name. Raises `Unshaped`."""
    given = GivenSizes(order.dims, order.shapes, order.batch, order.batch_dim, order.own_dims)
    try:
        return resolve([one.port for one in inputs], given)
    except ShapeError as why:
        raise Unshaped(str(why)) from why


def find_runnable(order: WorkOrder, inputs: Sequence[Input], attempt: Callable[[Shapes, int], T]) -> T:
    """The result of `attempt(shapes, bound of synthetic integers)` for the first bound that runs. If none runs, raises the first error."""
    steps.check(order.pre, PRE, [one.name for one in inputs])
    shapes = shapes_of(order, inputs)
    why: Unfit | None = None
    for bound in id_bounds(inputs):
        try:
            return attempt(shapes, bound)
        except Unfit as failed:
            why = why or failed
    assert why is not None
    raise blame_sizes(order, inputs, shapes, why)


def blame_sizes(order: WorkOrder, inputs: Sequence[Input], shapes: Shapes, why: Unfit) -> Unfit:
    """`why`, turned into `Unshaped` if sizes chosen by the user may have caused it."""
    if type(why) is not Unfit or not (chosen := _chosen(order, inputs, shapes)):
        return why
    return Unshaped(
        f"it failed with {chosen}: {why}; if these sizes are wrong, give ones that the model takes"
    )


def _chosen(order: WorkOrder, inputs: Sequence[Input], shapes: Shapes) -> str:
    """The shapes with sizes that the user chose, in words; empty: the model fixes them all, or none was given."""
    ports = [one.port for one in inputs if any(True for _ in one.port.dynamic())]
    keys = dim_keys(ports)
    given = order.batch is not None or order.shapes or any(key in keys for key in order.dims)
    return ", ".join(f"{port.name} {show_shape(shapes[port.name])}" for port in ports) if given else ""


def make_feeds(
    order: WorkOrder, inputs: Sequence[Input], shapes: Shapes, bound: int
) -> tuple[dict[str, Array], int]:
    """Values of all inputs after the order's pre-run steps, and the nanoseconds of these steps. Raises `Unfit`."""
    feeds: dict[str, Array] = {}
    pre_ns = 0
    names = [one.name for one in inputs]
    for one in inputs:
        todo = [step for step in order.pre if steps.of_which(step, names) == one.name]
        shape = shapes[one.name]
        if not todo:
            feeds[one.name] = make(one, shape, order.seed, bound)
            continue
        carrier, number = DTYPES[one.dtype]
        if number is not None or one.dtype in ("bool", "string"):
            raise Unfit(f"pre-run steps do not apply to {one.name!r}, which is {one.dtype}")
        source = steps.raw_type(carrier, todo)
        name = next(name for name, (type_, odd) in DTYPES.items() if type_ == source and odd is None)
        raw = make(Input(one.name, name, one.shape), steps.raw_shape(shape, todo), order.seed, bound)
        began = time.perf_counter_ns()
        done = steps.apply(raw, todo).astype(np.dtype(carrier), copy=False)
        pre_ns += time.perf_counter_ns() - began
        if done.shape != shape:
            raise Unfit(f"pre-run steps give {one.name!r} the shape {list(done.shape)}, not {list(shape)}")
        feeds[one.name] = done
    return feeds, pre_ns


def post_run(order: WorkOrder, outputs: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Run the post-run steps on the last outputs: returns nanoseconds, and a note on each output that they changed. Raises `Unfit`."""
    names = list(outputs)
    values = dict(outputs)
    began = time.perf_counter_ns()
    for step in order.post:
        of = steps.of_which(step, names)
        if not isinstance(values[of], np.ndarray):
            raise Unfit(f"post-run steps are for tensors, but output {of!r} is not a tensor")
        values[of] = steps.apply(values[of], [step])
    took = time.perf_counter_ns() - began
    changed = dict.fromkeys(steps.of_which(step, names) for step in order.post)
    return took, tuple(
        f"post-run: {of!r} became {values[of].dtype} {list(values[of].shape)}" for of in changed
    )
