"""The tutorial as somebody who types it: every command of it, in its order, against real processes. Only the installation is left out:
what is tested is installed already (tests/packages installs the wheel)."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.lab import MARK, PATIENCE_S, SARK, kill_marked, until

PAGE: Final = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK: Final = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody with a folder, a home and as many terminals as are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staying: list[subprocess.Popen[bytes]] = []
        self.mark = f"tutorial-{secrets.token_hex(8)}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SARK_")},
            MARK: self.mark,
            "SARK_HOME": str(folder / "home"),
            "SARK_LAN": "false",  # of this machine alone, at free ports: others test here too
            "SARK_LISTEN": "/ip4/127.0.0.1/tcp/0",
            "SARK_ENROLL": "false",  # it takes the machine for itself for a while
            "SARK_ON_BATTERY": "true",
        }

    def stay(self, words: list[str]) -> None:
        """Start it in a terminal of its own, and wait for what it says first."""
        said = self.folder / f"{words[0]}.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [*SARK, *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

        self.staying.append(process)

        def up() -> bool:
            assert process.poll() is None, said.read_text()
            return "12D3Koo" in said.read_text()

        until(up, f"{words[0]} is up")

    def type(self, words: list[str]) -> str:
        """Run it to its end; it must end well."""
        done = subprocess.run(
            [*SARK, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=2 * PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    kill_marked(reader.mark)
    for process in reader.staying:
        process.wait(PATIENCE_S)


def test_every_command_of_the_tutorial_works_in_its_order(reader: Reader) -> None:
    said: dict[str, str] = {}
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
                    said[line] = reader.type(words)
    assert "magika.onnx" in said["sark-node compare one-thread.json two-threads.json"]
    assert re.search(
        "FASTER|SLOWER|SAME|AMBIGUOUS", said["sark-node compare one-thread.json two-threads.json"]
    )
    assert said["sark-node top --once"].count("succeeded") == 2
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
