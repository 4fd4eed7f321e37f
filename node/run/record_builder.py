"""Collects the observations of a run, event by event, and makes a record of them. Pure: times come in with the events."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from drivers.contract import base as driver
from drivers.onnx.units import UNITS
from node.run.meter_records import meter_samples, sustained_sample
from protocol.formats.gpu_units import without_number
from protocol.formats.phase import Phase
from protocol.values import record as records
from protocol.values.answers import AnswerSet, answer_set
from protocol.values.lease import Fence
from protocol.values.operators import OperatorUse
from protocol.values.rounds import RoundsSample
from protocol.values.task import Task
from protocol.words import Reason, RunOutcome
from swarm.base.text import ascii_line, shorten

_PROVIDERS: Final = {known.unit: frozenset(known.names) for known in UNITS}

TIMED: Final = frozenset({Phase.LOAD, Phase.RUN})
"""Timed phases: each load on its own, then all inferences."""
MAX_LAUNCHES: Final = 256
MAX_LOADS: Final = 512
MAX_SIZES: Final = 4096
"""Sizes in all shapes of a record together: half of the elements that a record may have."""
MAX_OPERATORS: Final = 96
"""Lines about operators for all models of a record together: a fifth of its elements."""


@dataclass(frozen=True, slots=True)
class RecordJob:
    """One granted attempt."""

    lease: str
    fence: Fence
    attempt: int
    task: Task
    task_sha256: str
    waited_s: float = 0.0
    """Seconds from the commit to the beginning of the run."""
    stranger: bool = False
    """See `CallPermission.stranger`."""
    witnessed: bool = False
    """The scheduler reveals the inputs when the run begins; see `protocol.formats.chain`."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    outcome: RunOutcome
    reason: Reason | None = None
    permanent: bool = False
    detail: str = ""


def providers_of(unit: str) -> frozenset[str] | None:
    """The providers of which one must be first in the live session if the unit really ran; None: the driver's statement counts."""
    return _PROVIDERS.get(without_number(unit))


COMPLETE: Final = RunEnd(RunOutcome.COMPLETE)


def failed(reason: Reason, why: str, *, permanent: bool = False) -> RunEnd:
    """The end of a failed run."""
    return RunEnd(RunOutcome.FAILED, reason, permanent, why)


_REASONS: Final = (
    (driver.TimedOut, Reason.TIMED_OUT),
    (driver.WrongUnit, Reason.WRONG_UNIT),
    (driver.Unshaped, Reason.NO_SHAPE),
    (driver.Unfit, Reason.BROKEN_MODEL),
    (driver.OutOfMemory, Reason.OUT_OF_MEMORY),
)


def end_of(error: driver.DriverError) -> RunEnd:
    if isinstance(error, driver.Cancelled):
        return RunEnd(RunOutcome.CANCELLED, Reason.CANCELLED, detail=str(error))
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), Reason.CRASHED)
    return failed(reason, str(error), permanent=reason in (Reason.BROKEN_MODEL, Reason.NO_SHAPE))


@dataclass(slots=True)
class RunObservations:
    """Everything observed in one run, in order."""

    stages: dict[str, float] = field(default_factory=dict)
    loads: list[driver.LoadReport] = field(default_factory=list)
    measured: list[driver.MeasureReport] = field(default_factory=list)
    """One report for each launch that timed inferences."""
    outputs: list[driver.OutputReport | None] = field(default_factory=list)
    """Outputs of each of these launches; None: the driver does not report outputs."""
    opening: bytes | None = None
    reveal: bytes | None = None
    """The reveal of a witnessed run."""
    baselines: list[int | None] = field(default_factory=list)
    """Resident bytes before the load of each of these launches."""
    findings: driver.RunFindings = field(default_factory=driver.RunFindings)
    telemetry: driver.Telemetry | None = None
    described: driver.ModelDescription | None = None
    checked: driver.CheckReport | None = None
    timed: bool = False
    """A load or the inferences are being timed and must not be disturbed. Once the inferences have begun this stays True until the launch
    ends, because a measurement is worth more than the second that its check takes. It is False between two launches."""
    rounds: list[driver.RoundsReport] = field(default_factory=list)
    """One report for each launch in which models took turns."""
    beside: list[driver.BesideReport] = field(default_factory=list)
    sustained: driver.SustainedReport | None = None
    answers: driver.AnswersReport | None = None
    meters: list[driver.MeterReport] = field(default_factory=list)
    lasting: bool = False
    """The run is sustained. It may be stopped during its inferences, or a more urgent task would have to wait for its end."""
    _output: driver.OutputReport | None = None
    """Output of a launch whose times have not arrived yet."""
    _stage: str = ""
    _since: float = 0.0

    def enter(self, stage: str, now: float) -> None:
        """A stage begins, and the previous stage ends. Times of a repeated stage (a load for each launch) add up."""
        if self._stage:
            self.stages[self._stage] = self.stages.get(self._stage, 0.0) + max(0.0, now - self._since)
        self._stage, self._since = stage, now

    def add(self, event: driver.Event, now: float) -> None:
        match event:
            case driver.ProgressReport():
                lasts = self.lasting and event.phase is Phase.RUN
                self.timed = self.timed or (event.phase in TIMED and not lasts)
                if event.phase != self._stage:
                    self.enter(str(event.phase), now)
            case driver.LoadReport():
                self.timed = self.timed and event.kind is driver.LoadKind.WARM  # a warm load ends its launch
                self.loads.append(event)
            case driver.OutputReport():
                self._output = event
            case driver.MeasureReport():
                self.measured.append(event)
                self.outputs.append(self._output)
                self._output = None
                self.baselines.append(self.loads[-1].baseline_bytes if self.loads else None)
            case driver.ModelDescription():
                self.described = event
            case driver.CheckReport():
                self.checked = event
            case driver.RoundsReport():
                self.rounds.append(event)
            case driver.BesideReport():
                self.beside.append(event)
            case driver.SustainedReport():
                self.sustained = event
            case driver.AnswersReport():
                self.answers = event
            case driver.RunFindings():
                self.findings = driver.RunFindings(
                    {**self.findings.figures, **event.figures}, {**self.findings.series, **event.series}
                )
            case driver.Telemetry():
                self.telemetry = event
            case driver.MeterReport():
                self.meters.append(event)
            case driver.BetweenLaunches():
                self.timed = False
                if event.gap_s:
                    self.enter("gap", now)

    def verdict(self, task: Task) -> RunEnd:
        """How a run that ended by itself counts: as complete only if the requested units ran, with the requested batch. Outputs that
        differ from the reference are marked in the row."""
        if self.described is None or not self.measured:
            return failed(Reason.CRASHED, "the driver ended without a measurement")
        batch, ran = task.measure.batch, (self.described, *(other.described for other in self.beside))
        for described, unit in zip(ran, task.units(), strict=False):
            live, expected = described.providers, providers_of(unit)
            if described.unit != unit or (expected is not None and (not live or live[0] not in expected)):
                where = f"{described.unit} ({', '.join(live) or 'nothing'})"
                return failed(Reason.WRONG_UNIT, f"asked for {unit}, it ran on {where}")
        if batch is not None and self.described.batch != batch:
            why = f"the driver {self.described.driver} ignores the batch size: it did not run with a batch of {batch}"
            return failed(Reason.DOES_NOT_FIT, why)
        return COMPLETE

    def record(self, job: RecordJob, end: RunEnd, worker: str, facts: records.DeviceFacts) -> records.Record:
        """The record of everything observed, including observations before a failure."""
        lines = MAX_OPERATORS // (1 + len(self.beside))
        return records.Record(
            campaign=job.task.campaign,
            task=job.task.task,
            attempt=job.attempt,
            fence=job.fence,
            worker=worker,
            task_sha256=job.task_sha256,
            model_sha256=job.task.model.sha256,
            outcome=end.outcome,
            reason=end.reason,
            permanent=end.permanent,
            detail=shorten(end.detail),
            device=facts,
            ran=None
            if self.described is None
            else run_facts(self.described, self.checked, lines, job.task.measure.compute_type),
            loads=tuple(
                records.LoadSample(
                    ns=load.load_ns, kind=load.kind.value, baseline=load.baseline_bytes, peak=load.peak_bytes
                )
                for load in self.loads[:MAX_LOADS]
            ),
            timings=tuple(map(self._timing, self.measured[:MAX_LAUNCHES], self.baselines, self.outputs)),
            accelerator=self._accelerator(),
            figures=dict(self.findings.figures),
            series={name: records.pack_samples(times) for name, times in self.findings.series.items()},
            stages=tuple(
                records.StageTime(stage=ascii_line(stage), seconds=seconds)
                for stage, seconds in list(self.stages.items())[:32]
            ),
            opening=self.opening,
            reveal=self.reveal,
            rounds=tuple(map(_rounds, self.rounds[:MAX_LAUNCHES])) or None,
            ran_beside=tuple(
                run_facts(other.described, other.checked, lines, job.task.measure.compute_type)
                for other in self.beside
            )
            or None,
            sustained=None if self.sustained is None else sustained_sample(self.sustained, self.telemetry),
            meters=meter_samples(self.meters, self.telemetry) or None,
            answers=None if self.answers is None else _answer_set(self.answers),
        )

    def _timing(
        self, report: driver.MeasureReport, baseline: int | None, output: driver.OutputReport | None
    ) -> records.Timing:
        host = records.HostLoad(
            others=report.host.others_share,
            steal=report.host.steal_share,
            clock_mhz=report.host.clock_mhz,
            throttles=report.host.throttles,
            temperature_c=report.host.temperature_c,
            on_battery=report.host.on_battery,
        )
        return records.Timing(
            samples=records.pack_samples(report.samples_ns),
            warmup=records.pack_samples(report.warmup_ns),
            began_s=max(0, report.began_ns - self.measured[0].began_ns) / 1e9,
            per_sample=report.per_sample,
            blocks=records.pack_samples([number for block in report.blocks for number in _numbers(block)])
            if report.blocks
            else None,
            host=None if host == records.HostLoad() else host,
            cpu_s=float(report.cpu_s),
            wall_s=float(report.wall_s),
            baseline=baseline,
            peak=report.peak_bytes,
            timer_ns=report.timer_overhead_ns,
            switches=report.involuntary_switches,
            output=None if output is None else launch_output(output),
        )

    def _accelerator(self) -> records.Accelerator | None:
        telemetry = self.telemetry
        if telemetry is None:
            return None
        return records.Accelerator(
            source=ascii_line(telemetry.source),
            device=ascii_line(telemetry.device),
            samples=telemetry.samples,
            utilisation=telemetry.utilisation,
            memory=telemetry.memory_bytes,
            power_w=telemetry.power_w,
            idle_w=telemetry.idle_w,
            energy_j=telemetry.energy_j,
            clock_mhz=telemetry.clock_mhz,
            temperature_c=telemetry.temperature_c,
            throttled=tuple(ascii_line(reason) for reason in telemetry.throttled[:16]),
            notes=tuple(shorten(note) for note in telemetry.notes[:16]),
        )


def _answer_set(report: driver.AnswersReport) -> AnswerSet:
    if not report.answers:
        return AnswerSet(why=shorten(report.why) or "its driver gave no answers")
    return answer_set(b64decode(report.answers))


def run_facts(
    described: driver.ModelDescription,
    check: driver.CheckReport | None,
    lines: int = MAX_OPERATORS,
    asked: str | None = None,
) -> records.RunFacts:
    """What one model ran with. `lines`: most lines about its operators; `asked`: the requested compute type, if any."""
    notes = described.notes + ((check.note,) if check is not None and check.note else ())
    if asked is not None and not described.compute_type:
        notes += (f"compute_type {asked}: {described.runtime} computes in the model's own types",)
    if (more := len(described.operators) - lines) > 0:
        notes += (f"{more} more types of operators are left out of the record",)
    return records.RunFacts(
        unit=ascii_line(described.unit),
        driver=ascii_line(described.driver),
        runtime=ascii_line(described.runtime),
        providers=tuple(ascii_line(provider) for provider in described.providers[:16]),
        threads=described.threads,
        shapes=_fitting(described.shapes),
        dtypes=dict(list(described.dtypes.items())[:256]),
        batch=described.batch,
        seed=described.seed,
        notes=tuple(shorten(note) for note in notes[:64]),
        output_sha256=check.output_sha256 if check is not None and check.output_sha256 else None,
        agrees=check.agrees if check is not None else None,
        max_error=_finite(check.max_error) if check is not None else None,
        tolerance=_finite(check.tolerance) if check is not None else None,
        compared=shorten(check.compared) if check is not None else "",
        operators=tuple(map(_operator_use, described.operators[:lines])) or None,
        compute_type=ascii_line(described.compute_type) or None,
    )


def _operator_use(report: driver.OperatorReport) -> OperatorUse:
    return OperatorUse(
        op=ascii_line(report.op),
        provider=ascii_line(report.provider),
        nodes=report.nodes or None,
        ran=report.ran or None,
        ns=report.ns,
        issued=report.issued or None,
        why=shorten(report.why, 400) or None,
        domain=ascii_line(report.domain) or None,
    )


def _rounds(report: driver.RoundsReport) -> RoundsSample:
    return RoundsSample(
        wall=tuple(map(records.pack_samples, report.wall_ns)),
        cpu=None if report.cpu_ns is None else tuple(map(records.pack_samples, report.cpu_ns)),
        per_block=report.per_block,
        turns=report.turns,
    )


def launch_output(report: driver.OutputReport) -> records.LaunchOutput:
    sketches = tuple(
        records.OutputSketch(
            dtype=one.dtype, count=one.count, norm=float(one.norm), sums=bytes.fromhex(one.sums)
        )
        for one in report.sketches
    )
    return records.LaunchOutput(sha256=report.output_sha256, sketches=sketches)


def _numbers(block: driver.SampleBlock) -> tuple[int, ...]:
    """The numbers of a block, in the order of `protocol.values.record.BLOCK_FIELDS`."""
    optional = tuple(0 if number is None else number + 1 for number in (block.stall_ns, block.switches))
    return (block.samples, block.wall_ns, block.cpu_ns, *optional)


def _fitting(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The first shapes, as far as a record has room for them."""
    fitting: dict[str, tuple[int, ...]] = {}
    left = MAX_SIZES
    for name, shape in list(shapes.items())[:256]:
        left -= len(shape)
        if left < 0:
            break
        fitting[name] = tuple(shape)
    return fitting


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
