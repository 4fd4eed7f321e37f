"""Folders as one file: one form for each folder, and nothing in it that could lead outside."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.wire.bundle import MAGIC, MAX_PARTS, BundlePart, pack_header, problem, read_header, size_of

SHA = "ab" * 32
WEIGHTS = BundlePart("Data/weights.bin", 5, SHA)
MODEL = BundlePart("model.onnx", 3, SHA)


def test_a_folder_has_one_form_whatever_the_order_it_was_read_in() -> None:
    head = pack_header([MODEL, WEIGHTS])
    assert head == pack_header([WEIGHTS, MODEL])
    source = io.BytesIO(head + b"the files")
    assert read_header(source.read) == (WEIGHTS, MODEL)
    assert source.read() == b"the files"
    assert size_of((WEIGHTS, MODEL)) == len(head) + 8


def test_other_files_are_no_bundles() -> None:
    for content in (b"", b"\x08\x08\x12", MAGIC[:-1]):
        assert read_header(io.BytesIO(content).read) is None


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/etc/passwd", "../x", "a/../x", "a//b", "./a", "a/.", ".hidden", "a/.git/config", "a\\b"),
        *(
            "C:x",
            "a\0b",
            "a\nb",
            "ä",
            "a ",
            "a.",
            "con",
            "NUL.txt",
            "x/com1",
            "~",
            "a*",
            "x" * 130,
            "a/" * 9 + "a",
        ),
    ],
)
def test_a_path_that_could_lead_out_or_mean_something_else_is_refused(path: str) -> None:
    assert problem(path)
    with pytest.raises(ValueError, match="file"):
        pack_header([BundlePart(path, 1, SHA)])


@pytest.mark.parametrize(
    "path", ["model.onnx", "Data/com.apple.CoreML/weights/weight.bin", "_a b+c@2-x", "a"]
)
def test_names_as_models_have_them_are_taken(path: str) -> None:
    assert problem(path) == ""


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["a", "a"], "twice"),
        (["A", "a"], "only in case"),
        (["a", "a/b"], "a folder at once"),
        (["B/c", "b"], "a folder at once"),
        ([], "0 files"),
        ([f"f{number}" for number in range(MAX_PARTS + 1)], "257 files"),
    ],
)
def test_files_that_no_folder_could_hold_are_refused(paths: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        pack_header([BundlePart(path, 1, SHA) for path in paths])


def other(body: bytes) -> bytes:
    return MAGIC + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "content",
    [
        pack_header([MODEL])[:-1],
        MAGIC,
        MAGIC + b"\xff\xff\xff\xff",
        other(b'[["b",1,"' + SHA.encode() + b'"],["a",1,"' + SHA.encode() + b'"]]'),
        other(b'[["a", 1,"' + SHA.encode() + b'"]]'),
        other(b'[["a",true,"' + SHA.encode() + b'"]]'),
        other(b'[["a",-1,"' + SHA.encode() + b'"]]'),
        other(b'[["a",1,"x"]]'),
        other(b'{"a":1}'),
        other(b"5"),
        other(b"[" * 50_000),
        other(b'["a"]'),
        other(b"\xff"),
    ],
)
def test_a_list_of_files_that_is_not_in_order_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad bundle"):
        read_header(io.BytesIO(content).read)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    try:
        parts = read_header(io.BytesIO(other(body)).read)
    except RemoteProtocolError:
        return
    assert parts is not None
    assert pack_header(parts) == other(body)
