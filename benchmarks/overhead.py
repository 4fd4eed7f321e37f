"""What a task costs besides its load, warm-up and inference: a queue of 100, and one task on an idle swarm.

    python benchmarks/overhead.py [--tasks 100] [--singles 15]

Real processes on loopback: a gate, one worker, one scheduler. Every task is a tiny model × 10 inferences with one load, each in a fresh
process. Overhead = wall time of the task minus what its record says was spent loading, warming up and inferring.
  queue:  time between two results that follow each other
  single: from the campaign being on disk to its result being on disk
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from protocol.values.record import read_record, unpack_samples
from scheduler.local.demo import DemoNode, demo_swarm
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store, open_store
from scheduler.submit.submit import submit_campaign
from swarm.base.home import Home


def tiny_model(path: Path) -> None:
    """Six 64 × 64 layers with ReLU: about 0.1 MB, some microseconds."""
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
    """Wait for the end; gives when the campaign was created and its results."""
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


def summary(name: str, values: Sequence[float]) -> str:
    ordered = sorted(values)
    p90 = ordered[round(0.9 * (len(ordered) - 1))]
    return f"{name:<34} {statistics.median(ordered) * 1e3:8.1f} {p90 * 1e3:8.1f} {min(ordered) * 1e3:8.1f} {len(ordered):5d}"


def stages(results: Sequence[ResultRow]) -> dict[str, float]:
    """Median seconds of each stage as the worker saw it."""
    observed: dict[str, list[float]] = {}
    for result in results:
        if result.record is not None:
            for stage in read_record(result.record).stages:
                observed.setdefault(stage.stage, []).append(stage.seconds)
    return {name: statistics.median(values) for name, values in observed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--singles", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tiny_model(here / "tiny.onnx")
        with demo_swarm(here / "swarm", [DemoNode("worker-1")], print) as (_, home):
            measure(home, here, arguments.tasks, arguments.singles)


def measure(home: Home, here: Path, tasks: int, singles: int) -> None:
    one, many = campaign_file(here / "one.yaml", 1), campaign_file(here / "many.yaml", tasks)
    with open_store(home) as store:
        finish(store, submit_campaign(home, one, wait_s=60.0), 90.0)  # everybody is up, the model is cached
        single = []
        for _ in range(singles):
            created, (result,) = finish(store, submit_campaign(home, one, wait_s=60.0), 30.0)
            single.append((result.accepted or 0.0) - created - useful_s(result))
            time.sleep(0.5)
        began = time.monotonic()
        _, results = finish(store, submit_campaign(home, many, wait_s=60.0), 300.0)
        whole = time.monotonic() - began
        ended = sorted(result.accepted or 0.0 for result in results)
        useful = statistics.median(useful_s(result) for result in results)
        gaps = [after - before - useful for before, after in itertools.pairwise(ended)]
        print(f"{'overhead, ms':<34} {'median':>8} {'p90':>8} {'min':>8} {'n':>5}")
        print(summary("one task, idle swarm", single))
        print(summary(f"each of a queue of {tasks}", gaps))
        print(
            f"useful part of a task: {useful * 1e3:.1f} ms; the whole queue: {whole:.2f} s = {60 * tasks / whole:.0f} tasks/min"
        )
        print(
            "stages of a queued task, ms: "
            + ", ".join(f"{k} {v * 1e3:.1f}" for k, v in stages(results).items())
        )


if __name__ == "__main__":
    main()
