"""Small LiteRT models made as bytes: models to run when no other is at hand.

Field numbers are those of LiteRT's schema, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drivers.local.flat_write import FlatWriter, small_weights

FLOAT32: Final = 0
"""`TensorType`."""
FULLY_CONNECTED: Final = 9
"""`BuiltinOperator`."""
FULLY_CONNECTED_OPTIONS: Final = 8
"""`BuiltinOptions`."""
CUSTOM: Final = 32


@dataclass(frozen=True, slots=True)
class SampleTensor:
    name: str
    shape: tuple[int, ...]
    data: bytes = b""
    """Data of the tensor; empty: it is computed, or an input."""
    type: int = FLOAT32
    signature: tuple[int, ...] | None = None
    """The shape, with -1 for dynamic sizes; None: no size is dynamic."""
    scale: tuple[float, int] | None = None
    """Size of a step, and the step that means zero."""


@dataclass(frozen=True, slots=True)
class SampleOperator:
    """`inputs` and `outputs` are numbers of tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    code: int = FULLY_CONNECTED
    options: int = FULLY_CONNECTED_OPTIONS
    """The type of the operator's options, all of which keep their defaults."""
    custom: str = ""


def write(
    tensors: Sequence[SampleTensor],
    operators: Sequence[SampleOperator],
    inputs: Sequence[int],
    outputs: Sequence[int],
    signed: bool = False,
) -> bytes:
    """A model with one graph. `signed`: with a signature that contains the tensors' names."""
    made = _Tables()
    buffers = made.offsets([made.table(), *(made.buffer(one.data) for one in tensors)])
    graph = made.table(
        (0, "o", made.offsets([made.tensor(one, at + 1) for at, one in enumerate(tensors)])),
        (1, "o", made.numbers("i", inputs)),
        (2, "o", made.numbers("i", outputs)),
        (3, "o", made.offsets([made.operator(one, at) for at, one in enumerate(operators)])),
    )
    fields = [
        (0, "I", 3),
        (1, "o", made.offsets([made.code(one) for one in operators])),
        (2, "o", made.offsets([graph])),
        (4, "o", buffers),
    ]
    if signed:
        sides = [(0, inputs), (1, outputs)]
        maps = [
            (slot, "o", made.offsets([made.named(tensors[at].name, at) for at in side]))
            for slot, side in sides
        ]
        fields.append((7, "o", made.offsets([made.table(*maps, (2, "o", made.text("main")))])))
    return made.finish(made.table(*fields), b"TFL3")


class _Tables(FlatWriter):
    """LiteRT's tables."""

    def tensor(self, one: SampleTensor, buffer: int) -> int:
        name = self.text(one.name)
        fields = [
            (0, "o", self.numbers("i", one.shape)),
            (1, "b", one.type),
            (2, "I", buffer),
            (3, "o", name),
        ]
        if one.scale is not None:
            size, zero = one.scale
            scale, point = self.numbers("f", [size]), self.numbers("q", [zero])
            fields.append((4, "o", self.table((2, "o", scale), (3, "o", point))))
        if one.signature is not None:
            fields.append((7, "o", self.numbers("i", one.signature)))
        return self.table(*fields)

    def operator(self, one: SampleOperator, code: int) -> int:
        sides = [(1, "o", self.numbers("i", one.inputs)), (2, "o", self.numbers("i", one.outputs))]
        options = [(3, "b", one.options), (4, "o", self.table())] if one.options else []
        return self.table((0, "I", code), *sides, *options)

    def code(self, one: SampleOperator) -> int:
        named = [(1, "o", self.text(one.custom))] if one.custom else []
        code = CUSTOM if one.custom else one.code
        return self.table((0, "b", code), *named, (2, "i", 1), (3, "i", code))

    def named(self, name: str, tensor: int) -> int:
        return self.table((0, "o", self.text(name)), (1, "I", tensor))


def perceptron(width: int, layers: int) -> bytes:
    """`layers` square products of this width; the weights are small and vary."""
    shape = (width, width)
    weights = small_weights(width * width, width)
    tensors = [SampleTensor("x", (1, width))]
    operators = []
    for number in range(layers):
        at = len(tensors)
        name = "y" if number == layers - 1 else f"h{number}"
        tensors += [SampleTensor(f"w{number}", shape, weights), SampleTensor(name, (1, width))]
        operators.append(SampleOperator((0 if number == 0 else at - 1, at, -1), (at + 1,)))
    return write(tensors, operators, [0], [len(tensors) - 1])


def double() -> bytes:
    """y = 2x."""
    tensors = [
        SampleTensor("x", (1, 1)),
        SampleTensor("w", (1, 1), struct.pack("<f", 2.0)),
        SampleTensor("y", (1, 1)),
    ]
    return write(tensors, [SampleOperator((0, 1, -1), (2,))], [0], [2])
