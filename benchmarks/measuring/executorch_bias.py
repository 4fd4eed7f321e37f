"""The ExecuTorch driver beside plain loops over the runtime's own Python interface; the wheel brings no benchmark tool.

    python benchmarks/measuring/executorch_bias.py [net.pte …] [--rounds 11] [--threads 1] [--runs 200]

Each round measures every model (without arguments: two made here) in turns, each in a fresh process forked with the runtime imported: the
driver's launch; plain calls of the method, which hand its outputs out as they are, as the driver's do and `Module::forward` in C++; calls
with copied outputs, as `executorch.runtime.Method.execute` makes them. Prints the median of each in ms, the medians of the rounds' ratios,
and the ratios of the best rounds' 5th percentiles, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alternated import alternated

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.executorch.samples import chain
from drivers.executorch.units import CPU, preloaded, runtime
from drivers.launch.launch import Zygote, measure

LIMITS = Limits(load_s=120, run_s=300)
WARM = 30
Pair = tuple[float, float]
"""Median and 5th percentile in ms."""


def ours(zygote: Zygote, model: str, threads: int, runs: int) -> Pair:
    order = WorkOrder(model, CPU, runs=runs, loads=1, warmup=WARM, threads=threads, check=False)
    (measured,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, MeasureReport))
    return pair([sample / 1e6 for sample in measured.samples_ns])


def pair(times: list[float]) -> Pair:
    return statistics.median(times), statistics.quantiles(times, n=20)[0]


def loop(model: str, threads: int, runs: int, copied: bool) -> Pair:
    """In a process of its own."""
    found = runtime()
    found.lib._unsafe_reset_threadpool(threads)
    program = found.lib._load_program(model)
    method = program.load_method("forward")
    meta = method.method_meta()
    sizes = [meta.input_tensor_meta(index).sizes() for index in range(meta.num_inputs())]
    inputs = [found.torch.randn(size) for size in sizes]
    times = []
    for _ in range(WARM + runs):
        began = time.perf_counter_ns()
        method.call(inputs, clone_outputs=copied)
        times.append((time.perf_counter_ns() - began) / 1e6)
    return pair(times[WARM:])


def plain(context: Any, model: str, threads: int, runs: int, *, copied: bool) -> Pair:
    with context.Pool(1) as pool:
        middle, low = pool.apply(loop, (model, threads, runs, copied))
        return middle, low


def compare(zygote: Zygote, context: Any, model: Path, rounds: int, threads: int, runs: int) -> None:
    sides: dict[str, Callable[[], Pair]] = {
        "ours": lambda: ours(zygote, str(model), threads, runs),
        "plain": lambda: plain(context, str(model), threads, runs, copied=False),
        "copied": lambda: plain(context, str(model), threads, runs, copied=True),
    }
    found = alternated(sides, rounds)
    medians = [statistics.median(middle for middle, _ in found[name]) for name in sides]
    best = {name: min(low for _, low in pairs) for name, pairs in found.items()}
    others = ("plain", "copied")
    ratios = [
        statistics.median(own[0] / other[0] for own, other in zip(found["ours"], found[name], strict=True))
        for name in others
    ]
    ratios += [best["ours"] / best[name] for name in others]
    shown = [*(f"{median:9.3f}" for median in medians), *(f"{ratio:11.3f}" for ratio in ratios)]
    print(f"{model.name[:30]:30} {' '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preloaded()])
    print(f"{chosen.threads} threads, {chosen.rounds} rounds of {chosen.runs} inferences")
    heads = ("ours/plain", "ours/copied", "best: plain", "copied")
    names = " ".join(f"{name:>9}" for name in ("ours", "plain", "copied"))
    print(f"{'model':30} {names} {' '.join(f'{head:>11}' for head in heads)}")
    with tempfile.TemporaryDirectory() as folder, Zygote("executorch").start() as zygote:
        Path(folder).chmod(0o755)  # a node of root runs models as nobody
        made = [(width, Path(folder) / f"chain{width}.pte") for width in (512, 1024)]
        for width, path in made if not chosen.models else ():
            path.write_bytes(chain(width, 4))
            path.chmod(0o644)
        for model in chosen.models or [path for _, path in made]:
            compare(zygote, context, model, chosen.rounds, chosen.threads, chosen.runs)


if __name__ == "__main__":
    main()
