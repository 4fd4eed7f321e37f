"""OpenVINO itself, imported when it is first needed, and its errors as errors of the contract."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from drivers.contract.base import DriverError, OutOfMemory, Unfit
from drivers.contract.registry import BROKEN_DRIVER_ERRORS

TELEMETRY: Final = "openvino_telemetry"
"""A package that reports each import to OpenVINO's makers, in a thread of its own."""
_NOISE: Final = re.compile(
    r"^(Exception from |FrontEnd API failed|Check '[^']*' failed at |While |\[\s*$|\]\s*$)|^\W*$"
)
_CHECK: Final = re.compile(r"^Check '(.*)' failed at ")
_MEMORY: Final = re.compile(r"bad_alloc|out of memory|OUT_OF_(HOST|DEVICE)_MEMORY", re.IGNORECASE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenVinoRuntime:
    ov: Any
    core: Any

    @property
    def title(self) -> str:
        """Title for the row, such as `openvino 2026.4.1`."""
        return f"openvino {str(self.ov.__version__).partition('-')[0]}"


@cache
def runtime() -> OpenVinoRuntime:
    """OpenVINO without telemetry. Raises `Unfit` if it is not installed."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault(TELEMETRY, None)  # as if it were not installed: nothing is reported
    try:
        ov = importlib.import_module("openvino")
    except ImportError as why:
        hint = "python -m pip install 'sark-node[openvino]'"
        raise Unfit(f"openvino cannot be imported: {why}; {hint}") from why
    return OpenVinoRuntime(ov, ov.Core())


def broken() -> tuple[type[Exception], ...]:
    """Exceptions that OpenVINO and its format readers raise for an unsuitable model."""
    names = (
        "GeneralFailure",
        "InitializationFailure",
        "NotImplementedFailure",
        "OpConversionFailure",
        "OpValidationFailure",
    )
    frontend = sys.modules.get("openvino.frontend")
    return (*BROKEN_DRIVER_ERRORS, *(getattr(frontend, name) for name in names if hasattr(frontend, name)))


@contextmanager
def openvino_errors() -> Iterator[None]:
    """Turns OpenVINO's errors into errors of the contract."""
    try:
        yield
    except DriverError:
        raise
    except broken() as why:
        raise to_driver_error(why) from why


def translated(call: Callable[[], T]) -> T:
    with openvino_errors():
        return call()


def to_driver_error(why: Exception) -> DriverError:
    if _MEMORY.search(str(why)):
        return OutOfMemory(f"OpenVINO: {in_one_line(str(why))}")
    return Unfit(f"OpenVINO: {in_one_line(str(why)) or type(why).__name__}")


def in_one_line(text: str) -> str:
    """OpenVINO's message in one line, without the places in its sources; a failed check only if there is nothing else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not _NOISE.match(line)]
    checks = [found[1] for line in lines if (found := _CHECK.match(line))]
    return " ".join(dict.fromkeys(said or [f"the check {check} failed" for check in checks]))[:400]
