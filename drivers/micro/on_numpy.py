"""Micro-benchmarks of the processor, with numpy: memory bandwidth and matrix products.

Runs in the process of `run_micro`, which sets the number of BLAS threads.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from drivers.contract.base import Crashed
from drivers.micro.plan import SEED, MicroPlan, MicroResult, MicroRun, Product, Timed, size_name, timed_by


def measure(plan: MicroPlan, threads: int, clock: Callable[[], float] = time.perf_counter) -> MicroResult:
    """Bandwidth of one core by size, bandwidth of `threads` cores together at the largest size, and matrix products. Raises `Crashed` if a
    result is wrong."""
    precisions = [name for name in ("fp64", "fp32") if name in plan.precisions]
    run = MicroRun(plan, 4 * len(plan.sizes) + 1 + len(plan.gemm) * len(precisions), clock)
    began_ns = time.perf_counter_ns()
    run.left()

    def timed(call: Callable[[], Any]) -> Timed:
        return timed_by(call, clock)

    for precision in precisions:
        run.products(precision, _products(precision), timed, lambda values: list(values.tolist()))
        run.add_maximum(f"{precision}_gflops")
    idle_s = {  # time of each kernel's call for one number, which is subtracted
        name: min(timed(call)(200) / 200 for _ in range(5)) for name, (_, call) in _Arrays(1).kernels.items()
    }
    if plan.sizes:
        _parallel_copy(run, max(plan.sizes), threads)
    for size in plan.sizes:
        if run.left() <= 0:
            run.notes.append(f"arrays of {size_name(size)}: skipped, no time left")
            continue
        arrays = _Arrays(size // 8)
        run.arrays(size, arrays.kernels, timed, idle_s=idle_s)
        arrays.check()
    return run.result("cpu", f"numpy {np.__version__}", threads, began_ns)


def _products(precision: str) -> Callable[[int], Product]:
    dtype: Any = {"fp64": np.float64, "fp32": np.float32}[precision]
    random = np.random.default_rng(SEED)

    def make(size: int) -> Product:
        left, right = (random.standard_normal((size, size)).astype(dtype) for _ in range(2))
        made = np.zeros((size, size), dtype)
        return Product(lambda: np.matmul(left, right, out=made), left, right, float(np.finfo(dtype).eps))

    return make


class _Arrays:
    """The arrays of one size. `kernels`: how many times one call moves their bytes, and the call."""

    def __init__(self, count: int) -> None:
        self._pattern = np.resize(np.arange(7.0), count)
        self._bits = self._pattern.view(np.int64)
        self._other = np.full(count, 2.0)
        self._copied, self._added, self._written = np.ones(count), np.ones(count), np.ones(count)
        self.kernels: dict[str, tuple[int, Callable[[], object]]] = {
            "copy": (2, lambda: np.copyto(self._copied, self._pattern)),
            "add": (3, lambda: np.add(self._pattern, self._other, out=self._added)),
            "read": (1, self._read),
            "write": (1, lambda: self._written.fill(3.0)),
        }

    def _read(self) -> int:
        return int(np.bitwise_xor.reduce(self._bits))

    def check(self) -> None:
        for _, call in self.kernels.values():
            call()
        count = len(self._pattern)
        all_bits = 0
        for value in range(7):
            if (count // 7 + (value < count % 7)) % 2:
                all_bits ^= int.from_bytes(struct.pack("<d", float(value)), "little")
        places = [0, count // 3, count // 2, count - 1]
        right = (
            all(float(self._copied[at]) == at % 7 for at in places)
            and all(float(self._added[at]) == at % 7 + 2 for at in places)
            and all(float(self._written[at]) == 3 for at in places)
            and self._read() == all_bits
        )
        if not right:
            raise Crashed(f"arrays of {size_name(count * 8)} do not hold the values written to them")


def _parallel_copy(run: MicroRun, size: int, threads: int) -> None:
    """Copies on several threads at once, each with arrays of its own."""
    size //= threads
    pairs = [(np.ones(size // 8), np.full(size // 8, float(at + 2))) for at in range(threads)]

    def timed(repeats: int) -> float:
        gate = threading.Barrier(threads + 1)

        def work(to: Any, source: Any) -> None:
            gate.wait()
            for _ in range(repeats):
                np.copyto(to, source)

        workers = [threading.Thread(target=work, args=pair) for pair in pairs]
        for worker in workers:
            worker.start()
        gate.wait()
        began = run.clock()
        for worker in workers:
            worker.join()
        return run.clock() - began

    rate = run.rate("memory_gb_s", 2 * size * threads / 1e9, timed)
    run.add("memory_gb_s", rate)
    if rate and any(float(to[-1]) != at + 2 for at, (to, _) in enumerate(pairs)):
        raise Crashed("arrays that were copied on several threads do not hold the values written to them")
