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
from results.analysis.sittings import HeldIntervals
from results.export.csv import csv_lines
from results.row.figures import judge
from results.row.form import Configuration, JsonModel
from results.row.identity import device_identity
from results.row.operators import OperatorUses, operator_uses
from results.row.record import RecordBlock, RecordView, observe
from results.row.row import Row, RowStatus
from results.row.stats import median
from results.row.verdict import MEANS
from results.row.verdicts import RowVerdict
from results.row.witness import WitnessAccount
from scheduler.output.coverage import NONE_HELD, DeviceCoverage, coverage_of
from scheduler.output.events import event_words
from scheduler.output.schemas import InstantMs, TaskInfo, shown_as, task_info
from scheduler.store.progress import attempt_words
from scheduler.store.readers import account_of
from scheduler.store.rows import AttemptRow, AttemptState, EventRow, ResultRow

MAX_BLOCKS: Final = 600
"""Most blocks of the host's state for one task; adjacent blocks are merged."""


class ReasonInfo(JsonModel):
    """One reason for the verdict on the numbers."""

    verdict: RowVerdict
    why: str
    """Reason, with its figures."""
    means: str
    """Explanation for readers who are new to the word."""
    help: str
    """Advice that would help; empty: none is needed."""


class Judgement(JsonModel):
    """What a complete row's numbers are worth."""

    verdict: RowVerdict
    reasons: tuple[ReasonInfo, ...]
    """Reasons, gravest first."""
    remarks: str = ""
    """Remarks on the host that leave the verdict unchanged."""


class AttemptInfo(JsonModel):
    """One attempt at one worker."""

    attempt: int
    worker: str
    device: str
    trust: str
    """Reason why the worker was trusted."""
    epoch: int
    state: AttemptState
    reason: str
    detail: str
    words: str
    """Outcome of the attempt, in a sentence."""
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
    """A stretch of timed samples and the state of the host during it. null: the system does not report it."""

    samples: int
    wall_s: float
    cpu_percent: float | None
    stall_percent: float | None
    switches: int | None


class LaunchInfo(JsonModel):
    """One launch and the state of the host during its timed window."""

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
    """What the worker signed."""

    worker: str
    attempt: int
    fence: str
    """Incarnation and number of the grant under which the record was made."""
    sha256: str
    """sha256 of the record's bytes."""
    signature: str
    bytes: int
    accepted: InstantMs | None
    """Time when this scheduler accepted the record."""
    device: DeviceFacts
    ran: RunFacts | None
    accelerator: Accelerator | None
    figures: dict[str, float]
    stages: tuple[StageTime, ...]


class TaskDetail(JsonModel):
    """All details of a task."""

    task: TaskInfo
    campaign_name: str
    asked: dict[str, Any]
    """Signed task: model, unit, what a device must meet, how the model is measured."""
    needs: tuple[str, ...]
    """Clauses that a device must meet, as a person writes them."""
    attempts: tuple[AttemptInfo, ...]
    happened: tuple[TimelineEntry, ...]
    row: Row | None
    """Row of the task; null: the task has not ended."""
    csv: str
    """Line of the task in the CSV, after the header; empty: the task has not ended."""
    judgement: Judgement | None
    """Judgement of the numbers; null: the task is not complete."""
    record: RecordInfo | None
    """Record of the deciding attempt; null: no worker signed one."""
    launches: tuple[LaunchInfo, ...]
    unreadable: str
    """Reason why the record cannot be read; empty if it can."""
    operators: OperatorUses | None
    """Operators of the model and where they ran; null: the record does not say."""
    coverage: DeviceCoverage | None = None
    """Coverage of the task's device; null: the device has too few sittings, or the task has no interval."""
    device_interval_ms: tuple[float, float] | None = None
    """Interval of the median in ms, widened so that such intervals hold in 95 % of cases on this device. null: the margin is not known."""


def task_detail(
    item: ResultRow,
    row: Row | None,
    campaign_name: str,
    attempts: Sequence[AttemptRow],
    events: Sequence[EventRow],
    held: Mapping[str, HeldIntervals] = NONE_HELD,
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
        ReasonInfo(verdict=verdict, why=why, means=MEANS[verdict][0], help=MEANS[verdict][1])
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
