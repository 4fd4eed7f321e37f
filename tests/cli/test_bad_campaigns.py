"""Campaign files with mistakes: one line with file and line number, one line with the remedy, and nothing stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Typed

START = "campaign: c\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\n"
BAD = {
    "an unknown key": (START + "measure:\n  rums: 3\n", 5, "rums", "runs"),
    "a wrong type": (START + "measure:\n  runs: many\n", 5, "must be a whole number", ""),
    "a number out of range": (START + "measure:\n  loads: 0\n", 5, "must be at least 1", ""),
    "a duration without a unit": (START + "timeouts:\n  run: 3\n", 5, "no unit", "such as 3s"),
    "a clause of nothing known": (START + "devices:\n  where:\n    - memory >= 3\n", 6, "memory", ""),
    "a missing key": ("campaign: c\nunits: [CPU (ONNX)]\n", None, "models", ""),
    "a missing model": (START.replace("m.onnx", "none.onnx"), 2, "none.onnx", "paths are resolved from"),
    "a URL of another kind": (
        START.replace("m.onnx", "ftp://host/m.onnx"),
        2,
        "not a URL that can be fetched",
        "hf://",
    ),
    "an empty folder as model": (START.replace("m.onnx", "folder"), 2, "the folder is empty", ""),
    "a precision of a server": (
        START.replace("CPU (ONNX)", "API (OpenAI)") + "measure: {precision: 2%}\n",
        4,
        "cannot be used with API (OpenAI)",
        "runs: 100",
    ),
    "an empty model": (START.replace("m.onnx", "empty.onnx"), 2, "empty", ""),
    "the same name twice": (START.replace("[m.onnx]", "\n  - m.onnx\n  - m.onnx"), 4, "m.onnx", ""),
    "a key twice": (START + "campaign: d\n", 4, "campaign", ""),
    "an alias": ("campaign: &a c\nmodels: [*a]\nunits: [CPU (ONNX)]\n", 1, "anchor", ""),
    "a tag": ("campaign: !!python/object:os.system c\n" + START[12:], 1, "tag", ""),
    "no mapping": ("- 1\n- 2\n", None, "", ""),
    "broken YAML": ("campaign: [c\n", None, "", ""),
    "nothing": ("", None, "", ""),
    "junk": ("\x00\x01\x02" * 350_000, None, "", ""),
    "a megabyte of text": ("x" * 1_100_000, None, "", ""),
    "a megabyte of brackets": ("[" * 1_000_000, None, "", ""),
    "escapes": (START + '"\\e[2J\\x07": 1\n', 4, "", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_campaign_is_a_one_line_error_with_a_hint_and_nothing_is_stored(
    typed: Typed, listener: str, case: str
) -> None:
    text, line, named, hint = BAD[case]
    folder = typed.folder
    (folder / "m.onnx").write_bytes(b"\x08\x09" + bytes(40))
    (folder / "empty.onnx").touch()
    (folder / "folder").mkdir()
    file = folder / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    for command in (("validate", file), ("submit", file, "--gate", listener)):
        done = typed(*command)
        assert done.code == 2, done
        assert done.out == ""
        what, *hints = done.err.splitlines()
        assert what.startswith(f"sark-node: {file}")
        assert all(each.startswith("  ") for each in hints)
        if line is not None:
            assert f"bad.yaml:{line}: " in what, what
        assert named in what, what
        assert hint in " ".join(hints), hints
        assert len(done.err) < 1500
        assert all(char.isprintable() or char == "\n" for char in done.err)
        assert "Traceback" not in done.err
        assert not typed.stored


def test_a_file_that_is_not_there_or_is_a_folder_is_named(typed: Typed, tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        done = typed("validate", path)
        assert done.code == 2
        assert str(path) in done.err
        assert done.out == ""
