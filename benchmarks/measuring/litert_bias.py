"""Are the LiteRT driver's medians right? Needs ai-edge-litert: python -m pip install 'sark-node[litert]'.

    python benchmarks/measuring/litert_bias.py [MODEL.tflite …] [--rounds 11] [--threads 1] [--runs 200]

For each model (without any, chains of products made here), in turns, each in a process of its own: the driver's launch; LiteRT's own tool
(`litert-benchmark`, which runs the newer CompiledModel; its figures have steps of 10 µs: give it models above 1 ms); a plain loop over the
interpreter. Prints the median of each in ms, the median of the rounds' ratios, and the ratio of the best rounds' 5th percentiles, which
other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from alternated import alternated

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.launch.launch import Zygote, measure
from drivers.litert.samples import perceptron
from drivers.litert.units import CPU, version

LIMITS = Limits(load_s=120, run_s=300)
WARM = 30
PLAIN = """
import statistics, sys, time
import numpy as np
from ai_edge_litert.interpreter import Interpreter
model, threads, runs, warm = sys.argv[1], *map(int, sys.argv[2:])
interpreter = Interpreter(model_path=model, num_threads=threads)
interpreter.allocate_tensors()
for one in interpreter.get_input_details():
    interpreter.set_tensor(one["index"], np.random.standard_normal(one["shape"]).astype(one["dtype"]))
times = []
for _ in range(warm + runs):
    began = time.perf_counter_ns()
    interpreter.invoke()
    times.append(time.perf_counter_ns() - began)
print(statistics.median(times[warm:]) / 1e6, np.percentile(times[warm:], 5) / 1e6)
"""


Pair = tuple[float, float]
"""Median and 5th percentile in ms."""


def ours(zygote: Zygote, model: str, threads: int, runs: int) -> Pair:
    order = WorkOrder(model, CPU, runs=runs, loads=1, warmup=WARM, threads=threads, check=False)
    (measured,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, MeasureReport))
    times = [sample / 1e6 for sample in measured.samples_ns]
    return statistics.median(times), statistics.quantiles(times, n=20)[0]


def tool(model: str, threads: int, runs: int) -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "ai_edge_litert.tools.benchmark_litert_model", "--model", model]
        command += ["--num_threads", str(threads), "--num_runs", str(runs), "--warmup_runs", str(WARM)]
        subprocess.run([*command, "--result_json", str(result)], capture_output=True, check=True)
        latency = json.loads(result.read_text())["latency"]
        return float(latency["median_ms"]), float(latency["p5_ms"])


def plain(model: str, threads: int, runs: int) -> Pair:
    command = [sys.executable, "-c", PLAIN, model, *map(str, (threads, runs, WARM))]
    middle, low = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(middle), float(low)


def compare(zygote: Zygote, model: Path, rounds: int, threads: int, runs: int) -> None:
    sides: dict[str, Callable[[], Pair]] = {
        "ours": lambda: ours(zygote, str(model), threads, runs),
        "tool": lambda: tool(str(model), threads, runs),
        "plain": lambda: plain(str(model), threads, runs),
    }
    found = alternated(sides, rounds)
    medians = " ".join(f"{statistics.median(middle for middle, _ in found[name]):9.3f}" for name in sides)
    ratios = " ".join(
        f"{statistics.median(own[0] / other[0] for own, other in zip(found['ours'], found[name], strict=True)):10.3f}"
        for name in ("tool", "plain")
    )
    best = {name: min(low for _, low in pairs) for name, pairs in found.items()}
    ratios += "".join(f" {best['ours'] / best[name]:10.3f}" for name in ("tool", "plain"))
    print(f"{model.name[:30]:30} {medians} {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    print(f"{version()}, {chosen.threads} threads, {chosen.rounds} rounds of {chosen.runs} inferences")
    heads = ("ours/tool", "ours/plain", "best: tool", "plain")
    names = " ".join(f"{name:>9}" for name in ("ours", "tool", "plain"))
    print(f"{'model':30} {names} {' '.join(f'{head:>10}' for head in heads)}")
    with tempfile.TemporaryDirectory() as folder, Zygote("litert").start() as zygote:
        Path(folder).chmod(0o755)  # a node of root runs models as nobody
        made = [(width, Path(folder) / f"chain{width}.tflite") for width in (1024, 2048)]
        for width, path in made if not chosen.models else ():
            path.write_bytes(perceptron(width, 4))
            path.chmod(0o644)
        for model in chosen.models or [path for _, path in made]:
            compare(zygote, model, chosen.rounds, chosen.threads, chosen.runs)


if __name__ == "__main__":
    main()
