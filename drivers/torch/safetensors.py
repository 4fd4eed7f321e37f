"""Reads weights in the safetensors format: a bounded JSON header and raw bytes, nothing that could run.

8 bytes length, little endian │ {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …} │ bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import read_json

MAX_HEADER: Final = 64 * MIB
MAX_RANK: Final = 8
WIDTHS: Final[Mapping[str, tuple[int, str]]] = {
    "F64": (8, "float64"),
    "F32": (4, "float32"),
    "F16": (2, "float16"),
    "BF16": (2, "uint16"),
    "I64": (8, "int64"),
    "I32": (4, "int32"),
    "I16": (2, "int16"),
    "I8": (1, "int8"),
    "U32": (4, "uint32"),
    "U8": (1, "uint8"),
    "BOOL": (1, "bool"),
}
"""Bytes of an element, and the numpy type that carries it (bfloat16 as its bits)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One checked entry of the header. `begin` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A file's tensors and metadata."""

    file: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """One tensor; bfloat16 as its bits."""
        tensor = self.tensors[name]
        count = math.prod(tensor.shape)
        with self.file.open("rb") as source:
            source.seek(tensor.begin)
            return np.fromfile(source, dtype=WIDTHS[tensor.dtype][1], count=count).reshape(tensor.shape)


def read(file: Path) -> Weights:
    """Read and check the header: tensors must follow each other and fill the file. Raises `Unfit`."""
    size = file.stat().st_size
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise Unfit("the safetensors file is broken: its header is too long or cut off")
        header = read_json(source.read(length), "the safetensors header")
    metadata = header.pop("__metadata__", None)
    if metadata is None:  # MLX writes null if there is none
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Unfit("the safetensors file is broken: its metadata are not texts")
    tensors = {name: _tensor(name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, math.prod(item[1].shape))):
        if tensor.begin != end:
            raise Unfit(
                f"the safetensors file is broken: {name[:100]!r} does not follow the tensor before it"
            )
        end += math.prod(tensor.shape) * WIDTHS[tensor.dtype][0]
    if end != size:
        raise Unfit("the safetensors file is broken: it is longer or shorter than its tensors")
    return Weights(file, tensors, metadata)


def _tensor(name: str, entry: object, base: int) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Unfit(f"the safetensors file is broken: {name[:100]!r} is not a tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in WIDTHS:
        raise Unfit(f"the tensor {name[:100]!r} is of type {str(dtype)[:20]}, which is not supported")
    whole = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not whole or len(shape) > MAX_RANK or not isinstance(offsets, list) or len(offsets) != 2:
        raise Unfit(f"the safetensors file is broken: the shape or offset of {name[:100]!r}")
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or begin < 0:
        raise Unfit(f"the safetensors file is broken: the offset of {name[:100]!r}")
    if end - begin != math.prod(shape) * WIDTHS[dtype][0]:
        raise Unfit(f"the safetensors file is broken: {name[:100]!r} does not have the size of its shape")
    return Tensor(dtype, tuple(shape), base + begin)
