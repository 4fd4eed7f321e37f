"""Examples and answers as bytes."""

from __future__ import annotations

import json

import pytest

from protocol.formats.examples import (
    MAX_EXAMPLES,
    UNNAMED,
    Value,
    pack_examples,
    text_value,
    unpack_examples,
)

ROW = Value("float32", (1, 2), bytes(8))


def packed(head: object, data: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_examples_come_back_as_they_were() -> None:
    examples = ({"x": ROW, "ids": Value("int64", (0,), b"")}, {UNNAMED: text_value("Grüß dich")})
    assert unpack_examples(pack_examples(examples)) == examples
    assert unpack_examples(pack_examples(())) == ()


def test_a_text_is_read_as_one_and_a_tensor_is_none() -> None:
    assert text_value("ä").text == "ä"
    assert ROW.text is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not JSON"),
        (b"\xff" * 8, "cut off"),
        (packed({"x": 1}), "not a list"),
        (packed([[]]), "1 to 64 values"),
        (packed([[["x", "float32", [1]]] * 65], bytes(260)), "1 to 64 values"),
        (packed([[["x", "object", [1]]]], bytes(8)), "name, type and shape"),
        (packed([[["x", "float32", [-1]]]]), "name, type and shape"),
        (packed([[["x", "float32", [True]]]], bytes(4)), "name, type and shape"),
        (packed([[["x", "float32", [1] * 17]]], bytes(4)), "name, type and shape"),
        (packed([[["x" * 501, "float32", [1]]]], bytes(4)), "name, type and shape"),
        (packed([[["x", "float32", [2]]]], bytes(4)), "do not match"),
        (packed([[["x", "float32", [1]]]], bytes(8)), "do not match"),
        (packed([[["x", "bool", [1]], ["x", "bool", [1]]]], bytes(2)), "twice"),
        (packed([[["x", "bool", [1]]]] * (MAX_EXAMPLES + 1), bytes(MAX_EXAMPLES + 1)), "at most"),
        (len(b"[" * 99).to_bytes(8, "little") + b"[" * 99, "is not JSON"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack_examples(data)


def test_more_bytes_than_allowed_are_refused_before_they_are_read() -> None:
    with pytest.raises(ValueError, match="9 bytes, where 8 are allowed"):
        unpack_examples(bytes(9), 8)
