"""The unit of the ExecuTorch driver, and the runtime behind it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from drivers.contract.base import Unfit, WrongUnit
from drivers.executorch.program import XNNPACK_ID, ProgramPlan

CPU: Final = "CPU (ExecuTorch)"
PACKAGE: Final = "executorch"
BINDINGS: Final = f"{PACKAGE}.extension.pybindings"
LIBRARY, LIBRARY_BEFORE_1_5 = f"{BINDINGS}._C", f"{BINDINGS}._portable_lib"
"""The runtime itself. Its public entry, `portable_lib` next to it, first imports the exporter, which takes many times as long …"""
DOOR: Final = f"{BINDINGS}.portable_lib"
"""… but on Windows it tells the system where libraries are."""
QUANTISED: Final = f"{PACKAGE}.kernels.quantized"
"""Operators of quantised programs, which are available once this module is imported."""
XNNPACK: Final = "XNNPACK"
KERNELS: Final = "ExecuTorch kernels"
"""The kernels for operators that no backend took: ExecuTorch's portable and optimised kernels."""


@dataclass(frozen=True, slots=True)
class ExecuTorchRuntime:
    lib: Any
    torch: Any
    """torch, whose tensors the runtime takes and returns."""
    title: str
    """Title for the row."""


def preloaded() -> tuple[str, ...]:
    """The modules of the runtime, in the order in which they must be imported."""
    return ("torch", DOOR if sys.platform == "win32" else library(installed()), QUANTISED)


def installed() -> str:
    """The version of the installed package; empty: it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def library(version: str) -> str:
    """The name of the runtime's module in a version."""
    return (
        LIBRARY_BEFORE_1_5 if version.startswith(("0.", "1.0.", "1.1.", "1.2.", "1.3.", "1.4.")) else LIBRARY
    )


def runtime() -> ExecuTorchRuntime:
    """The runtime. Raises `Unfit` if it is not installed."""
    try:
        torch, lib, _ = map(importlib.import_module, preloaded())
    except ImportError as why:
        hint = "python -m pip install 'sark-node[executorch]'"
        raise Unfit(f"{PACKAGE} cannot be imported: {why}; {hint}") from why
    return ExecuTorchRuntime(lib, torch, f"ExecuTorch {metadata.version(PACKAGE)}")


def check_unit(unit: str) -> None:
    """Raises `WrongUnit` for an unknown unit."""
    if unit != CPU:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {CPU}")


def has_xnnpack(lib: Any) -> bool:
    return XNNPACK_ID in lib._get_registered_backend_names()


def check_parts(plan: ProgramPlan, lib: Any) -> None:
    """Raise `Unfit` for a program with parts, operators or weights that this runtime cannot run on the processor."""
    there = has_xnnpack(lib)
    if others := sorted(set(plan.parts) - ({XNNPACK_ID} if there else set())):
        raise Unfit(
            f"the program leaves parts of it to {', '.join(others)[:200]}, which {CPU} does not have: "
            + (
                "export it with partitioner=[XnnpackPartitioner()]"
                if there
                else "export it without a partitioner"
            )
        )
    if missing := sorted(set(plan.kernels) - set(lib._get_operator_names())):
        raise Unfit(
            f"the program needs operators that this runtime lacks: {', '.join(missing)[:300]}; "
            "export it with only the operators of ATen or quantized_decomposed"
        )
    if plan.external:
        raise Unfit(
            f"the data of {plan.external!r} are in another file (.ptd): export the program with its weights inside"
        )


def set_threads(lib: Any, threads: int) -> int:
    """Set the number of threads in the pool that XNNPACK and the kernels share; returns the number that it now has. Call it only before a
    program is loaded: XNNPACK's parts keep the pool that they found."""
    if lib._threadpool_get_thread_count() != threads:
        lib._unsafe_reset_threadpool(threads)
    return int(lib._threadpool_get_thread_count())
