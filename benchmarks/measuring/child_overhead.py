"""What isolation costs: a whole launch of a nano model in a fresh process, compared with the same work in this process, by sandbox tier.

    python benchmarks/measuring/child_overhead.py [rounds]

Both sides do the same work: load, 5 warm-ups, 10 timed inferences, output check. `overhead` is the launch's wall time minus its own load,
warm-up and inference times. `cold` starts a zygote for each launch, as for a worker's first task. Interleaved; medians over the rounds (20
by default).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from drivers.contract.base import Event, Limits, LoadReport, MeasureReport, WorkOrder
from drivers.launch.launch import Zygote, measure
from drivers.onnx.driver import OnnxDriver
from drivers.onnx.session import TINY_MODEL
from drivers.sandbox.enter import Tier

IDLE_S = 2.0
"""Pause between tasks, in which launches are prepared."""


def own_ms(events: list[Event]) -> float:
    """Load, warm-up and inference of one launch, in milliseconds."""
    loads = sum(event.load_ns for event in events if isinstance(event, LoadReport))
    runs = sum(
        sum(event.samples_ns) + sum(event.warmup_ns) for event in events if isinstance(event, MeasureReport)
    )
    return (loads + runs) / 1e6


def cold(order: WorkOrder, tier: Tier) -> Iterator[Event]:
    """The launch with a newly started zygote."""
    with Zygote("onnx", tier=tier) as zygote:
        yield from measure(order, Limits(), zygote)


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with (
        tempfile.TemporaryDirectory() as folder,
        Zygote("onnx", tier=Tier.NONE).start() as bare,
        Zygote("onnx", tier=Tier.PARTIAL).start() as partial,
        Zygote("onnx", tier=Tier.FULL).start() as full,
        Zygote("onnx", can_fork=False) as spawned,
    ):
        os.chdir(folder)
        model = Path(folder) / "nano.onnx"
        model.write_bytes(TINY_MODEL)
        order = WorkOrder(str(model), "CPU (ONNX)", runs=10, loads=1, warmup=5)
        ways: dict[str, Callable[[], Iterator[Event]]] = {
            "in this process": lambda: OnnxDriver().run(order),
            "no sandbox": lambda: measure(order, Limits(), bare),
            "partial sandbox": lambda: measure(order, Limits(), partial),
            "full sandbox": lambda: measure(order, Limits(), full),
            "cold, no sandbox": lambda: cold(order, Tier.NONE),
            "cold, full sandbox": lambda: cold(order, Tier.FULL),
            "fresh interpreter": lambda: measure(order, Limits(), spawned),
        }
        for way in ways.values():
            list(way())
        walls: dict[str, list[float]] = {name: [] for name in ways}
        overheads: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                events = list(way())
                wall = (time.perf_counter() - began) * 1e3
                walls[name].append(wall)
                overheads[name].append(wall - own_ms(events))
        os.chdir("/")
    print(f"{'':24} {'wall ms':>9} {'overhead ms':>12} {'p90':>8}   (medians of {rounds})")
    for name in ways:
        p90 = statistics.quantiles(overheads[name], n=10)[-1]
        print(
            f"{name:24} {statistics.median(walls[name]):9.1f} {statistics.median(overheads[name]):12.1f} {p90:8.1f}"
        )
    tasks(max(3, rounds // 3))


def tasks(rounds: int) -> None:
    """What the sandbox costs a task of six launches, with and without launches prepared in idle time."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "nano.onnx"
        model.write_bytes(TINY_MODEL)
        order = WorkOrder(str(model), "CPU (ONNX)", runs=24, loads=6, warmup=1)
        ways = {
            "no sandbox": (Tier.NONE, 0),
            "full sandbox": (Tier.FULL, 0),
            "full, prepared": (Tier.FULL, 6),
        }
        zygotes = {
            name: Zygote("onnx", tier=tier, prefork=ahead).start() for name, (tier, ahead) in ways.items()
        }
        walls: dict[str, list[float]] = {name: [] for name in ways}
        for counts in range(-1, rounds):
            time.sleep(IDLE_S)
            for name, zygote in zygotes.items():
                began = time.perf_counter()
                list(measure(order, Limits(), zygote))
                if counts >= 0:
                    walls[name].append((time.perf_counter() - began) * 1e3)
        for zygote in zygotes.values():
            zygote.close()
    print(f"{'six launches':24} {'median ms':>9} {'least':>8}")
    for name in ways:
        print(f"{name:24} {statistics.median(walls[name]):9.1f} {min(walls[name]):8.1f}")


if __name__ == "__main__":
    main()
