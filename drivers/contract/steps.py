"""Pre-run and post-run steps: what is done to made inputs before the model gets them, and to its last outputs after.

A closed list of pure numpy functions. Their time is a figure of its own (`pre_ms`, `post_ms`), never part of a load or an
inference. A step is `{"step": name, "of": input or output, "options": {…}}`; names and options are those of protocol/values/steps.py,
which a test keeps equal to these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit

Array = np.ndarray[Any, Any]
Step = Mapping[str, Any]


def normalise(
    values: Array,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    scale: float = 1.0,
    axis: int = 1,
) -> Array:
    """(values × scale - mean) / std; a list has an entry for each place along `axis`."""
    wide = _float(values)
    shifted = wide * wide.dtype.type(scale) - _along(mean, wide, axis, "mean")
    return np.asarray(shifted / _along(std, wide, axis, "std"))


def scale(values: Array, by: float, offset: float = 0.0) -> Array:
    """values × by + offset."""
    wide = _float(values)
    return np.asarray(wide * wide.dtype.type(by) + wide.dtype.type(offset))


def clip(values: Array, low: float, high: float) -> Array:
    """Nothing below `low` or above `high`."""
    return np.clip(values, np.asarray(low, values.dtype), np.asarray(high, values.dtype))


def transpose(values: Array, order: Sequence[int]) -> Array:
    """The axes in another order: [0, 3, 1, 2] puts the last one, such as an image's channels, second."""
    if sorted(order) != list(range(values.ndim)):
        raise Unfit(f"transpose: the order {list(order)} is not one of {values.ndim} axes")
    return np.ascontiguousarray(values.transpose(order))


def cast(values: Array, **options: str) -> Array:
    """From the type in the option `from`, in which the raw input was made, to what the next step or the model takes."""
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def softmax(values: Array, axis: int = -1) -> Array:
    """Shares along an axis that sum to 1."""
    wide = _float(values)
    raised = np.exp(wide - wide.max(axis=_there(axis, values, "softmax"), keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def sigmoid(values: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    wide = _float(values)
    small = np.exp(-np.abs(wide))
    return np.asarray(np.where(wide >= 0, 1 / (1 + small), small / (1 + small)))


def argmax(values: Array, axis: int = -1) -> Array:
    """Where the largest value along an axis is."""
    return np.asarray(values.argmax(axis=_there(axis, values, "argmax")))


def top_k(values: Array, k: int, axis: int = -1) -> Array:
    """Where the `k` largest values along an axis are, the largest first."""
    length = values.shape[_there(axis, values, "top_k")]
    if k > length:
        raise Unfit(f"top_k: {k} of {length} values along axis {axis}")
    return np.flip(
        np.take(np.argsort(values, axis=axis, kind="stable"), range(length - k, length), axis), axis
    )


PRE: Final[Mapping[str, Callable[..., Array]]] = {
    "normalise": normalise,
    "scale": scale,
    "clip": clip,
    "transpose": transpose,
    "cast": cast,
}
POST: Final[Mapping[str, Callable[..., Array]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "argmax": argmax,
    "top_k": top_k,
}
SOURCES: Final = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
"""Types in which a raw input may be made."""


def _float(values: Array) -> Array:
    if values.dtype.kind not in "fiub":
        raise Unfit(f"steps compute with real numbers; this is {values.dtype}")
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def _there(axis: int, values: Array, step: str) -> int:
    if not -values.ndim <= axis < values.ndim or 0 in values.shape:
        raise Unfit(f"{step}: no values along axis {axis} in a shape of {list(values.shape)}")
    return axis


def _along(told: float | Sequence[float], values: Array, axis: int, what: str) -> Array:
    if isinstance(told, int | float):
        return np.asarray(told, values.dtype)
    if len(told) != values.shape[_there(axis, values, "normalise")]:
        raise Unfit(
            f"normalise: {len(told)} entries in {what} for {values.shape[axis]} places along axis {axis}"
        )
    shape = [1] * values.ndim
    shape[axis] = len(told)
    return np.asarray(told, values.dtype).reshape(shape)


def check(steps: Sequence[Step], known: Mapping[str, Callable[..., Array]], names: Sequence[str]) -> None:
    """Refuse what cannot be done, before anything is loaded by it. `names`: inputs or outputs. Raises `Unfit`."""
    for step in steps:
        name, options = step.get("step"), step.get("options", {})
        function = known.get(name) if isinstance(name, str) else None
        if function is None:
            raise Unfit(f"there is no step {str(name)[:60]!r} here: there are {', '.join(known)}")
        takes = inspect.signature(function).parameters
        allowed = {"from"} if function is cast else set(takes) - {"values"}
        if unknown := sorted(set(options) - allowed):
            told = ", ".join(sorted(allowed)) or "none"
            raise Unfit(f"{name} has no option {unknown[0][:60]!r}: it takes {told}")
        needs = {key for key in takes if takes[key].default is inspect.Parameter.empty} - {
            "values",
            "options",
        }
        if missing := sorted(({"from"} if function is cast else needs) - set(options)):
            raise Unfit(f"{name} needs the option {missing[0]}")
        if function is cast and options["from"] not in SOURCES:
            raise Unfit(f"cast: from {str(options['from'])[:60]!r}; there are {', '.join(SOURCES)}")
        of_which(step, names)


def of_which(step: Step, names: Sequence[str]) -> str:
    """The input or output that a step is done to. Raises `Unfit` where that is not clear."""
    of = step.get("of", "")
    if of in names:
        return str(of)
    if not of and len(names) == 1:
        return names[0]
    told = f"{step.get('step')} is to be done to {str(of)[:60]!r}" if of else f"{step.get('step')}: to which"
    raise Unfit(f"{told}; the model has {', '.join(names[:20]) or 'none'}")


def raw_shape(shape: Sequence[int], steps: Sequence[Step]) -> tuple[int, ...]:
    """The shape of an input before its steps, so that after them it has `shape`."""
    for step in reversed(steps):
        if step["step"] == "transpose":
            order = step["options"]["order"]
            if sorted(order) != list(range(len(shape))):
                raise Unfit(f"transpose: the order {list(order)} is not one of {len(shape)} axes")
            shape = [shape[order.index(axis)] for axis in range(len(shape))]
    return tuple(shape)


def raw_type(dtype: str, steps: Sequence[Step]) -> str:
    """The numpy type of an input before its steps: what its first cast is from, else `dtype`."""
    return next((str(step["options"]["from"]) for step in steps if step["step"] == "cast"), dtype)


def apply(values: Array, steps: Sequence[Step], known: Mapping[str, Callable[..., Array]]) -> Array:
    """All steps, one after the other. Raises `Unfit` where the values do not allow one of them."""
    for step in steps:
        try:
            values = known[step["step"]](values, **step.get("options", {}))
        except (TypeError, ValueError) as why:
            raise Unfit(f"{step['step']}: {why}") from why
    return values
