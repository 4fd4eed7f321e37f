"""One task's line in the results: what people read, what sheets load, what `--json` prints.

The first 17 columns are a contract, in names and order. A fact that was not measured is None, an empty cell, never 0. A row that is not
Complete carries no measured number, so that none is averaged by mistake; what was measured before it failed stays in the raw results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_pascal

from protocol.attempt import TaskState
from protocol.errors import RemoteProtocolError
from protocol.record import LoadSample, Record, Timing
from protocol.task import Task
from protocol.words import Reason
from scheduler.stats import Observed, Verdict, judge, median_interval, observe, summarise

MB: Final = 1024 * 1024
GB: Final = 1024**3


class Status(StrEnum):
    """How a task stands; the last two only while its campaign runs."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    ADOPTED = "Adopted"
    PENDING = "Pending"
    RUNNING = "Running"


_STATUS: Final[dict[TaskState, Status]] = {
    TaskState.PENDING: Status.PENDING,
    TaskState.COMMITTING: Status.PENDING,
    TaskState.QUEUED: Status.PENDING,
    TaskState.LEASED: Status.RUNNING,
    TaskState.RUNNING: Status.RUNNING,
    TaskState.SUCCEEDED: Status.COMPLETE,
    TaskState.FAILED: Status.FAILED,
    TaskState.CANCELLED: Status.CANCELLED,
}


class Row(BaseModel):
    """Fields in the order of the columns; a column's name is the field's in PascalCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=to_pascal,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    # the contract
    status: Status
    """Complete, Failed, Cancelled or, when another scheduler carries the task on, Adopted (Pending or Running while the campaign runs)."""
    job_id: str
    """The task: campaign id and number."""
    file_name: str
    """The model's name."""
    file_size: int
    """Of the model, in bytes."""
    compute_units: str
    """The unit asked for; a row is Complete only if it is what really ran."""
    device_name: str = ""
    """As its owner named it, or its host name."""
    soc: str = ""
    """Processor or system on chip."""
    ram: float | None = None
    """Of the device, in GB of 1,073,741,824 bytes."""
    device_os: str = ""
    """Name and version of the operating system."""
    load_ms_median: float | None = None
    """Milliseconds to create a session, each in a fresh process."""
    load_ms_average: float | None = None
    """Of the same loads."""
    load_ms_std_dev: float | None = None
    """With Bessel's correction; empty below two loads."""
    peak_load_ram_usage: float | None = None
    """Highest resident memory of a load above what the process held before it, in MB of 1,048,576 bytes; the highest of the loads."""
    inference_ms_median: float | None = None
    """Milliseconds of one timed inference; warm-up is left out."""
    inference_ms_average: float | None = None
    """Of the same inferences."""
    inference_ms_std_dev: float | None = None
    """With Bessel's correction; empty below two inferences."""
    peak_inference_ram_usage: float | None = None
    """Highest resident memory while it warmed up and ran above what the process held before the load, in MB of 1,048,576 bytes."""

    # ours
    load_ms_first: float | None = None
    """The first of the loads."""
    load_ms_min: float | None = None
    """The quickest load."""
    load_ms_max: float | None = None
    """The slowest load."""
    loads: int | None = None
    """How many fresh-process loads were timed."""
    inference_ms_first: float | None = None
    """The cold one: the first warm-up inference."""
    inference_ms_min: float | None = None
    """The quickest."""
    inference_ms_max: float | None = None
    """The slowest."""
    inference_ms_p50: float | None = None
    """The median."""
    inference_ms_p90: float | None = None
    """By nearest rank; empty below 44 inferences."""
    inference_ms_p95: float | None = None
    """By nearest rank; empty below 90 inferences."""
    inference_ms_p99: float | None = None
    """By nearest rank; empty below 459 inferences."""
    runs: int | None = None
    """Timed inferences."""
    warmups: int | None = None
    """Inferences before them."""
    cpu_percent: float | None = None
    """CPU time over wall time of the timed inferences; 100 is one core."""
    peak_load_ram_total: float | None = None
    """As PeakLoadRamUsage, with what the process held before."""
    peak_inference_ram_total: float | None = None
    """As PeakInferenceRamUsage, with what the process held before."""
    timer_overhead_ns: int | None = None
    """Of reading the clock once."""
    involuntary_switches: int | None = None
    """How often the system took the processor away in the timed window."""
    threads: int | None = None
    """Of one inference, as it ran."""
    shapes: str = ""
    """Of the inputs, resolved. Rows of different shapes are not to be compared."""
    dtypes: str = ""
    """Element types of the inputs."""
    seed: int | None = None
    """Of the made inputs."""
    driver: str = ""
    """What loaded and ran the model."""
    runtime: str = ""
    """Of the driver, with its version."""
    providers: str = ""
    """Execution providers of the live session, most preferred first."""
    output_sha256: str = ""
    """Of the outputs of the last timed inference."""
    max_error: float | None = None
    """Largest difference from the reference, relative to its largest magnitude."""
    tolerance: float | None = None
    """The largest MaxError that counts as agreeing."""
    verdict: str = ""
    """valid, unchecked, few-runs, drift, noisy or unreadable; empty for a row that is not Complete."""
    verdict_reason: str = ""
    """Why the verdict is what it is."""
    reason: str = ""
    """Why it failed, in one word of a closed list."""
    detail: str = ""
    """Why it failed, in a sentence."""
    attempt: int | None = None
    """Which attempt this is."""
    notes: str = ""
    """What was chosen where the campaign did not say: sizes of dimensions, input values, warm-up, threads."""
    campaign: str = ""
    """Its id."""
    worker_id: str = ""
    """Peer id of the worker that signed the result."""
    device_id: str = ""
    """The hardware's id."""
    arch: str = ""
    """Processor architecture."""
    cores: int | None = None
    """Physical cores."""
    node_version: str = ""
    """Of sark-node on the worker."""
    model_sha256: str = ""
    """Of the model's bytes."""
    task_sha256: str = ""
    """Of the signed task's bytes."""
    stages: str = ""
    """Seconds of each stage on the worker's clock."""
    inference_ms_median_low: float | None = None
    """Lower end of the 95 % interval of the median, from ranks; empty below six inferences."""
    inference_ms_median_high: float | None = None
    """Its upper end."""
    replica: int | None = None
    """Which of several runs of the same on devices of one class, from 1; empty where there is only one."""
    agreement: str = ""
    """agrees, disagrees or alone (no other replica is complete on another device); empty for a row without replicas."""
    agreement_reason: str = ""
    """In what it disagrees with which replica: outputs further apart than the tolerance, or medians more than 5 % apart whose
    intervals do not overlap."""


CONTRACT: Final = 17
COLUMNS: Final[tuple[str, ...]] = tuple(to_pascal(name) for name in Row.model_fields)
"""All columns in order."""


def columns_page() -> str:
    """All columns and what they say, as a page for people."""
    rows = "\n".join(
        f"| {number} | `{name}` | {meaning.replace(chr(10), ' ')} |"
        for number, (name, meaning) in enumerate(column_meanings().items(), start=1)
    )
    return f"""# The columns of the CSV

The first 17 are those of the first system, with its names and in its order. An empty cell was not measured.
A row that is not Complete carries no measured number. Written by `make spec` from `scheduler/row.py`.

| # | column | says |
|---|---|---|
{rows}
"""


def column_meanings() -> dict[str, str]:
    """Each column and what it says, for people."""
    return {to_pascal(name): field.description or "" for name, field in Row.model_fields.items()}


def make_row(
    task: Task,
    state: TaskState,
    record: Record | None = None,
    *,
    reason: Reason | None = None,
    detail: str = "",
    attempt: int | None = None,
    device: str = "",
) -> Row:
    """The row of `task`. `record`: that of the attempt that decided it, if one did; `reason`, `detail`, `attempt` and `device` (a name)
    are the scheduler's own and stand where the record says nothing.
    """
    status = Status.ADOPTED if reason is Reason.ADOPTED else _STATUS[state]
    base = Row(
        status=status,
        job_id=task.task,
        file_name=task.model.name,
        file_size=task.model.size,
        compute_units=task.unit,
        campaign=task.campaign,
        model_sha256=task.model.sha256,
        device_name=device,
        attempt=attempt,
        replica=task.replica,
        reason=str(reason or ""),
        detail=detail,
    )
    if record is None:
        return base
    failed = status is not Status.COMPLETE
    row = base.model_copy(update=_context(record))
    if failed and not row.reason:
        row = row.model_copy(update={"reason": str(record.reason or "")})
    if failed and not row.detail:
        row = row.model_copy(update={"detail": record.detail})
    if failed:
        return row
    try:
        observed = observe(record)
    except RemoteProtocolError as exc:
        return row.model_copy(update={"verdict": str(Verdict.UNREADABLE), "verdict_reason": str(exc)})
    return row.model_copy(update=_measured(record, observed))


def _context(record: Record) -> dict[str, object]:
    """Where and with what it ran: facts that hold for failures too."""
    facts, ran = record.device, record.ran
    found: dict[str, object] = {
        "device_name": facts.name,
        "soc": facts.soc,
        "ram": None if facts.ram is None else round(facts.ram / GB, 1),
        "device_os": facts.os,
        "device_id": facts.device,
        "arch": facts.arch,
        "cores": facts.cores,
        "node_version": facts.version,
        "worker_id": record.worker,
        "attempt": record.attempt,
        "task_sha256": record.task_sha256,
        "stages": "; ".join(f"{stage.stage} {stage.seconds:.3f}" for stage in record.stages),
    }
    if ran is not None:
        found |= {
            "threads": ran.threads or None,
            "shapes": "; ".join(
                f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in ran.shapes.items()
            ),
            "dtypes": "; ".join(f"{name} {dtype}" for name, dtype in ran.dtypes.items()),
            "seed": ran.seed,
            "driver": ran.driver,
            "runtime": ran.runtime,
            "providers": "; ".join(ran.providers),
            "notes": "; ".join(ran.notes),
        }
    return found


def _measured(record: Record, observed: Observed) -> dict[str, object]:
    """The numbers of a complete run."""
    ran, timings = record.ran, record.timings
    load, run = summarise(observed.loads), summarise(observed.runs)
    verdict, why = judge(observed.runs, agrees=ran.agrees if ran else None)
    found: dict[str, object] = {
        "load_ms_median": load.median,
        "load_ms_average": load.average,
        "load_ms_std_dev": load.stddev,
        "load_ms_first": load.first,
        "load_ms_min": load.low,
        "load_ms_max": load.high,
        "loads": load.n,
        "peak_load_ram_usage": _highest(record.loads, above=True),
        "peak_load_ram_total": _highest(record.loads, above=False),
        "verdict": str(verdict),
        "verdict_reason": why,
    }
    if ran is not None:
        found |= {
            "output_sha256": ran.output_sha256 or "",
            "max_error": ran.max_error,
            "tolerance": ran.tolerance,
        }
    if timings:
        low, high = median_interval(observed.runs)
        found |= {
            "inference_ms_median_low": low,
            "inference_ms_median_high": high,
            "inference_ms_median": run.median,
            "inference_ms_average": run.average,
            "inference_ms_std_dev": run.stddev,
            "inference_ms_first": observed.warmup[0] / 1e6 if observed.warmup else None,
            "inference_ms_min": run.low,
            "inference_ms_max": run.high,
            "inference_ms_p50": run.median,
            "inference_ms_p90": run.p90,
            "inference_ms_p95": run.p95,
            "inference_ms_p99": run.p99,
            "runs": run.n,
            "warmups": len(observed.warmup),
            "cpu_percent": _percent(sum(one.cpu_s for one in timings), sum(one.wall_s for one in timings)),
            "peak_inference_ram_usage": _highest(timings, above=True),
            "peak_inference_ram_total": _highest(timings, above=False),
            "timer_overhead_ns": max(one.timer_ns for one in timings) or None,
            "involuntary_switches": _sum(one.switches for one in timings),
        }
    return found


def _percent(part: float, whole: float) -> float | None:
    """None where the quotient says nothing: of no time, or of so little that it is no number."""
    percent = 100 * part / whole if whole > 0 else math.inf
    return percent if math.isfinite(percent) else None


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    whole = 0
    for count in counts:
        if count is None:
            return None
        whole += count
    return whole


def _highest(samples: tuple[LoadSample, ...] | tuple[Timing, ...], *, above: bool) -> float | None:
    """The highest peak in MB, in all or above each one's baseline; None where none was measured."""
    peaks = [
        max(sample.peak - (sample.baseline or 0 if above else 0), 0)
        for sample in samples
        if sample.peak is not None and (sample.baseline is not None or not above)
    ]
    return max(peaks) / MB if peaks else None
