"""Micro-benchmarks: figures follow the device and the size, none is a constant, and a wrong result gives no figure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from drivers.contract.base import Crashed, TimedOut, Unfit
from drivers.micro import on_numpy, on_torch
from drivers.micro.micro import fit_plan, last_cache_bytes, run_micro
from drivers.micro.plan import FULL, KIB, MIB, QUICK, MicroPlan, MicroRun, Product, check_product, size_name

TINY = MicroPlan(sizes=(64 * KIB, MIB), gemm=(4, 48), block_s=0.001, blocks=2, spread=0.5, total_s=2.0)


class Clock:
    """A clock that moves only when a device works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def device(self, seconds: Callable[[int], float]) -> Callable[[int], float]:
        """A device that takes `seconds(n)` on its n-th call."""
        requests = [0]

        def timed(repeats: int) -> float:
            took = seconds(requests[0]) * repeats
            requests[0] += 1
            self.now += took
            return took

        return timed


def rate_of(seconds: Callable[[int], float], plan: MicroPlan = MicroPlan(), **more: float) -> float | None:
    clock = Clock()
    return MicroRun(plan, 1, clock).rate("x", 1.0, clock.device(seconds), **more)


def test_the_rate_is_that_of_the_best_block() -> None:
    assert rate_of(lambda n: 0.004 if n % 3 else 0.001) == pytest.approx(1000)


def test_a_device_half_as_fast_has_half_the_rate() -> None:
    assert rate_of(lambda n: 0.002) == pytest.approx(500)
    assert rate_of(lambda n: 0.004) == pytest.approx(250)


def test_it_stops_when_the_best_are_close_and_goes_on_while_they_are_not() -> None:
    def blocks(seconds: Callable[[int], float]) -> float:
        clock = Clock()
        MicroRun(MicroPlan(total_s=10.0), 1, clock).rate("x", 1.0, clock.device(seconds))
        return clock.now

    assert blocks(lambda n: 0.01) < 0.2
    assert blocks(lambda n: 0.01 * 0.9 ** min(n, 30)) > 0.09
    assert blocks(lambda n: 0.01 * 0.94**n) > blocks(lambda n: 0.01)


def test_it_never_goes_far_past_its_time() -> None:
    clock = Clock()
    course = MicroRun(MicroPlan(total_s=1.0), 4, clock)
    rising = [0.0]

    def never_settles(n: int) -> float:
        rising[0] += 1
        return 0.01 / (1 + rising[0] / 10)

    for name in "abcd":
        course.rate(name, 1.0, clock.device(never_settles))
    assert clock.now < 1.1
    assert course.rate("e", 1.0, clock.device(lambda n: 1.0)) is None or clock.now < 2.2


def test_what_is_too_short_to_distinguish_from_its_call_is_left_out_with_a_note() -> None:
    clock = Clock()
    course = MicroRun(MicroPlan(), 1, clock)
    assert course.rate("copy", 1.0, clock.device(lambda n: 3e-6), idle_s=1e-6) is None
    assert course.notes == ["copy: skipped, too short to time"]
    assert rate_of(lambda n: 6e-6, idle_s=1e-6) == pytest.approx(1 / 5e-6)


def test_what_would_take_too_long_is_left_out_with_a_note() -> None:
    course = MicroRun(MicroPlan(total_s=1.0), 2, Clock())
    assert course.exceeds_time("fp32_gflops_8192", 1000.0, 100.0)
    assert not course.exceeds_time("fp32_gflops_64", 1.0, 100.0)
    assert course.notes == ["fp32_gflops_8192: skipped, no time left"]


WHOLE = frozenset(
    {"copy_gb_s_max", "copy_gb_s_1_mib", "add_gb_s_1_mib", "memory_gb_s", "fp32_gflops_max"}
    | {f"{kind}_gflops_{size}" for kind in ("fp32", "fp64") for size in TINY.gemm}
)


def on_this_host(clock: Callable[[], float] = time.perf_counter) -> Mapping[str, float]:
    """Figures of all sizes. Retries, because a host that is interrupted at the wrong moment rightly leaves out the smallest."""
    tried = (on_numpy.measure(TINY, 1, clock).figures for _ in range(20))
    return next(figures for figures in tried if figures.keys() >= WHOLE)


def test_sizes_and_devices_give_different_figures_and_none_is_a_constant() -> None:
    first, second = on_this_host(), on_this_host()
    assert first["fp32_gflops_4"] < first["fp32_gflops_48"]
    assert first["fp64_gflops_48"] != first["fp32_gflops_48"]
    raw = [name for name in first.keys() & second.keys() if not name.endswith("_max")]
    assert all(first[name] != second[name] for name in raw)
    slow = on_this_host(lambda: time.perf_counter() * 16)
    assert slow["fp64_gflops_48"] < first["fp64_gflops_48"] / 2


def test_the_maximum_is_of_the_curve_and_no_average() -> None:
    figures = on_this_host()
    curve = [figures[name] for name in ("fp64_gflops_4", "fp64_gflops_48")]
    assert figures["fp64_gflops_max"] == max(curve)


def test_precisions_that_numpy_only_emulates_have_no_figure() -> None:
    figures = on_this_host()
    assert not any(name.startswith(("fp16", "bf16", "tf32", "fp8", "int8")) for name in figures)


def test_a_product_that_is_wrong_in_one_checked_cell_or_everywhere_is_refused() -> None:
    left, right = np.random.default_rng(1).standard_normal((2, 32, 32))
    made = left @ right

    def check(product: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        check_product(
            Product(lambda: product, left, right, 2.0**-52), 32, lambda values: list(values.tolist()), "fp64"
        )

    check(made)
    for wrong in (np.zeros((32, 32)), made * (1 + 1e-9), np.full((32, 32), np.nan)):
        with pytest.raises(Crashed, match="the product is wrong"):
            check(wrong)


def test_arrays_are_beyond_the_last_cache_and_within_memory() -> None:
    gib = 1024 * MIB
    assert max(fit_plan(QUICK, 256 * MIB, 64 * gib).sizes) == 512 * MIB
    assert max(fit_plan(FULL, None, 64 * gib).sizes) == 64 * MIB
    assert max(fit_plan(QUICK, 32 * MIB, gib // 2).sizes) == MIB
    assert [size_name(size) for size in QUICK.sizes] == ["64_kib", "1_mib", "64_mib"]


def test_the_last_cache_is_read_where_the_system_tells(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) is None
    for index, size in enumerate(("32K", "512K", "16384K", "?")):
        folder = tmp_path / f"cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    assert last_cache_bytes(tmp_path) == 16 * MIB


def test_it_runs_in_its_own_process_with_the_given_number_of_threads() -> None:
    micro = run_micro("cpu", MicroPlan(sizes=(), gemm=(64,), total_s=0.2, block_s=0.001, blocks=2), 1)
    assert micro.device == "cpu"
    assert micro.backend.startswith("numpy ")
    assert micro.threads == 1
    assert micro.figures["fp64_gflops_64"] > 0
    ((began, ended),) = micro.windows
    assert 0 < began < ended <= time.perf_counter_ns()


def python(code: str) -> Sequence[str]:
    return (sys.executable, "-c", code)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(Crashed, match="boom"):
        run_micro("cpu", TINY, 1, command=python("raise SystemExit('boom')"))
    with pytest.raises(Unfit, match="no GPU here"):
        run_micro("cuda", TINY, 1, command=python('print(\'{"why": "no GPU here", "unfit": true}\')'))
    hang = python("import threading; threading.Event().wait()")
    with pytest.raises(TimedOut, match="still running"):
        run_micro("cpu", MicroPlan(total_s=-29.9), 1, command=hang)


def test_a_gpu_s_arrays_fill_it_and_are_beyond_its_cache_and_within_its_memory() -> None:
    gib = 1024 * MIB
    assert on_torch.sizes_for(QUICK, 80 * gib, 50 * MIB) == (MIB, 64 * MIB, 400 * MIB)
    assert on_torch.sizes_for(QUICK, gib, None) == (MIB, 64 * MIB)
    assert on_torch.sizes_for(QUICK, None, None) == (MIB, 64 * MIB, 256 * MIB)


@pytest.mark.parametrize(
    ("compute", "also"),
    [
        ((6, 1), set()),
        ((7, 5), {"int8"}),
        ((8, 6), {"int8", "tf32", "bf16"}),
        ((9, 0), {"int8", "tf32", "bf16", "fp8"}),
    ],
)
def test_a_gpu_multiplies_the_precisions_that_it_has_units_for(
    compute: tuple[int, int], also: set[str]
) -> None:
    torch = SimpleNamespace(
        version=SimpleNamespace(hip=None), cuda=SimpleNamespace(get_device_capability=lambda at: compute)
    )
    assert set(on_torch.precisions_of(torch, "cuda")) == {"fp64", "fp32", "fp16"} | also
    amd = SimpleNamespace(version=SimpleNamespace(hip="6.2"))
    assert "tf32" not in on_torch.precisions_of(amd, "cuda")
