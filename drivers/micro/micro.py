"""Micro-benchmarks: the best that a device can do, in bytes per second by size and operations per second by precision and size.

    run_micro("cpu", QUICK, threads=4) ─▶ a process ─▶ MicroResult(figures={"copy_gb_s_64_kib": 41.2, "fp32_gflops_1024": 95.0, …})

numpy for the processor (`on_numpy`), torch for GPUs (`on_torch`). Each figure is the best of repeated blocks, by size and as the
maximum of its curve, never an average. Every result is checked by an independent computation. A precision that would only be emulated is
left out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import Crashed, DriverError, TimedOut, Unfit
from drivers.contract.boot import boot_command, clean_environment
from drivers.micro.plan import KIB, MIB, MicroPlan, MicroResult

LARGEST: Final = 512 * MIB
START_S: Final = 30.0
"""Time limit for starting and ending the process, in addition to its plan: torch is slow to import."""
THREAD_VARIABLES: Final = (
    *("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)


def fit_plan(plan: MicroPlan, cache_bytes: int | None, memory_bytes: int) -> MicroPlan:
    """The plan, extended by arrays of at least twice the last cache (each kernel uses two or three), and without arrays above 1/16 of the
    memory."""
    sizes = sorted({*plan.sizes, min(2 * (cache_bytes or 0), LARGEST) or max(plan.sizes)})
    return replace(plan, sizes=tuple(size for size in sizes if size <= memory_bytes // 16))


def last_cache_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Size of the largest cache of the first processor; None if unknown."""
    sizes = []
    for path in (cpus / "cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) * {"K": KIB, "M": MIB}[text[-1]])
    return max(sizes, default=None)


Killing = Callable[[Callable[[], object]], AbstractContextManager[object]]
"""Takes a function that ends a process; returns a context manager for the process's lifetime."""


def run_micro(
    kind: str,
    plan: MicroPlan,
    threads: int,
    gpu: str = "",
    command: Sequence[str] | None = None,
    killing: Killing = nullcontext,
) -> MicroResult:
    """Measure in a separate process with a clean environment (blocking). `kind`: `cpu`, or `cuda` and `mps` by torch.

    `gpu`: UUID or index. `killing`: gets a function that ends the process early.

    Raises `Unfit` if the kind is not available, `Crashed` for a wrong result, `TimedOut` past the plan's end.
    """
    environ = clean_environment(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    if gpu:
        environ["CUDA_VISIBLE_DEVICES"] = gpu
    order = json.dumps({"kind": kind, "plan": asdict(plan), "threads": threads})
    limit_s = plan.total_s + START_S
    try:
        with (
            subprocess.Popen(
                command or boot_command("micro.micro", order),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
            ) as process,
            ending(process),
            killing(process.kill),
        ):
            out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"micro-benchmarks of {kind}: still running after {limit_s:g} s") from None
    except OSError as exc:
        raise Crashed(f"micro-benchmarks of {kind}: {exc}") from exc
    try:
        reply = json.loads(out)
    except ValueError:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else f"exit code {process.returncode}"
        raise Crashed(f"micro-benchmarks of {kind}: {last}") from None
    if "why" in reply:
        raise (Unfit if reply["unfit"] else Crashed)(f"micro-benchmarks of {kind}: {reply['why']}")
    lists = {"notes": tuple(reply["notes"]), "windows": tuple((a, b) for a, b in reply["windows"])}
    return MicroResult(**{**reply, **lists})


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process at the end of the block."""
    try:
        yield
    finally:
        process.kill()


def main(arguments: Sequence[str]) -> None:
    """Runs in that process: takes the order as JSON, prints the reply as JSON on standard output."""
    order = json.loads(arguments[0])
    values: dict[str, Any] = order["plan"]
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    plan = MicroPlan(**(values | lists))
    try:
        if order["kind"] == "cpu":
            result = importlib.import_module("drivers.micro.on_numpy").measure(plan, order["threads"])
        else:
            result = importlib.import_module("drivers.micro.on_torch").measure(plan, order["kind"])
        reply: dict[str, Any] = asdict(result)
    except (DriverError, MemoryError) as why:
        reply = {"why": str(why) or "out of memory", "unfit": isinstance(why, Unfit)}
    sys.stdout.write(json.dumps(reply))
