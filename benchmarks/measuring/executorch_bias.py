"""The ExecuTorch driver beside plain loops over the runtime's own Python interface; the wheel contains no benchmark tool.

    python benchmarks/measuring/executorch_bias.py [net.pte …] [--rounds 11] [--threads 1] [--runs 200]

Each round measures every model (without arguments: two made here) in turns, each in a fresh process forked with the runtime imported: the
driver's launch; plain calls of the method, which return its outputs without copying, like the driver and `Module::forward` in C++; and
calls with copied outputs, as `executorch.runtime.Method.execute` makes them. Prints the median of each in ms, the medians of the rounds'
ratios (`ours/…`), and the ratios of the best rounds' 5th percentiles (`best/…`), which other work on the machine disturbs least.
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

from beside import BiasBenchmark, Pair, chains, pair

from drivers.executorch.samples import chain
from drivers.executorch.units import CPU, preloaded, runtime

WARM = 30


def loop(model: str, threads: int, runs: int, copied: bool) -> Pair:
    """Runs in a process of its own."""
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


def plain(context: Any, copied: bool, model: Path, threads: int, runs: int) -> Pair:
    with context.Pool(1) as pool:
        middle, low = pool.apply(loop, (str(model), threads, runs, copied))
        return middle, low


def make(folder: Path) -> list[Path]:
    return chains(folder, ".pte", {width: partial(chain, width, 4) for width in (512, 1024)})


if __name__ == "__main__":
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*preloaded()])
    others = {"plain": partial(plain, forks, False), "copied": partial(plain, forks, True)}
    BiasBenchmark("executorch", CPU, "executorch", make, others, warm=WARM).main(__doc__)
