"""Which model files drivers open, and the messages for those that they refuse. The formats themselves: `protocol.formats.model_files`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from drivers.contract.base import Unfit
from protocol.formats.frameworks import FORMATS, WORKLOADS
from protocol.formats.model_files import PICKLE_FORMATS, FormatError, ModelFormat, read_format

NO_PICKLE: Final = (
    "this is a {kind}: a Python pickle, which could run any program, so it is never opened; "
    "save the model with torch.export.save or torch.jit.save, or its weights as safetensors with a declaration"
)
SUFFIXES: Final = frozenset({*WORKLOADS, *(ending for form in FORMATS.values() for ending in form.unmarked)})
"""Suffixes of models that have no signature in their first bytes."""


@contextmanager
def broken_is_unfit() -> Iterator[None]:
    """Turns `FormatError` into `Unfit`."""
    try:
        yield
    except FormatError as why:
        raise Unfit(str(why)) from why


@broken_is_unfit()
def check_format(path: Path) -> None:
    """Raise `Unfit` for a file or folder that none of our drivers can open, judged by its bytes, or else by its suffix."""
    kind = read_format(path)
    if kind in PICKLE_FORMATS:
        raise Unfit(NO_PICKLE.format(kind=kind))
    if kind is ModelFormat.FOLDER:
        if not any(path.glob("*.onnx")):
            raise Unfit(
                "there is no .onnx file in the folder, and it is neither an mlpackage nor a declaration with weights"
            )
    elif kind in (ModelFormat.OTHER, ModelFormat.ZIP) and path.suffix.lower() not in SUFFIXES:
        raise Unfit(f"no driver knows its first bytes or its suffix ({path.suffix or 'it has none'})")


def read_json(data: bytes, what: str) -> dict[str, object]:
    """Parse a JSON object. Raises `Unfit`, naming `what`."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as why:
        raise Unfit(f"{what} is not readable JSON: {why}") from why
    if not isinstance(parsed, dict):
        raise Unfit(f"{what} is not a JSON object")
    return parsed
