"""Results to report on: real records with real signatures, and times drawn from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.operators import OperatorUse
from protocol.values.record import (
    Accelerator,
    DeviceFacts,
    HostLoad,
    LoadSample,
    Record,
    RunFacts,
    SignedRecord,
    StageTime,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import Reason, RunOutcome
from results.export.raw import RawResult, raw_result
from results.row.make import make_row
from swarm.net.identity import Identity

MIB = 1024 * 1024
OPERATORS = (
    OperatorUse(op="Conv", provider="CPUExecutionProvider", nodes=26, ran=26, ns=6_000_000),
    OperatorUse(
        op="Gelu", domain="com.microsoft", provider="CPUExecutionProvider", nodes=4, ran=4, ns=2_000_000
    ),
    OperatorUse(op="Relu", provider="CPUExecutionProvider", nodes=26),
)
WORKERS = tuple(Identity.from_seed(bytes([number]) * 32) for number in range(1, 5))


def launches_at(ms: float, seed: int = 0, *, count: int = 6, each: int = 17) -> list[list[int]]:
    """Launches of samples about `ms`."""
    chance = random.Random(seed)
    return [
        [int(ms * 1e6 * (1 + chance.gauss(0, 0.01) + chance.expovariate(80))) for _ in range(each)]
        for _ in range(count)
    ]


def complete(
    number: int,
    *,
    model: str = "net.onnx",
    unit: str = "CPU (ONNX)",
    device: int = 0,
    ms: float = 10.0,
    launches: Sequence[Sequence[int]] | None = None,
    energy_j: float | None = None,
    campaign: str = "c-ab23cd45",
) -> RawResult:
    """Task `number`, measured on device `device` and signed by its worker."""
    task = _task(campaign, number, model, unit)
    record = a_record(task, device=device, ms=ms, launches=launches, energy_j=energy_j, seed=number)
    return _signed(task, device, record, TaskState.SUCCEEDED)


def a_record(
    task: Task,
    *,
    device: int = 0,
    ms: float = 10.0,
    launches: Sequence[Sequence[int]] | None = None,
    energy_j: float | None = None,
    seed: int = 0,
) -> Record:
    """What device `device` observed when it ran `task`."""
    times = launches if launches is not None else launches_at(ms, seed=seed)
    facts: dict[str, Any] = {
        "ran": RunFacts(
            unit=task.unit,
            driver="onnx",
            runtime="onnxruntime 1.31.1",
            providers=("CPUExecutionProvider",),
            threads=4,
            shapes={"x": (1, 3, 8)},
            dtypes={"x": "float32"},
            output_sha256="c" * 64,
            agrees=True,
            max_error=2.5e-7,
            tolerance=1e-5,
            operators=OPERATORS,
        ),
        "loads": tuple(
            LoadSample(ns=(20 + at) * 10**6, kind="fresh" if at else "cold", baseline=50 * MIB, peak=62 * MIB)
            for at in range(6)
        ),
        "timings": tuple(
            Timing(
                samples=pack_samples(samples),
                warmup=pack_samples([2 * samples[0], *samples[:4]]),
                cpu_s=1.0,
                wall_s=60.0,
                baseline=50 * MIB,
                peak=80 * MIB,
                timer_ns=45,
                switches=3,
                host=HostLoad(others=0.01, steal=0.0, clock_mhz=3000.0, throttles=0),
            )
            for samples in times
        ),
        "stages": (StageTime(stage="run", seconds=2.0),),
    }
    if energy_j is not None:
        runs = sum(len(samples) for samples in times)
        facts["accelerator"] = Accelerator(
            source="nvml",
            device="Pretend GPU",
            samples=9,
            energy_j=energy_j * runs,
            power_w=70.0,
            idle_w=20.0,
        )
    return _recorded(task, device, facts)


def failed(
    number: int,
    *,
    reason: Reason = Reason.CRASHED,
    detail: str = "the process ended by signal 11",
    model: str = "net.onnx",
    device: int = 0,
) -> RawResult:
    """Task `number`, which failed according to its worker."""
    task = _task("c-ab23cd45", number, model, "CPU (ONNX)")
    facts = {"outcome": RunOutcome.FAILED, "reason": reason, "detail": detail}
    return _signed(task, device, _recorded(task, device, facts), TaskState.FAILED)


def unplaced(number: int, detail: str = "no device has 64 GiB") -> RawResult:
    """Task `number`, which was never placed on a worker."""
    task = _task("c-ab23cd45", number, "huge.onnx", "GPU (CoreML)")
    row = make_row(task, TaskState.FAILED, reason=Reason.NOTHING_FITS, detail=detail)
    return raw_result(row, task_body(task), None)


def _task(campaign: str, number: int, model: str, unit: str) -> Task:
    return Task(
        campaign=campaign,
        task=f"{campaign}/{number}",
        scheduler=WORKERS[3].peer_id,
        model=Model(name=model, sha256=hashlib.sha256(model.encode()).hexdigest(), size=4 * MIB),
        unit=unit,
        requirement=Requirement(),
        measure=Measure(runs=102),
        timeouts=Timeouts(),
    )


def _recorded(task: Task, device: int, facts: dict[str, Any]) -> Record:
    body, worker = task_body(task), WORKERS[device]
    base = {
        "campaign": task.campaign,
        "task": task.task,
        "attempt": 1,
        "fence": Fence(incarnation=1, number=1),
        "worker": worker.peer_id,
        "task_sha256": hashlib.sha256(body).hexdigest(),
        "model_sha256": task.model.sha256,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(
            device=f"dev-{device}",
            name=f"lab-{device}",
            soc=f"Chip {device}",
            ram=16 * 1024**3,
            os="Linux 6.1",
            arch="x86_64",
            cores=8,
            version="0.1.0",
        ),
    }
    return Record.model_validate(base | facts)


def _signed(task: Task, device: int, record: Record, state: TaskState) -> RawResult:
    raw = record_body(record)
    signed = SignedRecord(body=raw, signature=WORKERS[device].sign(record_message(raw)))
    return raw_result(make_row(task, state, record), task_body(task), signed)
