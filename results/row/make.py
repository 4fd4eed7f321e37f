"""Makes the row of a task from its record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from protocol.errors import RemoteProtocolError
from protocol.values.attempt import TaskState
from protocol.values.record import Record
from protocol.values.task import Task
from protocol.values.trust import TrustKind
from protocol.wire.codec import pack
from protocol.words import SIMULATED_UNIT, Reason
from results.row.comparison import Comparison
from results.row.figures import measure_figures
from results.row.record import RecordView, observe
from results.row.rounds import LaunchRounds, compare_rounds
from results.row.row import Row, RowStatus
from results.row.scores import Scores, score_columns
from results.row.verdicts import RowVerdict
from results.row.witness import WitnessAccount

GB: Final = 1024**3

_STATUS: Final[dict[TaskState, RowStatus]] = {
    TaskState.PENDING: RowStatus.PENDING,
    TaskState.COMMITTING: RowStatus.PENDING,
    TaskState.QUEUED: RowStatus.PENDING,
    TaskState.LEASED: RowStatus.RUNNING,
    TaskState.RUNNING: RowStatus.RUNNING,
    TaskState.SUCCEEDED: RowStatus.COMPLETE,
    TaskState.FAILED: RowStatus.FAILED,
    TaskState.CANCELLED: RowStatus.CANCELLED,
}


def make_row(
    task: Task,
    state: TaskState,
    record: Record | None = None,
    *,
    reason: Reason | None = None,
    detail: str = "",
    attempt: int | None = None,
    device: str = "",
    trust: str = "",
    device_key: str = "",
    preempted: int | None = None,
    account: WitnessAccount | None = None,
    ended_at: str = "",
    scores: Scores | None = None,
    results_url: str = "",
) -> Row:
    """The row of `task`. `record`: the record of the attempt that decided it, if any; `reason`, `detail`, `attempt` and `device` (a name)
    are the scheduler's own and apply if the record has none. `trust`: the scheduler's trust in the worker; `device_key`: the key to which
    it attributes the device id, by default the worker's; `preempted`: how often the task gave way. `account`: what the scheduler witnessed
    of a stranger's run; without one, the run counts as unwitnessed. `ended_at`: when a sitting's result was stored. `scores`: what its
    answers scored. `results_url`: where the campaign's results go.
    """
    row = Row(
        status=RowStatus.ADOPTED if reason is Reason.ADOPTED else _STATUS[state],
        job_id=task.task,
        file_name=task.model.name,
        file_size=task.model.size,
        compute_units=task.unit,
        campaign=task.campaign,
        model_sha256=task.model.sha256,
        device_name=device,
        attempt=attempt,
        replica=task.replica,
        trust=trust,
        preempted=preempted,
        variant=task.model.variant or "",
        batch=task.measure.batch,
        sustain_s=task.measure.sustain_s,
        against=task.beside[0].name if task.beside else "",
        against_unit=task.beside_units[0] if task.beside_units else "",
        reason=str(reason or ""),
        detail=detail,
        simulated=True if task.unit == SIMULATED_UNIT else None,
        sitting=None if task.sitting is None else task.sitting.number,
        first_sitting=task.sitting.task(task.task, 1) if task.sitting else "",
        ended_at=ended_at if task.sitting else "",
        results_url=results_url,
    )
    if record is None:
        return row
    facts: dict[str, object] = {"device_key": device_key or record.worker}
    complete = row.status is RowStatus.COMPLETE
    if not complete:
        facts |= {"reason": row.reason or str(record.reason or ""), "detail": row.detail or record.detail}
    if account is None and trust == TrustKind.STRANGER:
        account = WitnessAccount()
    fields = record_fields(task, record, account, complete=complete, scores=scores)
    return row.model_copy(update=fields | facts)


def record_fields(
    task: Task,
    record: Record,
    account: WitnessAccount | None = None,
    observed: RecordView | None = None,
    *,
    complete: bool,
    scores: Scores | None = None,
    listed: bool = False,
) -> dict[str, object]:
    """The fields of a row that follow from its record. `complete`: include the figures; `observed`: the record's contents, if already
    unpacked; `listed`: leave out figures that no list shows.
    """
    facts = _context(record) | {"fingerprint": fingerprint(task, record)}
    if not complete:
        return facts
    try:
        observed = observed or observe(record)
    except RemoteProtocolError as exc:
        return facts | {"verdict": str(RowVerdict.UNREADABLE), "verdict_reason": str(exc)}
    simulated = task.unit == SIMULATED_UNIT or record.device.simulated
    figures = measure_figures(record, observed, task.measure, bool(simulated), account, listed=listed)
    figures |= _compared(observed.rounds, apart=task.beside_units is not None)
    return facts | figures | score_columns(task, record, scores)


def _compared(rounds: Sequence[LaunchRounds], *, apart: bool) -> dict[str, object]:
    """For models that took turns: the task's own, which is the last, compared with the first. `apart`: each had a process of its own."""
    if not rounds:
        return {}
    result = compare_rounds(rounds)[-1]
    return compared_columns(
        replace(result, why=f"{result.why}; each in a process of its own") if apart else result
    )


def compared_columns(result: Comparison) -> dict[str, object]:
    """The columns of a model that took turns with another."""
    facts: dict[str, object] = {
        "compare_verdict": str(result.verdict),
        "compare_reason": result.why,
        "ratio": result.ratio,
        "ratio_low": result.low,
        "ratio_high": result.high,
        "contention": result.contention or None,
        "against_ms_median": None if result.medians_ms is None else result.medians_ms[0],
    }
    if result.cpu is not None:
        facts |= {
            "cpu_ratio": result.cpu.ratio,
            "cpu_ratio_low": result.cpu.low,
            "cpu_ratio_high": result.cpu.high,
        }
    return facts


def _context(record: Record) -> dict[str, object]:
    """Where and with what the run happened: facts that failures have too."""
    device, ran = record.device, record.ran
    facts: dict[str, object] = {
        "device_name": device.name,
        "soc": device.soc,
        "ram": None if device.ram is None else round(device.ram / GB, 1),
        "device_os": device.os,
        "device_id": device.device,
        "arch": device.arch,
        "cores": device.cores,
        "node_version": device.version,
        "worker_id": record.worker,
        "attempt": record.attempt,
        "task_sha256": record.task_sha256,
        "stages": "; ".join(f"{stage.stage} {stage.seconds:.3f}" for stage in record.stages),
    }
    if device.simulated:
        facts["simulated"] = True
    if ran is not None:
        shapes = (f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in ran.shapes.items())
        facts |= {
            "threads": ran.threads or None,
            "shapes": "; ".join(shapes),
            "dtypes": "; ".join(f"{name} {dtype}" for name, dtype in ran.dtypes.items()),
            "seed": ran.seed,
            "driver": ran.driver,
            "runtime": ran.runtime,
            "providers": "; ".join(ran.providers),
            "notes": "; ".join(ran.notes),
            "compute_type": ran.compute_type or "",
        }
    return facts


def fingerprint(task: Task, record: Record) -> str:
    """What was measured and how, as 64 hexadecimal digits. Only rows with the same fingerprint may be averaged. Empty for an attempt that
    never ran a model.
    """
    ran = record.ran
    if ran is None:
        return ""
    facts: dict[str, Any] = {
        "device": record.device.to_wire(),
        "model": record.model_sha256,
        "unit": ran.unit,
        "driver": ran.driver,
        "runtime": ran.runtime,
        "providers": list(ran.providers),
        "threads": ran.threads,
        "shapes": {name: list(ran.shapes[name]) for name in sorted(ran.shapes)},
        "dtypes": {name: ran.dtypes[name] for name in sorted(ran.dtypes)},
        "seed": ran.seed if record.reveal is None else "revealed",
        "warmup": task.measure.warmup,
        "pre": [step.to_wire() for step in task.measure.pre],
        "post": [step.to_wire() for step in task.measure.post],
    }
    if ran.compute_type is not None:
        facts["compute_type"] = ran.compute_type
    if task.measure.sustain_s is not None:
        facts["sustain"] = task.measure.sustain_s
    if task.beside is not None:
        facts["beside"] = [model.sha256 for model in task.beside]
    if task.beside_units is not None:
        facts["beside_units"] = list(task.beside_units)
    return hashlib.sha256(pack(facts)).hexdigest()
