"""What lists and pivots show of a task that has ended: a few facts and figures of its row, kept as columns so that no record need be read.

Names of figures are those of `results.row.row.Row`. A task that did not succeed has no figures; what was not measured is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from protocol.values.attempt import TaskState


class Dimension(StrEnum):
    """What a pivot can have as rows or columns, and a list be narrowed by."""

    CAMPAIGN = "campaign"
    MODEL = "model"
    UNIT = "unit"
    DEVICE = "device"
    SOC = "soc"
    SYSTEM = "system"
    RUNTIME = "runtime"
    THREADS = "threads"
    VERDICT = "verdict"
    STATE = "state"


class FigureColumn(StrEnum):
    """What can be in a pivot's cells: fields of `Row`, in the unit of their name."""

    INFERENCE = "inference_ms_median"
    INFERENCE_LOW = "inference_ms_median_low"
    INFERENCE_HIGH = "inference_ms_median_high"
    INFERENCE_AVERAGE = "inference_ms_average"
    INFERENCE_STD_DEV = "inference_ms_std_dev"
    INFERENCE_P90 = "inference_ms_p90"
    INFERENCE_P99 = "inference_ms_p99"
    LOAD = "load_ms_median"
    PEAK_RAM = "peak_inference_ram_usage"
    PEAK_LOAD_RAM = "peak_load_ram_usage"
    ENERGY = "energy_per_inference_j"
    POWER = "power_w"
    TTFT = "ttft_ms_median"
    TOKENS = "tokens_per_second"
    MAX_ERROR = "max_error"


def without_figures(columns: Mapping[str, Any]) -> dict[str, Any]:
    """For a task that did not succeed, whatever its record says."""
    dropped = {*FigureColumn, "verdict", "remarks"}
    return {name: value for name, value in columns.items() if name not in dropped}


@dataclass(frozen=True, slots=True)
class Filters:
    """Which ended tasks are meant; None: whichever."""

    campaign: str | None = None
    """Its whole id."""
    model: str | None = None
    sha256: str | None = None
    unit: str | None = None
    device: str | None = None
    """Name, id, key, or id and key with a space between."""
    soc: str | None = None
    state: TaskState | None = None
    verdict: str | None = None
    simulated: bool | None = None
    """True: simulations alone; False: without them."""
    since: float | None = None
    """Ended then or later, in seconds since 1970."""
    until: float | None = None
    """Ended before."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One ended task in a list."""

    task: str
    campaign: str
    campaign_name: str
    n: int
    ended: float
    state: TaskState
    model: str
    sha256: str
    unit: str
    reason: str = ""
    device: str = ""
    device_id: str = ""
    device_key: str = ""
    """Whose the device id is: results are of one device only if they share both."""
    soc: str = ""
    system: str = ""
    runtime: str = ""
    threads: int | None = None
    verdict: str = ""
    fingerprint: str = ""
    replica: int | None = None
    trust: str = ""
    figures: Mapping[FigureColumn, float | None] = field(default_factory=dict)
    """Every one of them."""
    remarks: str = ""
    """What is worth knowing of it though its verdict stands."""


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """Ended tasks, the latest first. `next`: what to give as `after` for those that follow; None: there are none."""

    results: tuple[ResultLine, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class PivotCell:
    """All results with one value of each of the two dimensions."""

    row: str
    column: str
    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Pivot:
    """Succeeded tasks that have the figure, by two dimensions. A cell that is not there has no result."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[PivotCell, ...]
    """In the order of rows, then columns."""
