"""Can a result be trusted on a shared host, and what does it cost? Everything interleaved in one run; read the ratios.

    python benchmarks/measuring/precision.py [--results 20] [--repeats 9]

time        seconds until a tiny model is known within ±2 % (target: at most 1 s on a quiet device)
coverage    does a result's interval hold the median of 30 launches spread over the whole run? Beside it the interval that the same
            samples would give if they were independent (target: at least 90 %, or the row's verdict says that it is not to be trusted)
spread      variation of repeated results against the naive method: one process, ten runs, the first among them
            (target: at most a third of it)
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from node.run.local import LocalDevice
from results.row.stats import centre, launch_medians, median_interval
from results.row.verdicts import RowVerdict
from scheduler.local.bench import Bench
from swarm.base.home import Home

UNIT = "CPU (ONNX)"
PRECISION = 0.02
REFERENCE = 30
NAIVE = """
import statistics, sys, time
import numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feeds = {one.name: np.random.rand(*one.shape).astype(np.float32) for one in session.get_inputs()}
times = []
for _ in range(10):
    began = time.perf_counter()
    session.run(None, feeds)
    times.append(time.perf_counter() - began)
print(statistics.median(times))
"""


def layers(path: Path, width: int, batch: int, depth: int) -> str:
    """A chain of dense layers."""
    source = np.random.default_rng(0)
    names = [f"w{n}" for n in range(depth)]
    weights = [
        numpy_helper.from_array((source.standard_normal((width, width)) / width).astype(np.float32), name)
        for name in names
    ]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(depth)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, width]) for name in ("x0", f"x{depth}")
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return str(path)


@dataclass(frozen=True)
class Result:
    """One order, measured as `sark-node bench` does it."""

    launches: tuple[tuple[int, ...], ...]
    seconds: float
    verdict: str

    @property
    def flagged(self) -> bool:
        """Whether its row says that it is not to be trusted."""
        return self.verdict != RowVerdict.VALID


def measured(bench: Bench, model: str, **how: float) -> Result:
    began = time.perf_counter()
    outcome = bench.measure(model, UNIT, threads=1, **how)
    return Result(outcome.launches_ns, time.perf_counter() - began, outcome.verdict)


def holds(interval: tuple[float | None, float | None], value: float) -> bool:
    low, high = interval
    return low is not None and high is not None and low <= value <= high


def independent(result: Result) -> tuple[float | None, float | None]:
    """The interval of all samples as one heap."""
    return median_interval([float(sample) for launch in result.launches for sample in launch])


def coverage(bench: Bench, model: str, results: int) -> None:
    runs = 0
    matches: list[Result] = []
    reference: list[float] = []
    for number in range(results):
        matches.append(measured(bench, model, precision=PRECISION))
        runs = max(40, min(400, len(matches[0].launches[0])))
        # the reference's launches lie between the results, over the whole run
        due = REFERENCE * (number + 1) // results - len(reference)
        if due:
            reference += launch_medians(measured(bench, model, runs=runs * due, loads=due).launches)
    truth = statistics.median(reference) / 1e6
    launches = [median_interval(launch_medians(one.launches)) for one in matches]
    own = sum(holds(interval, truth) for interval in launches)
    outcome = sum(
        holds(interval, truth) or one.flagged for interval, one in zip(launches, matches, strict=True)
    )
    naive = sum(holds(independent(one), truth) for one in matches)
    quick = [one.seconds for one in matches if not one.flagged]
    count = len(matches)
    print(
        f"  coverage   interval of launches {own / count:.0%}; or the row is flagged {outcome / count:.0%} "
        f"({', '.join(f'{word} {many}' for word, many in Counter(one.verdict for one in matches).items())}); "
        f"as if independent {naive / count:.0%}"
    )
    print(
        f"  time       {statistics.median(one.seconds for one in matches):.2f} s median of all, "
        + (f"{statistics.median(quick):.2f} s of the valid ones" if quick else "none is valid")
    )


def variation(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def spread(bench: Bench, model: str, repeats: int) -> None:
    own, naive = [], []
    for number in range(repeats):
        for side in ((0, 1), (1, 0))[number % 2]:
            if side:
                own.append(centre(measured(bench, model, precision=PRECISION).launches).median or 0.0)
            else:
                done = subprocess.run(
                    [sys.executable, "-c", NAIVE, model], capture_output=True, text=True, check=True
                )
                naive.append(float(done.stdout))
    print(
        f"  spread     ours {variation(own):.1%}, naive {variation(naive):.1%}: "
        f"ratio {variation(own) / variation(naive):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Bench(LocalDevice(Home.at(Path(folder) / "home"))) as bench:
        models = {
            "tiny": layers(Path(folder) / "tiny.onnx", 64, 1, 6),
            "small": layers(Path(folder) / "small.onnx", 256, 16, 4),
        }
        for name, model in models.items():
            print(f"{name}, load average {os.getloadavg()[0]:.1f}", flush=True)
            measured(bench, model, runs=10, loads=1)  # its imports are done
            coverage(bench, model, given.results)
            spread(bench, model, given.repeats)


if __name__ == "__main__":
    main()
