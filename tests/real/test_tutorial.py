"""Types every command of the tutorial, in order, against real processes. Only the installation is left out, because the tested program is
already installed (tests/packages installs the wheel).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.lab import TIMEOUT_S, kill_marked
from tests.real.reader import Reader

PAGE: Final = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK: Final = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    kill_marked(reader.mark)
    for process in reader.staying:
        process.wait(TIMEOUT_S)


def test_every_command_of_the_tutorial_works_in_its_order(reader: Reader) -> None:
    values: dict[str, str] = {}
    for kind, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "yaml":
            (reader.folder / name).write_text(text, encoding="utf-8")
        elif kind == "sh":
            for line in text.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "sark-node"
                if name == "stays":
                    reader.stay(words)
                else:
                    values[line] = reader.type(words)
    assert "magika.onnx" in values["sark-node compare one-thread.json two-threads.json"]
    assert re.search(
        "FASTER|SLOWER|SAME|AMBIGUOUS", values["sark-node compare one-thread.json two-threads.json"]
    )
    assert values["sark-node top --once"].count("succeeded") == 2
    assert len(json.loads((reader.folder / "two-threads.json").read_text())["results"]) == 1
    assert (
        (reader.folder / "report.html")
        .read_text(encoding="utf-8")
        .lstrip()
        .lower()
        .startswith("<!doctype html")
    )


def test_the_installation_is_all_that_is_not_run() -> None:
    kinds = [(kind, text) for kind, _, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert [text.split()[0] for kind, text in kinds if kind not in ("sh", "yaml")] == ["python3.11"]
