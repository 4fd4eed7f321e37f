"""Models generated as bytes, without the onnx package: something of a known size to run where no other model is available."""

from __future__ import annotations

import hashlib
import struct
from functools import cache
from typing import Final

NAME: Final = "reference"
"""The name in rows of the model beside which others are measured, so that devices and days can be compared."""
FLOAT: Final = 1
_IR_VERSION: Final = 8
_OPSET: Final = 13


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _value(name: str, *sizes: int) -> bytes:
    """A named float tensor with a fixed shape (ValueInfoProto)."""
    shape = b"".join(_bytes(1, _number(1, size)) for size in sizes)
    tensor = _number(1, FLOAT) + _bytes(2, shape)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _node(operator: str, inputs: tuple[str, ...], output: str) -> bytes:
    named = b"".join(_bytes(1, name.encode()) for name in inputs)
    return named + _bytes(2, output.encode()) + _bytes(4, operator.encode())


def _weights(name: str, size: int) -> bytes:
    """A square matrix of small, differing numbers (TensorProto, raw data)."""
    row = [((at * 37) % 101 - 50) / (50 * size**0.5) for at in range(size)]
    raw = b"".join(struct.pack(f"<{size}f", *(row[shift:] + row[:shift])) for shift in range(size))
    return _number(1, size) + _number(1, size) + _number(2, FLOAT) + _bytes(8, name.encode()) + _bytes(9, raw)


def chain_of_products(size: int = 192, layers: int = 4, rows: int = 32) -> bytes:
    """An ONNX model: a `rows` × `size` input passes through `layers` products with one matrix, each followed by Tanh."""
    nodes, last = [], "x"
    for layer in range(layers):
        nodes.append(_node("MatMul", (last, "w"), f"p{layer}"))
        last = "y" if layer == layers - 1 else f"t{layer}"
        nodes.append(_node("Tanh", (f"p{layer}",), last))
    graph = b"".join(_bytes(1, node) for node in nodes)
    graph += _bytes(2, b"chain") + _bytes(5, _weights("w", size))
    graph += _bytes(11, _value("x", rows, size)) + _bytes(12, _value("y", rows, size))
    return _number(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _bytes(1, b"") + _number(2, _OPSET))


@cache
def reference_model() -> bytes:
    """The model's bytes, identical in every version, so that ratios to it stay comparable."""
    return chain_of_products()


@cache
def reference_sha256() -> str:
    """The sha256 of `reference_model`, in hexadecimal."""
    return hashlib.sha256(reference_model()).hexdigest()
