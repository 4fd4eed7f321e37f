"""Micro-benchmarks of a GPU, with torch, timed by the device's own events.

Runs in the process of `run_micro`. Whatever this torch or GPU lacks (fp8, int8, …) is left out with a note.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from drivers.contract.base import Crashed, Unfit
from drivers.micro.plan import MIB, MicroPlan, MicroResult, MicroRun, Product, Timed, size_name, timed_by

FLOOR_S: Final = 20e-6
"""Shorter calls would measure the launch overhead."""
LARGEST: Final = 1024 * MIB
SMALLEST: Final = MIB

EPSILON: Final = {"fp64": 2.0**-52, "fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7, "fp16": 2.0**-10}
"""Machine epsilon by precision. int8 is exact, and fp8 products are in bf16."""


def measure(plan: MicroPlan, kind: str, torch: Any = None) -> MicroResult:
    """Run the plan on the first device of a kind: `cuda` (NVIDIA and AMD), `mps`, or `cpu` for tests.

    Raises `Unfit` if there is none, `Crashed` if a result is wrong.
    """
    torch = torch or importlib.import_module("torch")
    if kind == "cuda" and not torch.cuda.is_available():
        raise Unfit("torch finds no GPU")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise Unfit("torch finds no Metal device")
    sizes = sizes_for(plan, *_memory(torch, kind))
    precisions = [name for name in plan.precisions if name in precisions_of(torch, kind)]
    run = MicroRun(plan, 4 * len(sizes) + len(plan.gemm) * len(precisions))
    began_ns, floor_s = time.perf_counter_ns(), 0.0 if kind == "cpu" else FLOOR_S

    def timed(call: Callable[[], Any]) -> Timed:
        return _timed(torch, kind, call)

    with torch.inference_mode():
        for precision in precisions:

            def make(size: int, precision: str = precision) -> Product:
                product = make_product(torch, kind, precision, size)
                product.call()  # the library chooses an algorithm at the first call
                return product

            try:
                run.products(precision, make, timed, numbers, floor_s=floor_s)
            except (RuntimeError, NotImplementedError, AttributeError) as why:
                run.notes.append(f"{precision}: skipped, {str(why).splitlines()[0][:120]}")
            run.add_maximum(f"{precision}_gflops")
        for size in sizes:
            _arrays(torch, kind, size, run, timed, floor_s)
    largest = [f"{name}_gb_s_{size_name(max(sizes, default=0))}" for name in ("copy", "triad")]
    run.add("memory_gb_s", max((run.figures[name] for name in largest if name in run.figures), default=None))
    device = torch.cuda.get_device_name(0) if kind == "cuda" else kind
    return run.result(device, f"torch {torch.__version__}", 0, began_ns)


def numbers(values: Any) -> list[float]:
    """A tensor's values on the host."""
    return list(values.cpu().double().tolist())


def sizes_for(plan: MicroPlan, memory: int | None, cache: int | None) -> tuple[int, ...]:
    """The plan's sizes that are large enough for a GPU, and one well beyond its cache; none above 1/16 of its memory."""
    sizes = {size for size in plan.sizes if size >= SMALLEST} | {
        min(LARGEST, max(256 * MIB, 8 * (cache or 0)))
    }
    return tuple(sorted(size for size in sizes if memory is None or size <= memory // 16))


def _memory(torch: Any, kind: str) -> tuple[int | None, int | None]:
    """Bytes of the device's memory and of its last cache; None if unknown."""
    if kind != "cuda":
        return None, None
    device = torch.cuda.get_device_properties(0)
    cache = getattr(device, "L2_cache_size", None)
    return int(device.total_memory), int(cache) if cache else None


def precisions_of(torch: Any, kind: str) -> tuple[str, ...]:
    """Precisions that the device multiplies natively; others would be emulated."""
    if kind == "mps":
        return ("fp32", "fp16", "bf16")
    if kind == "cpu":
        return ("fp64", "fp32")
    if torch.version.hip is not None:
        return ("fp64", "fp32", "bf16", "fp16")
    compute = torch.cuda.get_device_capability(0)
    since = {"int8": (7, 5), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
    return ("fp64", "fp32", "fp16", *(name for name, least in since.items() if compute >= least))


def _timed(torch: Any, kind: str, call: Callable[[], Any]) -> Timed:
    """A timer that uses CUDA events, or else the clock."""
    if kind == "cpu":
        return timed_by(call, time.perf_counter)

    if kind == "mps":

        def by_clock(repeats: int) -> float:
            torch.mps.synchronize()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.mps.synchronize()
            return time.perf_counter() - began

        return by_clock

    def by_events(repeats: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    return by_events


def make_product(torch: Any, kind: str, precision: str, size: int) -> Product:
    """Two factors on the device, from a fixed seed, and the call that multiplies them."""
    random = torch.Generator().manual_seed(size)
    if kind == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if precision == "int8":
        left, right = (
            torch.randint(-8, 9, (size, size), generator=random, dtype=torch.int8).to(kind) for _ in range(2)
        )
        return Product(lambda: torch._int_mm(left, right), left, right, 0.0)
    plain = [torch.randn((size, size), generator=random) for _ in range(2)]
    if precision == "fp8":
        left = plain[0].to(kind).to(torch.float8_e4m3fn)
        right = plain[1].to(kind).to(torch.float8_e4m3fn).t()  # column-major, as `_scaled_mm` requires
        one = torch.ones((), device=kind)
        return Product(
            lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            left,
            right,
            EPSILON["bf16"],
        )
    dtype = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}.get(
        precision, torch.float32
    )
    left, right = (one.to(kind).to(dtype) for one in plain)
    made = torch.zeros((size, size), dtype=dtype, device=kind)
    return Product(lambda: torch.matmul(left, right, out=made), left, right, EPSILON[precision])


def _arrays(
    torch: Any,
    kind: str,
    size: int,
    run: MicroRun,
    timed: Callable[[Callable[[], Any]], Timed],
    floor_s: float,
) -> None:
    """Copy, triad (a = b + 3c), read and write of arrays of one size, each checked."""
    count = size // 4
    pattern = (torch.arange(count, device=kind) % 7).to(torch.float32)
    other = torch.full((count,), 2.0, device=kind)
    copied, added, written = (torch.ones(count, device=kind) for _ in range(3))
    kernels: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy": (2, lambda: copied.copy_(pattern)),
        "triad": (3, lambda: torch.add(pattern, other, alpha=3, out=added)),
        "read": (1, lambda: torch.max(pattern)),
        "write": (1, lambda: written.fill_(5.0)),
    }
    run.arrays(size, kernels, timed, floor_s=floor_s)
    for _, call in kernels.values():
        call()
    places = [0, 1, count // 3, count - 1]
    right = (
        all(float(copied[at]) == at % 7 for at in places)
        and all(float(added[at]) == at % 7 + 6 for at in places)
        and all(float(written[at]) == 5 for at in places)
        and float(torch.max(pattern)) == 6
    )
    if not right:
        raise Crashed(f"arrays of {size_name(size)} do not hold the values written to them")
