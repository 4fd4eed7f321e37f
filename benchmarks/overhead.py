"""What a task costs apart from its load, warm-up and inference: in a queue of 100, and alone on an idle swarm.

    python benchmarks/overhead.py [--tasks 100] [--singles 15] [--against FOLDER] [--rounds 3]

Real processes on loopback: a gate, one worker, one scheduler. Every task is a tiny model × 10 inferences with one load, each in a fresh
process. Overhead = wall time of the task minus the time that its record says was spent loading, warming up and inferring.
  queue:     time between two consecutive results
  single:    from the campaign being on disk to its result being on disk
  processor: of a queued task, user + system of each process with all its descendants; meaningful on a busy machine too
`--against`: another checkout, whose swarm takes turns with this one's, so that both run under the same conditions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from protocol.values.record import read_record, unpack_samples
from scheduler.local.demo import DemoNode, Swarm, demo_swarm
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store, open_store
from scheduler.submit.submit import submit_campaign
from swarm.base.home import Home

SINGLE, QUEUED = "one task, idle swarm", "each of a queue"
GOALS: Final = {SINGLE: (80.0, 1720.0), QUEUED: (40.0, 750.0)}
"""Milliseconds: the limit, and the predecessor's figure, on two cores of the same kind."""

Figures = dict[str, list[float]]
"""Name → milliseconds, one value per task, or one for all tasks together."""


def tiny_model(path: Path) -> None:
    """Six 64 × 64 layers with ReLU: about 0.1 MB, a few microseconds."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(6):
        weights.append(numpy_helper.from_array(rng.standard_normal((64, 64)).astype("f4") / 8, f"w{layer}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]),
        ]
        last = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 64])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


def campaign_file(path: Path, tasks: int) -> Path:
    """A campaign of `tasks` tasks on the tiny model."""
    lines = ["campaign: overhead", "models:"]
    lines += [f"  - {{name: tiny-{number}.onnx, path: tiny.onnx}}" for number in range(tasks)]
    lines += ["units: [CPU (ONNX)]", "devices: {spread: any}", "measure: {runs: 10, loads: 1, warmup: 1}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def finish(store: Store, campaign: str, within_s: float) -> tuple[float, tuple[ResultRow, ...]]:
    """Wait for the end of the campaign; return its creation time and its results."""
    deadline = time.monotonic() + within_s
    while True:
        row = store.campaigns.get(campaign)
        if row is not None and row.ended is not None:
            return row.created, store.results.rows(campaign)
        if time.monotonic() > deadline:
            raise SystemExit(f"{campaign} did not end within {within_s} s")
        time.sleep(0.01)


def useful_s(result: ResultRow) -> float:
    """Seconds that the record says were spent on load, warm-up and inference."""
    if result.record is None:
        raise SystemExit(f"{result.task.id} has no record: {result.task.detail}")
    record = read_record(result.record)
    if not record.timings:
        raise SystemExit(f"{result.task.id} failed: {record.detail}")
    samples = [
        time
        for one in record.timings
        for packed in (one.samples, one.warmup)
        for time in unpack_samples(packed)
    ]
    return (sum(load.ns for load in record.loads) + sum(samples)) / 1e9


def stages(results: Sequence[ResultRow]) -> Figures:
    """Milliseconds of each stage by name, as measured by the worker."""
    observed: Figures = {}
    for result in results:
        if result.record is not None:
            for stage in read_record(result.record).stages:
                observed.setdefault(f"  stage {stage.stage}", []).append(stage.seconds * 1e3)
    return observed


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds of the process and all its descendants, including those that ended."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.Error:  # it ended, and counts with its parent
            continue
    return total


def measure(swarm: Swarm, home: Home, here: Path, tasks: int, singles: int) -> Figures:
    one, many = campaign_file(here / "one.yaml", 1), campaign_file(here / "many.yaml", tasks)
    with open_store(home) as store:
        finish(store, submit_campaign(home, one, wait_s=60.0), 90.0)  # all roles are up, the model is cached
        single = []
        for _ in range(singles):
            created, (result,) = finish(store, submit_campaign(home, one, wait_s=60.0), 30.0)
            single.append(((result.accepted or 0.0) - created - useful_s(result)) * 1e3)
            time.sleep(0.5)
        processes = {name: psutil.Process(each.pid) for name, each in swarm.processes.items()}
        before = {name: cpu_s(process) for name, process in processes.items()}
        _, results = finish(store, submit_campaign(home, many, wait_s=60.0), 600.0)
        used = {name: cpu_s(process) - before[name] for name, process in processes.items()}
        ended = sorted(result.accepted or 0.0 for result in results)
        useful = [useful_s(result) * 1e3 for result in results]
        gaps = [
            (after - before) * 1e3 - statistics.median(useful) for before, after in itertools.pairwise(ended)
        ]
        cpu = {f"  processor {name}": [1e3 * seconds / tasks] for name, seconds in used.items()}
        return {SINGLE: single, QUEUED: gaps, "  useful part of it": useful, **stages(results), **cpu}


def figures_of(tree: Path, tasks: int, singles: int) -> Figures:
    """Figures of a swarm that runs the checkout `tree`."""
    command = [sys.executable, __file__, "--json", "--tasks", str(tasks), "--singles", str(singles)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(columns: Mapping[str, Figures]) -> None:
    """One line per figure: median and 90th percentile of each column, the ratio, the goal and the predecessor's figure."""
    print(f"{'ms':<26}" + "".join(f"{name[-24:]:>26}" for name in columns) + f"{'ratio':>8}")
    first, last = (list(columns.values())[at] for at in (0, -1))
    for name in last:
        texts = [_text(each.get(name, [])) for each in columns.values()]
        known = name in first and len(columns) > 1 and statistics.median(first[name])
        ratio = f"{statistics.median(last[name]) / statistics.median(first[name]):8.2f}" if known else ""
        goal = "  goal <= {:.0f}, predecessor {:.0f}".format(*GOALS[name]) if name in GOALS else ""
        print(f"{name:<26}" + "".join(f"{text:>26}" for text in texts) + ratio + goal)


def _text(values: Sequence[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    p90 = ordered[round(0.9 * (len(ordered) - 1))]
    tail = f" (p90 {p90:.1f})" if len(ordered) > 1 else ""
    return f"{statistics.median(ordered):.1f}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--singles", type=int, default=15)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="with --against: swarms of each")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.against is None:
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            tiny_model(here / "tiny.onnx")
            with demo_swarm(here / "swarm", [DemoNode("worker-1")], print) as (swarm, home):
                figures = measure(swarm, home, here, arguments.tasks, arguments.singles)
        if arguments.json:
            print(json.dumps(figures))
        else:
            show({"this": figures})
        return
    trees = [arguments.against.resolve(), Path(__file__).resolve().parents[1]]
    columns: dict[str, Figures] = {str(tree): {} for tree in trees}
    for number in range(arguments.rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            for name, values in figures_of(tree, arguments.tasks, arguments.singles).items():
                columns[str(tree)].setdefault(name, []).extend(values)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    show(columns)


if __name__ == "__main__":
    main()
