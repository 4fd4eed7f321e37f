"""The units of the LiteRT driver, and the runtime behind them."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any, Final

from drivers.contract.base import Unfit, WrongUnit

CPU: Final = "CPU (LiteRT)"
GPU: Final = "GPU (LiteRT)"
MODULE: Final = "ai_edge_litert"
XNNPACK: Final = "XNNPACK"
"""The delegate that LiteRT applies on every CPU."""
KERNELS: Final = "built-in kernels"
"""The kernels for operators that no delegate took."""


def check_unit(unit: str) -> None:
    """Raises `WrongUnit` for an unknown or missing unit."""
    if unit == GPU:
        raise WrongUnit(
            f"asked for {GPU}, but LiteRT's interpreter for Python has no GPU delegate: ask for {CPU}"
        )
    if unit != CPU:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {CPU}")


def runtime() -> Any:
    """The module of the interpreter. Raises `Unfit` if it is not installed."""
    try:
        return importlib.import_module(f"{MODULE}.interpreter")
    except ImportError as why:
        hint = "python -m pip install 'sark-node[litert]'"
        raise Unfit(f"{MODULE} cannot be imported: {why}; {hint}") from why


def version() -> str:
    """Version for the row."""
    try:
        return f"LiteRT {metadata.version('ai-edge-litert')}"
    except metadata.PackageNotFoundError:  # a runtime that somebody built
        return "LiteRT"
