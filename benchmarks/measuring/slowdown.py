"""Does `bench A B --compare` find real differences, no others, and how soon? Chains of equal dense layers, one of them with one layer more.

    python benchmarks/measuring/slowdown.py --seconds 900 --json slowdown.json
    python benchmarks/measuring/slowdown.py --again slowdown.json          # judged again, without measuring

A trial is a whole comparison as `bench` makes it: both models in one process in turns, 6 to 200 launches. The pairs take turns, so that the
host is the same for all, and so do the conditions (`conditions.py`). Printed for each pair and condition: how often the two were
distinguished (A/A: goal at most 1 %; 5 % more work: at least 95 % within 30 s; 2 % more: at least 90 % within 3 min), the time to the
answer, the launches, the ratios by wall and CPU time, and how often their interval held the true value, taken to be the ratio of the
numbers of layers. `--pairs` selects pairs. `--apart`: the models of a pair have a process each, like models of two runtimes.

One run has too few trials for a rate of 1 %. So `drawn` is the rate among 2,000 comparisons resampled from this run: each launch's
deviation is a measured one, from the median of all launches of its pair and condition, and the product's own looks end the comparison.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from conditions import CONDITIONS, condition
from models import chain

from node.run.local import Local, LocalDevice
from node.run.runner import Report
from protocol.formats.turns import LOOKS
from protocol.values.record import read_record
from protocol.values.task import Measure, Timeouts
from results.row.comparison import Comparison, ComparisonVerdict
from results.row.record import observe
from results.row.rounds import compare_logs, compare_rounds, launch_log_ratio
from scheduler.local.bench import Bench
from swarm.base.home import Home

UNIT = "CPU (ONNX)"
DRAWN: Final = 2000


@dataclass(frozen=True)
class Pair:
    """Layers of A and B, and the goal for comparing them."""

    layers: tuple[int, int]
    goal: str
    within_s: float = float("inf")

    @property
    def ratio(self) -> float:
        return self.layers[1] / self.layers[0]


PAIRS: Final[Mapping[str, Pair]] = {
    "A/A": Pair((20, 20), "at most 1 % distinguished"),
    "5 %": Pair((20, 21), "at least 95 % within 30 s", 30),
    "2 %": Pair((50, 51), "at least 90 % within 180 s", 180),
}


class ApartDevice(LocalDevice):
    """Gives each of several models its own process, although their unit is the same."""

    def measure(
        self,
        path: Path,
        unit: str,
        measure: Measure,
        timeouts: Timeouts | None = None,
        report: Report = lambda *_: None,
        beside: Sequence[Path] = (),
        beside_units: Sequence[str] = (),
    ) -> Local:
        return super().measure(path, unit, measure, timeouts, report, beside, (unit,) * len(beside))


@dataclass(frozen=True)
class Trial:
    """One comparison. `record`: canonical bytes in base64."""

    pair: str
    condition: str
    seconds: float
    load: float
    record: str

    @cached_property
    def result(self) -> Comparison:
        """The result by the current rules, from all launches."""
        return compare_rounds(observe(read_record(base64.b64decode(self.record))).rounds)[-1]

    @cached_property
    def logs(self) -> list[tuple[float, float | None]]:
        """log(B / A) of each launch, by wall and by CPU time."""
        found = []
        for each in observe(read_record(base64.b64decode(self.record))).rounds:
            wall = launch_log_ratio(each.wall_ns[0], each.wall_ns[-1])
            if wall is not None:
                found.append(
                    (wall, launch_log_ratio(each.cpu_ns[0], each.cpu_ns[-1]) if each.cpu_ns else None)
                )
        return found

    @property
    def distinguished(self) -> bool:
        return self.result.verdict in (ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER)

    @property
    def found(self) -> bool:
        """Whether the verdict is right, and in time."""
        return self.result.verdict is ComparisonVerdict.SLOWER and self.seconds <= PAIRS[self.pair].within_s


def measure(
    pairs: Sequence[str],
    conditions: Sequence[str],
    trials: int,
    seconds: float,
    file: Path | None,
    threads: int | None,
    apart: bool,
) -> list[Trial]:
    """Measure until the time is up, or `trials` trials of each pair are done."""
    done: list[Trial] = []
    how: dict[str, Any] = {"threads": threads} if threads else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(
            (ApartDevice if apart else LocalDevice)(Home.at(Path(folder) / "home"), max_wait_s=0)
        ) as device,
        Bench(device) as bench,
    ):
        files = {
            name: tuple(
                chain(Path(folder) / f"{number}-{side}.onnx", 256, 16, depth)
                for side, depth in zip("ab", PAIRS[name].layers, strict=True)
            )
            for number, name in enumerate(pairs)
        }
        bench.measure(files[pairs[0]][0], UNIT, runs=10, loads=1)  # imports the runtime
        until = time.monotonic() + seconds
        for number, made, name in product(range(trials), conditions, pairs):
            if time.monotonic() >= until:
                break
            load, (first, second) = os.getloadavg()[0], files[name]
            with condition(made, number):
                began = time.monotonic()
                _, measured = bench.compare(first, second, UNIT, **how)
                took = time.monotonic() - began
            record = base64.b64encode(measured.signed.body).decode()
            done.append(Trial(name, made, took, load, record))
            if file is not None:
                file.write_text(json.dumps([asdict(each) for each in done]))
            print(f"{made:<8}{name:<5}{done[-1].seconds:6.1f} s  {done[-1].result.verdict}", file=sys.stderr)
    return done


def drawn(trials: Sequence[Trial], ratio: float) -> float:
    """How often comparisons of models with this ratio, made from these trials' noise, are distinguished (ratio 1) or found (otherwise)."""
    logs = [each for trial in trials for each in trial.logs]
    middle = statistics.median(wall for wall, _ in logs)
    known = [cpu for _, cpu in logs if cpu is not None]
    middle_cpu = statistics.median(known) if len(known) == len(logs) else None
    chance, hits = random.Random(0), 0
    for _ in range(DRAWN):
        launches = [chance.choice(logs) for _ in range(LOOKS[-1])]
        walls = [wall - middle + math.log(ratio) for wall, _ in launches]
        cpus = (
            None
            if middle_cpu is None
            else [(cpu or 0.0) - middle_cpu + math.log(ratio) for _, cpu in launches]
        )
        verdict = first_answer(walls, cpus)
        hits += verdict is ComparisonVerdict.SLOWER or (ratio == 1 and verdict is ComparisonVerdict.FASTER)
    return hits / DRAWN


def first_answer(walls: Sequence[float], cpus: Sequence[float] | None) -> ComparisonVerdict:
    """The verdict at the first conclusive look."""
    answers = (compare_logs(walls[:look], cpus and cpus[:look]).verdict for look in LOOKS)
    return next(
        (each for each in answers if each is not ComparisonVerdict.AMBIGUOUS), ComparisonVerdict.AMBIGUOUS
    )


def report(trials: Sequence[Trial]) -> None:
    """Print the table."""
    for made, name in product(CONDITIONS, PAIRS):
        those = [each for each in trials if (each.condition, each.pair) == (made, name)]
        if not those:
            continue
        pair, results = PAIRS[name], [each.result for each in those]
        seconds = sorted(each.seconds for each in those)
        words = ", ".join(
            f"{word} {count}" for word, count in Counter(each.verdict for each in results).items()
        )
        held = sum(
            each.low is not None and each.high is not None and each.low <= pair.ratio <= each.high
            for each in results
        )
        hits = sum(each.distinguished if pair.ratio == 1 else each.found for each in those)
        word = "distinguished" if pair.ratio == 1 else "found in time"
        print(
            f"{made}, {name}: {word} {hits} of {len(those)} ({hits / len(those):.1%}; goal: {pair.goal}): {words}; "
            f"{statistics.median(seconds):.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f}), "
            f"{statistics.median(each.launches[0] for each in results):.0f} launches; "
            f"wall {_ratios([each.ratio for each in results])}, CPU {_ratios([each.cpu and each.cpu.ratio for each in results])}; "
            f"the interval by wall time holds {pair.ratio:.3f} in {held / len(those):.0%}; drawn: {drawn(those, pair.ratio):.2%}"
        )


def _ratios(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return f"{statistics.median(known):.4f} ({known[0]:.4f} to {known[-1]:.4f})" if known else "unknown"


def main() -> None:
    """Measure, or judge again, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", choices=tuple(PAIRS), default=tuple(PAIRS))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=("quiet",))
    parser.add_argument("--trials", type=int, default=10**6, help="of each pair in each condition")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", type=Path, nargs="+")
    given = parser.parse_args()
    if given.again:
        trials = [Trial(**each) for file in given.again for each in json.loads(file.read_text())]
    else:
        trials = measure(
            given.pairs,
            given.conditions,
            given.trials,
            given.seconds,
            given.json,
            given.threads,
            given.apart,
        )
    report(trials)


if __name__ == "__main__":
    main()
