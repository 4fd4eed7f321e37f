"""Which of many ways to run are worth a look: those that no other beats in time and in something else as well. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from results.analysis.matrix import MatrixCell
from results.row.simulated import counting


class Axis(StrEnum):
    """What is held against time."""

    ENERGY = "energy"
    QUALITY = "quality"
    ERROR = "error"
    MEMORY = "memory"
    SIZE = "size"
    PRICE = "price"


READ: Final[dict[Axis, Callable[[MatrixCell], float | None]]] = {
    Axis.ENERGY: lambda cell: cell.joules,
    Axis.QUALITY: lambda cell: cell.rouge_l,
    Axis.ERROR: lambda cell: cell.max_error,
    Axis.MEMORY: lambda cell: cell.memory_mb,
    Axis.SIZE: lambda cell: cell.model_bytes,
    Axis.PRICE: lambda cell: cell.per_million,
}
MORE_IS_BETTER: Final = frozenset({Axis.QUALITY})


def front(cells: Sequence[MatrixCell], axis: Axis) -> tuple[str, ...]:
    """Jobs of the cells that no other is at least as good as in both and better than in one, the quickest first. Cells without a time or
    without a value on `axis` are in no front, nor are simulations where anything was measured. Of cells that are alike in both, all are.
    """
    sign = -1.0 if axis in MORE_IS_BETTER else 1.0
    known = sorted(
        (cell.median_ms, sign * value, cell.job)
        for cell in counting(cell for cell in cells if cell.median_ms is not None)
        if cell.median_ms is not None and (value := READ[axis](cell)) is not None
    )
    found: list[str] = []
    best: tuple[float, float] | None = None
    for time, value, job in known:
        if best is None or value < best[1] or (time, value) == best:
            found.append(job)
            best = (time, value)
    return tuple(found)


def fronts(cells: Sequence[MatrixCell]) -> dict[Axis, tuple[str, ...]]:
    """The front of each axis on which two cells or more have a value."""
    told = counting(cell for cell in cells if cell.median_ms is not None)
    return {
        axis: front(cells, axis) for axis in Axis if sum(READ[axis](cell) is not None for cell in told) > 1
    }
