"""What the micro-benchmarks measure and how: the plan, one run through it, and the check of a product."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from drivers.contract.base import Crashed

KIB: Final = 1024
MIB: Final = 1024 * KIB
RESOLVABLE: Final = 4.0
"""A call is timed only if it takes at least this many times as long as a call that does nothing."""
SEED: Final = 20250101
CHECKED: Final = 8
"""Number of entries of each product that are computed again."""


@dataclass(frozen=True, slots=True)
class MicroPlan:
    """What to measure, and for how long at most."""

    sizes: tuple[int, ...] = (64 * KIB, MIB, 64 * MIB)
    """Bytes of each array that is copied, added, read or written."""
    gemm: tuple[int, ...] = (256, 1024)
    """Rows and columns of the square matrices that are multiplied."""
    precisions: tuple[str, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
    block_s: float = 0.01
    blocks: int = 4
    """Fewest blocks of each figure …"""
    spread: float = 0.05
    """… and more until the three best are within this share of the best."""
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
class MicroResult:
    """Figures by a name that includes their unit; what could not be measured is left out."""

    device: str
    backend: str
    """Library and version, such as `numpy 2.4.6`."""
    threads: int
    figures: Mapping[str, float]
    notes: tuple[str, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    """When it was working, in nanoseconds of `time.perf_counter_ns`, for telemetry."""
    seconds: float = 0.0


Timed = Callable[[int], float]
"""Takes a number of repeats; returns seconds."""


@dataclass(frozen=True, slots=True)
class Product:
    call: Callable[[], Any]
    left: Any
    right: Any
    epsilon: float
    """Machine epsilon of the precision; 0 for integers."""


@dataclass(slots=True)
class MicroRun:
    """One run through a plan: measures each figure in its share of the time, and never exceeds the plan's total time."""

    plan: MicroPlan
    kernels: int
    """Number of figures still to measure."""
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
        """The best work per second. `idle_s`: time of a call that does nothing, which is subtracted. `floor_s`: the shortest call that can
        be timed.

        None, with a note, if no time is left or the call is too short.
        """
        share = self.left() / max(1, self.kernels)
        self.kernels -= 1
        if self.left() <= 0:
            self.notes.append(f"{name}: skipped, no time left")
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
            self.notes.append(f"{name}: skipped, too short to time")
            return None
        return work / best[0] if best[0] > 0 else None

    def exceeds_time(self, name: str, work: float, speed: float) -> bool:
        """Whether the work would take longer than the time left, at the speed measured for less work; if so, adds a note."""
        if not speed or 3 * work / speed <= self.left():
            return False
        self.notes.append(f"{name}: skipped, no time left")
        self.kernels -= 1
        return True

    def products(
        self,
        precision: str,
        make: Callable[[int], Product],
        timed: Callable[[Callable[[], Any]], Timed],
        numbers: Callable[[Any], list[float]],
        *,
        floor_s: float = 0.0,
    ) -> None:
        """Multiply square matrices from small to large, and check each product. `numbers`: values of a row or column of a factor."""
        speed = 0.0
        for size in self.plan.gemm:
            label, work = f"{precision}_gflops_{size}", 2 * size**3 / 1e9
            if self.exceeds_time(label, work, speed):
                continue
            product = make(size)
            rate = self.rate(label, work, timed(product.call), floor_s=floor_s)
            self.add(label, rate)
            speed = rate or speed
            if rate:
                check_product(product, size, numbers, label)

    def arrays(
        self,
        size: int,
        kernels: Mapping[str, tuple[int, Callable[[], Any]]],
        timed: Callable[[Callable[[], Any]], Timed],
        *,
        idle_s: Mapping[str, float] | None = None,
        floor_s: float = 0.0,
    ) -> None:
        """Run kernels on arrays of `size` bytes. Each kernel: how many times one call moves these bytes, and the call."""
        for name, (times, call) in kernels.items():
            label = f"{name}_gb_s_{size_name(size)}"
            idle = idle_s[name] if idle_s is not None else 0.0
            self.add(label, self.rate(label, times * size / 1e9, timed(call), idle_s=idle, floor_s=floor_s))

    def result(self, device: str, backend: str, threads: int, began_ns: int) -> MicroResult:
        """The result, with the maximum of each bandwidth curve."""
        for name in ("copy", "add", "triad", "read", "write"):
            self.add_maximum(f"{name}_gb_s")
        ended_ns = time.perf_counter_ns()
        windows, seconds = ((began_ns, ended_ns),), (ended_ns - began_ns) / 1e9
        return MicroResult(device, backend, threads, self.figures, tuple(self.notes), windows, seconds)

    def add(self, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value) and value > 0:
            self.figures[name] = float(f"{value:.6g}")

    def add_maximum(self, prefix: str) -> None:
        curve = [value for name, value in self.figures.items() if name.startswith(prefix + "_")]
        if curve:
            self.figures[f"{prefix}_max"] = max(curve)


def _close(times: Sequence[float], spread: float) -> bool:
    return len(times) >= 3 and times[2] - times[0] <= spread * times[0]


def size_name(size: int) -> str:
    """A size in a figure's name, such as `64_kib` or `128_mib`."""
    return f"{size // MIB}_mib" if size >= MIB else f"{size // KIB}_kib"


def timed_by(call: Callable[[], object], clock: Callable[[], float]) -> Timed:
    """Times repeated calls with a clock."""

    def timed(repeats: int) -> float:
        began = clock()
        for _ in range(repeats):
            call()
        return clock() - began

    return timed


def check_product(product: Product, size: int, numbers: Callable[[Any], list[float]], name: str) -> None:
    """Compute some entries of a square product again, one number at a time. Raises `Crashed` if they differ."""
    rng, made = random.Random(SEED), product.call()
    for _ in range(CHECKED):
        down, across = rng.randrange(size), rng.randrange(size)
        row, column = numbers(product.left[down]), numbers(product.right[:, across])
        terms = [a * b for a, b in zip(row, column, strict=True)]
        tolerance = 4 * product.epsilon * math.fsum(map(abs, terms))
        if not abs(float(made[down, across]) - math.fsum(terms)) <= tolerance:
            raise Crashed(f"{name}: the product is wrong at row {down}, column {across}")
