"""The contract of a driver.

A driver loads and runs a model on a compute unit and yields events. It blocks, runs in a child process of its own, and makes no statistics:
the scheduler computes medians and deviations from the raw samples.

    WorkOrder ──▶ drivers.launch.measure() ──▶ child process ──▶ Driver.run() ──▶ Event, Event, … ──▶ the node

How to write one: drivers/README.md.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Protocol, runtime_checkable

from annotated_types import Ge, Interval, MaxLen, Predicate

from protocol.formats.chain import SUMS_BYTES
from protocol.formats.phase import NODE_PHASES, Phase
from protocol.formats.spread import with_gaps
from protocol.formats.sustain import MAX_PROBE_SAMPLES, MAX_PROBES, MAX_STRETCHES

MIB = 1024 * 1024
MAX_INT: Final = 2**53
MAX_TEXT: Final = 2000
MAX_ENTRIES: Final = 4096
MAX_THREADS: Final = 8192
MAX_SECONDS: Final = 31_536_000
MAX_SAMPLES: Final = 1_000_000
"""The most that a record can hold: a cap of the protocol, which a test compares."""
MAX_RANK: Final = 64
MAX_FIGURE: Final = 1e18
MAX_OPERATORS: Final = 200
"""Lines on where a model's operators ran."""
MAX_FORMATS: Final = 8
MAX_SAMPLE: Final = 4 * MIB
MAX_ANSWERS: Final = 6 * MIB
"""Characters of all answers of a run: `protocol.formats.examples.MAX_ANSWER_BYTES` in base64."""
MAX_TOGETHER: Final = 8
"""Models that take turns in one process."""


def is_base64(text: str) -> bool:
    """Whether `text` is base64 and nothing else."""
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return True


Whole = Annotated[int, Interval(ge=0, le=MAX_INT)]
Positive = Annotated[int, Interval(ge=1, le=MAX_INT)]
Real = Annotated[float, Ge(0)]
Signed = Annotated[float, Interval(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Seconds = Annotated[float, Interval(ge=0, le=MAX_SECONDS)]
Text = Annotated[str, MaxLen(MAX_TEXT)]
Texts = Annotated[tuple[Text, ...], MaxLen(MAX_ENTRIES)]
Samples = Annotated[tuple[Whole, ...], MaxLen(MAX_SAMPLES)]
Name = Annotated[str, Predicate(lambda text: re.fullmatch("[a-z][a-z0-9_]{0,63}", text) is not None)]
"""Of a figure."""
FormatWord = Annotated[str, Predicate(lambda text: re.fullmatch("[a-z][a-z0-9]{0,15}", text) is not None)]
Sha256 = Annotated[str, Predicate(lambda text: re.fullmatch("([0-9a-f]{64})?", text) is not None)]
"""Or empty."""
Digest = Annotated[str, Predicate(lambda text: re.fullmatch("[0-9a-f]{64}", text) is not None)]
Base64 = Annotated[str, Predicate(is_base64)]
Sums = Annotated[str, Predicate(lambda text: re.fullmatch(f"[0-9a-f]{{{2 * SUMS_BYTES}}}", text) is not None)]
"""Numbers of 32 bits in hexadecimal, big-endian."""


class Sent:
    """What a child sends its parent, who checks every field against its annotation."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"strict": True, "extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything a driver needs to measure one model on one unit; nothing about peers or campaigns."""

    model: str
    """Path of the model file. Read-only: a driver never writes to or removes it."""
    unit: str
    """Compute unit by its public name, such as `CPU (ONNX)`."""
    runs: int = 100
    """Timed inferences of all launches; for one launch: its share."""
    loads: int = 6
    """Launches: fresh processes that load the model and, if there are enough runs, warm up and run."""
    warmup: int | None = None
    """Inferences before the timed ones, at least one (it finds the shapes); None: until settled."""
    threads: int | None = None
    """Intra-op threads; None: as many as physical cores."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dynamic dimensions, by symbol or `input[axis]`."""
    seed: int = 0
    """Seed of the synthetic inputs."""
    check: bool = True
    """Compare the unit's outputs with a plain reference and refuse NaN or Inf."""
    precision: float | None = None
    """Instead of `runs` and `loads`: launch until the 95 % interval of the launches' medians is within ± this share."""
    window_s: float | None = None
    """For one launch of a `precision` order: time inferences for this long instead of `runs`."""
    brief: bool = False
    """For one launch: another one describes and checks; only `LoadReport` and `MeasureReport` are needed."""
    warmup_floor: int = 5
    """Fewest warm-up inferences if `warmup` is None: what calibration found for this device, or 5."""
    pre: tuple[Mapping[str, Any], ...] = ()
    """Pre-run steps on the synthetic inputs, in order: `{"step": "normalise", "of": "x", "options": {…}}`. See `protocol.formats.steps`."""
    post: tuple[Mapping[str, Any], ...] = ()
    """Post-run steps on the last outputs, in order."""
    gpu: str = ""
    """UUID or index of the GPU to run on; empty: the first."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Type and shape of inputs by name, such as `float32[batch, 3, 224, 224]`, for formats without them (TorchScript)."""
    trusted: bool = True
    """The task is not from a stranger: formats that carry a program may be run."""
    batch: int | None = None
    """Size of the batch; None: by the model, `dims` and `shapes`, else 1."""
    batch_dim: str | None = None
    """The dynamic dimension of the batch; None: the first one of the inputs. See `protocol.formats.shapes`."""
    witnessed: bool = False
    """Each launch that times inferences sends an `OutputReport`, before its `MeasureReport`; its seed follows from the launch before
    (`protocol.formats.chain`)."""
    beside: tuple[str, ...] = ()
    """Paths of other models: all are loaded in one process, where they take turns with `model`, as often as it takes to compare them.
    `runs`, `loads` and `precision` say nothing then."""
    slot: int = 0
    """Which of several models of one process this is: 0 is `model`, then those beside it."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of inputs, by name."""
    sustain_s: float | None = None
    """Seconds, instead of `runs` and `loads`: one launch infers for this long, rests, and checks whether it is as fast again. See
    `drivers.measure.sustained`."""
    over_s: float | None = None
    """Seconds over which the launches are spread, with gaps between them; None: the launches follow each other at once."""
    first_look: int = 6
    """Launches of a `precision` order before its interval is looked at: what calibration found for this device, or 6."""
    own_dims: tuple[str, ...] = ()
    """Those of `dims` that the model must have; the others may be of other models."""
    beside_units: tuple[str, ...] = ()
    """The unit of each model of `beside`, which then has a process of its own, as `model` has; empty: all run on `unit`, in one process."""
    compute_type: str = ""
    """`f32`: a runtime that may choose a type of fewer digits to compute in is to compute in float32; empty: as it chooses."""
    examples: str = ""
    """Path of a file of examples (`protocol.formats.examples`), each of which the model is given once, in a launch after the timed ones;
    empty: there are none."""

    @property
    def gaps_s(self) -> float:
        """The gaps between its launches together, at most."""
        return with_gaps(0.0, self.over_s, precise=self.precision is not None)

    @property
    def lasts_s(self) -> float | None:
        """How long it takes by what was asked for; None: it is short."""
        return self.sustain_s or self.gaps_s or None


@dataclass(frozen=True, slots=True)
class Limits:
    """Enforced from outside. Seconds are wall time on the parent's monotonic clock."""

    load_s: float = 60.0
    run_s: float = 300.0
    memory_bytes: int = 4096 * MIB
    """Address space the child may add above what the preloaded zygote already maps (not for GPU units: they map far more)."""
    output_bytes: int = 64 * MIB
    """Largest file that the child may write, and the most that it may send to its parent in all."""


@dataclass(frozen=True, slots=True)
class ProgressReport(Sent):
    """The run reached a phase, or progressed in it: `done` of `total` (None: unknown)."""

    phase: Annotated[Phase, Predicate(lambda phase: phase not in NODE_PHASES)]
    done: Whole = 0
    total: Whole | None = None
    median_ms: Real | None = None


class LoadKind(StrEnum):
    """What was in memory before a load."""

    COLD = "cold"
    """A fresh process, with the file's pages dropped from the page cache."""
    FRESH = "fresh"
    """A fresh process; the file's pages were in memory."""
    WARM = "warm"
    """A second load in the same process."""


@dataclass(frozen=True, slots=True)
class LoadReport(Sent):
    """One load: session creation only. Memory in bytes, None if it cannot be measured."""

    load_ns: Whole
    baseline_bytes: Whole | None
    """Resident set before the load."""
    peak_bytes: Whole | None
    """Highest resident set during the load."""
    kind: LoadKind = LoadKind.FRESH


@dataclass(frozen=True, slots=True)
class SampleBlock(Sent):
    """A stretch of timed inferences and the host meanwhile. None: this system does not report it."""

    samples: Whole
    """Number of `MeasureReport.samples_ns`, in order."""
    wall_ns: Whole
    cpu_ns: Whole
    stall_ns: Whole | None = None
    """Time in which something runnable had no processor (`some` of pressure stall information)."""
    switches: Whole | None = None
    """Involuntary context switches of this process."""


@dataclass(frozen=True, slots=True)
class HostState(Sent):
    """The host over the timed window of one launch. None: this system does not report it."""

    others_share: Real | None = None
    """Share of all processors' time used by other processes; for a very short window: share of the processors, at moments around it."""
    steal_share: Real | None = None
    """Share of all processors' time taken by the hypervisor."""
    clock_mhz: Real | None = None
    """Mean clock of the processors at the window's end."""
    throttles: Whole | None = None
    """Thermal throttling events."""
    temperature_c: Signed | None = None
    """The processor's hottest sensor at the window's end."""
    on_battery: bool | None = None


@dataclass(frozen=True, slots=True)
class MeasureReport(Sent):
    """The timed inferences of one launch, in order, in nanoseconds."""

    samples_ns: Samples
    """Exactly `WorkOrder.runs`, of one inference each; or as many as fit into `window_s`."""
    warmup_ns: Samples
    """The inferences before them; the first one is the cold one."""
    cpu_s: Seconds
    """Process CPU time over the timed window."""
    wall_s: Seconds
    """Wall time of the timed window."""
    peak_bytes: Whole | None
    """Highest resident set during warm-up and timed inferences."""
    timer_overhead_ns: Whole
    """Cost of reading the clock once, calibrated in this process."""
    involuntary_switches: Whole | None
    per_sample: Positive = 1
    """Inferences per sample: above 1 if one is too short for the clock; the sample is their mean."""
    began_ns: Whole = 0
    """`time.perf_counter_ns`, the host's clock, at the beginning of the timed window."""
    blocks: Annotated[tuple[SampleBlock, ...], MaxLen(MAX_ENTRIES)] = ()
    """The window in stretches; may be empty."""
    host: HostState = HostState()


@dataclass(frozen=True, slots=True)
class OperatorReport(Sent):
    """The operators of one type that ran in one place, in one inference apart from the timed ones."""

    op: Text
    """Such as `Conv`; what a provider compiled has that provider's name for it."""
    provider: Text
    nodes: Whole = 0
    """Of the model's graph that were given to the provider, before any were fused."""
    ran: Whole = 0
    """Kernels of this type that ran, each counted once."""
    ns: Whole | None = None
    """Nanoseconds that all these kernels took together, without the operators that they called; None: unknown."""
    issued: bool = False
    """`ns` is the host's time to issue them, for a device that computes meanwhile."""
    why: Text = ""
    """They ran there and not on the unit's own provider; empty: they did, or the runtime gives no reason."""
    domain: Text = ""


@dataclass(frozen=True, slots=True)
class ModelDescription(Sent):
    """What really ran, never what was requested."""

    unit: Text
    driver: Text
    runtime: Text
    """Such as `onnxruntime 1.31.1`."""
    providers: Texts
    """Execution providers of the live session, most preferred first."""
    threads: Annotated[int, Interval(ge=0, le=MAX_THREADS)]
    shapes: Annotated[Mapping[Text, Annotated[tuple[Whole, ...], MaxLen(MAX_RANK)]], MaxLen(MAX_ENTRIES)]
    """Resolved shape of each input by name."""
    dtypes: Annotated[Mapping[Text, Text], MaxLen(MAX_ENTRIES)]
    seed: Whole
    notes: Texts = ()
    """Such as `dim 'batch' not given: 1 is taken`."""
    batch: Positive | None = None
    """`WorkOrder.batch`, if the inputs were made with it. A driver that leaves it out has ignored it: the run fails."""
    operators: Annotated[tuple[OperatorReport, ...], MaxLen(MAX_OPERATORS)] = ()
    """Where they ran, what takes longest first; empty: the runtime does not tell."""
    compute_type: Annotated[str, MaxLen(32)] = ""
    """Of the floats in which it really computed, such as bf16; empty: the runtime does not tell, or it is the model's own."""


@dataclass(frozen=True, slots=True)
class SketchReport(Sent):
    """One output in few numbers, so that devices which round differently can be compared; see `drivers.measure.sketch`."""

    dtype: Annotated[str, MaxLen(32)]
    count: Whole
    """Of its values."""
    norm: Real
    """Euclidean, of the finite values; at most 1e18."""
    sums: Sums
    """Signed sums of the values, as shares of the norm."""


@dataclass(frozen=True, slots=True)
class OutputReport(Sent):
    """The outputs of a launch's last inference."""

    output_sha256: Digest
    sketches: Annotated[tuple[SketchReport, ...], MaxLen(4)] = ()
    """Of the first outputs by name that are numbers."""


@dataclass(frozen=True, slots=True)
class CheckReport(Sent):
    """Result of the output check, made on the outputs of the last timed inference.

    `agrees`: None if there is nothing to compare with (check not requested, no reference, outputs that change from run to run), with the
    reason in `note`; False marks the row, with `note` as its reason. `max_error`: relative to the largest magnitude of the reference
    output; None for outputs that are not numbers.
    """

    agrees: bool | None
    output_sha256: Sha256
    max_error: Real | None
    tolerance: Real | None
    note: Text = ""
    compared: Text = ""
    """The output that differs most, how many values it has, by how much they differ and what is tolerated."""


@dataclass(frozen=True, slots=True)
class AnswersReport(Sent):
    """What the model made of the order's examples, in their order."""

    answers: Annotated[Base64, MaxLen(MAX_ANSWERS)] = ""
    """`protocol.formats.examples` in base64; empty: there are none."""
    why: Text = ""
    """Why there are none, in a sentence."""


@dataclass(frozen=True, slots=True)
class BesideReport(Sent):
    """A model of `WorkOrder.beside`, in their order: what ran, and whether its outputs agree."""

    described: ModelDescription
    checked: CheckReport


@dataclass(frozen=True, slots=True)
class RoundsReport(Sent):
    """What models that took turns in one launch needed: first those beside, then the order's own; of each, nanoseconds of one inference in
    each round."""

    wall_ns: Annotated[tuple[Samples, ...], MaxLen(MAX_TOGETHER)]
    cpu_ns: Annotated[tuple[Samples, ...], MaxLen(MAX_TOGETHER)] | None
    """Of all threads of this process; None where the system does not tell."""
    per_block: Annotated[tuple[Positive, ...], MaxLen(MAX_TOGETHER)]
    """Inferences of each model in one block."""
    turns: Positive
    """Blocks of each model in one round."""


@dataclass(frozen=True, slots=True)
class ReadyReport(Sent):
    """A model that has a process of its own is warm, and waits for its turns."""

    typical_ns: Positive
    """Nanoseconds of one inference; they determine how many inferences a block has (`drivers.measure.interleave.block_of`)."""
    shapes: Annotated[tuple[Annotated[tuple[Whole, ...], MaxLen(MAX_RANK)], ...], MaxLen(MAX_ENTRIES)] | None
    """Shapes of the model's inputs; None: the model is the reference model, which has inputs of its own."""


@dataclass(frozen=True, slots=True)
class TurnReport(Sent):
    """One block of inferences, after which its process waits again."""

    wall_ns: Whole
    cpu_ns: Whole | None
    """Of all threads of this process; None where the system does not tell."""


@dataclass(frozen=True, slots=True)
class SustainedReport(Sent):
    """A sustained run besides its `MeasureReport`, of whose blocks each has an entry here. 0: this system does not tell."""

    starts_ns: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """From the beginning of the window."""
    temperature_mk: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """The processor's hottest sensor at the end of the block, in thousandths of a kelvin."""
    clock_khz: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """Mean of the processors at the end of the block."""
    pauses_ns: Annotated[tuple[Whole, ...], MaxLen(MAX_PROBES)]
    """From the end of the window to each probe."""
    probes_ns: Annotated[
        tuple[Annotated[tuple[Whole, ...], MaxLen(MAX_PROBE_SAMPLES)], ...], MaxLen(MAX_PROBES)
    ]
    """Inferences of each probe, as the samples of the window are."""


@dataclass(frozen=True, slots=True)
class RunFindings(Sent):
    """Figures besides latency, by name with their unit in it, such as `tokens_per_s`; and lists of times.

    Names are lower case with underscores. Leave out what was not measured.
    """

    figures: Annotated[Mapping[Name, Signed], MaxLen(256)] = field(default_factory=dict)
    series: Annotated[Mapping[Name, Samples], MaxLen(16)] = field(default_factory=dict)
    """Nanoseconds by name, such as `ttft`: raw, in order."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The accelerator over the timed windows of all launches, read by a separate process. None: not available."""

    source: str
    """Such as `nvml`."""
    device: str
    """Its name."""
    samples: int
    utilisation: float | None = None
    """Mean share of the time in which it was busy, 0 to 1."""
    memory_bytes: int | None = None
    """Peak of the run's processes; of the whole device if `notes` say so."""
    power_w: float | None = None
    """Mean."""
    idle_w: float | None = None
    """Just before the first load."""
    energy_j: float | None = None
    """Over the timed windows, from the device's counter, or else power × time."""
    clock_mhz: float | None = None
    """Mean clock of its processors."""
    temperature_c: float | None = None
    """The highest."""
    throttled: tuple[str, ...] = ()
    """Reasons for throttling, such as `power`, `heat`."""
    notes: tuple[str, ...] = ()
    stretch_energy_j: tuple[float | None, ...] = ()
    """Of each stretch of a sustained run."""
    stretch_clock_mhz: tuple[float | None, ...] = ()
    stretch_temperature_c: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class MeterReport:
    """Energy over the timed windows of all launches, as one meter other than the accelerator's read it. See `drivers.measure.meters`."""

    source: str
    """rapl, amdgpu, powermetrics or csv."""
    part: str
    """gpu, package, dram or wall."""
    device: str
    samples: int
    """Readings in the windows."""
    energy_j: float | None
    """None: it does not cover the windows; a note says why."""
    idle_w: float | None = None
    """Just before the first load."""
    stretch_energy_j: tuple[float | None, ...] = ()
    """Of each stretch of a sustained run."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BetweenLaunches:
    """A launch is over with all its processes: the run may end here and lose none in progress."""

    gap_s: float = 0.0
    """Seconds until the next launch is due; 0: it begins when the next event is asked for."""


Event = (
    ProgressReport
    | LoadReport
    | MeasureReport
    | ModelDescription
    | OutputReport
    | CheckReport
    | AnswersReport
    | BesideReport
    | RoundsReport
    | ReadyReport
    | TurnReport
    | SustainedReport
    | RunFindings
    | Telemetry
    | MeterReport
    | BetweenLaunches
)


@dataclass(frozen=True, slots=True)
class SampleModel(Sent):
    """A small model that a driver makes itself, from which calibration learns what its units need."""

    name: Annotated[
        str, Predicate(lambda text: re.fullmatch(r"[a-z]{1,32}(\.[a-z]{1,16})?", text) is not None)
    ]
    """Of its file, such as `chain.onnx`."""
    content: Annotated[str, MaxLen(MAX_SAMPLE)]
    """Base64."""


@dataclass(frozen=True, slots=True)
class UnitInfo(Sent):
    """A compute unit that has been tried and works on this device."""

    unit: Text
    driver: Text
    runtime: Text
    detail: Text = ""
    """Such as a GPU's name and driver version."""
    formats: Annotated[tuple[FormatWord, ...], MaxLen(MAX_FORMATS)] = ()
    """Those it takes; empty: those of its driver (`formats_of`)."""


WaitTurn = Callable[[], bool]
"""Waits, without using the processor, for leave to run one block of inferences; False: there are no more turns."""


class DriverError(Exception):
    """Base of what a driver or its child may fail with; never raised itself. `permanent`: a retry elsewhere will not help."""

    permanent = False


class Unfit(DriverError):
    """This driver cannot run this order: a broken model, an unsupported operator, a missing unit."""

    permanent = True


class Unshaped(Unfit):
    """The order does not say how large the model's inputs are, says it of inputs that the model does not have, or gives sizes with which
    the model does not run."""


class WrongUnit(Unfit):
    """The order's unit is not available, lacks something that the model needs of this device, or the model would run on another one."""


class Crashed(DriverError):
    """The child died: the signal, or the last line of its stderr."""


class OutOfMemory(Crashed):
    """The child needed more memory than its limit, or than there is."""


class TimedOut(DriverError):
    """The child exceeded a wall limit and was killed with all its descendants."""


class Cancelled(DriverError):
    """The launch was killed on request."""


FAILURES: Final = {
    error.__name__: error for error in (WrongUnit, Unshaped, Unfit, OutOfMemory, Crashed, TimedOut)
}
"""What a child may fail with, the most specific first: an error's name travels, its sentence decides nothing."""


@runtime_checkable
class Driver(Protocol):
    """The contract behind the entry point group `sark.drivers`.

    Optional attributes: `run_together`, `run_in_turns` and `sustains` (see `drivers.local.driver.LocalDriver`), `samples` (`made_samples`),
    `formats` (`formats_of`), `network = True` (`opens_connections`), `watches = True` (`looks_outside`) and `loads_models = False`
    (`makes_loads`).
    """

    name: str

    def units(self) -> tuple[UnitInfo, ...]:
        """The units that work on this device. May import the heavy runtime: it is called in a child process."""
        ...

    def preload(self) -> tuple[str, ...]:
        """Modules that the zygote imports once for all launches."""
        ...

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One load and nothing more."""
        ...

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, warm up, time, check. Raises `Unfit` with a sentence for a model that cannot run."""
        ...


def sample_model(name: str, content: bytes) -> SampleModel:
    """A driver's sample of these bytes."""
    return SampleModel(name, b64encode(content).decode())


def made_samples(driver: Driver) -> tuple[SampleModel, ...]:
    """Models that any unit of the driver runs, from small to large, none larger than 4 MiB; none if it has no `samples()`."""
    samples = getattr(driver, "samples", None)
    return tuple(samples()) if samples is not None else ()


def answers_examples(driver: Driver) -> Callable[[WorkOrder], Iterator[Event]] | None:
    """Its `answer(order)`: loads the model, gives it the order's examples and yields an `AnswersReport`; None: it has none."""
    answer: Callable[[WorkOrder], Iterator[Event]] | None = getattr(driver, "answer", None)
    return answer


def formats_of(driver: Driver) -> tuple[str, ...]:
    """The formats that its units take, in the words of `protocol.formats.frameworks.FORMATS` or, of a format that is not there, a word of
    its own; empty: it does not say."""
    return tuple(getattr(driver, "formats", ()))


def working_units(driver: Driver) -> Iterator[UnitInfo]:
    """Its units, each with the formats that it takes."""
    for unit in driver.units():
        yield replace(unit, formats=unit.formats or formats_of(driver))


def opens_connections(driver: Driver) -> bool:
    """Whether the driver's children connect to a server. Other children have no network."""
    return getattr(driver, "network", False) is True


def looks_outside(driver: Driver) -> bool:
    """Whether the driver's children may look at other processes of the host, as the owner wants it; they run outside the sandbox."""
    return getattr(driver, "watches", False) is True


def makes_loads(driver: Driver) -> bool:
    """Whether the driver's children load the model. If a server has loaded it, one launch is made, without a `LoadReport`."""
    return getattr(driver, "loads_models", True) is not False
