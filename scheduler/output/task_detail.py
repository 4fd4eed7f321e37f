"""Everything known about one task: its state, its attempts, the worker's observations, and a judgement of the numbers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from protocol.errors import RemoteProtocolError
from protocol.values.record import (
    Accelerator,
    DeviceFacts,
    HostLoad,
    Record,
    RunFacts,
    StageTime,
    read_record,
)
from protocol.values.task import Task, read_task
from results.analysis.sittings import IntervalCoverage
from results.export.csv import csv_lines
from results.row.figures import judge
from results.row.form import Configuration, JsonModel
from results.row.identity import device_identity
from results.row.operators import OperatorUses, operator_uses
from results.row.record import RecordBlock, RecordView, observe
from results.row.row import Row, RowStatus
from results.row.stats import median
from results.row.verdict import VERDICT_EXPLANATIONS
from results.row.verdicts import RowVerdict
from results.row.witness import WitnessAccount
from scheduler.output.coverage import NO_COVERAGE, DeviceCoverage, coverage_of
from scheduler.output.events import event_words
from scheduler.output.schemas import InstantMs, TaskInfo, shown_as, task_info
from scheduler.store.progress import attempt_words
from scheduler.store.readers import account_of
from scheduler.store.rows import AttemptRow, AttemptState, EventRow, ResultRow

MAX_BLOCKS: Final = 600
"""Most blocks of the host's state for one task; adjacent blocks are merged."""


class ReasonInfo(JsonModel):
    """One reason for a verdict."""

    verdict: RowVerdict
    why: str
    """Reason for the verdict, with its figures."""
    means: str
    """Meaning of the verdict, for readers who see the word for the first time."""
    help: str
    """What would help. Empty if nothing needs to be done."""


class Judgement(JsonModel):
    """What a complete row's numbers are worth."""

    verdict: RowVerdict
    reasons: tuple[ReasonInfo, ...]
    """Reasons for the verdict, the gravest first."""
    remarks: str = ""
    """Remarks about the host that do not change the verdict."""


class AttemptInfo(JsonModel):
    """One attempt at one worker."""

    attempt: int
    worker: str
    device: str
    trust: str
    """Why the worker was trusted."""
    epoch: int
    state: AttemptState
    reason: str
    detail: str
    words: str
    """How the attempt ended, in a sentence."""
    begun: InstantMs
    ended: InstantMs | None
    took_s: float | None


class TimelineEntry(JsonModel):
    """An event that concerns the task, in words."""

    seq: int
    time: InstantMs
    name: str
    words: str


class BlockInfo(JsonModel):
    """A sequence of timed samples, and the host during it. Null if the operating system does not tell."""

    samples: int
    wall_s: float
    cpu_percent: float | None
    stall_percent: float | None
    switches: int | None


class LaunchInfo(JsonModel):
    """One launch, and the host during its timed window."""

    launch: int
    """Number of the launch, from 1."""
    began_s: float
    wall_s: float
    cpu_s: float
    samples: int
    per_sample: int
    warmups: int
    median_ms: float | None
    host: HostLoad
    stall_percent: float | None
    switches: int | None
    baseline: int | None
    """Resident memory before the load, in bytes."""
    peak: int | None
    blocks: tuple[BlockInfo, ...]


class RecordInfo(JsonModel):
    """The record that the worker signed."""

    worker: str
    attempt: int
    fence: str
    """Incarnation and number of the grant under which the task ran."""
    sha256: str
    """SHA-256 of the record's bytes."""
    signature: str
    bytes: int
    accepted: InstantMs | None
    """When this scheduler accepted the record."""
    device: DeviceFacts
    ran: RunFacts | None
    accelerator: Accelerator | None
    figures: dict[str, float]
    stages: tuple[StageTime, ...]


class TaskDetail(JsonModel):
    """A task with its attempts, events and result."""

    task: TaskInfo
    campaign_name: str
    asked: dict[str, Any]
    """The signed task: the model, the unit, what a device must meet, and how it is measured."""
    needs: tuple[str, ...]
    """Clauses that a device must meet, as in the campaign file."""
    attempts: tuple[AttemptInfo, ...]
    happened: tuple[TimelineEntry, ...]
    row: Row | None
    """The task's result. Null if the task has not ended."""
    csv: str
    """The task's line of the CSV, after the header. Empty if the task has not ended."""
    judgement: Judgement | None
    """What the row's numbers are worth. Null if the row is not complete."""
    record: RecordInfo | None
    """The record that a worker signed. Null if no worker signed one."""
    launches: tuple[LaunchInfo, ...]
    unreadable: str
    """Why the record cannot be read. Empty if it can."""
    operators: OperatorUses | None
    """Where the model's operators ran. Null if the record does not tell."""
    coverage: DeviceCoverage | None = None
    """How often intervals hold on the task's device. Null if the device has too few sittings, or the task has no interval."""
    device_interval_ms: tuple[float, float] | None = None
    """The median's interval in milliseconds, widened so that 95 % of such intervals hold on its device. Null if the device's margin is not
    known."""


def task_detail(
    item: ResultRow,
    row: Row | None,
    campaign_name: str,
    attempts: Sequence[AttemptRow],
    events: Sequence[EventRow],
    held: Mapping[str, IntervalCoverage] = NO_COVERAGE,
) -> TaskDetail:
    """All details of `item`. `row`: from the campaign's results; None: it has not ended. `held`: by device."""
    task = read_task(item.body)
    record, observed, unreadable = None, None, ""
    if item.record is not None:
        try:
            record = read_record(item.record)
            observed = observe(record)
        except RemoteProtocolError as exc:
            unreadable = exc.what
    complete = row is not None and row.status is RowStatus.COMPLETE
    coverage, device_interval = None, None
    if (
        row is not None
        and row.inference_ms_median_low is not None
        and row.inference_ms_median_high is not None
    ):
        coverage = coverage_of(device_identity(row), held)
        if coverage is not None:
            device_interval = coverage.widened(row.inference_ms_median_low, row.inference_ms_median_high)
    return TaskDetail(
        task=task_info(item.task, Configuration(task.measure.threads, task.measure.batch)),
        campaign_name=campaign_name,
        asked=task.model_dump(mode="json"),
        needs=tuple(map(str, task.requirement.clauses)),
        attempts=tuple(map(_attempt, attempts)),
        happened=tuple(shown_as(TimelineEntry, e, time=e.at, words=event_words(e)) for e in events),
        row=row,
        csv="" if row is None else "".join(csv_lines([row])),
        judgement=_judged(row, record, observed, task, account_of(item))
        if row is not None and complete
        else None,
        record=None if record is None else _record(item, record),
        launches=() if record is None or observed is None else tuple(_launches(record, observed)),
        unreadable=unreadable,
        operators=None if record is None else operator_uses(record.ran),
        coverage=coverage,
        device_interval_ms=device_interval,
    )


def _judged(
    row: Row,
    record: Record | None,
    observed: RecordView | None,
    task: Task,
    account: WitnessAccount | None,
) -> Judgement:
    if record is None or observed is None:
        matches = [(RowVerdict.UNREADABLE, row.verdict_reason)]
    else:
        matches = judge(record, observed, task.measure, simulated=bool(row.simulated), account=account)
    reasons = tuple(
        ReasonInfo(
            verdict=verdict,
            why=why,
            means=VERDICT_EXPLANATIONS[verdict][0],
            help=VERDICT_EXPLANATIONS[verdict][1],
        )
        for verdict, why in matches
    )
    return Judgement(verdict=reasons[0].verdict, reasons=reasons, remarks=row.remarks)


def _attempt(row: AttemptRow) -> AttemptInfo:
    took_s = None if row.ended is None else max(0.0, row.ended - row.begun)
    return shown_as(AttemptInfo, row, reason=str(row.reason or ""), words=attempt_words(row), took_s=took_s)


def _record(item: ResultRow, record: Record) -> RecordInfo:
    body = item.record or b""
    return shown_as(
        RecordInfo,
        record,
        fence=f"{record.fence.incarnation}.{record.fence.number}",
        sha256=hashlib.sha256(body).hexdigest(),
        signature=(item.signature or b"").hex(),
        bytes=len(body),
        accepted=item.accepted,
    )


def _launches(record: Record, observed: RecordView) -> Iterator[LaunchInfo]:
    most = max(1, MAX_BLOCKS // max(1, len(observed.launches)))
    for number, (launch, timing) in enumerate(zip(observed.launches, record.timings, strict=True), start=1):
        size = -(-len(launch.blocks) // most) or 1
        yield shown_as(
            LaunchInfo,
            timing,
            launch=number,
            samples=len(launch.samples),
            per_sample=launch.per_sample,
            warmups=len(launch.warmup),
            median_ms=median(launch.samples) / 1e6 if launch.samples else None,
            host=launch.host,
            stall_percent=_stall_percent([block for block in launch.blocks if block.stall_ns is not None]),
            blocks=tuple(
                _together(launch.blocks[at : at + size]) for at in range(0, len(launch.blocks), size)
            ),
        )


def _together(blocks: Sequence[RecordBlock]) -> BlockInfo:
    wall_ns = sum(block.wall_ns for block in blocks)
    switches = [block.switches for block in blocks if block.switches is not None]
    return BlockInfo(
        samples=sum(block.samples for block in blocks),
        wall_s=wall_ns / 1e9,
        cpu_percent=_percent(sum(block.cpu_ns for block in blocks), wall_ns),
        stall_percent=None if any(block.stall_ns is None for block in blocks) else _stall_percent(blocks),
        switches=sum(switches) if len(switches) == len(blocks) else None,
    )


def _stall_percent(blocks: Sequence[RecordBlock]) -> float | None:
    return _percent(sum(block.stall_ns or 0 for block in blocks), sum(block.wall_ns for block in blocks))


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole > 0 else None
