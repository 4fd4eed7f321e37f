"""What a node costs: time and processor time from process start to listening and taking tasks, and memory and processor time when idle.

    python benchmarks/startup.py [--starts 5] [--idle 60] [--against FOLDER] [--memory MIB] [--lan]

Real processes on loopback: a gate, and one worker after another. `--against`: another checkout, whose nodes take turns with this one's, so
that both run under the same conditions; compile both first (`python -m compileall -q .`), as an installation does.

* listening: the worker's port accepts connections. Taking tasks: it prints that it is a worker. Both in wall time since starting Python.
* processor to start: user + system of the process and of all its children, including ended ones, `SETTLE_S` after it takes tasks, because
  it still imports runtimes before. A *first* start tries every driver; later starts know which drivers work.
* memory: USS, the memory that a process shares with no other, summed over the worker and all its descendants; and PSS, where shared memory
  counts once. Other programs that use the same libraries make both smaller: leave the environment to the benchmark meanwhile.
* idle: processor time of all of them over `--idle` seconds, `SETTLED_S` after the start: a node explores the swarm in its first minute.
* `--memory`: the worker lives in a memory cgroup of that many MiB (needs the right to make one) and runs the campaign of
  `examples/quickstart`. The peak is what the kernel charged to the group, including files that it read.
* `--lan`: the worker listens on all interfaces and looks for neighbours, as in normal use; otherwise it uses loopback only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parents[1]
SETTLE_S = 4.0
SETTLED_S = 60.0
GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Start:
    """One start of one worker."""

    listening_s: float
    taking_s: float
    cpu_s: float
    uss_mib: tuple[tuple[str, float], ...]
    """USS by process, the worker first."""
    pss_mib: float

    @property
    def memory_mib(self) -> float:
        return sum(uss for _, uss in self.uss_mib)


def start(
    tree: Path, home: Path, *arguments: str, enter: Callable[[], object] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sark", "--home", str(home), *arguments, "--stop-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree), "XDG_DATA_HOME": str(home)},
        preexec_fn=enter,
    )


def until_line(process: subprocess.Popen[str], begins: str) -> None:
    """Wait for a line of output; exit if the process ends before printing it."""
    assert process.stdout is not None
    for line in process.stdout:
        if begins in line:
            return
    raise SystemExit(f"{process.args} ended before it said {begins!r}")


def until_listening(process: subprocess.Popen[str], port: int) -> None:
    while process.poll() is None:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.005)
    raise SystemExit(f"{process.args} ended before it listened")


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(10)


def free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return int(trying.getsockname()[1])


def tree_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    own = psutil.Process(process.pid)
    return [own, *own.children(recursive=True)]


def cpu_s(processes: list[psutil.Process]) -> float:
    """Processor seconds of these processes and of the children that they have waited for."""
    return float(sum(sum(process.cpu_times()[:4]) for process in processes))


def uss_mib(processes: list[psutil.Process]) -> tuple[tuple[str, float], ...]:
    return tuple((one.name(), one.memory_full_info().uss / 2**20) for one in processes)


def pss_mib(processes: list[psutil.Process]) -> float:
    return sum(float(one.memory_full_info().pss) for one in processes) / 2**20


def join(
    tree: Path, home: Path, listen: str, enter: Callable[[], object] | None = None
) -> tuple[subprocess.Popen[str], Start]:
    port, began = free_port(), time.perf_counter()
    options = ("--no-calibrate", "--listen", f"/ip4/{listen}/tcp/{port}")
    worker = start(tree, home, "join", *options, enter=enter)
    until_listening(worker, port)
    listening = time.perf_counter() - began
    until_line(worker, "is a worker now")
    taking = time.perf_counter() - began
    time.sleep(SETTLE_S)
    processes = tree_of(worker)
    return worker, Start(listening, taking, cpu_s(processes), uss_mib(processes), pss_mib(processes))


def one_gate(tree: Path, home: Path) -> tuple[float, float]:
    """Seconds until the gate is up, and its processor time until then."""
    began = time.perf_counter()
    process = start(tree, home, "gate", "--listen", "/ip4/127.0.0.1/tcp/0")
    until_line(process, "is up")
    took, cpu = time.perf_counter() - began, cpu_s(tree_of(process))
    stop(process)
    return took, cpu


def show(name: str, unit: str, columns: list[list[float]]) -> None:
    texts = [f"{statistics.median(each):7.2f} ({min(each):.2f} to {max(each):.2f})" for each in columns]
    ratio = (
        f"  × {statistics.median(columns[0]) / statistics.median(columns[1]):.2f}" if len(columns) > 1 else ""
    )
    print(f"{name:<46} {unit:<4} {'   '.join(texts)}{ratio}", flush=True)


@contextlib.contextmanager
def memory_group(mib: int) -> Iterator[Path]:
    """A memory cgroup, version 1 or 2, whichever this system has."""
    old = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if old else GROUPS) / f"sark-startup-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(mib * 2**20))
        yield group
    finally:
        group.rmdir()


def in_little_memory(tree: Path, home: Path, mib: int) -> None:
    """A worker with limited memory that runs a campaign submitted from outside."""
    gate = start(tree, home, "gate", "--listen", "/ip4/127.0.0.1/tcp/0")
    until_line(gate, "is up")
    with memory_group(mib) as group:
        worker, figures = join(
            tree, home, "127.0.0.1", lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        )
        old = (group / "memory.max_usage_in_bytes").exists()
        peak = group / ("memory.max_usage_in_bytes" if old else "memory.peak")
        idle = int(peak.read_text()) / 2**20
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sark", "--home", str(home), "submit", str(HERE / "examples/quickstart/campaign.yaml")],
            cwd=home,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )  # fmt: skip
        killed = (group / ("memory.oom_control" if old else "memory.events")).read_text().split()
        print(
            f"in {mib} MiB: idle {figures.memory_mib:.0f} MiB USS; peak of the group {idle:.0f} MiB when it takes tasks and"
            f" {int(peak.read_text()) / 2**20:.0f} MiB after a campaign, which ended with exit code {done.returncode};"
            f" killed for memory: {killed[killed.index('oom_kill') + 1]}"
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:])
        stop(worker)
    stop(gate)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--lan", action="store_true")
    arguments = parser.parse_args()
    trees = [tree.resolve() for tree in (arguments.against, HERE) if tree is not None]
    listen = "0.0.0.0" if arguments.lan else "127.0.0.1"  # noqa: S104  (the product's own default)
    with tempfile.TemporaryDirectory() as name:
        homes = [Path(name, f"home-{number}") for number in range(len(trees))]
        print("columns: " + ", ".join(map(str, trees)))
        gates = [[one_gate(tree, home) for _ in range(arguments.starts)] for tree, home in zip(trees, homes, strict=True)]  # fmt: skip
        show("gate: start to listening", "s", [[took for took, _ in each] for each in gates])
        show("gate: processor to start", "s", [[cpu for _, cpu in each] for each in gates])
        up = [start(tree, home, "gate", "--listen", "/ip4/127.0.0.1/tcp/0") for tree, home in zip(trees, homes, strict=True)]  # fmt: skip
        for gate in up:
            until_line(gate, "is up")
        starts: list[list[Start]] = [[] for _ in trees]
        for _ in range(arguments.starts + 1):
            for tree, home, found in zip(trees, homes, starts, strict=True):
                worker, figures = join(tree, home, listen)
                found.append(figures)
                stop(worker)  # two at a time would share memory
        show("worker, first start: processor to start", "s", [[each[0].cpu_s] for each in starts])
        show("worker: start to listening", "s", [[one.listening_s for one in each[1:]] for each in starts])
        show("worker: start to taking tasks", "s", [[one.taking_s for one in each[1:]] for each in starts])
        show("worker: processor to start", "s", [[one.cpu_s for one in each[1:]] for each in starts])
        show("worker: memory with all below it (USS)", "MiB", [[one.memory_mib for one in each[1:]] for each in starts])  # fmt: skip
        show("worker: memory with all below it (PSS)", "MiB", [[one.pss_mib for one in each[1:]] for each in starts])  # fmt: skip
        for found in starts:
            print("  " + ", ".join(f"{name} {uss:.0f}" for name, uss in found[-1].uss_mib))
        last = [join(tree, home, listen)[0] for tree, home in zip(trees, homes, strict=True)]
        trees_idle = [tree_of(worker) for worker in last]
        time.sleep(SETTLED_S)
        before = [cpu_s(processes) for processes in trees_idle]
        time.sleep(arguments.idle)
        used = [cpu_s(processes) - begun for processes, begun in zip(trees_idle, before, strict=True)]
        show("worker: idle, of a core", "%", [[100 * each / arguments.idle] for each in used])
        for process in (*last, *up):
            stop(process)
        if arguments.memory:
            for number, tree in enumerate(trees):
                in_little_memory(tree, Path(name, f"small-{number}"), arguments.memory)


if __name__ == "__main__":
    main()
