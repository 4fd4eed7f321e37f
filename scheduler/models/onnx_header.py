"""The inputs of a local ONNX file, as far as its batch goes: read from the file without any package, so that a campaign that cannot run is
refused before a device is asked. Only what is sure is refused; the rest is for the driver, which knows more of the model.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.campaign.model import ModelEntry
from swarm.base.text import safe_text

MAX_INPUTS: Final = 1000
GRAPH, WEIGHTS, INPUTS = 7, 5, 11
WEIGHT_NAME, INPUT_NAME, INPUT_TYPE = 8, 1, 2
TENSOR, SHAPE, DIMENSION = 1, 2, 1
SIZE, SYMBOL = 1, 2


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """One input. `shape` entries: a size, a symbol, or None for a nameless dynamic one."""

    name: str
    shape: tuple[int | str | None, ...]

    def keys(self) -> tuple[str, ...]:
        """Names by which a campaign may call its dynamic dimensions."""
        dynamic = [(axis, size) for axis, size in enumerate(self.shape) if not isinstance(size, int)]
        symbols = [size for _, size in dynamic if isinstance(size, str)]
        return (*symbols, *(f"{self.name}[{axis}]" for axis, _ in dynamic))


class _Odd(ValueError):
    """Not what a model looks like."""


def check_batches(entry: ModelEntry, path: Path, batches: Sequence[int | None]) -> None:
    """Raise `CampaignError` for a batch that the model at `path` surely cannot have. Blocking; reads little of the file."""
    wanted = [batch for batch in batches if batch is not None]
    inputs = read_inputs(path) if wanted else ()
    if not inputs:
        return
    label = safe_text(entry.label, 60)
    if entry.batch_dim is not None:
        known = [key for one in inputs for key in one.keys()]  # noqa: SIM118  (no mapping)
        if entry.batch_dim not in known:
            named = [key for one in inputs for key in one.shape if isinstance(key, str)] or known
            there = ", ".join(safe_text(key, 40) for key in dict.fromkeys(named[:8])) or "none"
            raise entry.error(
                f"model {label!r}: batch_dim {safe_text(entry.batch_dim, 60)!r} is no dynamic dimension of its inputs",
                f"there are: {there}",
            )
        return
    if any(not isinstance(size, int) for one in inputs for size in one.shape[:1]) or any(
        len(one.shape) == 3 and one.shape[1] is None for one in inputs
    ):
        return
    firsts = {one.name: one.shape[0] for one in inputs if len(one.shape) > 1}
    other = [batch for batch in wanted if set(firsts.values()) != {batch}]
    if other:
        told = ", ".join(
            f"{safe_text(name, 40)} begins with {size}" for name, size in list(firsts.items())[:4]
        )
        sizes = set(firsts.values())
        hint = "export it with a dynamic first dimension"
        if len(sizes) == 1:
            hint += f", or give this model batch: {sorted(map(str, sizes))}".replace("'", "")
        raise entry.error(
            f"model {label!r} has a fixed batch and cannot run with one of {other[0]}"
            + (f" ({told})" if told else ""),
            hint,
        )


def read_inputs(path: Path) -> tuple[OnnxInput, ...]:
    """The inputs of the model in this file; none where it is no file, or not such as expected."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            whole = memoryview(mapped)
            try:
                return _in_model(whole)
            finally:
                whole.release()
    except (OSError, ValueError, BufferError):
        return ()


def _in_model(whole: memoryview) -> tuple[OnnxInput, ...]:
    found: list[OnnxInput] = []
    weights: set[str] = set()
    for number, held in _fields(whole):
        if number != GRAPH or isinstance(held, int):
            continue
        with held:
            for inner, part in _fields(held):
                if isinstance(part, int):
                    continue
                with part:
                    if inner == INPUTS:
                        found.append(_input(part))
                    elif inner == WEIGHTS:
                        weights.add(_text(part, WEIGHT_NAME))
                if len(found) > MAX_INPUTS:
                    return ()
    return tuple(one for one in found if one.name not in weights)  # old files list their weights as inputs


def _input(part: memoryview) -> OnnxInput:
    shape: list[int | str | None] = []
    for kind in _parts(part, INPUT_TYPE):
        for tensor in _parts(kind, TENSOR):
            for sizes in _parts(tensor, SHAPE):
                shape = [_dimension(one) for one in _parts(sizes, DIMENSION)]
    return OnnxInput(_text(part, INPUT_NAME), tuple(shape))


def _dimension(part: memoryview) -> int | str | None:
    for number, held in _fields(part):
        if number == SIZE and isinstance(held, int) and 0 <= held < 1 << 63:
            return held
        if number == SYMBOL and not isinstance(held, int):
            return str(held, "utf-8", "replace") or None
    return None


def _parts(part: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, held in _fields(part):
        if number == wanted and not isinstance(held, int):
            with held:
                yield held


def _text(part: memoryview, wanted: int) -> str:
    return next((str(held, "utf-8", "replace") for held in _parts(part, wanted)), "")


def _fields(part: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and content of each field: a whole number, or the bytes of a text or a message."""
    at = 0
    while at < len(part):
        tag, at = _whole(part, at)
        kind = tag & 7
        if kind == 0:
            value, at = _whole(part, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = _whole(part, at)
            if at + length > len(part):
                raise _Odd
            yield tag >> 3, part[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _Odd


def _whole(part: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(part) or shift > 63:
            raise _Odd
        byte = part[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
