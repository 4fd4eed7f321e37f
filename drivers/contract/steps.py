"""Pre-run steps on synthetic inputs, and post-run steps on a model's last outputs.

Pure numpy functions. Their time is reported separately (`pre_ms`, `post_ms`) and is never part of a load or an inference. The closed list
of steps with their options and defaults: `protocol.formats.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit
from protocol.formats.steps import POST, PRE, StepOption, problem

Array = np.ndarray[Any, Any]
Step = Mapping[str, Any]


def normalise(
    values: Array, mean: float | Sequence[float], std: float | Sequence[float], scale: float, axis: int
) -> Array:
    """(values × scale - mean) / std; a list has one entry per index along `axis`."""
    wide = _float(values)
    shifted = wide * wide.dtype.type(scale) - _along(mean, wide, axis, "mean")
    return np.asarray(shifted / _along(std, wide, axis, "std"))


def scale(values: Array, by: float, offset: float) -> Array:
    """values × by + offset."""
    wide = _float(values)
    return np.asarray(wide * wide.dtype.type(by) + wide.dtype.type(offset))


def clip(values: Array, low: float, high: float) -> Array:
    """Limit the values to the range from `low` to `high`."""
    return np.clip(values, np.asarray(low, values.dtype), np.asarray(high, values.dtype))


def transpose(values: Array, order: Sequence[int]) -> Array:
    """Reorder the axes: [0, 3, 1, 2] puts the last one, such as an image's channels, second."""
    if sorted(order) != list(range(values.ndim)):
        raise Unfit(f"transpose: the order {list(order)} is not a permutation of {values.ndim} axes")
    return np.ascontiguousarray(values.transpose(order))


def cast(values: Array, **options: str) -> Array:
    """Convert to the type that the next step or the model takes; the raw input is made with the type `from`."""
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def softmax(values: Array, axis: int) -> Array:
    """Normalised exponentials along an axis, which sum to 1."""
    wide = _float(values)
    raised = np.exp(wide - wide.max(axis=_checked_axis(axis, values, "softmax"), keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def sigmoid(values: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    wide = _float(values)
    small = np.exp(-np.abs(wide))
    return np.asarray(np.where(wide >= 0, 1 / (1 + small), small / (1 + small)))


def argmax(values: Array, axis: int) -> Array:
    """Index of the largest value along an axis."""
    return np.asarray(values.argmax(axis=_checked_axis(axis, values, "argmax")))


def top_k(values: Array, k: int, axis: int) -> Array:
    """Indices of the `k` largest values along an axis, the largest first."""
    length = values.shape[_checked_axis(axis, values, "top_k")]
    if k > length:
        raise Unfit(f"top_k: k is {k}, but there are only {length} values along axis {axis}")
    return np.flip(
        np.take(np.argsort(values, axis=axis, kind="stable"), range(length - k, length), axis), axis
    )


FUNCTIONS: Final[Mapping[str, Callable[..., Array]]] = {
    function.__name__: function
    for function in (normalise, scale, clip, transpose, cast, softmax, sigmoid, argmax, top_k)
}


def _float(values: Array) -> Array:
    if values.dtype.kind not in "fiub":
        raise Unfit(f"steps compute with real numbers, not with {values.dtype}")
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def _checked_axis(axis: int, values: Array, step: str) -> int:
    if not -values.ndim <= axis < values.ndim or 0 in values.shape:
        raise Unfit(f"{step}: no values along axis {axis} in a shape of {list(values.shape)}")
    return axis


def _along(entries: float | Sequence[float], values: Array, axis: int, what: str) -> Array:
    if isinstance(entries, int | float):
        return np.asarray(entries, values.dtype)
    if len(entries) != values.shape[_checked_axis(axis, values, "normalise")]:
        raise Unfit(
            f"normalise: {what} has {len(entries)} entries, but axis {axis} has {values.shape[axis]} places"
        )
    shape = [1] * values.ndim
    shape[axis] = len(entries)
    return np.asarray(entries, values.dtype).reshape(shape)


def check(
    steps: Sequence[Step], allowed: Mapping[str, Mapping[str, StepOption]], names: Sequence[str]
) -> None:
    """Raise `Unfit` for a step that cannot be done. `allowed`: `PRE` or `POST`. `names`: the inputs or outputs."""
    for step in steps:
        if wrong := problem(step, allowed):
            raise Unfit(wrong)
        of_which(step, names)


def of_which(step: Step, names: Sequence[str]) -> str:
    """The input or output that a step applies to. Raises `Unfit` if that is not clear."""
    of = step.get("of", "")
    if of in names:
        return str(of)
    if not of and len(names) == 1:
        return names[0]
    raise Unfit(
        f"{step.get('step')}: {f'there is no {str(of)[:60]!r}' if of else 'of is missing'}; "
        f"the model has {', '.join(names[:20]) or 'none'}"
    )


def raw_shape(shape: Sequence[int], steps: Sequence[Step]) -> tuple[int, ...]:
    """The shape that an input needs before its steps to have `shape` after them."""
    for step in reversed(steps):
        if step["step"] == "transpose":
            order = step["options"]["order"]
            if sorted(order) != list(range(len(shape))):
                raise Unfit(f"transpose: the order {list(order)} is not a permutation of {len(shape)} axes")
            shape = [shape[order.index(axis)] for axis in range(len(shape))]
    return tuple(shape)


def raw_type(dtype: str, steps: Sequence[Step]) -> str:
    """The numpy type of an input before its steps: the type `from` of its first cast, else `dtype`."""
    return next((str(step["options"]["from"]) for step in steps if step["step"] == "cast"), dtype)


def apply(values: Array, steps: Sequence[Step]) -> Array:
    """Apply all steps in order. Raises `Unfit` if the values do not allow one of them."""
    for step in steps:
        name, options = step["step"], step.get("options", {})
        defaults = {key: option.default for key, option in (PRE | POST)[name].items()}
        try:
            values = FUNCTIONS[name](values, **(defaults | options))
        except (TypeError, ValueError) as why:
            raise Unfit(f"{name}: {why}") from why
    return values
