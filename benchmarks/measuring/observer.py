"""How much does our bookkeeping disturb the measurement? Stretches with and without it, paired, in one process.

    python benchmarks/measuring/observer.py [pairs]

Each pair times the same number of inferences twice, in alternating order: once with the bookkeeping of `drivers.measure.timing` around each
stretch of 20 ms (pressure, switches, processor time, clocks) and once bare. None of it lies inside a stretch, so only effects on caches and
the scheduler can remain. Printed: the paired ratio of the samples' medians (target: within 0.5 %), the same for two bare sides, which shows
the resolution of this host, and the share of wall time that the bookkeeping takes between stretches.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime
from models import chain

from drivers.measure import host, timing

STRETCH_S = 0.02
STRETCHES = 5


def loop_of(model: str) -> timing.TimedLoop:
    """A loop that runs the inference, by IO binding."""
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, chosen, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for one in session.get_inputs():
        binding.bind_cpu_input(one.name, np.ones(one.shape, np.float32))
    for one in session.get_outputs():
        binding.bind_output(one.name)
    return timing.TimedCalls(session.run_with_iobinding, binding)


def bare(loop: timing.TimedLoop, each: int) -> tuple[float, float]:
    """Median of the samples in ns, and wall seconds."""
    samples = array("q", bytes(8 * each * STRETCHES))
    began = time.perf_counter()
    for start in range(0, len(samples), each):
        loop.time(samples, start, start + each, 1)
    return statistics.median(samples), time.perf_counter() - began


def watched(loop: timing.TimedLoop, each: int, reader: host.HostReader) -> tuple[float, float, float]:
    """Like `bare`, with the bookkeeping; also returns the share of wall time that lies inside the stretches."""
    samples = array("q", bytes(8 * each * STRETCHES))
    began = time.perf_counter()
    before, used = reader.look(), time.process_time()
    blocks = [
        timing.timed_block(loop, samples, start, start + each, 1, reader)
        for start in range(0, len(samples), each)
    ]
    host.state(before, reader.look(), time.process_time() - used, reader)
    took = time.perf_counter() - began
    return statistics.median(samples), took, sum(block.wall_ns for block in blocks) / 1e9 / took


def main(pairs: int) -> None:
    reader = host.HostReader()
    with tempfile.TemporaryDirectory() as folder:
        for name, width, batch, depth in (("tiny", 64, 1, 6), ("small", 256, 16, 4), ("middle", 512, 32, 6)):
            loop = loop_of(str(chain(Path(folder) / f"{name}.onnx", width, batch, depth)))
            warm = array("q", bytes(8 * 200))
            loop.time(warm, 0, 200, 1)
            each = max(1, int(STRETCH_S * 1e9 / statistics.median(warm)))
            ratios, controls, shares = [], [], []
            for number in range(pairs):
                if number % 2:
                    observed, _, share = watched(loop, each, reader)
                    plain, _ = bare(loop, each)
                else:
                    plain, _ = bare(loop, each)
                    observed, _, share = watched(loop, each, reader)
                control, _ = bare(loop, each)
                other, _ = bare(loop, each)
                ratios.append(observed / plain)
                controls.append(control / other)
                shares.append(1 - share)
            quarter = statistics.quantiles(ratios, n=4)
            print(
                f"{name:7} {statistics.median(warm) / 1e3:8.1f} µs  watched/bare {statistics.median(ratios) - 1:+.2%} "
                f"(middle half {quarter[0] - 1:+.2%} … {quarter[2] - 1:+.2%}), bare/bare {statistics.median(controls) - 1:+.2%}, "
                f"bookkeeping {statistics.median(shares):.2%} of the wall time",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
