"""The smallest complete ONNX model, as bytes: one operator that returns its input."""

from __future__ import annotations


def tiny_onnx(salt: str = "", shape: tuple[int | str, ...] = (1, 4)) -> bytes:
    """A model with this input shape. A different `salt` gives a different file."""
    dims = b"".join(
        _field(1, _whole(1, size) if isinstance(size, int) else _field(2, size.encode())) for size in shape
    )
    tensor = _field(1, _whole(1, 1) + _field(2, dims))
    node = _field(1, b"x") + _field(2, b"y") + _field(4, b"Identity")
    ports = [_field(number, _field(1, name) + _field(2, tensor)) for number, name in ((11, b"x"), (12, b"y"))]
    graph = _field(1, node) + _field(2, f"g{salt}".encode()) + b"".join(ports)
    return _whole(1, 8) + _field(7, graph) + _field(8, _whole(2, 17))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _whole(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
