"""A declared model made as bytes, without torch: a model to run when no other is at hand."""

from __future__ import annotations

import json
import math
import struct

from drivers.torch.architectures import KEY, read_declaration


def perceptron(width: int, layers: int) -> bytes:
    """An mlp as one safetensors file: `layers` square products of this width, with tanh between them. The weights are small and vary."""
    declared = {
        "architecture": "mlp",
        "inputs": width,
        "hidden": [width] * (layers - 1),
        "outputs": width,
        "activation": "tanh",
    }
    header: dict[str, object] = {"__metadata__": {KEY: json.dumps(declared)}}
    data = bytearray()
    for name, shape in read_declaration(declared).weights().items():
        values = [((at * 37) % 101 - 50) / (50 * width**0.5) for at in range(math.prod(shape))]
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
