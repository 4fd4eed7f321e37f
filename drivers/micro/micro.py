"""What a device can do at best: bytes moved in a second by size, and operations in a second by precision and size.

    run_micro("cpu", QUICK, threads=4) ─▶ a process of its own ─▶ Micro(figures={"copy_gb_s_64_kib": 41.2, "fp32_gflops_1024": 95.0, …})

numpy for the processor (`micro_numpy`), torch for GPUs (`micro_torch`). Each figure is the best of repeated blocks, by size and as the
maximum of its curve, never an average; what was computed is compared with an independent computation, so that nothing is timed that was
not done. A precision that this way of computing would only emulate is left out.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract.base import Crashed, DriverError, TimedOut, Unfit
from drivers.contract.boot import boot_command, clean_environment

KIB: Final = 1024
MIB: Final = 1024 * KIB
LARGEST: Final = 512 * MIB
START_S: Final = 30.0
"""As long as the process may take to begin and to end beside its plan: torch is slow to import."""
RESOLVABLE: Final = 4.0
"""A call is only timed where it takes so many times as long as one that does nothing."""
THREAD_VARIABLES: Final = (
    *("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
SEED: Final = 20250101
CHECKED: Final = 8
"""Places of each product that are computed once more."""


@dataclass(frozen=True, slots=True)
class MicroPlan:
    """What to measure and for how long at most."""

    sizes: tuple[int, ...] = (64 * KIB, MIB, 64 * MIB)
    """Bytes of each array that is copied, added, read or written."""
    gemm: tuple[int, ...] = (256, 1024)
    """Rows and columns of the square matrices that are multiplied."""
    precisions: tuple[str, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
    block_s: float = 0.01
    blocks: int = 4
    """At least so many blocks of each …"""
    spread: float = 0.05
    """… and more until the three best are this close together, in a share of the best."""
    total_s: float = 3.0


QUICK: Final = MicroPlan()
FULL: Final = MicroPlan(
    sizes=(16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    gemm=(128, 256, 512, 1024, 2048, 4096, 8192),
    block_s=0.02,
    blocks=6,
    spread=0.02,
    total_s=20.0,
)


@dataclass(frozen=True, slots=True)
class Micro:
    """What was found. Figures by name with their unit in it; what could not be measured is not among them."""

    device: str
    backend: str
    """Such as `numpy 2.4.6`."""
    threads: int
    figures: Mapping[str, float]
    notes: tuple[str, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    """When it was at work, in nanoseconds of `time.perf_counter_ns`, for readings of the device beside it."""
    seconds: float = 0.0


Timed = Callable[[int], float]
"""Do it so many times; how many seconds that took."""


@dataclass(slots=True)
class MicroRun:
    """One go through a plan: finds each figure in its share of the time, and never goes past the end."""

    plan: MicroPlan
    kernels: int
    """How many are still to come."""
    clock: Callable[[], float] = time.perf_counter
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _began: float = -1.0

    def left(self) -> float:
        """Seconds until the plan is over."""
        if self._began < 0:
            self._began = self.clock()
        return self.plan.total_s - (self.clock() - self._began)

    def rate(
        self, name: str, work: float, timed: Timed, *, idle_s: float = 0.0, floor_s: float = 0.0
    ) -> float | None:
        """Work in a second at best. `idle_s`: of a call that does nothing, which is taken off; `floor_s`: the least that can be told.

        None, with a note, where no time is left or a call is too short.
        """
        share = self.left() / max(1, self.kernels)
        self.kernels -= 1
        if self.left() <= 0:
            self.notes.append(f"{name}: left out, no time")
            return None
        until = self.clock() + share
        repeats = 1
        while (took := timed(repeats)) < self.plan.block_s / 2 and self.clock() < until:
            repeats = math.ceil(repeats * min(10.0, max(2.0, self.plan.block_s / max(took, 1e-9))))
        best = [took / repeats - idle_s]
        while len(best) < self.plan.blocks or not _close(best, self.plan.spread):
            if self.clock() >= until:
                break
            best = sorted([*best, timed(repeats) / repeats - idle_s])
        if best[0] + idle_s < max(RESOLVABLE * idle_s, floor_s):
            self.notes.append(f"{name}: left out, too short to be told from its call")
            return None
        return work / best[0] if best[0] > 0 else None

    def hopeless(self, name: str, work: float, speed: float) -> bool:
        """Whether so much work would take more than what is left, at the speed found for less of it."""
        if not speed or 3 * work / speed <= self.left():
            return False
        self.notes.append(f"{name}: left out, no time")
        self.kernels -= 1
        return True

    def put(self, name: str, value: float | None) -> None:
        """Keep a figure, if there is one."""
        if value is not None and math.isfinite(value) and value > 0:
            self.figures[name] = float(f"{value:.6g}")

    def maximum(self, prefix: str) -> None:
        """The best of a curve, beside it."""
        curve = [value for name, value in self.figures.items() if name.startswith(prefix + "_")]
        if curve:
            self.figures[f"{prefix}_max"] = max(curve)


def _close(times: Sequence[float], spread: float) -> bool:
    return len(times) >= 3 and times[2] - times[0] <= spread * times[0]


def size_name(size: int) -> str:
    """`64_kib`, `128_mib`."""
    return f"{size // MIB}_mib" if size >= MIB else f"{size // KIB}_kib"


def timed_by(call: Callable[[], object], clock: Callable[[], float]) -> Timed:
    """The call again and again, by a clock."""

    def timed(repeats: int) -> float:
        began = clock()
        for _ in range(repeats):
            call()
        return clock() - began

    return timed


def check_product(
    size: int,
    row: Callable[[int], Sequence[float]],
    column: Callable[[int], Sequence[float]],
    at: Callable[[int, int], float],
    epsilon: float,
    name: str,
) -> None:
    """Some places of a square product computed once more, one number at a time. Raises `Crashed` where they differ.

    `row` of the left factor, `column` of the right one, `at` of the product; `epsilon`: of the precision, 0 for whole numbers.
    """
    for down, across in np.random.default_rng(SEED + 1).integers(0, size, (CHECKED, 2)).tolist():
        terms = [a * b for a, b in zip(row(down), column(across), strict=True)]
        room = 4 * epsilon * math.fsum(map(abs, terms))
        if not abs(at(down, across) - math.fsum(terms)) <= room:
            raise Crashed(f"{name}: the product is wrong at row {down}, column {across}")


# -- in a process of its own ---------------------------------------------------------------------------------------------


def fitting(plan: MicroPlan, cache_bytes: int | None, memory_bytes: int) -> MicroPlan:
    """The plan with arrays of at least twice the last cache (each kernel uses two or three), and none that memory has no room for."""
    sizes = sorted({*plan.sizes, min(2 * (cache_bytes or 0), LARGEST) or max(plan.sizes)})
    room = memory_bytes // 16
    return replace(plan, sizes=tuple(size for size in sizes if size <= room))


def last_cache_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Size of the largest cache of the first processor; None where the system does not tell."""
    found = []
    for path in (cpus / "cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            found.append(int(text[:-1]) * {"K": KIB, "M": MIB}[text[-1]])
    return max(found, default=None)


def run_micro(
    kind: str, plan: MicroPlan, threads: int, gpu: str = "", command: Sequence[str] | None = None
) -> Micro:
    """Measure in a process of its own, with a clean environment (blocking). `kind`: `cpu`, or `cuda` and `mps` by torch.

    `gpu`: UUID or index. Raises `Unfit` where that is not to be had, `Crashed` for a wrong result, `TimedOut` past the plan's end.
    """
    environ = clean_environment(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    if gpu:
        environ["CUDA_VISIBLE_DEVICES"] = gpu
    told = json.dumps({"kind": kind, "plan": asdict(plan), "threads": threads})
    try:
        done = subprocess.run(
            command or boot_command("micro.micro", told),
            capture_output=True,
            timeout=plan.total_s + START_S,
            check=False,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"micro-benchmarks of {kind}: still running after {plan.total_s + START_S:g} s"
        ) from None
    except OSError as exc:
        raise Crashed(f"micro-benchmarks of {kind}: {exc}") from exc
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Crashed(
            f"micro-benchmarks of {kind}: {last[-1] if last else f'exit code {done.returncode}'}"
        ) from None
    if "why" in said:
        raise (Unfit if said["unfit"] else Crashed)(f"micro-benchmarks of {kind}: {said['why']}")
    return Micro(
        **{**said, "notes": tuple(said["notes"]), "windows": tuple((a, b) for a, b in said["windows"])}
    )


def main(arguments: Sequence[str]) -> None:
    """In that process: an order as JSON, the answer as JSON on standard output."""
    order = json.loads(arguments[0])
    values: dict[str, Any] = order["plan"]
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    plan = MicroPlan(**(values | lists))
    try:
        if order["kind"] == "cpu":
            found = importlib.import_module("drivers.micro.on_numpy").measure(plan, order["threads"])
        else:
            found = importlib.import_module("drivers.micro.on_torch").measure(plan, order["kind"])
        answer: dict[str, Any] = asdict(found)
    except (DriverError, MemoryError) as why:
        answer = {"why": str(why) or "out of memory", "unfit": isinstance(why, Unfit)}
    sys.stdout.write(json.dumps(answer))
