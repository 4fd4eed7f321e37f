"""The messages between a child and its parent: frames of JSON over a pipe.

The child runs other people's models, so the parent trusts nothing it sends: no pickle, every frame bounded, every field
checked against the table below before an `Event` is made of it. `json` is fast enough: a launch sends a few dozen frames.

    frame = 4 bytes length, big endian │ {"event": "LoadReport", "load_ns": 1, …}
"""

from __future__ import annotations

import array
import json
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from drivers.contract.base import (
    CheckReport,
    Crashed,
    DriverError,
    Event,
    HostState,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutOfMemory,
    ProgressReport,
    RunFindings,
    SampleBlock,
    TimedOut,
    Unfit,
    UnitInfo,
    WorkOrder,
    WrongUnit,
)
from protocol.formats.phase import NODE_PHASES, Phase

CHILD_PHASES: Final = frozenset(Phase) - NODE_PHASES
HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
"""Two million samples fit."""
MAX_TEXT: Final = 2000
MAX_ENTRIES: Final = 4096
MAX_INT: Final = 2**53
MAX_SECONDS: Final = 31_536_000
MAX_THREADS: Final = 8192
MAX_SAMPLES: Final = 1_000_000
"""The most that a record can hold: a cap of the protocol, which a test compares."""
MAX_RANK: Final = 64
MAX_FIGURES: Final = 256
MAX_SERIES: Final = 16
MAX_FIGURE: Final = 1e18
MAX_CONTAINERS: Final = 40_000
MAX_QUOTES: Final = 400_000
MAX_COMMAS: Final = 2_500_000
"""More of each than any event has: a parsed frame could otherwise take twenty times its own size."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NAME: Final = re.compile("[a-z][a-z0-9_]{0,63}")
_SHA256: Final = re.compile("[0-9a-f]{64}")

FAILURES: Final = {error.__name__: error for error in (WrongUnit, Unfit, OutOfMemory, Crashed, TimedOut)}
"""What a child may fail with, the most specific first: an error's name travels, its sentence decides nothing."""


class Garbled(Exception):
    """A child sent something that is not an event."""


def frame(payload: bytes) -> bytes:
    """Put the length before the bytes."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def pack_event(event: Event | UnitInfo) -> bytes:
    """One event as a whole frame."""
    return frame(json.dumps({"event": type(event).__name__, **asdict(event)}).encode())


def pack_failure(error: DriverError) -> bytes:
    """An error as a whole frame."""
    name = next((name for name, kind in FAILURES.items() if isinstance(error, kind)), Crashed.__name__)
    return frame(json.dumps({"event": "Failure", "error": name, "sentence": str(error)[:MAX_TEXT]}).encode())


def pack_order(order: WorkOrder, limits: Limits, driver: str, simulate: bool, job: str) -> bytes:
    """The order of a launch; `job`: a `MeasureJob`."""
    fields = {
        "order": asdict(order),
        "limits": asdict(limits),
        "driver": driver,
        "simulate": simulate,
        "job": job,
    }
    return json.dumps(fields).encode()


def unpack_order(packed: bytes) -> tuple[WorkOrder, Limits, str, bool, str]:
    """The inverse of `pack_order`, in the child. The parent is trusted."""
    fields = json.loads(packed)
    order, limits = WorkOrder(**fields["order"]), Limits(**fields["limits"])
    order = replace(order, pre=tuple(order.pre), post=tuple(order.post))  # JSON makes lists of them
    return order, limits, fields["driver"], fields["simulate"], fields["job"]


def send_request(to: socket.socket, payload: bytes, fds: Sequence[int]) -> None:
    """One launch: its folder and order, and three file descriptors: the control socket, the pipe for events, the log. Raises OSError."""
    message = frame(payload)
    sent = socket.send_fds(to, [message], fds)
    to.sendall(message[sent:])


def receive_request(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """The other end of `send_request`; None: the sender is gone."""
    data, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_LEN(3 * array.array("i").itemsize))
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content)
    while len(data) < HEADER_BYTES or len(data) < HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big"):
        more = control.recv(65536) if data else b""
        if not more:
            return None
        data += more
    return data[HEADER_BYTES:], fds.tolist()


class Reassembler:
    """Bytes in as they arrive, whole frames out. Raises `Garbled` as soon as a frame announces too great a length."""

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


def _positive(value: object) -> int:
    return _whole(value) or _whole(-1)


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
    if not isinstance(value, str) or value not in CHILD_PHASES:
        raise Garbled(f"{value!r:.60} is not a phase of a child")
    return Phase(value)


def _load_kind(value: object) -> LoadKind:
    try:
        return LoadKind(_text(value))
    except ValueError:
        raise Garbled(f"{value!r:.60} is not a kind of load") from None


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


def _signed(value: object) -> float:
    """A finite number of any sign."""
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > MAX_FIGURE:  # type: ignore[arg-type]
        raise Garbled(f"{value!r:.60} is not a finite number")
    return float(value)  # type: ignore[arg-type]


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise Garbled(
            f"{value!r:.80} is no name of a figure: lower case letters, digits and underscores, at most 64"
        )
    return value


def _named(check: Callable[[object], Any], limit: int) -> Callable[[object], dict[str, Any]]:
    def checked(value: object) -> dict[str, Any]:
        if type(value) is not dict or len(value) > limit:
            raise Garbled(f"{value!r:.60} is not a table of at most {limit} entries")
        return {_name(key): check(entry) for key, entry in value.items()}

    return checked


def _record(kind: type) -> Callable[[object], Any]:
    """A dataclass within an event, checked field by field."""

    def checked(value: object) -> Any:
        fields = PARTS[kind]
        if type(value) is not dict or value.keys() != fields.keys():
            raise Garbled(f"{value!r:.60} is not a {kind.__name__}")
        return kind(**{name: check(value[name]) for name, check in fields.items()})

    return checked


_SAMPLES = _list(_whole, MAX_SAMPLES)

PARTS: Final[Mapping[type, Mapping[str, Callable[[object], Any]]]] = {
    SampleBlock: {
        "samples": _whole,
        "wall_ns": _whole,
        "cpu_ns": _whole,
        "stall_ns": _maybe(_whole),
        "switches": _maybe(_whole),
    },
    HostState: {
        "others_share": _maybe(_real),
        "steal_share": _maybe(_real),
        "clock_mhz": _maybe(_real),
        "throttles": _maybe(_whole),
        "temperature_c": _maybe(_signed),
        "on_battery": _maybe(_truth),
    },
}
"""Dataclasses within events."""

FIELDS: Final[Mapping[type, Mapping[str, Callable[[object], Any]]]] = {
    ProgressReport: {"phase": _phase, "done": _whole, "total": _maybe(_whole), "median_ms": _maybe(_real)},
    LoadReport: {
        "load_ns": _whole,
        "baseline_bytes": _maybe(_whole),
        "peak_bytes": _maybe(_whole),
        "kind": _load_kind,
    },
    MeasureReport: {
        "samples_ns": _SAMPLES,
        "warmup_ns": _SAMPLES,
        "cpu_s": _seconds,
        "wall_s": _seconds,
        "peak_bytes": _maybe(_whole),
        "timer_overhead_ns": _whole,
        "involuntary_switches": _maybe(_whole),
        "per_sample": _positive,
        "began_ns": _whole,
        "blocks": _list(_record(SampleBlock)),
        "host": _record(HostState),
    },
    ModelDescription: {
        "unit": _text,
        "driver": _text,
        "runtime": _text,
        "providers": _list(_text),
        "threads": _threads,
        "shapes": _table(_list(_whole, MAX_RANK)),
        "dtypes": _table(_text),
        "seed": _whole,
        "notes": _list(_text),
        "batch": _maybe(_positive),
    },
    CheckReport: {
        "agrees": _maybe(_truth),
        "output_sha256": _digest,
        "max_error": _maybe(_real),
        "tolerance": _maybe(_real),
        "note": _text,
    },
    RunFindings: {"figures": _named(_signed, MAX_FIGURES), "series": _named(_SAMPLES, MAX_SERIES)},
    UnitInfo: {"unit": _text, "driver": _text, "runtime": _text, "detail": _text},
}
"""Every field of every event and what it must be. A test holds it against the dataclasses."""

# without Telemetry: the parent reads it, and no child may claim it
KINDS: Final = {kind.__name__: kind for kind in FIELDS}


def unpack(payload: bytes) -> Event | UnitInfo | DriverError:
    """One frame of a child as a checked event, or as the error it reports. Raises `Garbled` for anything else."""
    containers = payload.count(b"[") + payload.count(b"{")
    if containers > MAX_CONTAINERS or payload.count(b'"') > MAX_QUOTES or payload.count(b",") > MAX_COMMAS:
        raise Garbled(f"{payload[:60]!r} … has more parts than any event")
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        raise Garbled(f"{payload[:60]!r} is not JSON") from None
    if type(fields) is not dict:
        raise Garbled(f"{payload[:60]!r} is not an event")
    name = fields.pop("event", None)
    if name == "Failure":
        return FAILURES.get(_text(fields.get("error")), Crashed)(_text(fields.get("sentence")))
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or fields.keys() != FIELDS[kind].keys():
        raise Garbled(f"{payload[:60]!r} is not an event")
    event: Event | UnitInfo = kind(**{key: check(fields[key]) for key, check in FIELDS[kind].items()})
    return event
