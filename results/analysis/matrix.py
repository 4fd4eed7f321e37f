"""Model × device × unit: each median, its ratio to a base, and its cost in energy and money. Pure.

A cell that is not valid says why. A fact that was not measured is None, and nothing replaces it: watts come from a meter, prices from the
user's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from results.analysis.pairs import stem, why_not_comparable
from results.row.identity import device_identity, names_device
from results.row.names import with_distinct_names
from results.row.row import Row, RowStatus
from results.row.simulated import prefer_measured
from results.row.verdicts import RowVerdict
from swarm.base.text import did_you_mean, safe_text
from swarm.base.yaml import read_document

HOUR_S: Final = 3600.0
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One model on one device and unit."""

    model: str
    device: str
    unit: str
    threads: int | None = None
    batch: int | None = None
    """Batch size that was requested. Null: the model's own."""
    variant: str = ""
    """Variant of the model, with which `model` ends."""
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    ratio: float | None = None
    """Median divided by the base's median for the same model and batch. Null if there is no base, or it is not comparable."""
    per_s: float | None = None
    """Inputs per second: the batch divided by the median."""
    joules: float | None = None
    """Energy of one inference, from the device's meter."""
    per_watt: float | None = None
    """Inferences per second per watt, which is inferences per joule."""
    price_per_hour: float | None = None
    """Price of the device, from the price file."""
    per_million: float | None = None
    """Price of a million inputs."""
    currency: str = ""
    remark: str = ""
    """Why the cell is not valid, or has no ratio."""
    job: str = ""
    """Task of the result: campaign id and number."""
    verdict: str = ""
    """What the number is worth; empty if there is none."""
    load_ms: float | None = None
    """Median time to load the model."""
    memory_mb: float | None = None
    """Peak memory during the run in excess of the memory before it."""
    model_bytes: int | None = None
    """Size of the model's file."""
    max_error: float | None = None
    """Largest difference of the outputs from the reference."""
    quality: float | None = None
    """Quality of the answers if the model was evaluated: accuracy, or ROUGE-L of summaries."""
    shapes: str = ""
    """Shapes of the inputs, as in the row."""
    energy_source: str = ""
    """Source of the energy reading, and the part that it covers. Only values from one source are comparable."""


def make_matrix(
    rows: Sequence[Row], *, base: str = "", prices: Mapping[str, Price] | None = None
) -> tuple[MatrixCell, ...]:
    """A cell for each row, sorted by model, device, unit, threads and batch. `base`: a device (name or id), a unit, a model or a variant. A
    cell's ratio refers to a row that differs only in that. `prices`: by device or chip. Raises ValueError if no row matches the base.
    """
    ordered = sorted(
        rows,
        key=lambda row: (row.file_name, row.device_name, row.compute_units, row.threads or 0, row.batch or 0),
    )
    if base and not any(_is_base(row, base) for row in ordered):
        names = {
            name
            for row in rows
            for name in (row.file_name, row.variant, row.device_name, row.compute_units)
            if name
        }
        raise ValueError(
            f"these results have no model, variant, device or unit named {base!r}"
            + (f"; {near}" if (near := did_you_mean(base, names)) else "")
        )
    cells = (_cell(row, _base_of(row, ordered, base), base, prices or {}) for row in ordered)
    named = zip(cells, with_distinct_names(ordered), strict=True)
    return tuple(replace(cell, device=row.device_name) for cell, row in named)


def _is_base(row: Row, base: str) -> bool:
    return base in (row.file_name, row.variant, row.compute_units) or names_device(base, row)


def _base_of(row: Row, rows: Sequence[Row], base: str) -> Row | None:
    """The row that matches the base and otherwise equals `row` in everything the matrix shows, preferably also in threads."""
    if not base:
        return None
    bases = []
    for other in rows:
        if not _is_base(other, base) or other.verdict == RowVerdict.MISMATCH:
            continue  # wrong outputs cannot be a base
        model = base == other.file_name or other.file_name == row.file_name
        model = model or (base == other.variant and stem(other) == stem(row))
        device = names_device(base, other) or device_identity(other) == device_identity(row)
        unit = base == other.compute_units or other.compute_units == row.compute_units
        if model and device and unit and other.batch == row.batch and other.status is RowStatus.COMPLETE:
            bases.append(other)
    same = [other for other in bases if other.threads == row.threads]
    return next(iter(same or bases), None)


def _cell(row: Row, base: Row | None, base_name: str, prices: Mapping[str, Price]) -> MatrixCell:
    cell = MatrixCell(
        model=row.file_name,
        device=row.device_name,
        unit=row.compute_units,
        threads=row.threads,
        batch=row.batch,
        variant=row.variant,
        job=row.job_id,
        shapes=row.shapes,
    )
    median, joules = row.inference_ms_median, row.energy_per_inference_j
    if row.status is not RowStatus.COMPLETE or median is None:
        why = ": ".join(filter(None, [row.reason, row.detail])) or str(row.status)
        return replace(cell, remark=f"{row.status}, {why}")
    ratio, why = None, ""
    if base_name and base is None:
        why = "no base to compare with"
    elif base is not None and (why := why_not_comparable(base, row)):
        why = f"no ratio: {why}".replace("B is", "it is").replace("A is", "the base is")
    elif base is not None and base.inference_ms_median:
        ratio = median / base.inference_ms_median
    price = next((prices[name] for name in (row.device_name, row.device_id, row.soc) if name in prices), None)
    if price is not None:
        hours = median / 1000 / HOUR_S
        cell = replace(
            cell,
            price_per_hour=price.per_hour,
            per_million=price.per_hour * hours * MILLION / (row.batch or 1),
            currency=price.currency,
        )
    doubt = "" if row.verdict == RowVerdict.VALID else f"{row.verdict}: {row.verdict_reason}"
    return replace(
        cell,
        median_ms=median,
        low_ms=row.inference_ms_median_low,
        high_ms=row.inference_ms_median_high,
        ratio=ratio,
        per_s=row.throughput_per_s,
        joules=joules,
        per_watt=1 / joules if joules else None,
        remark="; ".join(filter(None, [doubt, why])),
        verdict=row.verdict,
        load_ms=row.load_ms_median,
        memory_mb=row.peak_inference_ram_usage,
        model_bytes=row.file_size,
        max_error=row.max_error,
        quality=row.quality,
        energy_source=row.energy_source,
    )


class Axis(StrEnum):
    """What can be plotted against time."""

    ENERGY = "energy"
    MEMORY = "memory"
    LOAD = "load"
    SIZE = "size"
    ERROR = "error"
    QUALITY = "quality"
    PRICE = "price"


CELL_FIELDS: Final[dict[Axis, str]] = {
    Axis.ENERGY: "joules",
    Axis.MEMORY: "memory_mb",
    Axis.LOAD: "load_ms",
    Axis.SIZE: "model_bytes",
    Axis.ERROR: "max_error",
    Axis.QUALITY: "quality",
    Axis.PRICE: "per_million",
}


MORE_IS_BETTER: Final = frozenset({Axis.QUALITY})


def pareto_front(points: Sequence[tuple[float, float]], *, more_is_better: bool = False) -> list[int]:
    """Indices of the points (time, value) that no other point matches or beats in both while beating in one, sorted by time. Of identical
    points, all are on the front.
    """
    sign = -1.0 if more_is_better else 1.0
    matches: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], sign * points[at][1])):
        best = points[matches[-1]] if matches else None
        if best is None or sign * points[at][1] < sign * best[1] or points[at] == best:
            matches.append(at)
    return matches


def _timed(cells: Sequence[MatrixCell]) -> list[MatrixCell]:
    """The cells with a time that counts: their outputs agree; simulations only if nothing was measured."""
    return prefer_measured(
        cell for cell in cells if cell.median_ms is not None and cell.verdict != RowVerdict.MISMATCH
    )


def front(cells: Sequence[MatrixCell], axis: Axis) -> tuple[str, ...]:
    """Jobs on the front of time against `axis`, fastest first. Cells without a time or a value on `axis` are on no front, nor are
    simulations if anything was measured. Empty if the values are not comparable.
    """
    known = [cell for cell in _timed(cells) if getattr(cell, CELL_FIELDS[axis]) is not None]
    if axis is Axis.ENERGY and not one_source(cell.energy_source for cell in known):
        return ()
    points = [(cell.median_ms or 0.0, float(getattr(cell, CELL_FIELDS[axis])), cell.job) for cell in known]
    points.sort(key=lambda point: point[2])
    best = pareto_front([point[:2] for point in points], more_is_better=axis in MORE_IS_BETTER)
    return tuple(points[at][2] for at in best)


def fronts(cells: Sequence[MatrixCell]) -> dict[Axis, tuple[str, ...]]:
    """The front of each axis on which at least two cells have comparable values."""
    timed = _timed(cells)
    found = {
        axis: front(cells, axis)
        for axis in Axis
        if sum(getattr(cell, CELL_FIELDS[axis]) is not None for cell in timed) > 1
    }
    return {axis: jobs for axis, jobs in found.items() if jobs}


def one_source(sources: Iterable[str]) -> bool:
    """Whether energies are comparable: those of a package are not those of a meter at the wall."""
    return len(set(sources)) < 2


_KEYS: Final = ("currency", "per_hour")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one device or chip."""

    per_hour: float
    currency: str


def read_prices(path: Path) -> Mapping[str, Price]:
    """The user's price file: the price of an hour of a device, by its name, id or chip.

        currency: EUR
        per_hour:
          mini: 0.12                     # a device's name
          "AMD EPYC": 0.48               # a chip, as in the Soc column

    Raises `CampaignError` with file, line and hint. Blocking.
    """
    hint = "write currency: EUR and, under per_hour:, a device's name and a number"
    document = read_document(path, f"in a YAML file, {hint}")
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), "a price file is a mapping of key: value", hint)
    for key in value:
        if key not in _KEYS:
            raise document.error((key,), f"unknown key {safe_text(str(key), 60)!r}", hint)
    currency, text = value.get("currency", ""), value.get("per_hour")
    if not isinstance(currency, str) or not 1 <= len(currency) <= 16:
        raise document.error(("currency",), "currency must be a short text, such as EUR", hint)
    if not isinstance(text, dict) or not text:
        raise document.error(("per_hour",), "per_hour must be a mapping of device: price", hint)
    prices = {}
    for name, price in text.items():
        number = isinstance(price, (int, float)) and not isinstance(price, bool)
        if not number or not 0 <= price < 1e9:
            shown = safe_text(str(name), 60)
            raise document.error(
                ("per_hour", name), f"the price of {shown!r} must be a number, 0 or more", hint
            )
        prices[str(name)] = Price(float(price), currency)
    return prices
