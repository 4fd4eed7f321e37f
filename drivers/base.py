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
from typing import Protocol, runtime_checkable

MIB = 1024 * 1024


class Phase(StrEnum):
    """Where a run stands. `fetch` and `upload` are the node's; the others happen in the child."""

    PREPARE = "prepare"
    LOAD = "load"
    WARM_UP = "warm-up"
    RUN = "run"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything a driver needs to measure one model on one unit; nothing about peers or campaigns."""

    model: str
    """Path of the model file. Read-only: a driver never writes to or removes it."""
    unit: str
    """Compute unit by its public name, such as `CPU (ONNX)`."""
    runs: int = 100
    """Timed inferences, exactly as many as asked."""
    loads: int = 5
    """Fresh-process loads; the last of them goes on to warm up and run."""
    warmup: int | None = None
    """Inferences before the timed ones, at least one (it finds the shapes); None: until settled (floor 5)."""
    threads: int | None = None
    """Intra-op threads; None: as many as physical cores."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes for dynamic dimensions by symbol name; others are resolved and reported."""
    seed: int = 0
    """Seed of the made inputs."""
    check: bool = True
    """Compare the unit's outputs with a plain reference and refuse NaN or Inf."""


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
class Progressed:
    """The run reached a phase, or moved on inside one (`done` of `total`; total None when not known)."""

    phase: Phase
    done: int = 0
    total: int | None = None
    median_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """One fresh-process load: session creation only, in nanoseconds; memory in bytes, None where it cannot be measured."""

    load_ns: int
    baseline_bytes: int | None
    """Resident set before the load."""
    peak_bytes: int | None
    """Highest resident set during the load."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The timed inferences of one launch, in order, in nanoseconds; warm-up samples apart (they are kept, never mixed in)."""

    samples_ns: tuple[int, ...]
    """Exactly `WorkOrder.runs` of them."""
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


@dataclass(frozen=True, slots=True)
class Described:
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
    """Such as `dim 'batch' not given: 1`."""


@dataclass(frozen=True, slots=True)
class Checked:
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


Event = Progressed | Loaded | Measured | Described | Checked


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
    """The contract behind the entry point group `sark.drivers`."""

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
