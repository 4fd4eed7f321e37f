"""How a child tells its parent what happened: frames of JSON over a pipe.

The child runs other people's models, so the parent trusts nothing it says: never pickle, every frame bounded, every field
checked against the table below before an `Event` is made of it. `json` is enough here: a launch speaks a few dozen times.

    frame = 4 bytes length, big endian │ {"kind": "Loaded", "load_ns": 1, …}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from drivers.base import (
    Checked,
    Described,
    Event,
    Limits,
    Loaded,
    Measured,
    Phase,
    Progressed,
    UnitInfo,
    WorkOrder,
)

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
"""Two million samples fit."""
MAX_TEXT: Final = 2000
MAX_ENTRIES: Final = 4096
MAX_INT: Final = 2**53
MAX_SECONDS: Final = 31_536_000
MAX_THREADS: Final = 8192
MAX_SAMPLES: Final = 1_000_000
"""What a record can hold: the caps of the protocol, which this package does not know. A test holds them against each other."""
MAX_RANK: Final = 64

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SHA256: Final = re.compile("[0-9a-f]{64}")

Failure = tuple[str, str]
"""What a child gave up with: the name of a `DriverError` and one sentence."""


class Garbled(Exception):
    """The child sent something that is not an event."""


def frame(payload: bytes) -> bytes:
    """Put the length before the bytes."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def pack_event(event: Event | UnitInfo) -> bytes:
    """One event as a whole frame."""
    return frame(json.dumps({"kind": type(event).__name__, **asdict(event)}).encode())


def pack_failure(error: str, sentence: str) -> bytes:
    """A `DriverError` as a whole frame."""
    return frame(json.dumps({"kind": "Failure", "error": error, "sentence": sentence[:MAX_TEXT]}).encode())


def pack_order(order: WorkOrder, limits: Limits, driver: str, simulate: bool, job: str) -> bytes:
    """What a launch is told; `job` is one of `run`, `load` and `units`."""
    told = {
        "order": asdict(order),
        "limits": asdict(limits),
        "driver": driver,
        "simulate": simulate,
        "job": job,
    }
    return json.dumps(told).encode()


def unpack_order(told: bytes) -> tuple[WorkOrder, Limits, str, bool, str]:
    """The child's half of `pack_order`. The parent is trusted; types are what it wrote."""
    fields = json.loads(told)
    order, limits = WorkOrder(**fields["order"]), Limits(**fields["limits"])
    return order, limits, fields["driver"], fields["simulate"], fields["job"]


class Reassembler:
    """Bytes in as they come, whole frames out. Raises `Garbled` as soon as a frame is too long to be meant."""

    def __init__(self, total_limit: int) -> None:
        self._buffer = bytearray()
        self._left = total_limit

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read from the pipe; return the frames that are complete now."""
        self._left -= len(data)
        if self._left < 0:
            raise Garbled("it sent more than its output limit")
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise Garbled(f"it announced a message of {length} bytes")
            if len(self._buffer) < HEADER_BYTES + length:
                break
            frames.append(bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length]))
            del self._buffer[: HEADER_BYTES + length]
        return frames


def _whole(value: object, most: int = MAX_INT) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise Garbled(f"{value!r:.60} is not a whole number from 0 to {most}")
    return value


def _threads(value: object) -> int:
    return _whole(value, MAX_THREADS)


def _real(value: object) -> float:
    if type(value) is int:
        return float(_whole(value))
    if type(value) is not float or not math.isfinite(value) or value < 0:
        raise Garbled(f"{value!r:.60} is not a finite number ≥ 0")
    return value


def _seconds(value: object) -> float:
    if (seconds := _real(value)) > MAX_SECONDS:
        raise Garbled(f"{value!r:.60} s is more than a year")
    return seconds


def _text(value: object) -> str:
    if type(value) is not str or len(value) > MAX_TEXT or _SURROGATE.search(value):
        raise Garbled(f"{value!r:.60} is not a text of at most {MAX_TEXT} characters")
    return value


def _digest(value: object) -> str:
    if (text := _text(value)) and not _SHA256.fullmatch(text):
        raise Garbled(f"{value!r:.60} is neither a sha256 nor empty")
    return text


def _phase(value: object) -> Phase:
    try:
        return Phase(_text(value))
    except ValueError:
        raise Garbled(f"{value!r:.60} is not a phase") from None


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise Garbled(f"{value!r:.60} is neither true nor false")
    return value


def _maybe(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else check(value)


def _list(check: Callable[[object], Any], limit: int = MAX_ENTRIES) -> Callable[[object], tuple[Any, ...]]:
    def checked(value: object) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > limit:
            raise Garbled(f"{value!r:.60} is not a list of at most {limit} entries")
        return tuple(map(check, value))

    return checked


def _table(check: Callable[[object], Any]) -> Callable[[object], dict[str, Any]]:
    def checked(value: object) -> dict[str, Any]:
        if type(value) is not dict or len(value) > MAX_ENTRIES:
            raise Garbled(f"{value!r:.60} is not a table of at most {MAX_ENTRIES} entries")
        return {_text(key): check(entry) for key, entry in value.items()}

    return checked


_SAMPLES = _list(_whole, MAX_SAMPLES)

FIELDS: Final[Mapping[type, Mapping[str, Callable[[object], Any]]]] = {
    Progressed: {"phase": _phase, "done": _whole, "total": _maybe(_whole), "median_ms": _maybe(_real)},
    Loaded: {"load_ns": _whole, "baseline_bytes": _maybe(_whole), "peak_bytes": _maybe(_whole)},
    Measured: {
        "samples_ns": _SAMPLES,
        "warmup_ns": _SAMPLES,
        "cpu_s": _seconds,
        "wall_s": _seconds,
        "peak_bytes": _maybe(_whole),
        "timer_overhead_ns": _whole,
        "involuntary_switches": _maybe(_whole),
    },
    Described: {
        "unit": _text,
        "driver": _text,
        "runtime": _text,
        "providers": _list(_text),
        "threads": _threads,
        "shapes": _table(_list(_whole, MAX_RANK)),
        "dtypes": _table(_text),
        "seed": _whole,
        "notes": _list(_text),
    },
    Checked: {
        "agrees": _maybe(_truth),
        "output_sha256": _digest,
        "max_error": _maybe(_real),
        "tolerance": _maybe(_real),
        "note": _text,
    },
    UnitInfo: {"unit": _text, "driver": _text, "runtime": _text, "detail": _text},
}
"""Every field of every event and what it must be. A test holds it against the dataclasses."""

KINDS: Final = {kind.__name__: kind for kind in FIELDS}


def unpack(payload: bytes) -> Event | UnitInfo | Failure:
    """One frame of a child as a checked event, or as the failure it reports. Raises `Garbled` for anything else."""
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError):
        raise Garbled(f"{payload[:60]!r} is not JSON") from None
    if type(said) is not dict:
        raise Garbled(f"{payload[:60]!r} is not an event")
    kind = said.pop("kind", None)
    if kind == "Failure":
        return _text(said.get("error")), _text(said.get("sentence"))
    made = KINDS.get(kind) if isinstance(kind, str) else None
    if made is None or said.keys() != FIELDS[made].keys():
        raise Garbled(f"{payload[:60]!r} is not an event")
    event: Event | UnitInfo = made(**{name: check(said[name]) for name, check in FIELDS[made].items()})
    return event
