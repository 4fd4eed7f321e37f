"""A model's inputs and outputs, according to the interpreter's details of its tensors. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit
from drivers.inputs.synthetic import Input

Details = Mapping[str, Any]
"""Details of one tensor: name, index, shape, shape_signature, dtype, quantization."""
DTYPES: Final[Mapping[str, str]] = {
    "float16": "float16",
    "float32": "float",
    "float64": "double",
    "bytes": "string",
    "str": "string",
    "object": "string",
    **{
        name: name
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
    },
}
"""Element types by numpy's name → as `drivers.inputs.synthetic` calls them."""
STEPS: Final = frozenset({"int8", "uint8", "int16"})
"""Types whose values are steps of a scale, if the tensor has a scale."""


@dataclass(frozen=True, slots=True)
class QuantisedScale:
    """value = (step - zero) × size."""

    size: float
    zero: int


@dataclass(frozen=True, slots=True)
class TensorPort:
    """One input or output."""

    name: str
    index: int
    dtype: str
    shape: tuple[int | None, ...]
    """Sizes; None: dynamic."""
    scale: QuantisedScale | None = None

    def as_input(self) -> Input:
        return Input(self.name, self.dtype, self.shape, full_range=self.scale is not None)

    def note(self) -> str:
        """A note on an output with a scale."""
        size = 0.0 if self.scale is None else self.scale.size
        return f"output {self.name!r}: {self.dtype} in steps of {size:.3g}, compared as the numbers they stand for"

    def real(self, values: Any) -> Any:
        """Values of this tensor; steps of a scale are converted to the values that they represent."""
        if self.scale is None:
            return values
        return (values.astype(np.float32) - np.float32(self.scale.zero)) * np.float32(self.scale.size)


def read_ports(details: Sequence[Details], names: Mapping[int, str]) -> tuple[TensorPort, ...]:
    """The ports in the model's order. `names`: names of tensors by index, from the model's signature; other ports have their tensor's
    name."""
    called = [names.get(int(one["index"])) or str(one["name"]) or f"tensor_{one['index']}" for one in details]
    doubled = {name for name, count in Counter(called).items() if count > 1}
    return tuple(
        _port(f"{name}#{one['index']}" if name in doubled else name, one)
        for name, one in zip(called, details, strict=True)
    )


def _port(name: str, details: Details) -> TensorPort:
    kind = np.dtype(details["dtype"])
    found = "string" if kind.kind in "SUO" else DTYPES.get(kind.name)
    if found is None:
        raise Unfit(f"tensor {name!r} is of type {kind.name}, which cannot be generated")
    shape, signature = _sizes(details["shape"]), _sizes(details.get("shape_signature", ()))
    if len(signature) == len(shape):
        shape = tuple(None if size < 0 else size for size in signature)
    size, zero = details.get("quantization") or (0.0, 0)
    scale = QuantisedScale(float(size), int(zero)) if size and found in STEPS else None
    return TensorPort(name, int(details["index"]), found, shape, scale)


def _sizes(values: Any) -> tuple[Any, ...]:
    return tuple(int(size) for size in values)
