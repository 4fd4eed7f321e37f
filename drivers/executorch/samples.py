"""Small ExecuTorch programs made as bytes: programs to run when no other is at hand.

Slots are those of ExecuTorch's `program.fbs`, version 0.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drivers.local.flat_write import ALIGNMENT, FlatWriter, small_weights

FLOAT32: Final = 6
"""`ScalarType`."""
TENSOR: Final = 5
"""`KernelTypes`."""
KERNEL, DELEGATE = 1, 2
"""`InstructionArguments`."""
HEADER: Final = struct.Struct("<4sIQQQ")
"""Mark, length, size of the program, start of its segments, and their size."""
ELEMENT: Final = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class SampleValue:
    """A tensor of float32."""

    sizes: tuple[int, ...]
    data: bytes = b""
    """Data of the tensor; empty: it is computed, or an input."""
    dynamism: int = 0
    type: int = FLOAT32
    external: str = ""
    """Name of the tensor's data in another file; empty: the data are in the program."""


@dataclass(frozen=True, slots=True)
class SampleCall:
    """A call with `args`, the numbers of its values. `backend`: the backend that runs the called part; empty: it calls an operator."""

    args: tuple[int, ...]
    name: str = "aten::mm"
    overload: str = "out"
    backend: str = ""


def write(
    values: Sequence[SampleValue],
    calls: Sequence[SampleCall],
    inputs: Sequence[int],
    outputs: Sequence[int],
    method: str = "forward",
    keywords: Sequence[str] = (),
) -> bytes:
    """A program with one method. `keywords`: names of its inputs."""
    made = _Tables()
    data = [one.data + bytes(-len(one.data) % ALIGNMENT) for one in values]
    places = [sum(map(len, data[:at])) for at in range(len(values))]
    plan = made.plan(values, calls, inputs, outputs, method, keywords)
    segment = made.table((0, "Q", 0), (1, "Q", sum(map(len, data))))
    fields = [
        (1, "o", made.offsets([plan])),
        (4, "o", made.offsets([segment])),
        (5, "o", made.table((1, "o", made.numbers("Q", [0, *places])))),
    ]
    return _extended(made.finish(made.table(*fields), b"ET12"), b"".join(data))


def _extended(program: bytes, segments: bytes) -> bytes:
    """Insert the extended header after the mark, and append the segments to the program."""
    size = len(program) + HEADER.size
    begin = -(-size // ALIGNMENT) * ALIGNMENT
    start = struct.unpack_from("<I", program)[0] + HEADER.size
    header = HEADER.pack(b"eh00", HEADER.size, size, begin, len(segments))
    whole = struct.pack("<I", start) + program[4:8] + header + program[8:]
    return whole + bytes(begin - size) + segments


class _Tables(FlatWriter):
    """ExecuTorch's tables."""

    def plan(
        self,
        values: Sequence[SampleValue],
        calls: Sequence[SampleCall],
        inputs: Sequence[int],
        outputs: Sequence[int],
        method: str,
        keywords: Sequence[str],
    ) -> int:
        places, total = list[int](), 0
        for one in values:
            places.append(total)
            total += 0 if one.data else -(-math.prod(one.sizes) * ELEMENT // ALIGNMENT) * ALIGNMENT
        operators = sorted({(call.name, call.overload) for call in calls if not call.backend})
        backends = sorted({call.backend for call in calls if call.backend})
        instructions = [
            self.instruction(DELEGATE, backends.index(call.backend), call.args)
            if call.backend
            else self.instruction(KERNEL, operators.index((call.name, call.overload)), call.args)
            for call in calls
        ]
        chain = self.table((2, "o", self.offsets(instructions)))
        fields = [
            (0, "o", self.text(method)),
            (1, "o", self.table((0, "o", self.text(_tree(keywords))), (1, "o", self.text("")))),
            (2, "o", self.offsets([self.value(one, at + 1, places[at]) for at, one in enumerate(values)])),
            (3, "o", self.numbers("i", inputs)),
            (4, "o", self.numbers("i", outputs)),
            (5, "o", self.offsets([chain])),
            (6, "o", self.offsets([self.operator(*one) for one in operators])),
            (7, "o", self.offsets([self.table((0, "o", self.text(one))) for one in backends])),
            (8, "o", self.numbers("q", [0, total])),
        ]
        return self.table(*fields)

    def value(self, one: SampleValue, buffer: int, offset: int) -> int:
        sizes = self.numbers("i", one.sizes)
        order = self.numbers("B", range(len(one.sizes)))
        fields = [(0, "b", one.type), (2, "o", sizes), (3, "o", order), (8, "b", one.dynamism)]
        if one.external:
            fields.append((9, "o", self.table((1, "o", self.text(one.external)), (2, "b", 1))))
        elif one.data:
            fields.append((5, "I", buffer))
        else:
            low, high = offset % 2**32, offset >> 32
            fields.append((6, "o", self.table((0, "I", 1), (1, "I", low), (2, "I", high))))
        return self.table((0, "b", TENSOR), (1, "o", self.table(*fields)))

    def instruction(self, kind: int, index: int, args: Sequence[int]) -> int:
        call = self.table((0, "i", index), (1, "o", self.numbers("i", args)))
        return self.table((0, "b", kind), (1, "o", call))

    def operator(self, name: str, overload: str) -> int:
        return self.table((0, "o", self.text(name)), (1, "o", self.text(overload)))


def _tree(keywords: Sequence[str]) -> str:
    """Torch's pytree of a call with these keyword arguments."""
    leaf = {"type": None, "context": None, "children_spec": list[object]()}
    sides = [
        {"type": "builtins.tuple", "context": "null", "children_spec": list[object]()},
        {
            "type": "builtins.dict",
            "context": json.dumps(list(keywords)),
            "children_spec": [leaf for _ in keywords],
        },
    ]
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": sides}])


def chain(width: int, layers: int) -> bytes:
    """`layers` square products of this width; the weights are small and vary."""
    weights = small_weights(width * width, width)
    values = [SampleValue((1, width))]
    calls = []
    for _ in range(layers):
        at = len(values)
        values += [SampleValue((width, width), weights), SampleValue((1, width))]
        calls.append(SampleCall((at - 1, at, at + 1, at + 1)))
    return write(values, calls, [0], [len(values) - 1])


def double() -> bytes:
    """y = 2x."""
    values = [SampleValue((1, 1)), SampleValue((1, 1), struct.pack("<f", 2.0)), SampleValue((1, 1))]
    return write(values, [SampleCall((0, 1, 2, 2))], [0], [2])
