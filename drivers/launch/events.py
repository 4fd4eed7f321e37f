"""The parent's checks on a launch's events. It trusts nothing that a child sends: bytes are checked, then compared with the contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cache
from signal import Signals
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from drivers.contract.base import (
    FAILURES,
    MIB,
    AnswersReport,
    BesideReport,
    CheckReport,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutOfMemory,
    OutputReport,
    ProgressReport,
    ReadyReport,
    RoundsReport,
    RunFindings,
    SampleModel,
    SustainedReport,
    Text,
    TimedOut,
    TurnReport,
    UnitInfo,
)
from drivers.contract.frames import FAILURE, Garbled
from drivers.launch.process import Child
from drivers.measure.stopping import IN_TURNS, LaunchSpec, MeasureJob
from protocol.formats.phase import Phase

MAX_CONTAINERS: Final = 40_000
MAX_QUOTES: Final = 400_000
MAX_COMMAS: Final = 2_500_000
"""Each is more than any event has. Without these limits a parsed frame could take twenty times its own size."""
MAX_ERRORS: Final = 64
"""More errors than an event has fields."""

Reply = Event | UnitInfo | SampleModel
"""The messages that a child may send."""

# without Telemetry and BetweenLaunches: the parent makes these, and no child may send them
SENT: Final = (
    *(ProgressReport, LoadReport, MeasureReport, ModelDescription, OutputReport, CheckReport, RunFindings),
    AnswersReport,
    BesideReport,
    RoundsReport,
    ReadyReport,
    TurnReport,
    SustainedReport,
    UnitInfo,
    SampleModel,
)


def _fail_fast(schema: Any) -> Any:
    """The schema, changed so that every sequence and mapping is refused at its first wrong entry: a child may send a million of them."""
    if isinstance(schema, list):
        return [_fail_fast(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    fast = {name: _fail_fast(part) for name, part in schema.items()}
    return fast | {"fail_fast": True} if schema.get("type") in {"tuple", "dict"} else fast


KINDS: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in SENT} | {FAILURE: tuple[Text, Text]}


@cache
def _validator(name: str) -> SchemaValidator:
    """The validator of one kind, made on first use: making all of them takes a tenth of a node's start time, and an idle node needs two."""
    return SchemaValidator(_fail_fast(TypeAdapter(KINDS[name]).core_schema))


def make_ready() -> None:
    """Make all validators now rather than while a child measures."""
    for name in KINDS:
        _validator(name)


def unpack(payload: bytes) -> Reply | DriverError:
    """Turn one frame of a child into a checked event, or into the error that it reports. Raises `Garbled` for anything else."""
    containers = payload.count(b"[") + payload.count(b"{")
    if containers > MAX_CONTAINERS or payload.count(b'"') > MAX_QUOTES or payload.count(b",") > MAX_COMMAS:
        raise Garbled(f"{payload[:60]!r} … has more parts than any event")
    kind, _, fields = payload.partition(b" ")
    name = kind.decode("ascii", "replace")
    if name not in KINDS:
        raise Garbled(f"{payload[:60]!r} is not an event")
    try:
        event: Any = _validator(name).validate_json(fields)
    except ValidationError as why:
        if why.error_count() > MAX_ERRORS:  # unknown fields: `errors` would make a dict for each
            raise Garbled(f"{name} has {why.error_count()} errors") from None
        first = why.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:60]
        raise Garbled(f"{name}: {where}: {first['msg'][:100]}, not {first['input']!r:.60}") from None
    if isinstance(event, tuple):
        error: DriverError = FAILURES.get(event[0], Crashed)(event[1])
        return error
    checked: Reply = event
    return checked


def received(running: Child, deadline: Callable[[], float], limits: Limits) -> Generator[Reply, None, None]:
    """Everything that a child sends until it ends. The child is closed then, or when the generator is closed.

    Raises at once the first error that the child reports; `Crashed` with the way it died; TimeoutError past `deadline`; or `Garbled`.
    """
    try:
        for payload in running.frames(deadline):
            message = unpack(payload)
            if isinstance(message, DriverError):
                raise message
            yield message
    finally:
        output = running.close()
    if running.code != 0:
        raise death(running.code, output, limits)


def replies(running: Child, limits: Limits) -> list[Reply]:
    """All messages that a child sends within `limits.load_s`. Raises `DriverError`."""
    until = time.monotonic() + limits.load_s
    try:
        return list(received(running, lambda: until, limits))
    except TimeoutError:
        raise TimedOut(f"no reply within {limits.load_s:g} s") from None
    except Garbled as why:
        raise Crashed(f"it broke its contract: {why}") from why


def death(code: int | None, output: str, limits: Limits) -> Crashed:
    """How a process died, in one line: its exit code (negative for a signal), the last line that it printed, and a likely reason."""
    if code is None:
        end = "the process vanished"
    elif code < 0:
        name = Signals(-code).name if -code in set(Signals) else f"signal {-code}"
        end = f"killed by {name}"
    else:
        end = f"exit code {code}"
    out_of_memory = any(hint in output for hint in ("bad_alloc", "Cannot allocate memory", "MemoryError"))
    if out_of_memory:
        end += f", out of memory (limit {limits.memory_bytes // MIB} MiB)"
    last = output.splitlines()[-1].strip() if output else ""
    return (OutOfMemory if out_of_memory else Crashed)(f"{end}: {last}" if last else end)


REQUIRED: Final[Mapping[MeasureJob, frozenset[type]]] = {
    MeasureJob.UNITS: frozenset(),
    MeasureJob.SAMPLES: frozenset(),
    MeasureJob.RUN: frozenset({LoadReport, ModelDescription, MeasureReport, CheckReport}),
    MeasureJob.REPEAT: frozenset({LoadReport, MeasureReport}),
    MeasureJob.LOAD: frozenset({LoadReport}),
    MeasureJob.ROUNDS: frozenset({LoadReport, ModelDescription, MeasureReport, RoundsReport, CheckReport}),
    MeasureJob.ROUNDS_REPEAT: frozenset({LoadReport, MeasureReport, RoundsReport}),
    MeasureJob.SUSTAIN: frozenset(
        {LoadReport, ModelDescription, MeasureReport, SustainedReport, CheckReport}
    ),
    MeasureJob.TURNS: frozenset({LoadReport, ReadyReport, ModelDescription, MeasureReport, CheckReport}),
    MeasureJob.TURNS_REPEAT: frozenset({LoadReport, ReadyReport, MeasureReport}),
    MeasureJob.ANSWER: frozenset({LoadReport, AnswersReport}),
}
"""The events that each job must send, one of each kind; `TurnReport` comes once for each turn (`drivers.launch.turns`)."""
MAX_FINDINGS: Final = 64
"""Most `RunFindings` of one launch: the node keeps them."""
MAX_ROUNDS: Final = 128
"""Most rounds of one launch: computing with them takes time quadratic in their number."""
MAX_CHANGES: Final = 256
"""Most changes of phase in one launch: each is reported to others."""


class LaunchEvents:
    """Checks the events of one launch, in the parent."""

    def __init__(
        self, launch: LaunchSpec, *, served: bool, cold: bool, witnessed: bool = False, beside: int = 0
    ) -> None:
        """`served`: the children load no model. `cold`: the model's pages were dropped just before. `witnessed`: each launch that times
        inferences must report its outputs before its times. `beside`: how many other models take turns with the order's own."""
        self._launch = launch
        self._served = served
        self._beside = beside
        self._described = 0
        self._required = REQUIRED[launch.job]
        if witnessed and MeasureReport in self._required:
            self._required |= {OutputReport}
        self._first_load = LoadKind.COLD if cold else LoadKind.FRESH
        self._received: set[type] = set()
        self._warm = False
        self._findings = self._changes = self._blocks = 0
        self._phase: Phase | None = None

    def take(self, event: Reply) -> Event:
        """Check one event, and set the kind of a load. Raises `Garbled`."""
        if isinstance(event, (UnitInfo, SampleModel)):
            raise Garbled("it offered a unit or a sample where an event was due")
        if isinstance(event, ProgressReport):
            self._changes += event.phase is not self._phase
            self._phase = event.phase
            if self._changes > MAX_CHANGES:
                raise Garbled(f"it changed its phase more than {MAX_CHANGES} times")
            return event
        runs = self._launch.job in (MeasureJob.RUN, MeasureJob.SUSTAIN)
        if isinstance(event, RunFindings) and runs and self._findings < MAX_FINDINGS:
            self._findings += 1
            return event
        if isinstance(event, LoadReport) and CheckReport in self._received and not self._warm:
            self._warm = True
            return replace(event, kind=LoadKind.WARM)
        if isinstance(event, TurnReport) and self._launch.job in IN_TURNS:
            if ReadyReport not in self._received or MeasureReport in self._received:
                raise Garbled("a turn that it was not granted")
            return event
        if isinstance(event, BesideReport) and self._launch.job is MeasureJob.ROUNDS:
            self._described += 1
            if self._described > self._beside:
                raise Garbled("more models beside its own than it was given")
            return event
        kind = type(event)
        described = kind is OutputReport and runs  # any full launch may report its outputs
        if (kind not in self._required and not described) or kind in self._received:
            raise Garbled(f"an unexpected {kind.__name__}")
        if kind is MeasureReport and OutputReport in self._required - self._received:
            raise Garbled("times before the outputs that belong to them")
        self._received.add(kind)
        if isinstance(event, MeasureReport):
            self._check_samples(event)
        if isinstance(event, RoundsReport):
            self._check_rounds(event)
        if isinstance(event, SustainedReport):
            self._check_sustained(event)
        return replace(event, kind=self._first_load) if isinstance(event, LoadReport) else event

    def _check_samples(self, event: MeasureReport) -> None:
        samples = len(event.samples_ns)
        self._blocks = len(event.blocks)
        if self._launch.window_s is None and samples != self._launch.runs:
            raise Garbled(f"{samples} samples for {self._launch.runs} runs")
        if self._launch.window_s is None and event.per_sample != 1:
            raise Garbled(f"{event.per_sample} inferences in a sample, where one was required")
        if not samples:
            raise Garbled("no samples")
        if event.blocks and sum(block.samples for block in event.blocks) != samples:
            raise Garbled(f"blocks that do not add up to its {samples} samples")

    def _check_rounds(self, event: RoundsReport) -> None:
        sides = (event.wall_ns, *([] if event.cpu_ns is None else [event.cpu_ns]))
        lengths = {len(times) for side in sides for times in side}
        if (
            {len(event.per_block), *map(len, sides)} != {self._beside + 1}
            or len(lengths) != 1
            or 0 in lengths
        ):
            raise Garbled("rounds that not every model took part in")
        if max(lengths) > MAX_ROUNDS:
            raise Garbled(f"more than {MAX_ROUNDS} rounds")

    def _check_sustained(self, event: SustainedReport) -> None:
        columns = {len(event.starts_ns), len(event.temperature_mk), len(event.clock_khz)}
        if MeasureReport not in self._received or columns != {self._blocks}:
            raise Garbled(f"a sustained run without an entry for each of its {self._blocks} blocks")
        if len(event.pauses_ns) != len(event.probes_ns) or not all(event.probes_ns):
            raise Garbled("a pause without the probe after it")

    @property
    def over(self) -> bool:
        """Whether the launch has nothing left to measure. A full launch loads once more at its end, if its driver can."""
        full = self._launch.job in (MeasureJob.RUN, MeasureJob.SUSTAIN)
        return self._warm if full else self._required <= self._received

    def missing(self) -> str:
        """The required events that have not arrived, in words; empty: none."""
        missing = self._required - self._received - ({LoadReport} if self._served else set())
        if self._launch.job is MeasureJob.ROUNDS and self._described < self._beside:
            missing |= {BesideReport}
        return ", ".join(sorted(kind.__name__ for kind in missing))
