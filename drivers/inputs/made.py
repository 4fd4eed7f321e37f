"""Synthetic inputs for any model: their shapes and values.

Shapes: from the campaign's `dims`, else the model's own metadata, else a guess by the symbol's name or position, else a ladder of sizes
until the model runs. Values: seeded, within what the name suggests (token ids small, masks one, states zero, sample rates 16000). Every
guess is a note on the row, because a time without its shape means nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import MAX_RANK, Unfit

MAX_BYTES: Final = 1 << 30
"""Of one input."""
LADDER: Final = (1, 8, 32, 48, 64, 128, 224, 320, 640)
ID_BOUNDS: Final = (100, 10, 2, 1)
"""Synthetic integers are below the first of these with which the model runs, because ids index tables of unknown length."""

_OF_NUMPY: Final = (
    *("float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
DTYPES: Final[Mapping[str, tuple[str, int | None]]] = {
    "float": ("float32", None),
    "double": ("float64", None),
    "string": ("object", None),
    **{name: (name, None) for name in _OF_NUMPY},
    "bfloat16": ("uint16", 16),
    "float8e4m3fn": ("uint8", 17),
    "float8e4m3fnuz": ("uint8", 18),
    "float8e5m2": ("uint8", 19),
    "float8e5m2fnuz": ("uint8", 20),
    "uint4": ("uint8", 21),
    "int4": ("int8", 22),
    "uint2": ("uint8", 25),
    "int2": ("int8", 26),
}
"""Element type by onnxruntime's name → the numpy type that carries it, and its ONNX number if numpy has no such type."""
NARROW: Final[Mapping[str, int]] = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}
"""Bits of the integers that are packed several to a byte."""

BATCH: Final = re.compile(r"^(n|b|bs|batch.*|.*batch(_?size)?|num_?batch.*)$", re.IGNORECASE)
"""Symbols of the batch."""
BY_NAME: Final[tuple[tuple[re.Pattern[str], int], ...]] = (
    (BATCH, 1),
    (re.compile(r"past|cache", re.IGNORECASE), 16),
    (re.compile(r"seq|len|tokens?|^t$|time|frames?|steps?|words?|chars?", re.IGNORECASE), 128),
    (re.compile(r"^(c|ch|channels?|num_?channels?)$", re.IGNORECASE), 3),
    (re.compile(r"^(h|w|height|width|.*_(height|width)|img_?(h|w)|image_?size)$", re.IGNORECASE), 224),
    (re.compile(r"samples?|audio", re.IGNORECASE), 16000),
)
MASK: Final = re.compile(r"mask", re.IGNORECASE)
ZEROS: Final = re.compile(r"token_?type|segment|state|hidden|^(h|c|h0|c0|hx|cx)$|past|cache", re.IGNORECASE)
STATE: Final = re.compile(r"state|hidden|^(h|c|h0|c0|hx|cx|hn|cn)$", re.IGNORECASE)
RATE: Final = re.compile(r"^(sr|sample_?rate|sampling_?rate|fs)$", re.IGNORECASE)
POSITION: Final = re.compile(r"position", re.IGNORECASE)
IMAGE_CHANNELS: Final = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `shape` entries: a size, a symbol, or None for a nameless dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    rows: int | None = None
    """Of the table that its values index; None: unknown."""

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise Unfit(
                f"input {self.name!r} has {len(self.shape)} dimensions, a model's inputs have at most {MAX_RANK}"
            )

    def axes(self) -> tuple[int | str, ...]:
        """The shape with a key for each dynamic axis: its symbol, or `name[axis]`."""
        return tuple(
            size
            if isinstance(size, int) and size >= 0
            else (size if isinstance(size, str) and size else f"{self.name}[{axis}]")
            for axis, size in enumerate(self.shape)
        )


def element_type(name: str, described: str) -> str:
    """`float` of `tensor(float)`. Raises `Unfit` for all others: sequences, maps, optionals, unknown elements."""
    match = re.fullmatch(r"tensor\((\w+)\)", described)
    if match is None or match[1] not in DTYPES:
        raise Unfit(f"input {name!r} is of type {described}, which cannot be made up")
    return match[1]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of all dynamic dimensions; `guessed` are the keys of those that are guesses."""

    sizes: Mapping[str, int]
    guessed: tuple[str, ...]

    def of(self, made: Input) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.sizes[axis] if isinstance(axis, str) else axis for axis in made.axes())

    def notes(self) -> tuple[str, ...]:
        """A line per guess."""
        return tuple(f"dim {name!r} not given: {self.sizes[name]} is taken" for name in self.guessed)


def candidates(
    inputs: Sequence[Input], dims: Mapping[str, int], metadata: Mapping[str, str]
) -> Iterator[Shapes]:
    """Sizes to try, best first; only one if nothing is guessed."""
    given: dict[str, int] = {}
    guesses: dict[str, int] = {}
    for made in inputs:
        axes = made.axes()
        for axis, key in enumerate(axes):
            if isinstance(key, int) or key in given:
                continue
            size = dims.get(key, dims.get(f"{made.name}[{axis}]", size_in_metadata(metadata, key)))
            if size is not None:
                if size < 0:
                    raise Unfit(f"dims: {key!r} is {size}; a size is 0 or more")
                given[key] = size
                guesses.pop(key, None)
            elif key not in guesses:
                guesses[key] = 1 if is_batch_of_state(made, axis) else guess(key, axis, axes)
    yield Shapes(given | guesses, tuple(guesses))
    batches = {
        key
        for made in inputs
        for axis, key in enumerate(made.axes())
        if (axis == 0 or is_batch_of_state(made, axis)) and guesses.get(str(key)) == 1
    }
    tried = {tuple(guesses.values())}
    for fixed in (batches, set[str]()):
        for size in LADDER:
            stepped = {key: was if key in fixed else size for key, was in guesses.items()}
            if tuple(stepped.values()) not in tried:
                tried.add(tuple(stepped.values()))
                yield Shapes(given | stepped, tuple(guesses))


def is_batch_of_state(made: Input, axis: int) -> bool:
    """Whether this is the nameless second axis of a recurrent state: [layers, batch, width]."""
    return axis == 1 and len(made.shape) == 3 and not made.shape[1] and STATE.search(made.name) is not None


def size_in_metadata(metadata: Mapping[str, str], symbol: str) -> int | None:
    """The size in the model's metadata under the symbol's name, if there is one."""
    text = metadata.get(symbol, "").strip()
    return int(text) if text.isdecimal() and 0 < len(text) <= 6 else None


def guess(key: str, axis: int, axes: Sequence[int | str]) -> int:
    """A plausible size of one dynamic axis: by its symbol, else by its position in an image, a batch or a sequence."""
    for pattern, size in BY_NAME:
        if pattern.search(key):
            return size
    if len(axes) == 4:
        if axis == 0:
            return 1
        channel_axis = 3 if axes[3] in IMAGE_CHANNELS and axes[1] not in IMAGE_CHANNELS else 1
        return 3 if axis == channel_axis else 224
    if axis == 0 and len(axes) > 1:
        return 1
    return 128 if axis == 1 and len(axes) in (2, 3) else 1


def unused(inputs: Sequence[Input], dims: Mapping[str, int]) -> tuple[str, ...]:
    """A line for each of the campaign's `dims` that is no dynamic dimension of this model."""
    dynamic = {key for made in inputs for key in made.axes()} | {
        f"{made.name}[{axis}]"
        for made in inputs
        for axis, size in enumerate(made.shape)
        if not isinstance(size, int)
    }
    return tuple(
        f"dim {name!r} is given but is no dynamic dimension of the model"
        for name in dims
        if name not in dynamic
    )


def id_bounds(inputs: Sequence[Input]) -> tuple[int, ...]:
    """Bounds to try for synthetic integers; one if no input has any."""
    return ID_BOUNDS if any("int" in made.dtype and not made.rows for made in inputs) else ID_BOUNDS[:1]


def make(made: Input, shape: tuple[int, ...], seed: int, bound: int) -> np.ndarray[Any, Any]:
    """The values of one input: the same for the same (name, shape, seed, bound), on every machine.

    Raises `Unfit` above 1 GiB.
    """
    carrier, onnx_number = DTYPES[made.dtype]
    dtype = np.dtype(carrier)
    bound = made.rows or bound
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise Unfit(f"input {made.name!r} of shape {list(shape)} would be larger than {MAX_BYTES >> 20} MiB")
    if made.dtype == "string":
        return np.array([f"text {index}" for index in range(math.prod(shape))], dtype=object).reshape(shape)
    key = hashlib.sha256(f"{seed}/{made.name}".encode()).digest()
    source = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
    if MASK.search(made.name):
        return _ones(shape, made.dtype, dtype)
    if made.dtype in NARROW and not ZEROS.search(made.name):
        most = 1 << NARROW[made.dtype]
        least = -(most >> 1) if dtype.kind == "i" else 0
        return source.integers(least, least + most, shape, dtype=np.int64).astype(dtype)
    if RATE.search(made.name) and onnx_number is None:
        return np.full(shape, min(16000, _largest(dtype)), dtype=dtype)
    if ZEROS.search(made.name):
        return np.zeros(shape, dtype=dtype)
    if made.dtype == "bool":
        return source.integers(0, 2, shape, dtype=np.uint8).astype(bool)
    if onnx_number is not None:
        return _narrow(source, shape, made.dtype)
    if dtype.kind == "f":
        return source.random(shape, dtype=np.float32).astype(dtype)
    if POSITION.search(made.name) and shape:
        return np.broadcast_to(np.arange(shape[-1]) % max(bound, 1), shape).astype(dtype)
    if dtype == np.uint8 and len(shape) >= 3:  # an image of bytes
        return source.integers(0, 256, shape, dtype=np.uint8)
    return source.integers(0, min(bound, _largest(dtype)), shape, dtype=np.int64).astype(dtype)


def _largest(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 1 << 30


BIT_ONES: Final = {
    "bfloat16": 0x3F80,
    "float8e4m3fn": 0x38,
    "float8e4m3fnuz": 0x40,
    "float8e5m2": 0x3C,
    "float8e5m2fnuz": 0x40,
}
"""The bits of 1.0 in types that numpy lacks."""


def _ones(shape: tuple[int, ...], name: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.full(shape, BIT_ONES.get(name, 1), dtype=dtype)


def _narrow(source: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
    """Values in [0, 1] as bits: bfloat16 is the upper half of a float32; of the 8-bit types, every pattern up to 1.0 is one."""
    if name == "bfloat16":
        return (source.random(shape, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return source.integers(0, BIT_ONES[name] + 1, shape, dtype=np.uint8)


def attempts(
    inputs: Sequence[Input], dims: Mapping[str, int], metadata: Mapping[str, str]
) -> Iterator[tuple[Shapes, int]]:
    """Shapes and bounds to try, best first."""
    return itertools.product(candidates(inputs, dims, metadata), id_bounds(inputs))
