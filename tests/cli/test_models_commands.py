"""`models`: list, add, pin, remove."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Typed


def test_models_are_added_listed_pinned_and_removed(typed: Typed, tmp_path: Path) -> None:
    assert "No models are stored here" in typed("models").out
    file = tmp_path / "mine.onnx"
    file.write_bytes(b"weights")
    sha = hashlib.sha256(b"weights").hexdigest()
    assert sha in typed("models", "add", str(file)).out
    assert "pinned: mine.onnx" in typed("models", "pin", sha[:8]).out
    (shown,) = json.loads(typed("models", "--json").out)["models"]
    assert (shown["sha256"], shown["name"], shown["size"], shown["pinned"]) == (sha, "mine.onnx", 7, True)
    table = typed("models").out
    assert typed("models", "list").out == table
    assert typed("models", "list", "--json").out == typed("models", "--json").out
    assert "mine.onnx" in table
    assert "pinned" in table
    assert f"{sha[:16]}…" in table
    assert "no longer pinned" in typed("models", "unpin", "mine.onnx").out
    assert "removed mine.onnx" in typed("models", "remove", sha).out
    assert json.loads(typed("models", "--json").out)["models"] == []
    assert file.read_bytes() == b"weights"


def test_what_is_not_there_is_a_one_line_error_and_nothing_is_done(typed: Typed, tmp_path: Path) -> None:
    for words in (("remove", "abcdef"), ("pin", "x.onnx"), ("unpin", "12345")):
        done = typed("models", *words)
        assert (done.code, done.out) == (2, "")
        assert f"no model {words[1]!r} here" in done.err
    missing = typed("models", "add", str(tmp_path / "none.onnx"))
    assert missing.code == 6
    assert "No such file" in missing.err


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("notes.txt", b"hello", "no driver knows its first bytes or its suffix (.txt)"),
        ("nameless", b"hello", "it has none"),
        ("weights.bin", b"\x80\x02rest", "a Python pickle"),
        ("things.zip", b"PK\x03\x04", "archive is broken"),
    ],
)
def test_a_file_that_no_driver_knows_is_refused_in_a_line(
    typed: Typed, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    done = typed("models", "add", str(file))
    assert done.code == 2
    assert f"{name} is not a model that a driver here knows" in done.err
    assert why in done.err
    assert len(done.err.splitlines()) == 2
    assert json.loads(typed("models", "--json").out)["models"] == []


def test_what_tells_itself_by_its_first_bytes_needs_no_ending(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert typed("models", "add", str(file)).code == 0
