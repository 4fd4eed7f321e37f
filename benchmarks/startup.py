"""From starting the process to being reachable, and what an idle worker costs.

    python benchmarks/startup.py [--starts 7] [--idle 20]

Real processes on loopback, a gate and one worker. Times are wall time from starting the interpreter; memory is the resident set of the
worker's process and, apart, of the zygote that keeps the runtime imported; CPU is user + system time over the idle window.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from swarm.base.home import Home
from swarm.join.known_gates import local_gates

SARK = [sys.executable, "-P", "-m", "sark"]


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SARK, "--home", str(home), *arguments, "--stop-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def until_line(process: subprocess.Popen[str], begins: str) -> None:
    """Wait for a line of output; ends the benchmark when it does not come."""
    assert process.stdout is not None
    for line in process.stdout:
        if begins in line:
            return
    raise SystemExit(f"{process.args} ended before it said {begins!r}")


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(10)


def one_gate(folder: Path) -> float:
    began = time.perf_counter()
    process = start(folder, "gate", "--listen", "/ip4/127.0.0.1/tcp/0")
    until_line(process, "is up")
    took = time.perf_counter() - began
    stop(process)
    return took


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def summary(name: str, values: list[float]) -> str:
    return f"{name:<44} {statistics.median(values):7.2f} s  ({min(values):.2f} to {max(values):.2f}, n={len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--idle", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_gate(folder / "warm-up")
        print(
            summary(
                "gate: process start to listening",
                [one_gate(folder / "gate") for _ in range(arguments.starts)],
            )
        )
        gate = start(folder / "home", "gate", "--listen", "/ip4/127.0.0.1/tcp/0")
        until_line(gate, "is up")
        assert local_gates(Home.at(folder / "home"))
        joins = []
        for number in range(arguments.starts):
            began = time.perf_counter()
            worker = start(folder / "home", "join", "--no-calibrate", "--listen", "/ip4/127.0.0.1/tcp/0")
            until_line(worker, "is a worker now")
            joins.append(time.perf_counter() - began)
            if number < arguments.starts - 1:
                stop(worker)
        print(summary("worker: process start to taking tasks", joins))
        idle(psutil.Process(worker.pid), arguments.idle)
        stop(worker)
        stop(gate)


def idle(worker: psutil.Process, seconds: float) -> None:
    time.sleep(5.0)  # the first publishing and looking around is over
    below = worker.children(recursive=True)
    before = [cpu_s(process) for process in (worker, *below)]
    time.sleep(seconds)
    after = [cpu_s(process) for process in (worker, *below)]
    print(
        f"idle worker: RSS {worker.memory_info().rss / 2**20:.0f} MiB, CPU {100 * (after[0] - before[0]) / seconds:.2f} % of a core"
    )
    for process, begun, ended in zip(below, before[1:], after[1:], strict=True):
        share = 100 * (ended - begun) / seconds
        print(f"  below it: RSS {process.memory_info().rss / 2**20:.0f} MiB, CPU {share:.2f} % of a core")


if __name__ == "__main__":
    main()
