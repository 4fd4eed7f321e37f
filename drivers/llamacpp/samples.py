"""A llama model made as the bytes of a GGUF file: a model to run when no other is at hand.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np

VERSION: Final = 3
ALIGNMENT: Final = 32
UINT32, FLOAT32, STRING = 4, 6, 8
"""Types of metadata values."""
F32, F16 = 0, 1
"""Types of tensors."""


def transformer(width: int, layers: int, vocabulary: int) -> bytes:
    """A transformer with attention heads of size 16, a feed-forward part twice as wide, and small, varying weights in float16."""
    fields: dict[str, int | float | str] = {
        "general.architecture": "llama",
        "llama.vocab_size": vocabulary,
        "llama.context_length": 4096,
        "llama.embedding_length": width,
        "llama.block_count": layers,
        "llama.feed_forward_length": 2 * width,
        "llama.attention.head_count": width // 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "no_vocab",
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, width),
        "output_norm.weight": (width,),
        "output.weight": (vocabulary, width),
    }
    for layer in range(layers):
        square, wide = (width, width), (2 * width, width)
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in (
                ("attn_norm", (width,)),
                *((f"attn_{which}", square) for which in ("q", "k", "v", "output")),
                ("ffn_norm", (width,)),
                ("ffn_gate", wide),
                ("ffn_up", wide),
                ("ffn_down", (width, 2 * width)),
            )
        }
    return gguf_file(fields, shapes)


def gguf_file(fields: dict[str, int | float | str], shapes: dict[str, tuple[int, ...]]) -> bytes:
    """A GGUF file with these fields, and a tensor of each shape (rows first): ones for vectors, small weights otherwise."""
    header = bytearray(struct.pack("<4sIQQ", b"GGUF", VERSION, len(shapes), len(fields)))
    for key, value in fields.items():
        header += _text(key) + _field(value)
    data = bytearray()
    for name, shape in shapes.items():
        kind = F32 if len(shape) == 1 else F16
        header += _text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data)
        )
        data += _weights(shape) + bytes(-len(_weights(shape)) % ALIGNMENT)
    return bytes(header) + bytes(-len(header) % ALIGNMENT) + bytes(data)


def _weights(shape: tuple[int, ...]) -> bytes:
    if len(shape) == 1:
        return np.ones(shape, "<f4").tobytes()
    values = (np.arange(math.prod(shape)) * 37 % 101 - 50) / (50 * shape[-1] ** 0.5)
    return bytes(values.astype("<f2").tobytes())


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _field(value: int | float | str) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    return struct.pack("<If", FLOAT32, value)
