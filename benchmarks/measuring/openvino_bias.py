"""Are the OpenVINO driver's medians right? Needs openvino: python -m pip install 'sark-node[openvino]'.

    python benchmarks/measuring/openvino_bias.py [MODEL …] [--rounds 11] [--threads 1] [--runs 200]

For each model (ONNX, or the .xml in a folder of OpenVINO IR; without any, chains of products made here), in turns, each in a process of its
own: the driver's launch; OpenVINO's own tool, `benchmark_app`, with the same hint and threads, synchronous, as it is for latency; a plain
loop over its Python API. The tool reads the runtime's own clock inside the call, without the call from Python. Prints the
median of each and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from alternated import alternated

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.launch.launch import Zygote, measure
from drivers.openvino.runtime import runtime
from drivers.openvino.units import CPU, settings
from protocol.formats.reference_model import chain_of_products

LIMITS = Limits(load_s=120, run_s=300)
WARM = 30
TOOL = "import sys; sys.modules['openvino_telemetry'] = None; from openvino.tools.benchmark.main import main; main()"
MEDIAN = re.compile(r"Median:\s+([0-9.]+) (ms|us|μs|µs)")
PLAIN = """
import statistics, sys, time
sys.modules["openvino_telemetry"] = None
import numpy as np
import openvino as ov
model, threads, runs, warm = sys.argv[1], *map(int, sys.argv[2:])
hints = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
core = ov.Core()
read = core.read_model(model)
read.reshape({one: [1 if size.is_dynamic else size.get_length() for size in one.partial_shape] for one in read.inputs})
request = core.compile_model(read, "CPU", hints).create_infer_request()
for tensor in request.input_tensors:
    tensor.data[:] = np.random.standard_normal(tensor.shape).astype(tensor.data.dtype)
times = []
for _ in range(warm + runs):
    began = time.perf_counter_ns()
    request.infer()
    times.append(time.perf_counter_ns() - began)
print(statistics.median(times[warm:]) / 1e6)
"""


def ours(zygote: Zygote, model: Path, threads: int, runs: int) -> float:
    given = model.parent if model.suffix == ".xml" else model
    order = WorkOrder(str(given), CPU, runs=runs, loads=1, warmup=WARM, threads=threads, check=False)
    (measured,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, MeasureReport))
    return statistics.median(measured.samples_ns) / 1e6


def tool(model: Path, threads: int, runs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        hints = Path(folder) / "hints.json"
        asked = {
            name: str(value) for name, value in settings("CPU", threads).items() if name != "PERFORMANCE_HINT"
        }
        hints.write_text(json.dumps({"CPU": asked}))
        command = [
            sys.executable,
            "-c",
            TOOL,
            "-m",
            str(model),
            "-d",
            "CPU",
            "-hint",
            "latency",
            "-api",
            "sync",
        ]
        command += ["-niter", str(runs), "-load_config", str(hints), *shapes(model)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = MEDIAN.search(done.stdout)
    assert found is not None, done.stdout
    return float(found[1]) * (1.0 if found[2] == "ms" else 1e-3)


def shapes(model: Path) -> list[str]:
    """The tool's option for models with a dynamic batch."""
    read = runtime().core.read_model(str(model))
    if not read.is_dynamic():
        return []
    given = (
        f"{one.any_name}[{','.join(str(1 if size.is_dynamic else size.get_length()) for size in one.partial_shape)}]"
        for one in read.inputs
    )
    return ["-shape", ",".join(given)]


def plain(model: Path, threads: int, runs: int) -> float:
    command = [sys.executable, "-c", PLAIN, str(model), *map(str, (threads, runs, WARM))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(zygote: Zygote, model: Path, rounds: int, threads: int, runs: int) -> None:
    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(zygote, model, threads, runs),
        "tool": lambda: tool(model, threads, runs),
        "plain": lambda: plain(model, threads, runs),
    }
    found = alternated(sides, rounds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        name: statistics.median(mine / other for mine, other in zip(found["ours"], found[name], strict=True))
        for name in ("tool", "plain")
    }
    print(
        f"{model.name[:36]:36} {medians['ours']:9.4f} {medians['tool']:9.4f} {medians['plain']:9.4f}"
        f" {ratios['tool']:10.3f} {ratios['plain']:11.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    print(f"{runtime().title}, {chosen.threads} threads, {chosen.rounds} rounds of {chosen.runs} inferences")
    print(f"{'model':36} {'ours ms':>9} {'tool ms':>9} {'plain ms':>9} {'ours/tool':>10} {'ours/plain':>11}")
    with tempfile.TemporaryDirectory() as folder, Zygote("openvino").start() as zygote:
        Path(folder).chmod(0o755)  # a node of root runs models as nobody
        made = [(width, Path(folder) / f"chain{width}.onnx") for width in (192, 512, 1024)]
        for width, path in made if not chosen.models else ():
            path.write_bytes(chain_of_products(width, 4, 32))
            path.chmod(0o644)
        for model in chosen.models or [path for _, path in made]:
            compare(zygote, model, chosen.rounds, chosen.threads, chosen.runs)


if __name__ == "__main__":
    main()
