"""Do rows hold what they claim? Many non-overlapping windows, each a whole `sark-node bench`, on a host that is disturbed on purpose.

    python benchmarks/measuring/coverage.py --windows 200 --json windows.json            # quiet alone
    python benchmarks/measuring/coverage.py --seconds 1800 --json windows.json           # 200 quiet ones, then all conditions in turns
    python benchmarks/measuring/coverage.py --again windows.json [--half 0|1]            # rows judged again, without measuring
    python benchmarks/measuring/coverage.py --control --threads 1                        # is this host quiet at all?

A window is one measurement with the defaults of `bench` (100 inferences in 6 launches, all cores), of four models of 0.3 to 9 ms in turn.
Windows also rotate through the conditions (`conditions.py`); the quiet ones provide the true values. Only the wait for an idle host is
skipped: it would never end. Signed records are kept, so that other rules can judge the same windows.

coverage     the row's interval holds the median of the OTHER windows of its condition and model (goal: at least 93 % of unflagged rows)
false alarm  a quiet row that is not `valid` (goal: at most 2 %)
off          the row's median is more than 5 % away from that of the other quiet windows of its model
seen         share of flagged rows among those that are off (goal: at least 95 % where the host is disturbed)
bias         the median of the condition relative to the quiet one, over the models

`with margin`: of the unflagged windows in the later quiet half, the share that hold once both ends have moved out by what the earlier half
needed for 95 %, over all models: the figure that a task's page shows where a device's sittings are known.

`--over 100` spreads the launches of each window over 100 seconds, and other measurements may run in the gaps. So several of these may run
at once, each with its own models (`--models small`), and windows of one model still do not overlap:

    for model in small middle magika large narrow broad; do
        python benchmarks/measuring/coverage.py --over 100 --threads 1 --windows 34 --models $model --json $model.json &
    done

`--apart N`: rebuilds each window from six launches that lie N windows apart, using each launch once, as `bench --over` spreads them over
the time of 5 N windows. The rows follow the same rules; their records have no signature.

`--control`: after each quiet window the C program of `inference_bias.py` repeats the measurement: six launches, the median of their
medians, and the lowest and highest of them, which hold the median in 97 % of cases if launches are alike. It shares only the runtime with
Sark. What that interval misses on a host where nothing else runs is the host's own variation, which no method of ours can capture.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from conditions import CONDITIONS, condition
from inference_bias import Reference, compiled_reference
from models import chain, magika

from node.run.local import LocalDevice
from protocol.values.attempt import TaskState
from protocol.values.record import read_record, record_body
from protocol.values.task import read_task, task_body
from results.analysis.sittings import IntervalCoverage, SittingFigure, figure_of, held_intervals
from results.row.make import make_row
from results.row.row import Row
from results.row.verdicts import RowVerdict
from scheduler.local.bench import Bench
from swarm.base.home import Home

UNIT = "CPU (ONNX)"
MODELS = {
    "small": "256x16x10",
    "middle": "512x16x10",
    "large": "1024x32x8",
    "narrow": "128x64x12",
    "broad": "768x8x12",
}
"""Chains of equal layers, by their name in the table: width, batch and number of layers."""
USUAL = ("small", "middle", "magika", "large")
OFF = 0.05
QUIET_FIRST = 200
CONTROL_LAUNCHES, CONTROL_RUNS = 6, 24


@dataclass(frozen=True)
class Window:
    """One measurement. `began_s`, `ended_s`: seconds since the first one began. `load`: the host's load average before it."""

    condition: str
    model: str
    began_s: float
    ended_s: float
    load: float
    task: str
    record: str
    """Canonical bytes in base64, like `task`."""
    control_us: tuple[float, ...] = ()
    """Medians of the C program's launches right after the window, in microseconds."""

    @cached_property
    def row(self) -> Row:
        """The row by the current rules."""
        record = read_record(base64.b64decode(self.record))
        return make_row(read_task(base64.b64decode(self.task)), TaskState.SUCCEEDED, record)

    @property
    def median(self) -> float:
        assert self.row.inference_ms_median is not None
        return self.row.inference_ms_median

    @property
    def flagged(self) -> bool:
        return self.row.verdict != RowVerdict.VALID

    def holds(self, value: float, wider: float = 1.0) -> bool:
        """Whether the interval holds `value`. `wider`: the factor by which both ends move out."""
        low, high = self.row.inference_ms_median_low, self.row.inference_ms_median_high
        return low is not None and high is not None and low / wider <= value <= high * wider


def model(name: str, folder: Path) -> Path:
    """`magika`, one of `MODELS`, or a chain in the same notation: `512x16x10`."""
    if name == "magika":
        return magika()
    width, batch, layers = map(int, MODELS.get(name, name).split("x"))
    return chain(folder / f"{name}.onnx", width, batch, layers)


def order(quiet_first: int, conditions: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Condition and model of each window: first quiet windows, then all conditions in turn for each model in turn."""
    yield from islice(zip(cycle(["quiet"]), cycle(names)), quiet_first)
    for name in cycle(names if conditions else ()):
        for each in conditions:
            yield each, name


def measure(
    quiet_first: int,
    conditions: Sequence[str],
    seconds: float,
    file: Path | None,
    how: dict[str, Any],
    names: Sequence[str],
    *,
    control: bool,
) -> list[Window]:
    """Measure until the time is up or all windows are done, saving them from time to time."""
    windows: list[Window] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LocalDevice(Home.at(Path(folder) / "home"), max_wait_s=0)) as device,
        Bench(device) as bench,
    ):
        paths = {name: model(name, Path(folder)) for name in names}
        program = compiled_reference(Path(folder)) if control else None
        references = {
            name: Reference(program, str(path), Path(folder)) for name, path in paths.items() if program
        }
        for path in paths.values():
            bench.measure(path, UNIT, runs=10, loads=1)  # imports the runtime
        began = time.monotonic()
        for number, (made, name) in enumerate(order(quiet_first, conditions, tuple(paths))):
            start = time.monotonic() - began
            if start >= seconds or (not conditions and number >= quiet_first):
                break
            load = os.getloadavg()[0]
            with condition(made, number):
                done = bench.measure(paths[name], UNIT, **how)
            if done.median_ms is None:
                raise SystemExit(f"{name}: {done.why}")
            task, record = (
                base64.b64encode(each).decode() for each in (task_body(done.task), done.signed.body)
            )
            ended = time.monotonic() - began
            launches = CONTROL_LAUNCHES if control and made == "quiet" else 0
            medians = [references[name](CONTROL_RUNS, how.get("threads", 0)) for _ in range(launches)]
            windows.append(Window(made, name, start, ended, load, task, record, tuple(medians)))
            if file is not None and (number % 50 == 49 or "over_s" in how):
                keep(file, windows)
            if sys.stderr.isatty():
                print(f"\r{number + 1} windows, {made}, {name}: {done.verdict:<12}", end="", file=sys.stderr)
    if file is not None:
        keep(file, windows)
    return windows


def keep(file: Path, windows: Sequence[Window]) -> None:
    file.write_text(json.dumps([asdict(each) for each in windows]))


def read(files: Sequence[Path]) -> list[Window]:
    return [
        Window(**each | {"control_us": tuple(each.get("control_us", ()))})
        for file in files
        for each in json.loads(file.read_text())
    ]


def regrouped(windows: Sequence[Window], apart: int) -> list[Window]:
    """For each condition and model, windows whose k-th launch comes from the k-th window after the first, in steps of `apart` windows."""
    series: dict[tuple[str, str], list[Window]] = {}
    for each in windows:
        series.setdefault((each.condition, each.model), []).append(each)
    made = []
    for alike in series.values():
        records = [read_record(base64.b64decode(each.record)) for each in alike]
        began = [each.began_s for each in alike]
        launches = min(len(record.timings) for record in records)
        for first, window in enumerate(alike[: max(0, len(alike) - (launches - 1) * apart)]):
            places = [first + number * apart for number in range(launches)]
            timings = tuple(
                records[place]
                .timings[number]
                .model_copy(
                    update={"began_s": began[place] - began[first] + records[place].timings[number].began_s}
                )
                for number, place in enumerate(places)
            )
            record = records[first].model_copy(update={"timings": timings})
            body = base64.b64encode(record_body(record)).decode()
            made.append(replace(window, record=body, ended_s=alike[places[-1]].ended_s))
    return made


def others(windows: Sequence[Window], one: Window, made: str) -> float:
    """The median of the other windows of a condition and the same model."""
    return statistics.median(
        each.median
        for each in windows
        if each is not one and (each.condition, each.model) == (made, one.model)
    )


def share(hits: int, of: int) -> str:
    return f"{hits / of:5.0%} {f'{hits}/{of}':>8}" if of else f"{'-':>14}"


def report(windows: Sequence[Window]) -> None:
    """Print the tables."""
    counts = Counter((each.condition, each.model) for each in windows)
    print(
        f"{'condition':<10}{'windows':>8}{'coverage, unflagged':>21}{'of all':>14}{'flagged':>14}{'off > 5 %':>14}{'seen':>14}"
        f"{'bias':>8}{'s each':>8}"
    )
    for made in CONDITIONS:
        those = [each for each in windows if each.condition == made]
        if not those:
            continue
        held = {id(each) for each in those if each.holds(others(windows, each, made))}
        clean = [each for each in those if not each.flagged]
        ratios = {
            id(each): each.median / others(windows, each, "quiet")
            for each in those
            if counts["quiet", each.model]
        }
        off = [each for each in those if abs(ratios.get(id(each), 1) - 1) > OFF]
        print(
            f"{made:<10}{len(those):>8}{share(sum(id(each) in held for each in clean), len(clean)):>21}"
            f"{share(len(held), len(those))}{share(len(those) - len(clean), len(those))}{share(len(off), len(those))}"
            f"{share(sum(each.flagged for each in off), len(off))}"
            f"{statistics.median(ratios.values() or [math.nan]) - 1:>+8.1%}"
            f"{statistics.median(each.ended_s - each.began_s for each in those):>8.2f}"
        )
    report_margin([each for each in windows if each.condition == "quiet"])
    report_control([each for each in windows if each.control_us])
    print()
    for made in CONDITIONS:
        words = Counter(each.row.verdict for each in windows if each.condition == made)
        if words:
            print(f"{made:<10}" + ", ".join(f"{word} {number}" for word, number in words.most_common()))


def report_margin(quiet: Sequence[Window]) -> None:
    """Apply the margin from the earlier half of the windows to the later half."""
    ordered = sorted(quiet, key=lambda each: each.began_s)
    earlier, later = ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]
    figures: dict[str, list[SittingFigure]] = {}
    for each in earlier:
        if figure := figure_of(each.row, each.began_s):
            figures.setdefault(each.model, []).append(figure)
    margin = sum(map(held_intervals, figures.values()), IntervalCoverage()).margin
    if margin is not None:
        clean = [each for each in later if not each.flagged]
        held = sum(each.holds(others(quiet, each, "quiet"), math.exp(margin)) for each in clean)
        print(
            f"{'with margin':<12}{len(later):>6}{share(held, len(clean)):>21}  {math.expm1(margin):+.1%} at both ends"
        )


def report_control(windows: Sequence[Window]) -> None:
    """The line of the C program: its windows, the share of its intervals that hold, and the share of medians that are off."""
    held = off = 0
    for one in windows:
        middle = statistics.median(one.control_us)
        rest = statistics.median(
            statistics.median(each.control_us)
            for each in windows
            if each is not one and each.model == one.model
        )
        held += min(one.control_us) <= rest <= max(one.control_us)
        off += abs(middle / rest - 1) > OFF
    if windows:
        print(
            f"{'C program':<10}{len(windows):>8}{share(held, len(windows)):>21}{'':>28}{share(off, len(windows))}"
        )


def details(windows: Sequence[Window]) -> None:
    """A line for each row that is off or flagged, for choosing constants."""
    for each in windows:
        row, ratio = each.row, each.median / others(windows, each, "quiet")
        if each.flagged or abs(ratio - 1) > OFF:
            figures = (
                row.stall_percent,
                row.others_percent,
                row.half_width_percent,
                row.launch_spread_percent,
            )
            text = " ".join("     -" if value is None else f"{value:6.1f}" for value in figures)
            print(
                f"{each.condition:<8}{each.model:<8}{ratio:6.3f} {text}  {row.verdict}: {row.verdict_reason}"
            )


def main() -> None:
    """Measure, or judge again, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=QUIET_FIRST, help="quiet ones before the others")
    parser.add_argument("--conditions", nargs="*", choices=CONDITIONS, default=())
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--models", nargs="+", default=USUAL, help="of which windows are made, in turn (or 512x16x10)"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--precision", type=float, help="in place of 100 inferences")
    parser.add_argument("--control", action="store_true", help="the C program beside each quiet window")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", type=Path, nargs="+")
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="every other window of each model and condition"
    )
    parser.add_argument("--apart", type=int, default=0, help="windows between two launches of one")
    parser.add_argument("--over", type=float, help="seconds that the launches of a window are spread over")
    parser.add_argument("--details", action="store_true")
    given = parser.parse_args()
    if given.again:
        windows = read(given.again)
    else:
        how = {"threads": given.threads, "precision": given.precision, "over_s": given.over}
        windows = measure(
            given.windows,
            given.conditions,
            given.seconds,
            given.json,
            {k: v for k, v in how.items() if v},
            given.models,
            control=given.control,
        )
    if given.apart:
        windows = regrouped(windows, given.apart)
    if given.half is not None:
        seen = Counter[tuple[str, str]]()
        chosen = []
        for each in windows:
            seen[each.condition, each.model] += 1
            if seen[each.condition, each.model] % 2 == given.half:
                chosen.append(each)
        windows = chosen
    counts = Counter((each.condition, each.model) for each in windows)
    windows = [
        each for each in windows if min(counts[each.condition, each.model], counts["quiet", each.model]) > 2
    ]
    if given.details:
        details(windows)
    report(windows)


if __name__ == "__main__":
    main()
