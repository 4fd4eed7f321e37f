"""Shared parts for tests of runs: a task, a scripted launch, a bench."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivers.contract.base import (
    Cancelled,
    CheckReport,
    DriverError,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
)
from node.device.lock import DeviceLock
from node.run.record_builder import RecordJob
from node.run.runner import RunBench, StopRun, run
from node.store.cache import ModelCache, Source
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    Record,
    read_record,
    record_body,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from swarm.base.threads import DISK

WORKER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"


CPU = "CPU (ONNX)"


CONTENT = b"a model"


def task(content: bytes = CONTENT, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "campaign": "c-1",
        "task": "c-1/1",
        "scheduler": WORKER,
        "model": Model(name="m.onnx", sha256=hashlib.sha256(content).hexdigest(), size=len(content)),
        "unit": CPU,
        "requirement": Requirement(),
        "measure": Measure(runs=10, loads=1),
        "timeouts": Timeouts(),
    }
    return Task(**(fields | changes))


def job(what: Task) -> RecordJob:
    return RecordJob("w-1.1", Fence(incarnation=1, number=1), 1, what, "0" * 64, waited_s=2.0)


def source_of(content: bytes) -> Source:
    async def source(offset: int, sink: Any, progress: Any) -> None:
        await DISK.run(sink, bytearray(content[offset:]))
        progress(len(content), len(content))

    return source


class ScriptedLaunch:
    """A launch that yields these events, then raises `then` or waits to be killed."""

    def __init__(self, *events: Event, then: DriverError | None = None, hangs: bool = False) -> None:
        self._events, self._then, self._hangs = events, then, hangs
        self.started = threading.Event()
        self._killed = threading.Event()
        self.dead = False

    def events(self) -> Iterator[Event]:
        self.started.set()
        yield from self._events
        if self._hangs:
            self._killed.wait(5)
            self.dead = True
            raise Cancelled("the run was cancelled")
        if self._then is not None:
            raise self._then

    def kill(self) -> None:
        self._killed.set()


def described(unit: str = CPU, *providers: str) -> ModelDescription:
    return ModelDescription(
        unit, "onnx", "onnxruntime 1", providers or ("CPUExecutionProvider",), 2, {"x": (1,)}, {"x": "f"}, 0
    )


MEASURED = MeasureReport((3, 1, 2), (9,), 0.1, 0.2, 300, 40, 1)


CHECKED = CheckReport(True, "0" * 64, 1e-6, 1e-4)


LOADED = LoadReport(5, 100, 200)


def bench(folder: Path, launch: Any, content: bytes = CONTENT, **changes: Any) -> RunBench:
    cache = ModelCache(folder / "cache", 10**9, free=lambda path: 10**12)
    source = changes.pop("source", lambda what: source_of(content))
    fields: dict[str, Any] = {
        "worker": WORKER,
        "facts": lambda: DeviceFacts(device="d-1", name="lab"),
        "model": lambda what, model, progress: cache.using(model, source(what), progress),
        "lock": DeviceLock("d-1", folder),
        "launch": launch,
        "memory_cap": 2 * 1024**3,
    }
    return RunBench(**(fields | changes))


async def record_of(folder: Path, launch: ScriptedLaunch, what: Task | None = None) -> Record:
    made = await run(
        job(what or task()), bench(folder, lambda order, limits: launch), StopRun(), lambda *progress: None
    )
    assert read_record(record_body(made)) == made, "what is recorded can be sent"
    return made
