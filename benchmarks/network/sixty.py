"""A swarm of many real processes on one machine, with two gates that do not know each other: when workers are found, and what it costs.

    python benchmarks/network/sixty.py [--workers 60] [--batch 10] [--each 3] [--task 4.0] [--idle 30] [--within 600] [--found-only]

Real `sark-node gate`, `join`, `peers` and `submit` on loopback. Of every six workers, three know only the first gate, two only the second,
one both. `--batch`: workers to start at a time, the next batch once these are up; 0: all at once. As root on Linux, each worker is a device
of its own.

  findable    from starting a worker's process, and from its line that it is a worker, until it is found by an observer that joined at the
              first gate and by one that joined at the second; both look repeatedly, so times have the resolution of one look
  all found   from the last worker's line until both observers have found all workers; and the memory of all processes then
  campaign    `submit --gate FIRST`, to its end: tasks of the simulated unit that sleep, so that the time is that of finding and placing;
              first wherever there is room, then one task for each worker, by name
  idle        after all that: memory and processor time of each process over the window; pss divides memory that several processes share
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.startup import cpu_s
from swarm.base.logs import set_up_logs
from tests.real.apart import can_be_apart
from tests.real.lab import Lab, kill_marked, marked, until
from tests.real.two_gates import (
    OTHER,
    Watch,
    one_for_each,
    other_gate,
    shares,
    start_two_gates,
    start_workers,
    tasks_for,
    worker_ids,
)

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=60)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--each", type=int, default=3, help="tasks for each worker")
    parser.add_argument("--task", type=float, default=4.0, help="seconds of a task")
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--within", type=float, default=600.0, help="seconds to wait for anything")
    parser.add_argument("--found-only", action="store_true", help="end when all are found")
    arguments = parser.parse_args()
    set_up_logs(sys.stderr, level=logging.ERROR)
    names = [f"w{number}" for number in range(arguments.workers)]
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), ("ada",), workers=names, apart=can_be_apart())
        try:
            measure(lab, arguments)
        finally:
            kill_marked(lab.mark)


def measure(lab: Lab, arguments: argparse.Namespace) -> None:
    """Run the whole benchmark, and print its tables."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    start_two_gates(lab)
    first, second = Watch(lab.gate), Watch(other_gate(lab))
    with first.running(), second.running():
        began, up = join(lab, arguments)
        until(
            lambda: min(len(first.first_seen), len(second.first_seen)) >= len(lab.workers),
            "both have found all",
            within=arguments.within,
        )
    ids = worker_ids(lab)
    findable = {name: max(first.first_seen[peer], second.first_seen[peer]) for peer, name in ids.items()}
    print(f"all found by both gates {max(findable.values()) - max(up.values()):.1f} s after the last was up")
    print(f"memory of all: {memory(lab) / 1024:.1f} GiB (pss)")
    print(f"\n{'seconds':<44} {'p50':>8} {'p99':>8} {'max':>8} {'n':>5}")
    print(row("process start to worker", [up[name] - began[name] for name in lab.workers]))
    print(
        row("process start to findable by both gates", [findable[name] - began[name] for name in lab.workers])
    )
    print(
        row("worker to findable by both gates", [max(0.0, findable[name] - up[name]) for name in lab.workers])
    )
    print(row("one look, first gate", first.looks_s[1:]))
    if arguments.found_only:
        return
    for gate in (lab.gate, other_gate(lab)):
        look(lab, gate)
    campaigns(lab, arguments, set(ids))
    idle(lab, arguments.idle)
    print(f"load {os.getloadavg()[0]:.1f}")


def join(lab: Lab, arguments: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Start all workers; return when each was started and when it printed that it is a worker."""
    began: dict[str, float] = {}
    up: dict[str, float] = {}

    def note() -> bool:
        for name in began:
            if name not in up and "is a worker now" in lab.log(name):
                up[name] = time.time()
            assert lab.running[name].poll() is None, f"{name} ended:\n{lab.log(name)[-2000:]}"
        return len(up) == len(began)

    size = arguments.batch or len(lab.workers)
    for start in range(0, len(lab.workers), size):
        began |= start_workers(lab, lab.workers[start : start + size])
        until(note, f"{len(began)} workers are up", within=arguments.within, every=0.1)
    print(
        f"{len(up)} workers are up {max(up.values()) - min(began.values()):.0f} s after the first was started"
    )
    return began, up


def memory(lab: Lab) -> float:
    """MiB of all processes of the lab, with shared memory counted once."""
    used = 0.0
    for pid in marked(lab.mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            used += psutil.Process(pid).memory_full_info().pss / MIB
    return used


def row(name: str, values: Sequence[float]) -> str:
    """A row of the table."""
    ordered = sorted(values)
    p50, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"{name:<44} {p50:8.1f} {p99:8.1f} {ordered[-1]:8.1f} {len(ordered):5d}"


def look(lab: Lab, gate: str) -> None:
    """Print the outcome of one `sark-node peers`."""
    began = time.monotonic()
    listed = lab.run("ada", "peers", "--gate", gate, "--json", within=120).json()["peers"]
    answer = sum(each["unreachable"] is None for each in listed)
    print(
        f"peers: {len(listed)} found, {answer} of them answer, {time.monotonic() - began:.1f} s with its start"
    )


def campaigns(lab: Lab, arguments: argparse.Namespace, workers: set[str]) -> None:
    """Run one campaign that goes wherever there is room, and one that names every worker, so that each gets its share."""
    anywhere = tasks_for(lab, lab.folder, arguments.each, arguments.task)
    campaign(lab, arguments, "anywhere", anywhere, workers)
    named = one_for_each(lab.folder, sorted(workers), arguments.task)
    assert campaign(lab, arguments, "one for each", named, workers) == workers


def campaign(lab: Lab, arguments: argparse.Namespace, name: str, file: Path, workers: set[str]) -> set[str]:
    """Run a campaign; return the workers that ran it. The gates are measured meanwhile."""
    table = lab.folder / "found.csv"
    gates = [psutil.Process(lab.running[name].pid) for name in ("gate", OTHER)]
    before, began = [cpu_s(gate) for gate in gates], time.monotonic()
    done = lab.submit("ada", file, "--csv", table, within=arguments.within)
    took = time.monotonic() - began
    assert done.code == 0, done
    result = shares(table)
    used = ", ".join(f"{cpu_s(gate) - since:.1f} s" for gate, since in zip(gates, before, strict=True))
    print(
        f"\ncampaign, {name}: {result.total()} tasks of {arguments.task:g} s complete in {took:.1f} s on {len(result)} different"
        f" workers of {len(workers)}, {min(result.values())} to {max(result.values())} each; processor of the gates {used}"
    )
    return set(result)


def idle(lab: Lab, seconds: float) -> None:
    """Memory and processor time of the gates, and of five workers with all their descendants."""
    groups = {
        "gate": [psutil.Process(lab.running["gate"].pid)],
        "other gate": [psutil.Process(lab.running[OTHER].pid)],
    }
    for name in lab.workers[:: max(1, len(lab.workers) // 5)][:5]:
        worker = psutil.Process(lab.running[name].pid)
        groups[name] = [worker, *worker.children(recursive=True)]
    before = {name: [cpu_s(process) for process in group] for name, group in groups.items()}
    threading.Event().wait(seconds)
    print(
        f"\n{'idle for ' + format(seconds, 'g') + ' s':<16} {'rss':>8} {'pss':>8} {'below it':>9} {'pss':>8} {'cpu, % of a core':>18}"
    )
    for name, group in groups.items():
        used = sum(cpu_s(process) for process in group) - sum(before[name])
        memory = [process.memory_full_info() for process in group]
        below = sum(each.pss for each in memory[1:]) / MIB
        print(
            f"{name:<16} {memory[0].rss / MIB:8.0f} {memory[0].pss / MIB:8.0f} {len(group) - 1:9d} {below:8.0f}"
            f" {100 * used / seconds:18.2f}"
        )


if __name__ == "__main__":
    main()
