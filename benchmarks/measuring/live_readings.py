"""How much does showing a device's sensors disturb a measurement beside it? (`node.device.monitor`, read by the worker every 2 s.)

    python benchmarks/measuring/live_readings.py [pairs] [times]

A process reads all sensors `times` as often as a worker does (default 100: every 20 ms), while this process times a small model on one
thread. Each pair times the same number of inferences twice, in alternating order: while the reader runs, and while it is stopped (SIGSTOP).
Printed: the sensors that work here, processor and wall time of a reading and its share at the worker's pace, and the paired ratio of the
samples' medians, with its 95 % interval, at `times` that pace.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from array import array
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from models import chain
from observer import loop_of

from node.device.monitor import DeviceMonitor
from node.serve.live_readings import INTERVAL_S

STRETCH_S = 0.5
READINGS = 200


def read_on(every_s: float) -> None:
    """Runs in the other process, until it is killed."""
    sensors = DeviceMonitor().open()
    while True:
        sensors.read()
        time.sleep(every_s)


def cost() -> None:
    """Print the cost of one reading."""
    monitor = DeviceMonitor()
    print("sensors:", ", ".join(monitor.sensors()))
    sensors = monitor.open()
    cpu, wall = [], []
    for _ in range(READINGS):
        time.sleep(0.005)
        used, began = time.thread_time(), time.perf_counter()
        sensors.read()
        cpu.append(time.thread_time() - used)
        wall.append(time.perf_counter() - began)
    sensors.close()
    used = statistics.median(cpu)
    print(
        f"a reading: {used * 1e3:.2f} ms of processor time, {statistics.median(wall) * 1e3:.2f} ms of wall time"
    )
    print(f"every {INTERVAL_S:g} s: {used / INTERVAL_S:.3%} of one processor")


def main(pairs: int, times: float) -> None:
    cost()
    context = get_context("spawn")
    reader = context.Process(target=read_on, args=(INTERVAL_S / times,), daemon=True)
    reader.start()
    assert reader.pid is not None
    with tempfile.TemporaryDirectory() as folder:
        loop = loop_of(str(chain(Path(folder) / "small.onnx", 256, 16, 4)))
        probe = array("q", bytes(8 * 50))
        loop.time(probe, 0, len(probe), 1)
        each = max(20, int(STRETCH_S * 1e9 / statistics.median(probe)))
        ratios = []
        for pair in range(pairs):
            medians = {}
            for reads in ((True, False), (False, True))[pair % 2]:
                os.kill(reader.pid, signal.SIGCONT if reads else signal.SIGSTOP)
                samples = array("q", bytes(8 * each))
                loop.time(samples, 0, each, 1)
                medians[reads] = statistics.median(samples)
            ratios.append(medians[True] / medians[False])
    os.kill(reader.pid, signal.SIGCONT)
    reader.terminate()
    rng = random.Random(1)
    resampled = sorted(statistics.median(rng.choices(ratios, k=pairs)) for _ in range(2000))
    print(
        f"read {times:g} times as often: ratio {statistics.median(ratios):.4f}"
        f" ({resampled[50]:.4f} to {resampled[1949]:.4f}) over {pairs} pairs of {each} inferences"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, float(sys.argv[2]) if len(sys.argv) > 2 else 100.0)
