"""The figures that docs/results.md quotes, in one run on a quiet machine: nothing else may run meanwhile, not even an editor.

    python benchmarks/measuring/published.py FOLDER [--minutes 33] [--threads 1]

    coverage.json    200 quiet windows, then all conditions in turns     coverage.py
    slowdown.json    A/A, 5 % and 2 % more work, quiet                   slowdown.py
    bias.json        models of five sizes beside a program in C          inference_bias.py
    wall.json        seconds of `sark-node bench` with a model of some milliseconds, without a home's first run
    disturbed.json   A/A, 5 % and 2 % more work, in all conditions, for as long as there is time

Steps run in order of importance. Each has its share of the time, and its output is kept in FOLDER too, beside the raw figures. `python
benchmarks/measuring/coverage.py --again FOLDER/coverage.json` judges again without measuring; so does `slowdown.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from models import magika

HERE: Final = Path(__file__).resolve().parent
MINUTES: Final = 33.0
ENOUGH: Final = 20.0
"""Minutes from which there is time for all quiet windows."""
WINDOWS: Final = 200
SHARES: Final = {"coverage": 0.40, "slowdown": 0.33, "bias": 0.06, "wall": 0.02}
"""Shares of the time; the rest is for comparisons in disturbed conditions."""
MIN_S: Final = 30.0
"""A step with less time than this is not started."""


def step(folder: Path, name: str, script: str, *arguments: str) -> None:
    """Run one script; show and keep its output."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"\n== {name}, {time.strftime('%H:%M:%S')}, load average {load}", flush=True)
    command = [sys.executable, str(HERE / script), *arguments, "--json", str(folder / f"{name}.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    (folder / f"{name}.txt").write_text(f"load average before {load}\n{done.stdout}")
    print(done.stdout, end="", flush=True)


def walls(folder: Path, seconds: float) -> None:
    """Time the whole command."""
    print(f"\n== wall, {time.strftime('%H:%M:%S')}", flush=True)
    took: list[float] = []
    text = ""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-P", "-m", "sark", "--home", home, "bench", str(magika())]
        until = time.monotonic() + seconds
        while len(took) < 4 or time.monotonic() < until:
            began = time.monotonic()
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            took.append(time.monotonic() - began)
    (folder / "wall.json").write_text(json.dumps(took))
    later = took[1:]
    span = f"from {min(later):.2f} to {max(later):.2f}"
    line = (
        f"{statistics.median(later):.2f} s in the median of {len(later)} ({span}); the first {took[0]:.2f} s"
    )
    (folder / "wall.txt").write_text(f"{line}\n{text}")
    print(f"{line}\n{text}", flush=True)


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument(
        "--threads", type=int, help="of an inference, in coverage and comparisons; left out: all cores"
    )
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    whole = given.minutes * 60
    ends = time.monotonic() + whole
    seconds = {name: str(share * whole) for name, share in SHARES.items()}
    windows = str(round(WINDOWS * min(1.0, given.minutes / ENOUGH)))
    conditions = ("--conditions", "quiet", "cpu", "memory", "pauses")
    threads = () if given.threads is None else ("--threads", str(given.threads))
    step(
        folder,
        "coverage",
        "coverage.py",
        *threads,
        "--windows",
        windows,
        *conditions,
        "--seconds",
        seconds["coverage"],
    )
    step(folder, "slowdown", "slowdown.py", *threads, "--seconds", seconds["slowdown"])
    sides = ("--sides", "C program", "ours")
    step(folder, "bias", "inference_bias.py", *sides, "--rounds", "100", "--seconds", seconds["bias"])
    walls(folder, float(seconds["wall"]))
    if (left := ends - time.monotonic()) > MIN_S:
        step(folder, "disturbed", "slowdown.py", *threads, *conditions, "--seconds", str(left - MIN_S / 2))


if __name__ == "__main__":
    main()
