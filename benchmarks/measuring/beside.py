"""A driver's launch beside other methods of measuring the same model, in turns, each in its own process: shared code of the bias
benchmarks.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from alternated import alternated

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.launch.launch import Zygote, measure

LIMITS: Final = Limits(load_s=120, run_s=300)
Pair = tuple[float, float]
"""Median and 5th percentile in ms; NaN: unknown."""
Side = Callable[[Path, int, int], Pair]
"""Measures a model, given the numbers of threads and of timed inferences."""
LOOP: Final = """
import statistics, sys, time
model, threads, runs, warm = sys.argv[1], *map(int, sys.argv[2:])
{}
times = []
for _, call in zip(range(warm + runs), calls()):
    began = time.perf_counter_ns()
    call()
    times.append(time.perf_counter_ns() - began)
times = times[warm:]
print(statistics.median(times) / 1e6, statistics.quantiles(times, n=20)[0] / 1e6)
"""


def pair(times_ms: Sequence[float]) -> Pair:
    return statistics.median(times_ms), statistics.quantiles(times_ms, n=20)[0]


def printed(command: Sequence[str], **how: Any) -> Pair:
    """The two figures that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, **how)
    middle, low = done.stdout.split()
    return float(middle), float(low)


def plain(setup: str, warm: int) -> Side:
    """A loop in a process of its own, without any Sark code. `setup`: Python that defines `calls()`, an iterator of calls to time, given
    `model` and `threads`.
    """

    def side(model: Path, threads: int, runs: int) -> Pair:
        command = [sys.executable, "-c", LOOP.replace("{}", setup), str(model)]
        return printed([*command, *map(str, (threads, runs, warm))], env=os.environ | {"HF_HUB_OFFLINE": "1"})

    return side


def chains(folder: Path, suffix: str, contents: Mapping[int, Callable[[], bytes]]) -> list[Path]:
    """Write chains of matrix products into the folder, one per width."""
    made = {folder / f"chain{width}{suffix}": content for width, content in contents.items()}
    for path, content in made.items():
        path.write_bytes(content())
    return list(made)


@dataclass(frozen=True)
class BiasBenchmark:
    """A driver, and the methods measured beside it."""

    driver: str
    unit: str
    title: str
    make: Callable[[Path], Sequence[Path]]
    """Writes models into a folder, used if the command line names none."""
    others: Mapping[str, Side]
    runs: int = 200
    warm: int = 30
    more: Callable[[Path], Mapping[str, Any]] = lambda model: {}
    """Additional fields of the order for a model."""

    def ours(self, zygote: Zygote, model: Path, threads: int, runs: int) -> Pair:
        fields: dict[str, Any] = {
            "model": str(model),
            "unit": self.unit,
            "runs": runs,
            "loads": 1,
            "warmup": self.warm,
            "threads": threads,
            "check": False,
            **self.more(model),
        }
        order = WorkOrder(**fields)
        (measured,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, MeasureReport))
        return pair([sample / 1e6 for sample in measured.samples_ns])

    def main(self, doc: str | None) -> None:
        """Print for each model the medians, the medians of the rounds' ratios, and the ratios of the best rounds' 5th percentiles."""
        parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        parser.add_argument("models", nargs="*", type=Path)
        parser.add_argument("--rounds", type=int, default=11)
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--runs", type=int, default=self.runs)
        chosen = parser.parse_args()
        print(f"{self.title}, {chosen.threads} threads, {chosen.rounds} rounds of {chosen.runs} inferences")
        heads = [f"{name} ms" for name in ("ours", *self.others)]
        heads += [f"{what}/{name}" for what in ("ours", "best") for name in self.others]
        print(f"{'model':30} {' '.join(f'{head:>12}' for head in heads)}")
        with tempfile.TemporaryDirectory() as name, Zygote(self.driver).start() as zygote:
            folder = Path(name)
            made = chosen.models or self.make(folder)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)  # root's node runs models as nobody
            for model in made:
                given = (model, chosen.threads, chosen.runs)
                sides: dict[str, Callable[[], Pair]] = {"ours": partial(self.ours, zygote, *given)}
                sides |= {name: partial(side, *given) for name, side in self.others.items()}
                print(f"{model.name[:30]:30} {figures(alternated(sides, chosen.rounds))}", flush=True)


def figures(found: Mapping[str, Sequence[Pair]]) -> str:
    """The figures over all rounds of all sides, ours first."""
    mine, *others = found.values()
    shown = [statistics.median(middle for middle, _ in each) for each in found.values()]
    shown += [
        statistics.median(own[0] / one[0] for own, one in zip(mine, each, strict=True)) for each in others
    ]
    best = [min(low for _, low in each) for each in found.values()]
    shown += [best[0] / low for low in best[1:]]
    return " ".join(f"{'–' if math.isnan(value) else f'{value:.4f}':>12}" for value in shown)
