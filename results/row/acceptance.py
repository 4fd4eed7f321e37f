"""Checks that a signed record answers its task: complete, plausible, and measured as the task asks."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from protocol.errors import RemoteProtocolError
from protocol.formats.spread import FEWEST_LAUNCHES, gap_s
from protocol.formats.sustain import MAX_SUSTAINED
from protocol.messages.work import Result
from protocol.values.record import BLOCK_FIELDS, MAX_SAMPLES, Record, read_record, record_message
from protocol.values.rounds import MAX_ROUNDS
from protocol.values.task import Task
from protocol.words import Reason, RunOutcome
from results.row.record import SERVED, RecordBounds, RecordView, observe
from results.row.rounds import launches_of
from results.row.stats import MAX_LAUNCHES
from results.row.witness import CLOCKS
from swarm.net.identity import verify

WINDOW_SAMPLES: Final = 10_000
"""Maximum samples of one launch when the task gives no number; our drivers take at most half as many, warm-up included."""
LAUNCH_BLOCKS: Final = 4096
LASTED: Final = 0.9
"""Minimum share of the requested time that a sustained run must spend on inferences: the host is read between stretches."""
CLOCK_NS: Final = 1000
"""Nanoseconds by which a window may differ from the sum of its times: both have passed through floating point."""


def check(result: Result, body: bytes, peer: str, task: Task, task_body: bytes) -> tuple[Record, RecordView]:
    """Return the record in `body` and its unpacked contents. Raises `RemoteProtocolError` unless `peer` signed it and it belongs to this
    task, attempt, fence and model; a complete record must also hold all loads and inferences that the task asks for.
    """
    if not verify(peer, record_message(body), result.signature):
        raise RemoteProtocolError(f"the record of {result.task} is not signed by the worker that sent it")
    record = read_record(body)
    facts: tuple[tuple[Any, ...], ...] = (
        ("campaign", record.campaign, task.campaign, result.campaign),
        ("task", record.task, task.task, result.task),
        ("attempt", record.attempt, result.attempt),
        ("fence", record.fence, result.fence),
        ("worker", record.worker, peer),
        ("task_sha256", record.task_sha256, hashlib.sha256(task_body).hexdigest()),
        ("model_sha256", record.model_sha256, task.model.sha256),
    )
    for name, own, *others in facts:
        if others.count(own) != len(others):
            raise RemoteProtocolError(f"the {name} in the record of {result.task} is not the task's")
    observed = (check_whole if record.outcome is RunOutcome.COMPLETE else _read)(record, task)
    if record.outcome is RunOutcome.FAILED and record.reason is None:
        raise RemoteProtocolError(f"the record of {result.task} reports a failure without a reason")
    return record, observed


def check_whole(record: Record, task: Task) -> RecordView:
    """Return the contents of a complete record. Raises `RemoteProtocolError` unless it has as many loads and inferences as the task asks
    for. A task with a precision asks for no number, so any number up to the limit passes.
    """
    name = f"the record of {task.task}"
    if record.ran is None or not record.timings:
        raise RemoteProtocolError(f"{name} is complete, but has no measurement")
    observed = _read(record, task)
    measure, launches, loads = task.measure, len(observed.launches), len(observed.loads)
    if any(not launch.samples for launch in observed.launches):
        raise RemoteProtocolError(f"{name} has a launch without inferences")
    check_sense(record, task, observed)
    if task.beside is not None and record.rounds is not None:
        _check_rounds(name, record, task, observed)
        return observed
    if record.sustained is not None or measure.sustain_s is not None:
        _check_sustained(name, record, task, observed)
        return observed
    runs = len(observed.runs)
    asked_runs = runs if measure.precision is not None else measure.runs
    if task.unit.startswith(SERVED) and not loads:  # the server loaded the model long before
        asked_loads, asked_launches = 0, 1
    elif measure.precision is not None:
        # each launch loads and times, so a load without times would be an omitted launch
        asked_loads = asked_launches = min(max(loads, 1), MAX_LAUNCHES)
    else:
        asked_loads, asked_launches = measure.loads, min(launches, measure.loads)
        if any(launch.per_sample != 1 for launch in observed.launches):
            raise RemoteProtocolError(f"{name} has means, but the task asks for single runs")
    for what, number, request in (
        ("inferences", runs, asked_runs),
        ("loads", loads, asked_loads),
        ("launches that timed inferences", launches, asked_launches),
    ):
        if number != request:
            raise RemoteProtocolError(f"{name} has {number} {what}, but the task asks for {request}")
    return observed


def _check_rounds(name: str, record: Record, task: Task, observed: RecordView) -> None:
    """Raise `RemoteProtocolError` unless all models took turns in every launch, and the task's own times are the times of its rounds."""
    beside = len(task.beside or ())
    if len(record.ran_beside or ()) != beside:
        raise RemoteProtocolError(
            f"{name} describes {len(record.ran_beside or ())} other models, not {beside}"
        )
    if not len(observed.rounds) == len(observed.launches) == len(observed.loads):
        raise RemoteProtocolError(f"{name} has launches in which the models did not take turns")
    for rounds, launch in zip(observed.rounds, observed.launches, strict=True):
        if len(rounds.wall_ns) != beside + 1:
            raise RemoteProtocolError(f"{name} has rounds of {len(rounds.wall_ns)} models, not {beside + 1}")
        if rounds.wall_ns[-1] != launch.samples:
            raise RemoteProtocolError(f"{name} has a launch whose times differ from those of its rounds")


def _check_sustained(name: str, record: Record, task: Task, observed: RecordView) -> None:
    """Raise `RemoteProtocolError` unless the record is one launch that lasted as long as the task asks for. A record without a sustained
    run passes here; `find_task_mismatch` reports it.
    """
    asked = task.measure.sustain_s
    if record.sustained is None:
        return
    if asked is None:
        raise RemoteProtocolError(f"{name} is of a sustained run, but the task asks for runs")
    if len(observed.launches) != 1 or len(observed.loads) != 1:
        raise RemoteProtocolError(
            f"{name} has {len(observed.launches)} launches, but a sustained run has one"
        )
    (launch,) = observed.launches
    if sum(block.samples for block in launch.blocks) != len(launch.samples):
        raise RemoteProtocolError(f"{name} has times outside its stretches")
    if not all(launch.samples):
        raise RemoteProtocolError(f"{name} has an inference that took no time")
    inferring_s = sum(block.wall_ns for block in launch.blocks) / 1e9
    full = len(launch.samples) >= MAX_SUSTAINED
    if not full and min(inferring_s, launch.wall_s) < LASTED * asked:
        raise RemoteProtocolError(
            f"{name} has {inferring_s:.4g} s of inferences, but the task asks for {asked:g} s"
        )


def bounds_of(task: Task) -> RecordBounds:
    """The limits on how many numbers a record of the task may hold."""
    measure, launches = task.measure, launches_of(task)
    samples = measure.runs if measure.precision is None else launches * WINDOW_SAMPLES
    if task.beside is not None:
        samples = max(samples, launches * MAX_ROUNDS)
    if measure.sustain_s is not None:
        samples = MAX_SUSTAINED
    served = task.unit.startswith(SERVED)
    return RecordBounds(
        samples=samples,
        warmup=min(MAX_SAMPLES, launches * ((measure.warmup or 0) + WINDOW_SAMPLES)),
        blocks=launches * len(BLOCK_FIELDS) * LAUNCH_BLOCKS,
        series=MAX_SAMPLES if served else samples + WINDOW_SAMPLES,
    )


def _read(record: Record, task: Task) -> RecordView:
    name = f"the record of {task.task}"
    if len(record.timings) > launches_of(task):
        raise RemoteProtocolError(
            f"{name} has {len(record.timings)} launches that timed inferences, but the task asks for {launches_of(task)}"
        )
    try:
        return observe(record, bounds_of(task))
    except RemoteProtocolError as exc:
        raise RemoteProtocolError(f"{name} cannot be read: {exc.what}") from exc


def check_sense(record: Record, task: Task, observed: RecordView) -> None:
    """Raise `RemoteProtocolError` for values that no measurement can produce, whatever was measured."""
    name = f"the record of {task.task}"
    ran, request = record.ran, task.measure.threads
    if ran is not None and request is not None and ran.threads > request:
        raise RemoteProtocolError(
            f"{name} is of a run on {ran.threads} threads, but the task asks for {request}"
        )
    if ran is not None and any(size < 0 for shape in ran.shapes.values() for size in shape):
        raise RemoteProtocolError(f"{name} has an input with a negative size")
    if task.unit.startswith(SERVED):
        return  # several requests are under way at a time
    for launch in observed.launches:
        inferences = len(launch.samples) * launch.per_sample
        taken = sum(launch.samples) * launch.per_sample
        if taken - inferences > launch.wall_s * 1e9 + CLOCK_NS:  # each sample is rounded to a nanosecond
            raise RemoteProtocolError(
                f"{name} has {taken / 1e9:.3g} s of inferences in a window of {launch.wall_s:.3g} s"
            )


def _is_hurried(record: Record, task: Task) -> bool:
    """Whether launches lie closer together than the task asks for."""
    measure, launches = task.measure, len(record.timings)
    gap = gap_s(measure.over_s, launches if measure.precision is None else FEWEST_LAUNCHES)
    return any(each.began_s < number * gap * (1 - CLOCKS) for number, each in enumerate(record.timings))


def find_task_mismatch(record: Record, task: Task) -> tuple[Reason, str] | None:
    """Why a complete measurement is not what the task asks for, such as another unit, batch or shape. None if it is."""
    ran, batch = record.ran, task.measure.batch
    if record.outcome is not RunOutcome.COMPLETE or ran is None:
        return None
    if ran.unit != task.unit:
        return Reason.WRONG_UNIT, f"{task.unit} was requested, but {ran.unit} ran the model"
    if batch is not None and ran.batch != batch:  # a worker whose version does not support batches
        return (
            Reason.DOES_NOT_FIT,
            f"a batch of {batch} was requested, but the worker ran {ran.batch or 'none'}",
        )
    if task.beside is not None and record.rounds is None:  # a worker whose version only measures models alone
        return (
            Reason.DOES_NOT_FIT,
            f"the model should have taken turns with {task.beside[0].name}, but the worker ran it alone",
        )
    for other, unit in zip(record.ran_beside or (), task.units()[1:], strict=False):
        if other.unit != unit:  # also a worker whose version runs all models in one process
            return (
                Reason.WRONG_UNIT,
                f"a model to compare with was requested on {unit}, but ran on {other.unit}",
            )
    if task.measure.sustain_s is not None and record.sustained is None:
        return (
            Reason.DOES_NOT_FIT,
            "a sustained run was requested, but the worker's version does not support it",
        )
    if _is_hurried(record, task):  # also a worker whose version does not support gaps
        asked = task.measure.over_s or 0.0
        return (
            Reason.DOES_NOT_FIT,
            f"launches spread over {asked:g} s were requested, but the worker made them sooner, or its version does not support gaps",
        )
    for name, shape in task.measure.shapes.items():
        if ran.shapes.get(name) != shape:  # a worker whose version does not support shapes
            seen = "×".join(map(str, ran.shapes.get(name, ()))) or "another shape"
            return (
                Reason.DOES_NOT_FIT,
                f"{name} was requested as {'×'.join(map(str, shape))}, but the worker ran {seen}",
            )
    return None
