"""What lists and pivots show of an ended task: some facts and figures of its row, stored as columns so that no record need be read.

Figures are named as in `results.row.row.Row`. A task that did not succeed has no figures; a figure that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from protocol.values.attempt import TaskState


class Dimension(StrEnum):
    """A dimension of a pivot's rows or columns, and of filters on a list."""

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
    """The figures for a pivot's cells: fields of `Row`, in the unit of their name."""

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
    """The columns of a task that did not succeed, whatever its record says."""
    dropped = {*FigureColumn, "verdict", "remarks"}
    return {name: value for name, value in columns.items() if name not in dropped}


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on ended tasks; None: any value."""

    campaign: str | None = None
    """The full id."""
    model: str | None = None
    sha256: str | None = None
    unit: str | None = None
    device: str | None = None
    """Name, id, key, or id and key separated by a space."""
    soc: str | None = None
    state: TaskState | None = None
    verdict: str | None = None
    simulated: bool | None = None
    """True: only simulations; False: no simulations."""
    since: float | None = None
    """Ended at this time or later, in seconds since 1970."""
    until: float | None = None
    """Ended before this time."""


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
    """The key that the device id belongs to: results are of one device only if they share both."""
    soc: str = ""
    system: str = ""
    runtime: str = ""
    threads: int | None = None
    verdict: str = ""
    fingerprint: str = ""
    replica: int | None = None
    trust: str = ""
    figures: Mapping[FigureColumn, float | None] = field(default_factory=dict)
    """Every figure."""
    remarks: str = ""
    """Noteworthy facts that do not change the verdict."""


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """Ended tasks, latest first. `next`: the value of `after` for the next page; None: this is the last page."""

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
    """Succeeded tasks that have the figure, by two dimensions. A missing cell has no result."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[PivotCell, ...]
    """In the order of rows, then columns."""
