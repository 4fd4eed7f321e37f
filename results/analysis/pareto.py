"""Which of many configurations are worth a look: those that no other beats both in time and in something else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from results.analysis.matrix import MatrixCell
from results.row.simulated import counting


class Axis(StrEnum):
    """What is held against time."""

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
    Axis.QUALITY: "rouge_l",
    Axis.PRICE: "per_million",
}
MORE_IS_BETTER: Final = frozenset({Axis.QUALITY})


def pareto_front(points: Sequence[tuple[float, float]], *, more_is_better: bool = False) -> list[int]:
    """Indices of the points (time, value) that no other is at least as good as in both and better than in one, by time. Of points that
    are alike in both, all are on the front.
    """
    sign = -1.0 if more_is_better else 1.0
    matches: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], sign * points[at][1])):
        best = points[matches[-1]] if matches else None
        if best is None or sign * points[at][1] < sign * best[1] or points[at] == best:
            matches.append(at)
    return matches


def front(cells: Sequence[MatrixCell], axis: Axis) -> tuple[str, ...]:
    """Jobs on the front of time against `axis`, the quickest first. Cells without a time or without a value on `axis` are in no front,
    nor are simulations where anything was measured.
    """
    points = [
        (cell.median_ms, float(value), cell.job)
        for cell in counting(cell for cell in cells if cell.median_ms is not None)
        if cell.median_ms is not None and (value := getattr(cell, CELL_FIELDS[axis])) is not None
    ]
    points.sort(key=lambda point: point[2])
    best = pareto_front([point[:2] for point in points], more_is_better=axis in MORE_IS_BETTER)
    return tuple(points[at][2] for at in best)


def fronts(cells: Sequence[MatrixCell]) -> dict[Axis, tuple[str, ...]]:
    """The front of each axis on which two cells or more have a value."""
    timed = counting(cell for cell in cells if cell.median_ms is not None)
    return {
        axis: front(cells, axis)
        for axis in Axis
        if sum(getattr(cell, CELL_FIELDS[axis]) is not None for cell in timed) > 1
    }
