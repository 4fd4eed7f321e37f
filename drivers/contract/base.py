"""What a driver is: the one page a driver author needs.

A driver loads and runs a model on a compute unit and yields raw facts. It is blocking and simple, runs inside a child process
of its own, and makes no statistics: medians and deviations are made once, by the scheduler, from the samples that travel.

    WorkOrder ──▶ drivers.launch.measure() ──▶ child process ──▶ Driver.run() ──▶ Event, Event, … ──▶ the node

How to write one: drivers/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from protocol.formats.phase import Phase

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything a driver needs to measure one model on one unit; nothing about peers or campaigns."""

    model: str
    """Path of the model file. Read-only: a driver never writes to or removes it."""
    unit: str
    """Compute unit by its public name, such as `CPU (ONNX)`."""
    runs: int = 100
    """Timed inferences, exactly as many as asked, shared out over the launches. For one launch: its share."""
    loads: int = 6
    """Launches: fresh processes that load the model and, if there are runs enough to share, warm up and run."""
    warmup: int | None = None
    """Inferences before the timed ones, at least one (it finds the shapes); None: until settled."""
    threads: int | None = None
    """Intra-op threads; None: as many as physical cores."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes for dynamic dimensions by symbol name; others are resolved and reported."""
    seed: int = 0
    """Seed of the made inputs."""
    check: bool = True
    """Compare the unit's outputs with a plain reference and refuse NaN or Inf."""
    precision: float | None = None
    """Instead of `runs` and `loads`: go on launching until the 95 % interval of the launches' medians is within ± this share."""
    window_s: float | None = None
    """For one launch of a `precision` order: time inferences for so long (and a least number of them) instead of `runs`."""
    brief: bool = False
    """For one launch: described and checked in another one, so only `LoadReport` and `MeasureReport` are wanted of it."""
    warmup_floor: int = 5
    """Fewest warm-up inferences where `warmup` is None: what this device was found to need, 5 until something is known."""
    pre: tuple[Mapping[str, Any], ...] = ()
    """Pre-run steps, done to the made inputs in order: `{"step": "normalise", "of": "x", "options": {…}}`. All of them: `steps.py`."""
    post: tuple[Mapping[str, Any], ...] = ()
    """Post-run steps, done to the last outputs in order."""
    gpu: str = ""
    """UUID or index of the GPU to run on; empty: the first."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Type and shape of inputs by name, such as `float32[batch, 3, 224, 224]`, for formats that do not tell them (TorchScript)."""
    trusted: bool = True
    """Not from a stranger: a model in a format that carries a program may be run."""
    batch: int | None = None
    """Size of the batch, which `drivers.batching.dims_of` lays on the right dimension; None: as the model and `dims` have it."""
    batch_dim: str | None = None
    """Which dynamic dimension that is; None: the first one of the inputs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the parent enforces from outside. Seconds are wall time on the parent's monotonic clock."""

    load_s: float = 60.0
    run_s: float = 300.0
    memory_bytes: int = 4096 * MIB
    """Address space the child may add above what the preloaded zygote already maps (not for GPU units: they map far more)."""
    output_bytes: int = 64 * MIB
    """Largest file the child may write, and the most it may tell its parent in all."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The run reached a phase, or moved on inside one (`done` of `total`; total None when not known)."""

    phase: Phase
    done: int = 0
    total: int | None = None
    median_ms: float | None = None


class LoadKind(StrEnum):
    """What was there already when a model was loaded."""

    COLD = "cold"
    """A fresh process, and the file's pages were dropped from the page cache before."""
    FRESH = "fresh"
    """A fresh process; the file's pages were in memory."""
    WARM = "warm"
    """The same process once more."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load: session creation only, in nanoseconds; memory in bytes, None where it cannot be measured."""

    load_ns: int
    baseline_bytes: int | None
    """Resident set before the load."""
    peak_bytes: int | None
    """Highest resident set during the load."""
    kind: LoadKind = LoadKind.FRESH


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """A stretch of timed inferences and how the host was meanwhile. None: this system does not tell."""

    samples: int
    """So many of `MeasureReport.samples_ns`, in order."""
    wall_ns: int
    cpu_ns: int
    stall_ns: int | None = None
    """Time in which something that wanted to run had no processor (`some` of pressure stall information)."""
    switches: int | None = None
    """Involuntary context switches of this process."""


@dataclass(frozen=True, slots=True)
class HostState:
    """The host over the timed window of one launch. None: this system does not tell; never 0 for that."""

    others_share: float | None = None
    """Share of all processors' time that went to other processes; of too short a window: of the processors, at moments around it."""
    steal_share: float | None = None
    """Share of all processors' time that the hypervisor took."""
    clock_mhz: float | None = None
    """Mean clock of the processors at the end of the window."""
    throttles: int | None = None
    """Times that the processors were slowed because of heat."""
    temperature_c: float | None = None
    """The hottest sensor of the processor at the end of the window."""
    on_battery: bool | None = None


@dataclass(frozen=True, slots=True)
class MeasureReport:
    """The timed inferences of one launch, in order, in nanoseconds; warm-up samples apart (they are kept, never mixed in)."""

    samples_ns: tuple[int, ...]
    """Exactly `WorkOrder.runs` of them, of one inference each; or as many as `window_s` took."""
    warmup_ns: tuple[int, ...]
    """The inferences before them; the first one is the cold one."""
    cpu_s: float
    """Process CPU time over the timed window."""
    wall_s: float
    """Wall time of the timed window."""
    peak_bytes: int | None
    """Highest resident set during warm-up and timed inferences."""
    timer_overhead_ns: int
    """Cost of reading the clock once, calibrated in this process."""
    involuntary_switches: int | None
    per_sample: int = 1
    """Inferences behind each sample: above 1 where one is too short for the clock, and the sample is their mean."""
    began_ns: int = 0
    """`time.perf_counter_ns` at the beginning of the timed window: the host's clock, so that others' readings can be laid beside it."""
    blocks: tuple[SampleBlock, ...] = ()
    """The window in stretches; empty: not told apart."""
    host: HostState = HostState()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What really ran, so that the row can say it: never what was asked for."""

    unit: str
    driver: str
    runtime: str
    """Such as `onnxruntime 1.31.1`."""
    providers: tuple[str, ...]
    """Execution providers of the live session, most preferred first."""
    threads: int
    shapes: Mapping[str, tuple[int, ...]]
    """Resolved shape of each input by name."""
    dtypes: Mapping[str, str]
    seed: int
    notes: tuple[str, ...] = ()
    """Such as `dim 'batch' not given: 1 is taken`."""
    batch: int | None = None
    """Of the order, where the inputs were made with it. A driver that leaves it out has not heeded it: the run then fails."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of the output check, made on the outputs of the last timed inference.

    `agrees` is None when there is nothing to compare with (not asked for, no reference, outputs that change from run to run), and
    `note` then says why. False makes the task Failed, with `note` as its reason. `max_error` is relative to the largest
    magnitude of the reference output; None for outputs that are not numbers.
    """

    agrees: bool | None
    output_sha256: str
    max_error: float | None
    tolerance: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunFindings:
    """What a driver measures beside latency: figures by name with their unit in it, such as `tokens_per_s`; and lists of times.

    Names are lower case with underscores. What was not measured is left out, never 0.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Nanoseconds by name, such as `ttft`: raw, in order."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The accelerator over the timed windows of all launches, read by a process apart; never told by a child. None: not to be had."""

    source: str
    """Such as `nvml`."""
    device: str
    """Which one, by name."""
    samples: int
    utilisation: float | None = None
    """Mean share of the time in which it ran something, 0 to 1."""
    memory_bytes: int | None = None
    """The most that the run's processes held; of the whole device where that is not told by process, and `notes` say so."""
    power_w: float | None = None
    """Mean."""
    idle_w: float | None = None
    """Just before the first load."""
    energy_j: float | None = None
    """Over the timed windows, from the device's counter; from power and time where it has none."""
    clock_mhz: float | None = None
    """Mean clock of its processors."""
    temperature_c: float | None = None
    """The highest."""
    throttled: tuple[str, ...] = ()
    """Reasons for which it was slowed, such as `power`, `heat`."""
    notes: tuple[str, ...] = ()


Event = ProgressReport | LoadReport | MeasureReport | ModelDescription | CheckReport | RunFindings | Telemetry


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """A compute unit that works on this device, as tried out, not as promised by a package's name."""

    unit: str
    driver: str
    runtime: str
    detail: str = ""
    """Such as a GPU's name and driver version."""


class DriverError(Exception):
    """Base of what a driver or its child may fail with; never raised itself. `permanent`: another try elsewhere will not help."""

    permanent = False


class Unfit(DriverError):
    """This driver cannot run this order at all: a broken model, an unsupported operator, a unit that is not here."""

    permanent = True


class WrongUnit(Unfit):
    """The unit that the order names is not here, or is not what the model would run on."""


class Crashed(DriverError):
    """The child died. Carries the signal or the last words of its stderr."""


class OutOfMemory(Crashed):
    """The child wanted more memory than its limit, or than there is."""


class TimedOut(DriverError):
    """The child ran into a wall limit and was killed with all its descendants."""


class Cancelled(DriverError):
    """The launch was killed on request."""


@runtime_checkable
class Driver(Protocol):
    """The contract behind the entry point group `sark.drivers`.

    A driver may also say `network = True` (`opens_connections`), `watches = True` (`looks_outside`) and `loads_models = False`
    (`makes_loads`); what most drivers need is what holds where nothing is said.
    """

    name: str

    def units(self) -> tuple[UnitInfo, ...]:
        """The units that work here. May import the heavy runtime: callers run it in a child process."""
        ...

    def preload(self) -> tuple[str, ...]:
        """Modules the zygote imports once, so that a launch need not."""
        ...

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """One fresh-process load and nothing more."""
        ...

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Load, warm up, time, check. Raises `Unfit` with a sentence for a model that cannot run."""
        ...


def opens_connections(driver: Driver) -> bool:
    """Whether the driver's children talk to a server. They run no code of others: what they are given is data. Others' children have no
    network."""
    return getattr(driver, "network", False) is True


def looks_outside(driver: Driver) -> bool:
    """Whether the device's owner wants this driver's children to look at other processes of the host, which nobody can who is shut in."""
    return getattr(driver, "watches", False) is True


def makes_loads(driver: Driver) -> bool:
    """Whether the driver's children load the model; where a server has it loaded already, one launch is all, and no `LoadReport` is due."""
    return getattr(driver, "loads_models", True) is not False
