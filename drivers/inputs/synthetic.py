"""Synthetic inputs for any model: seeded values within the range that the input's name suggests (small token ids, masks of ones, states of
zeros, a sample rate of 16000). Their shapes come from `protocol.formats.shapes`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import MAX_RANK, Unfit
from protocol.formats.shapes import InputPort

MAX_BYTES: Final = 1 << 30
"""Most bytes of one input."""
ID_BOUNDS: Final = (100, 10, 2, 1)
"""Synthetic integers are below the first of these bounds with which the model runs, because ids index tables of unknown length."""

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

MASK: Final = re.compile(r"mask", re.IGNORECASE)
ZEROS: Final = re.compile(r"token_?type|segment|state|hidden|^(h|c|h0|c0|hx|cx)$|past|cache", re.IGNORECASE)
RATE: Final = re.compile(r"^(sr|sample_?rate|sampling_?rate|fs)$", re.IGNORECASE)
SHARE: Final = re.compile(r"prob|score|confidence|alpha|iou|threshold|temperature", re.IGNORECASE)
SOUND: Final = re.compile(r"audio|wave?(form)?|speech|signal|pcm|samples", re.IGNORECASE)
QUIET: Final = 0.1
"""Standard deviation of synthetic sound, whose full scale is 1."""
POSITION: Final = re.compile(r"position", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `shape` entries: a size, a symbol, or None for a nameless dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    rows: int | None = None
    """Rows of the table that the input's values index; None: unknown."""
    full_range: bool = False
    """The integers are steps of a scale, as in quantised inputs: synthetic ones cover the whole range of their type."""

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise Unfit(
                f"input {self.name!r} has {len(self.shape)} dimensions, a model's inputs have at most {MAX_RANK}"
            )

    @property
    def port(self) -> InputPort:
        return InputPort(self.name, self.shape)


def element_type(name: str, described: str) -> str:
    """The element type, such as `float` of `tensor(float)`. Raises `Unfit` for all others: sequences, maps, optionals, unknown elements."""
    match = re.fullmatch(r"tensor\((\w+)\)", described)
    if match is None or match[1] not in DTYPES:
        raise Unfit(f"input {name!r} is of type {described}, which cannot be generated")
    return match[1]


def id_bounds(inputs: Sequence[Input]) -> tuple[int, ...]:
    """Bounds to try for synthetic integers; only one if no input needs them."""
    unknown = any("int" in made.dtype and not made.rows and not made.full_range for made in inputs)
    return ID_BOUNDS if unknown else ID_BOUNDS[:1]


def make(made: Input, shape: tuple[int, ...], seed: int, bound: int) -> np.ndarray[Any, Any]:
    """The values of one input: equal for equal (name, shape, seed, bound), on every machine.

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
    if made.full_range:
        limits = np.iinfo(dtype)
        return source.integers(limits.min, int(limits.max) + 1, shape, dtype=np.int64).astype(dtype)
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
        return _floats(source, shape, made.name).astype(dtype)
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


def _floats(source: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
    """Values from 0 to 1, sound at a tenth of full scale, or else noise with mean 0 and deviation 1, like normalised images and
    features."""
    if SHARE.search(name):
        return source.random(shape, dtype=np.float32)
    values = noise(source, math.prod(shape)).reshape(shape)
    return values * np.float32(QUIET) if SOUND.search(name) else values


def noise(source: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Nearly normal noise: sums of four uniform 16-bit integers, so that every machine makes the same bits."""
    words = source.integers(0, 2**64, count, dtype=np.uint64).view(np.uint16).reshape(-1, 4)
    values: np.ndarray[Any, Any] = (words.sum(axis=1, dtype=np.int32) - 131_070) / 37_837.2
    return values.astype(np.float32)


def _narrow(source: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
    """Values as bits: noise for bfloat16, as the upper half of a float32; for the 8-bit types numbers from 0 to 1, because every pattern up
    to that of 1.0 is one."""
    if name == "bfloat16":
        return (noise(source, math.prod(shape)).view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
    return source.integers(0, BIT_ONES[name] + 1, shape, dtype=np.uint8)
