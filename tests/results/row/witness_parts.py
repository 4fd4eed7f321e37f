"""A stranger's honest run of three launches, and what its scheduler witnessed. Tests change one thing at a time."""

from __future__ import annotations

import struct
from typing import Any

from protocol.formats.chain import SUMS, launch_seed
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LaunchOutput,
    LoadSample,
    OutputSketch,
    Record,
    RunFacts,
    Timing,
    pack_samples,
)
from protocol.words import RunOutcome
from results.row.record import RecordView, observe
from results.row.witness import LaunchNote, WitnessAccount

OPENING, REVEAL = b"o" * 32, b"r" * 32
LAUNCHES = 3
LOAD_S, WARM_UP_S, TIMED_S = 0.5, 0.5, 1.0
EACH_S = LOAD_S + WARM_UP_S + TIMED_S
START_S = 0.1
"""The time that a launch takes besides loading, warm-up and timed inferences."""


def sketch(*values: float, norm: float = 1.0, dtype: str = "float32", count: int = 100) -> OutputSketch:
    """A sketch with these first sums. The others are 0."""
    sums = struct.pack(f">{SUMS}f", *(*values, *[0.0] * (SUMS - len(values))))
    return OutputSketch(dtype=dtype, count=count, norm=norm, sums=sums)


def output(number: int) -> LaunchOutput:
    return LaunchOutput(sha256=f"{number:064x}", sketches=(sketch(1.0, number),))


def timing(number: int, **changes: Any) -> Timing:
    fields: dict[str, Any] = {
        "samples": pack_samples([round(TIMED_S * 1e8)] * 10),
        "warmup": pack_samples([round(WARM_UP_S * 1e8)] * 10),
        "cpu_s": 1.0,
        "wall_s": TIMED_S,
        "output": output(number),
    }
    return Timing(**(fields | changes))


def facts(**changes: Any) -> RunFacts:
    fields: dict[str, Any] = {
        "unit": "CPU (ONNX)",
        "driver": "onnx",
        "runtime": "r",
        "seed": launch_seed(OPENING, 1),
        "output_sha256": output(1).sha256,
    }
    return RunFacts(**(fields | changes))


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "campaign": "c-1",
        "task": "c-1/1",
        "attempt": 1,
        "fence": Fence(incarnation=1, number=1),
        "worker": "1" * 52,
        "task_sha256": "0" * 64,
        "model_sha256": "0" * 64,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(device="d", name="d"),
        "ran": facts(),
        "loads": tuple(LoadSample(ns=round(LOAD_S * 1e9)) for _ in range(LAUNCHES)),
        "timings": tuple(timing(number) for number in range(1, LAUNCHES + 1)),
        "opening": OPENING,
        "reveal": REVEAL,
    }
    return Record(**(fields | changes))


def view(**changes: Any) -> RecordView:
    return observe(record(**changes))


def note(launch: int, at_s: float | None = None, digest: str = "") -> LaunchNote:
    at_s = launch * (EACH_S + START_S) if at_s is None else at_s
    return LaunchNote(launch=launch, digest=digest or output(launch).digest().hex(), at_s=at_s)


def account(**changes: Any) -> WitnessAccount:
    fields: dict[str, Any] = {
        "opening": OPENING.hex(),
        "reveal": REVEAL.hex(),
        "notes": tuple(note(launch) for launch in range(1, LAUNCHES + 1)),
        "result_s": LAUNCHES * (EACH_S + START_S) + START_S,
    }
    return WitnessAccount(**(fields | changes))
