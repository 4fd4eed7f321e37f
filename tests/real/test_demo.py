"""`sark-node demo`: a whole campaign with real models, after which nothing is left behind, however it ends."""

from __future__ import annotations

import csv
import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.lab import MARK, SARK, TIMEOUT_S, kill_marked, marked, until

CONTRACT = (
    "Status", "JobId", "FileName", "FileSize", "ComputeUnits", "DeviceName", "Soc", "Ram", "DeviceOs", "LoadMsMedian",
    "LoadMsAverage", "LoadMsStdDev", "PeakLoadRamUsage", "InferenceMsMedian", "InferenceMsAverage", "InferenceMsStdDev",
    "PeakInferenceRamUsage",
)  # fmt: skip
MEASURED = CONTRACT[9:]
CLONE = Path(__file__).parents[2]


class Demo:
    """A demo in its own process group, as in a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.mark = f"demo-{secrets.token_hex(8)}"
        self.log = folder.parent / "demo.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*SARK, "demo", "--directory", str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, MARK: self.mark},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def left(self) -> dict[int, str]:
        """Living processes of the demo, except its main process."""
        everything = marked(self.mark) | marked(str(self.folder))
        everything.pop(self.process.pid, None)
        return everything


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.wait()
        kill_marked(demo.mark)


@pytest.fixture
def within_the_clone() -> Iterator[Path]:
    """A folder beside the code, as used by `make demo` in the README: runs see the code's folders with their real modes."""
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=CLONE) as folder:
        yield Path(folder)


@pytest.mark.smoke
def test_the_demo_measures_real_models_on_three_workers_and_leaves_nothing_running(
    demos: list[Demo], within_the_clone: Path
) -> None:
    demo = Demo(within_the_clone / "demo")
    demos.append(demo)
    observed: dict[int, str] = {}

    def ended() -> bool:
        observed.update(demo.left())
        return demo.process.poll() is not None

    until(ended, "the demo ends", every=0.2)
    assert demo.process.returncode == 0, demo.text
    assert demo.left() == {}
    roles = " ".join(observed.values())
    assert all(f"worker-{n} " in roles for n in (1, 2, 3))
    with (demo.folder / "results.csv").open(newline="", encoding="utf-8") as source:
        header, *rows = list(csv.reader(source))
    assert tuple(header[:17]) == CONTRACT
    assert rows
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        assert cells["Status"] == "Complete"
        assert cells["ComputeUnits"] == "CPU (ONNX)"
        assert all(float(cells[name]) > 0 for name in MEASURED), cells
    raw = json.loads((demo.folder / "raw.json").read_text())["results"]
    assert len(raw) == len(rows)
    assert {len(result["inference_ns"]) for result in raw} == {100}
    assert {len(result["samples"]) for result in raw} == {6}, "launches"
    for result in raw:  # the first load is cold where the system shows that the file's pages are gone
        assert len(result["loads_ns"]) == 7
        assert "warm" in result["load_kinds"]
        assert result["load_kinds"].count("fresh") in (5, 6)
    assert str(demo.folder / "results.csv") in demo.text
    assert "\x1b" not in demo.text


@pytest.mark.parametrize(
    ("moment", "output"), [("start-up", "starting a gate"), ("joining", "submitting"), ("measuring", ": run")]
)
def test_ctrl_c_ends_the_demo_and_every_process_of_it(
    demos: list[Demo], tmp_path: Path, moment: str, output: str
) -> None:
    demo = Demo(tmp_path / "demo", "--workers", "1")
    demos.append(demo)
    until(lambda: output in demo.text, f"the demo is at: {moment}")
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(TIMEOUT_S) == 130, demo.text
    until(lambda: not demo.left(), "nothing of the demo is left")
    assert "Traceback" not in demo.text
    assert "interrupted" in demo.text


def test_nothing_outlives_a_demo_that_was_killed(demos: list[Demo], tmp_path: Path) -> None:
    demo = Demo(tmp_path / "demo", "--workers", "1")
    demos.append(demo)
    until(lambda: ": load" in demo.text or ": run" in demo.text, "the demo measures")
    assert demo.left()
    demo.process.kill()
    demo.process.wait()
    until(lambda: not demo.left(), "nothing of the demo is left")
