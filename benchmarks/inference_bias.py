"""Are our medians right? A driver launch against a tight loop in a fresh process of its own, interleaved.

    python benchmarks/inference_bias.py [rounds]

The reference is the shortest honest loop: IO binding, the same inputs, threads and session options, its first fifth dropped.
The order of the two changes from round to round. For each model: the median of each side over the rounds, and the median of the
paired ratios ours / reference (target: within 5 %). The models come from installed packages, so nothing has to be fetched.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from drivers.base import Limits, Measured, WorkOrder
from drivers.launch import Zygote, measure
from drivers.onnx_session import TINY_MODEL

REFERENCE = """
import json, sys, time
import numpy as np, onnxruntime as ort
from drivers.onnx_inputs import candidates, make
from drivers.onnx_session import CPU, inputs_of, options
path, runs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
session = ort.InferenceSession(path, options(threads, True), providers=[CPU])
inputs = inputs_of(session)
shapes = next(candidates(inputs, {}, {}))
binding = session.io_binding()
held = [ort.OrtValue.ortvalue_from_numpy(make(one, shapes.of(one), 0, 100)) for one in inputs]
for one, value in zip(inputs, held):
    binding.bind_ortvalue_input(one.name, value)
for output in session.get_outputs():
    binding.bind_output(output.name, "cpu")
clock, samples, run = time.perf_counter_ns, [0] * runs, session.run_with_iobinding
run(binding)
for index in range(runs):
    began = clock()
    run(binding)
    samples[index] = clock() - began
print(json.dumps(samples[runs // 5:]))
"""


def installed(package: str, path: str) -> str:
    """A file inside an installed package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / path)


def reference_us(model: str, runs: int, threads: int) -> float:
    """Median of the tight loop, in microseconds."""
    command = [sys.executable, "-P", "-c", REFERENCE, model, str(runs), str(threads)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    samples: list[int] = json.loads(told.stdout)
    return statistics.median(samples) / 1e3


def our_us(model: str, runs: int, threads: int, zygote: Zygote) -> float:
    """Median of one launch of ours, in microseconds."""
    order = WorkOrder(model, "CPU (ONNX)", runs=runs, loads=1, threads=threads, check=False)
    (measured,) = [event for event in measure(order, Limits(), zygote) if isinstance(event, Measured)]
    return statistics.median(measured.samples_ns) / 1e3


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as folder, Zygote("onnx").start() as zygote:
        nano = Path(folder) / "nano.onnx"
        nano.write_bytes(TINY_MODEL)
        light = "backend/test/data/light/light_{}.onnx"
        models = {  # name: path, runs
            "nano": (str(nano), 5000),
            "shufflenet": (installed("onnx", light.format("shufflenet")), 60),
            "magika": (installed("magika", "models/standard_v3_3/model.onnx"), 80),
            "squeezenet": (installed("onnx", light.format("squeezenet")), 60),
        }
        print(
            f"{'model':12} {'threads':>7} {'reference µs':>13} {'ours µs':>11} {'ratio':>7} {'ratios, quartiles':>18}   ({rounds} rounds)"
        )
        rows: dict[tuple[str, int], list[tuple[float, float]]] = {
            (name, threads): [] for name in models for threads in (1, 2)
        }
        for turn in range(rounds):
            for name, threads in rows:
                path, runs = models[name]
                if turn % 2:
                    ours = our_us(path, runs, threads, zygote)
                    rows[name, threads].append((reference_us(path, runs, threads), ours))
                else:
                    theirs = reference_us(path, runs, threads)
                    rows[name, threads].append((theirs, our_us(path, runs, threads, zygote)))
    for (name, threads), pairs in rows.items():
        ratios = sorted(ours / theirs for theirs, ours in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        theirs, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"{name:12} {threads:7} {theirs:13.2f} {ours:11.2f} {middle:7.3f} {low:9.3f} – {high:.3f}")


if __name__ == "__main__":
    main()
