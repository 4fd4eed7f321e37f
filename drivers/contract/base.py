"""The contract of a driver.

A driver loads and runs a model on a compute unit and yields events. It blocks, runs in a child process of its own, and computes no
statistics: the scheduler computes medians and deviations from the raw samples.

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
"""The most samples that a record can hold: a cap of the protocol. A test compares the two."""
MAX_RANK: Final = 64
MAX_FIGURE: Final = 1e18
MAX_OPERATORS: Final = 200
"""Entries in the table of where a model's operators ran."""
MAX_FORMATS: Final = 8
MAX_SAMPLE: Final = 4 * MIB
MAX_ANSWERS: Final = 6 * MIB
"""Most characters in all answers of a run: `protocol.formats.examples.MAX_ANSWER_BYTES` in base64."""
MAX_TOGETHER: Final = 8
"""Most models that take turns in one process."""


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
"""Name of a figure."""
FormatWord = Annotated[str, Predicate(lambda text: re.fullmatch("[a-z][a-z0-9]{0,15}", text) is not None)]
Sha256 = Annotated[str, Predicate(lambda text: re.fullmatch("([0-9a-f]{64})?", text) is not None)]
"""A sha256 in hexadecimal, or empty."""
Digest = Annotated[str, Predicate(lambda text: re.fullmatch("[0-9a-f]{64}", text) is not None)]
Base64 = Annotated[str, Predicate(is_base64)]
Sums = Annotated[str, Predicate(lambda text: re.fullmatch(f"[0-9a-f]{{{2 * SUMS_BYTES}}}", text) is not None)]
"""32-bit numbers in hexadecimal, big-endian."""


class Sent:
    """Base of everything that a child sends to its parent. The parent checks every field against its annotation."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"strict": True, "extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything that a driver needs to measure one model on one unit; nothing about peers or campaigns."""

    model: str
    """Path of the model file. Read-only: a driver never writes to or removes it."""
    unit: str
    """Compute unit by its public name, such as `CPU (ONNX)`."""
    runs: int = 100
    """Timed inferences of all launches together; in the order of one launch: its share."""
    loads: int = 6
    """Launches: fresh processes that load the model and, if there are enough runs, warm up and run."""
    warmup: int | None = None
    """Inferences before the timed ones, at least one (it finds the shapes); None: until their times settle."""
    threads: int | None = None
    """Intra-op threads; None: one per physical core."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dynamic dimensions, by symbol or `input[axis]`."""
    seed: int = 0
    """Seed of the synthetic inputs."""
    check: bool = True
    """Compare the unit's outputs with a plain reference, and refuse NaN and Inf."""
    precision: float | None = None
    """Instead of `runs` and `loads`: launch until the 95 % interval of the launches' medians is within ± this share."""
    window_s: float | None = None
    """For one launch of a `precision` order: time inferences for this long instead of `runs`."""
    brief: bool = False
    """For one launch: another launch describes and checks; only `LoadReport` and `MeasureReport` are needed."""
    warmup_floor: int = 5
    """Fewest warm-up inferences if `warmup` is None: the number that calibration found for this device, or 5."""
    pre: tuple[Mapping[str, Any], ...] = ()
    """Steps on the synthetic inputs before the run, in order: `{"step": "normalise", "of": "x", "options": {…}}`. See
    `protocol.formats.steps`."""
    post: tuple[Mapping[str, Any], ...] = ()
    """Steps on the last outputs after the run, in order."""
    gpu: str = ""
    """UUID or index of the GPU to run on; empty: the first."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Type and shape of inputs by name, such as `float32[batch, 3, 224, 224]`, for formats that do not store them (TorchScript)."""
    trusted: bool = True
    """The task is not from a stranger: formats that contain a program may be run."""
    batch: int | None = None
    """Size of the batch; None: taken from the model, `dims` and `shapes`, else 1."""
    batch_dim: str | None = None
    """The dynamic dimension that is the batch; None: the first dynamic dimension of the inputs. See `protocol.formats.shapes`."""
    witnessed: bool = False
    """Each launch that times inferences sends an `OutputReport` before its `MeasureReport`. Its seed follows from the previous launch
    (`protocol.formats.chain`)."""
    beside: tuple[str, ...] = ()
    """Paths of other models. All models are loaded in one process, where they take turns with `model` until they can be compared. `runs`,
    `loads` and `precision` are then ignored."""
    slot: int = 0
    """This model's number among those that share the process: 0 is `model`, then the models of `beside`."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Complete shapes of inputs, by name."""
    sustain_s: float | None = None
    """Seconds, instead of `runs` and `loads`: one launch infers for this long, rests, and checks whether it is as fast again. See
    `drivers.measure.sustained`."""
    over_s: float | None = None
    """Seconds over which the launches are spread, with gaps between them; None: launches follow each other without gaps."""
    first_look: int = 6
    """Launches of a `precision` order before its interval is checked for the first time: the number that calibration found for this device,
    or 6."""
    own_dims: tuple[str, ...] = ()
    """The names in `dims` that this model must have; the rest may belong to other models."""
    beside_units: tuple[str, ...] = ()
    """The unit of each model of `beside`. Each of these models, and `model`, then has a process of its own; empty: all run on `unit`, in
    one process."""
    compute_type: str = ""
    """`f32`: a runtime that could compute in a less precise type must compute in float32; empty: the runtime chooses."""
    examples: str = ""
    """Path of a file of examples (`protocol.formats.examples`). The model gets each example once, in a launch after the timed ones; empty:
    there are none."""

    @property
    def gaps_s(self) -> float:
        """Most seconds that the gaps between the launches take together."""
        return with_gaps(0.0, self.over_s, precise=self.precision is not None)

    @property
    def lasts_s(self) -> float | None:
        """How long the order takes, by the durations that it names; None: it is short."""
        return self.sustain_s or self.gaps_s or None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the parent enforces. Seconds are wall time on the parent's monotonic clock."""

    load_s: float = 60.0
    run_s: float = 300.0
    memory_bytes: int = 4096 * MIB
    """Address space that the child may add to what the preloaded zygote maps (not for GPU units, which map far more)."""
    output_bytes: int = 64 * MIB
    """Largest file that the child may write, and the most bytes that it may send to its parent in all."""


@dataclass(frozen=True, slots=True)
class ProgressReport(Sent):
    """The run reached a phase, or made progress in it: `done` of `total` (None: unknown)."""

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
    """One load, which is only the creation of the session. Memory in bytes; None if it cannot be measured."""

    load_ns: Whole
    baseline_bytes: Whole | None
    """Resident set before the load."""
    peak_bytes: Whole | None
    """Highest resident set during the load."""
    kind: LoadKind = LoadKind.FRESH


@dataclass(frozen=True, slots=True)
class SampleBlock(Sent):
    """A stretch of timed inferences, and the state of the host during it. None: this system does not report it."""

    samples: Whole
    """How many of `MeasureReport.samples_ns` belong to this block, in order."""
    wall_ns: Whole
    cpu_ns: Whole
    stall_ns: Whole | None = None
    """Time in which a runnable task had no processor (`some` of pressure stall information)."""
    switches: Whole | None = None
    """Involuntary context switches of this process."""


@dataclass(frozen=True, slots=True)
class HostState(Sent):
    """The host during the timed window of one launch. None: this system does not report it."""

    others_share: Real | None = None
    """Share of all processors' time used by other processes; for a very short window, their share of the processors at moments around
    it."""
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
    """Exactly `WorkOrder.runs` samples of one inference each, or as many as fit into `window_s`."""
    warmup_ns: Samples
    """The inferences before the timed ones; the first is the cold one."""
    cpu_s: Seconds
    """CPU time of the process in the timed window."""
    wall_s: Seconds
    """Wall time of the timed window."""
    peak_bytes: Whole | None
    """Highest resident set during warm-up and timed inferences."""
    timer_overhead_ns: Whole
    """Cost of reading the clock once, calibrated in this process."""
    involuntary_switches: Whole | None
    per_sample: Positive = 1
    """Inferences per sample: more than 1 if one is too short for the clock. The sample is then their mean."""
    began_ns: Whole = 0
    """`time.perf_counter_ns`, the host's clock, at the beginning of the timed window."""
    blocks: Annotated[tuple[SampleBlock, ...], MaxLen(MAX_ENTRIES)] = ()
    """The window divided into stretches; may be empty."""
    host: HostState = HostState()


@dataclass(frozen=True, slots=True)
class OperatorReport(Sent):
    """The operators of one type that ran in one place, in an inference that was not timed."""

    op: Text
    """Type of the operator, such as `Conv`. A compiled operator has the name that its provider gave it."""
    provider: Text
    nodes: Whole = 0
    """Nodes of the model's graph that were assigned to the provider, before any were fused."""
    ran: Whole = 0
    """How many kernels of this type ran, each counted once."""
    ns: Whole | None = None
    """Nanoseconds of all these kernels together, without the operators that they called; None: unknown."""
    issued: bool = False
    """`ns` is the time that the host took to issue the kernels, for a device that computes asynchronously."""
    why: Text = ""
    """Why they ran there and not on the unit's own provider; empty: they ran on that provider, or the runtime gives no reason."""
    domain: Text = ""


@dataclass(frozen=True, slots=True)
class ModelDescription(Sent):
    """What really ran, as opposed to what was requested."""

    unit: Text
    driver: Text
    runtime: Text
    """Name and version, such as `onnxruntime 1.31.1`."""
    providers: Texts
    """Execution providers of the live session, most preferred first."""
    threads: Annotated[int, Interval(ge=0, le=MAX_THREADS)]
    shapes: Annotated[Mapping[Text, Annotated[tuple[Whole, ...], MaxLen(MAX_RANK)]], MaxLen(MAX_ENTRIES)]
    """Resolved shape of each input by name."""
    dtypes: Annotated[Mapping[Text, Text], MaxLen(MAX_ENTRIES)]
    seed: Whole
    notes: Texts = ()
    """Notes for the row, such as `dim 'batch' not given: 1 is taken`."""
    batch: Positive | None = None
    """`WorkOrder.batch`, if the inputs were made with it. If a driver leaves it out, it counts as having ignored the batch, and the run
    fails."""
    operators: Annotated[tuple[OperatorReport, ...], MaxLen(MAX_OPERATORS)] = ()
    """Where the operators ran, slowest first; empty: the runtime does not report it."""
    compute_type: Annotated[str, MaxLen(32)] = ""
    """Type of the floats in which the runtime really computed, such as bf16; empty: the runtime does not report it, or it is the model's
    own type."""


@dataclass(frozen=True, slots=True)
class SketchReport(Sent):
    """One output summarised in a few numbers, so that devices that round differently can be compared; see `drivers.measure.sketch`."""

    dtype: Annotated[str, MaxLen(32)]
    count: Whole
    """Number of values in the output."""
    norm: Real
    """Euclidean norm of the finite values; at most 1e18."""
    sums: Sums
    """Signed sums of the values, as shares of the norm."""


@dataclass(frozen=True, slots=True)
class OutputReport(Sent):
    """The outputs of a launch's last inference."""

    output_sha256: Digest
    sketches: Annotated[tuple[SketchReport, ...], MaxLen(4)] = ()
    """Sketches of the first numeric outputs, by name."""


@dataclass(frozen=True, slots=True)
class CheckReport(Sent):
    """Result of the output check, which uses the outputs of the last timed inference.

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
    """The output with the largest difference, how many values it has, how much they differ, and the tolerance."""


@dataclass(frozen=True, slots=True)
class AnswersReport(Sent):
    """The model's answers to the order's examples, in the same order."""

    answers: Annotated[Base64, MaxLen(MAX_ANSWERS)] = ""
    """The answers as `protocol.formats.examples` in base64; empty: there are none."""
    why: Text = ""
    """Why there are no answers, in one sentence."""


@dataclass(frozen=True, slots=True)
class BesideReport(Sent):
    """A model of `WorkOrder.beside`: what ran, and whether its outputs agree. Reports come in the order of `beside`."""

    described: ModelDescription
    checked: CheckReport


@dataclass(frozen=True, slots=True)
class RoundsReport(Sent):
    """Times of models that took turns in one launch, the models of `beside` first and the order's own last: for each model, nanoseconds of
    one inference in each round."""

    wall_ns: Annotated[tuple[Samples, ...], MaxLen(MAX_TOGETHER)]
    cpu_ns: Annotated[tuple[Samples, ...], MaxLen(MAX_TOGETHER)] | None
    """CPU time of all threads of this process; None where the system does not report it."""
    per_block: Annotated[tuple[Positive, ...], MaxLen(MAX_TOGETHER)]
    """Inferences of each model in one block."""
    turns: Positive
    """Blocks of each model in one round."""


@dataclass(frozen=True, slots=True)
class ReadyReport(Sent):
    """A model with a process of its own is warm and waits for its turns."""

    typical_ns: Positive
    """Nanoseconds of one inference, from which the number of inferences in a block follows (`drivers.measure.interleave.block_of`)."""
    shapes: Annotated[tuple[Annotated[tuple[Whole, ...], MaxLen(MAX_RANK)], ...], MaxLen(MAX_ENTRIES)] | None
    """Shapes of the model's inputs; None: this is the reference model, which has inputs of its own."""


@dataclass(frozen=True, slots=True)
class TurnReport(Sent):
    """One block of inferences; the process then waits for its next turn."""

    wall_ns: Whole
    cpu_ns: Whole | None
    """CPU time of all threads of this process; None where the system does not report it."""


@dataclass(frozen=True, slots=True)
class SustainedReport(Sent):
    """A sustained run, in addition to its `MeasureReport`: one entry for each of that report's blocks. 0: this system does not report
    it."""

    starts_ns: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """Start of each block, from the beginning of the window."""
    temperature_mk: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """The processor's hottest sensor at the end of the block, in thousandths of a kelvin."""
    clock_khz: Annotated[tuple[Whole, ...], MaxLen(MAX_STRETCHES)]
    """Mean clock of the processors at the end of the block."""
    pauses_ns: Annotated[tuple[Whole, ...], MaxLen(MAX_PROBES)]
    """Time from the end of the window to each probe."""
    probes_ns: Annotated[
        tuple[Annotated[tuple[Whole, ...], MaxLen(MAX_PROBE_SAMPLES)], ...], MaxLen(MAX_PROBES)
    ]
    """Inferences of each probe, in the format of the window's samples."""


@dataclass(frozen=True, slots=True)
class RunFindings(Sent):
    """Figures other than latency, by a name that includes their unit, such as `tokens_per_s`; and lists of times.

    Names are lower case with underscores. Leave out what was not measured.
    """

    figures: Annotated[Mapping[Name, Signed], MaxLen(256)] = field(default_factory=dict)
    series: Annotated[Mapping[Name, Samples], MaxLen(16)] = field(default_factory=dict)
    """Raw times in nanoseconds, in order, by name such as `ttft`."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The accelerator during the timed windows of all launches, read by a separate process. None: not available."""

    source: str
    """Source of the readings, such as `nvml`."""
    device: str
    """Name of the device."""
    samples: int
    utilisation: float | None = None
    """Mean share of the time in which the device was busy, 0 to 1."""
    memory_bytes: int | None = None
    """Peak use of the run's processes, or of the whole device if `notes` say so."""
    power_w: float | None = None
    """Mean power."""
    idle_w: float | None = None
    """Power just before the first load."""
    energy_j: float | None = None
    """Energy over the timed windows, from the device's counter, or else power × time."""
    clock_mhz: float | None = None
    """Mean clock of the device's processors."""
    temperature_c: float | None = None
    """Highest temperature."""
    throttled: tuple[str, ...] = ()
    """Reasons for throttling, such as `power`, `heat`."""
    notes: tuple[str, ...] = ()
    stretch_energy_j: tuple[float | None, ...] = ()
    """Energy of each stretch of a sustained run."""
    stretch_clock_mhz: tuple[float | None, ...] = ()
    stretch_temperature_c: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class MeterReport:
    """Energy over the timed windows of all launches, from one meter other than the accelerator's own. See `drivers.measure.meters`."""

    source: str
    """Source of the readings: rapl, amdgpu, powermetrics or csv."""
    part: str
    """Measured part: gpu, package, dram or wall."""
    device: str
    samples: int
    """Number of readings in the windows."""
    energy_j: float | None
    """None: the readings do not cover the windows; a note says why."""
    idle_w: float | None = None
    """Power just before the first load."""
    stretch_energy_j: tuple[float | None, ...] = ()
    """Energy of each stretch of a sustained run."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BetweenLaunches:
    """A launch and all its processes have ended. The run may stop here without losing a launch in progress."""

    gap_s: float = 0.0
    """Seconds until the next launch is due; 0: it starts when the caller asks for the next event."""


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
    """A small model that a driver makes itself, from which calibration learns what the driver's units need."""

    name: Annotated[
        str, Predicate(lambda text: re.fullmatch(r"[a-z]{1,32}(\.[a-z]{1,16})?", text) is not None)
    ]
    """File name, such as `chain.onnx`."""
    content: Annotated[str, MaxLen(MAX_SAMPLE)]
    """The file's bytes in base64."""


@dataclass(frozen=True, slots=True)
class UnitInfo(Sent):
    """A compute unit that has been tried and works on this device."""

    unit: Text
    driver: Text
    runtime: Text
    detail: Text = ""
    """Details such as a GPU's name and driver version."""
    formats: Annotated[tuple[FormatWord, ...], MaxLen(MAX_FORMATS)] = ()
    """Formats that the unit runs; empty: those of its driver (`formats_of`)."""


WaitTurn = Callable[[], bool]
"""Waits, without using the processor, for permission to run one block of inferences; False: there are no more turns."""


class DriverError(Exception):
    """Base of the errors of a driver or its child; never raised itself. `permanent`: a retry elsewhere will not help."""

    permanent = False


class Unfit(DriverError):
    """This driver cannot run this order, because of a broken model, an unsupported operator or a missing unit, for example."""

    permanent = True


class Unshaped(Unfit):
    """The order does not give the size of the model's inputs, names inputs that the model does not have, or gives sizes with which the
    model does not run."""


class WrongUnit(Unfit):
    """The order's unit is not available, the device lacks something that the model needs, or the model would run on another unit."""


class Crashed(DriverError):
    """The child died. The message has the signal, or the last line of its stderr."""


class OutOfMemory(Crashed):
    """The child needed more memory than its limit allows, or than the device has."""


class TimedOut(DriverError):
    """The child exceeded a limit of wall time and was killed with all its descendants."""


class Cancelled(DriverError):
    """The launch was killed on request."""


FAILURES: Final = {
    error.__name__: error for error in (WrongUnit, Unshaped, Unfit, OutOfMemory, Crashed, TimedOut)
}
"""The errors that a child may report, most specific first. The error's name is sent and decides; its message decides nothing."""


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
    """A driver's sample model with this content."""
    return SampleModel(name, b64encode(content).decode())


def made_samples(driver: Driver) -> tuple[SampleModel, ...]:
    """The driver's sample models, which any of its units runs, from small to large, none larger than 4 MiB; empty if it has no
    `samples()`."""
    samples = getattr(driver, "samples", None)
    return tuple(samples()) if samples is not None else ()


def answers_examples(driver: Driver) -> Callable[[WorkOrder], Iterator[Event]] | None:
    """The driver's `answer(order)`, which loads the model, gives it the order's examples and yields an `AnswersReport`; None: it has
    none."""
    answer: Callable[[WorkOrder], Iterator[Event]] | None = getattr(driver, "answer", None)
    return answer


def formats_of(driver: Driver) -> tuple[str, ...]:
    """The formats that the driver's units take: words of `protocol.formats.frameworks.FORMATS`, or the driver's own words for other
    formats; empty: the driver does not declare them."""
    return tuple(getattr(driver, "formats", ()))


def working_units(driver: Driver) -> Iterator[UnitInfo]:
    """The driver's units, each with the formats that it takes."""
    for unit in driver.units():
        yield replace(unit, formats=unit.formats or formats_of(driver))


def opens_connections(driver: Driver) -> bool:
    """Whether the driver's children connect to a server. Other children have no network."""
    return getattr(driver, "network", False) is True


def looks_outside(driver: Driver) -> bool:
    """Whether the driver's children may look at other processes of the host, if the owner wants this; they run outside the sandbox."""
    return getattr(driver, "watches", False) is True


def makes_loads(driver: Driver) -> bool:
    """Whether the driver's children load the model. If a server has loaded it, there is only one launch, without a `LoadReport`."""
    return getattr(driver, "loads_models", True) is not False
