"""Micro-benchmarks of a GPU, by torch: the same figures as `drivers.micro.micro` has of the processor, timed by the device's own events.

Runs in the process that `micro.run_micro` starts. What this torch or this GPU has not (fp8, int8, …) is left out with a note.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from drivers.contract.base import Crashed, Unfit
from drivers.micro.micro import MIB, Micro, MicroPlan, MicroRun, Timed, check_product, size_name, timed_by

FLOOR_S: Final = 20e-6
"""A shorter call would tell how fast calls are handed to the device, not how fast it is."""
LARGEST: Final = 1024 * MIB
SMALLEST: Final = MIB

EPSILON: Final = {"fp64": 2.0**-52, "fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7, "fp16": 2.0**-10}
"""Of each precision; int8 is exact, and fp8 gives its products in bf16."""


@dataclass(frozen=True, slots=True)
class Product:
    """A square product, made ready: the call, and the factors as the device has them."""

    call: Callable[[], Any]
    left: Any
    right: Any
    epsilon: float


def measure(plan: MicroPlan, kind: str, torch: Any = None) -> Micro:
    """Go through the plan on the first device of a kind: `cuda` (NVIDIA's and AMD's), `mps`, or `cpu` for trying this out.

    Raises `Unfit` where there is none, `Crashed` where a result is wrong.
    """
    torch = torch or importlib.import_module("torch")
    if kind == "cuda" and not torch.cuda.is_available():
        raise Unfit("torch sees no GPU here")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise Unfit("torch sees no Metal device here")
    sizes = sizes_for(plan, *_memory(torch, kind))
    precisions = [name for name in plan.precisions if name in precisions_of(torch, kind)]
    course = MicroRun(plan, 4 * len(sizes) + len(plan.gemm) * len(precisions))
    began = time.perf_counter_ns()
    with torch.inference_mode():
        for precision in precisions:
            try:
                _products(torch, kind, precision, course)
            except (RuntimeError, NotImplementedError, AttributeError) as why:
                course.notes.append(f"{precision}: left out, {str(why).splitlines()[0][:120]}")
            course.maximum(f"{precision}_gflops")
        for size in sizes:
            _arrays(torch, kind, size, course)
    for name in ("copy", "triad", "read", "write"):
        course.maximum(f"{name}_gb_s")
    largest = (
        [course.figures.get(f"{name}_gb_s_{size_name(max(sizes))}") for name in ("copy", "triad")]
        if sizes
        else []
    )
    course.put("memory_gb_s", max((figure for figure in largest if figure), default=None))
    return Micro(
        device=torch.cuda.get_device_name(0) if kind == "cuda" else kind,
        backend=f"torch {torch.__version__}",
        threads=0,
        figures=course.figures,
        notes=tuple(course.notes),
        windows=((began, time.perf_counter_ns()),),
        seconds=(time.perf_counter_ns() - began) / 1e9,
    )


def sizes_for(plan: MicroPlan, memory: int | None, cache: int | None) -> tuple[int, ...]:
    """Of the plan, those that fill a GPU at all, and one well beyond its cache; none that takes more than a sixteenth of its memory."""
    sizes = {size for size in plan.sizes if size >= SMALLEST} | {
        min(LARGEST, max(256 * MIB, 8 * (cache or 0)))
    }
    return tuple(sorted(size for size in sizes if memory is None or size <= memory // 16))


def _memory(torch: Any, kind: str) -> tuple[int | None, int | None]:
    """Bytes of the device's memory and of its last cache, as far as torch tells."""
    if kind != "cuda":
        return None, None
    seen = torch.cuda.get_device_properties(0)
    cache = getattr(seen, "L2_cache_size", None)
    return int(seen.total_memory), int(cache) if cache else None


def precisions_of(torch: Any, kind: str) -> tuple[str, ...]:
    """What the device multiplies in its own units; the others it would only emulate."""
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
    """By the device's events where it has them, else by the clock around all that was handed to it."""
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


def _products(torch: Any, kind: str, precision: str, course: MicroRun) -> None:
    speed = 0.0
    for size in course.plan.gemm:
        label = f"{precision}_gflops_{size}"
        work = 2 * size**3 / 1e9
        if course.hopeless(label, work, speed):
            continue
        product = make_product(torch, kind, precision, size)
        product.call()  # the library chooses its way at the first call
        found = course.rate(label, work, _timed(torch, kind, product.call), floor_s=_floor(kind))
        course.put(label, found)
        speed = found or speed
        if found:
            made = product.call()
            check_product(
                size,
                lambda row, a=product.left: a[row].cpu().double().tolist(),  # type: ignore[misc]
                lambda at, b=product.right: b[:, at].cpu().double().tolist(),  # type: ignore[misc]
                lambda row, at, c=made: float(c[row, at].cpu()),  # type: ignore[misc]
                product.epsilon,
                label,
            )


def make_product(torch: Any, kind: str, precision: str, size: int) -> Product:
    """Two factors on the device, made from a fixed seed, and the call that multiplies them."""
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
        right = (
            plain[1].to(kind).to(torch.float8_e4m3fn).t()
        )  # this product wants its right factor by columns
        one = torch.ones((), device=kind)
        return Product(
            lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            left,
            right,
            EPSILON["bf16"],
        )
    dtype = {
        "fp64": torch.float64,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }.get(precision, torch.float32)
    left, right = (one.to(kind).to(dtype) for one in plain)
    made = torch.zeros((size, size), dtype=dtype, device=kind)
    return Product(lambda: torch.matmul(left, right, out=made), left, right, EPSILON[precision])


def _arrays(torch: Any, kind: str, size: int, course: MicroRun) -> None:
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
    for name, (times, call) in kernels.items():
        label = f"{name}_gb_s_{size_name(size)}"
        course.put(
            label, course.rate(label, times * size / 1e9, _timed(torch, kind, call), floor_s=_floor(kind))
        )
        call()
    places = [0, 1, count // 3, count - 1]
    right = (
        all(float(copied[at]) == at % 7 for at in places)
        and all(float(added[at]) == at % 7 + 6 for at in places)
        and all(float(written[at]) == 5 for at in places)
        and float(torch.max(pattern)) == 6
    )
    if not right:
        raise Crashed(f"arrays of {size_name(size)} did not hold what was put there")


def _floor(kind: str) -> float:
    return 0.0 if kind == "cpu" else FLOOR_S
