"""The time of one inference against what it costs: energy, memory, time to load, error; what nothing beats in both is joined. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from results.report.charts_parts import ChartFrame, Sheet, axis, complete, names_of
from results.report.drawing import (
    Dots,
    Drawing,
    Mark,
    Stroke,
    TextLabel,
    Tone,
    digits,
    fit,
    scale_over,
    tick_text,
    wide,
)
from results.row.row import Row
from results.row.simulated import counting

NAMED: Final = 24
"""Points that are called by name."""


class Quality(StrEnum):
    """What a Pareto picture holds against the time."""

    ENERGY = "energy"
    MEMORY = "memory"
    LOAD = "load"
    ERROR = "error"


_QUALITIES: Final[dict[Quality, tuple[str, str, str]]] = {
    Quality.ENERGY: ("energy_per_inference_j", "energy of one inference", "J"),
    Quality.MEMORY: ("peak_inference_ram_usage", "memory of the run", "MB"),
    Quality.LOAD: ("load_ms_median", "time to load", "ms"),
    Quality.ERROR: ("max_error", "largest difference from the reference", ""),
}
"""Field, words and unit. Less is better of all of them."""


def quality_of(rows: Sequence[Row]) -> Quality:
    """What can be held against the time: energy where two tasks tell it, else memory."""
    energies = sum(row.energy_per_inference_j is not None for row in complete(rows))
    return Quality.ENERGY if energies > 1 else Quality.MEMORY


def best_of(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of `points` no other is better than in both, less being better; by their first value."""
    order = sorted(range(len(points)), key=lambda at: points[at])
    found: list[int] = []
    for at in order:
        if not found or points[at][1] < points[found[-1]][1] or points[at] == points[found[-1]]:
            found.append(at)
    return found


def pareto(
    rows: Sequence[Row], sheet: Sheet = Sheet(), *, title: str = "", quality: Quality | None = None
) -> Drawing | None:
    """The time of one inference against `quality`; those that nothing beats in both are joined. None where fewer than two tell it."""
    wanted = quality or quality_of(rows)
    field, words, unit = _QUALITIES[wanted]
    there = [
        row
        for row in complete(rows)
        if (getattr(row, field) or 0.0) > 0 and (row.inference_ms_median or 0.0) > 0
    ]
    if len(there) < 2:
        return None
    size, height = sheet.type, sheet.height or sheet.width * 0.72
    top = size * 5 if sheet.slide else size * 1.8
    left, right, bottom = size * 5.5, sheet.width - size * 2, height - size * 4
    points = [(row.inference_ms_median or 0.0, float(getattr(row, field))) for row in there]
    across = scale_over([x for x, _ in points], left, right)
    up = scale_over([y for _, y in points], bottom, top)
    frame = ChartFrame(left, right, top, bottom, 0, (), [], height)
    marks: list[Mark] = axis(frame, across, size, "ms for one inference (median)")
    for value in up.ticks(5):
        y = up.at(value)
        marks.append(Stroke([(left, y), (right, y)]))
        marks.append(
            TextLabel(left - size * 0.5, y + size * 0.35, tick_text(value), Tone.QUIET, size * 0.92, "end")
        )
    upward = f"{words}{f', {unit}' if unit else ''}{', logarithmic' if up.log else ''}"
    marks.append(TextLabel(size * 0.6, top - size * 0.8, upward, Tone.QUIET, size * 0.92))
    if sheet.slide:
        marks.append(
            TextLabel(
                size * 1.6,
                size * 2.6,
                fit(title, size * 1.5, sheet.width - size * 3),
                Tone.INK,
                size * 1.5,
                bold=True,
            )
        )
    there_count = {row.job_id for row in counting(there)}
    told_of = [at for at, row in enumerate(there) if row.job_id in there_count]
    front = [told_of[at] for at in best_of([points[at] for at in told_of])]
    marks.append(
        Stroke([(across.at(points[at][0]), up.at(points[at][1])) for at in front], Tone.GOOD, 1.8, 0.8)
    )
    names = names_of(there)
    spots = [(across.at(x), up.at(y)) for x, y in points]
    taken = [(y + size * 0.35, x - size * 0.5, x + size * 0.5) for x, y in spots]
    named = 0
    for at in [*front, *(other for other in range(len(there)) if other not in front)]:
        x, y = spots[at]
        marks.append(Dots([(x, y)], Tone.GOOD if at in front else Tone.QUIET, size * 0.85))
        if named < NAMED:
            named += 1
            marks += _name_at(names[at], x, y, size * 0.92, (left, right), taken)
    told = "; ".join(
        f"{name}: {digits(x)} ms, {digits(y)} {unit}".rstrip()
        for name, (x, y) in list(zip(names, points, strict=True))[:NAMED]
    )
    told += f". Nothing beats in both: {', '.join(names[at] for at in front[:NAMED])}."
    return Drawing(sheet.width, height, title or f"Time against {words}; less is better of both", told, marks)


def _name_at(
    name: str,
    x: float,
    y: float,
    size: float,
    ends: tuple[float, float],
    taken: list[tuple[float, float, float]],
) -> list[Mark]:
    """The name beside its point, on the side where there is more room; none where another name is."""
    right = x < (ends[0] + ends[1]) / 2
    name = fit(name, size, (ends[1] - x if right else x - ends[0]) - size)
    start = x + size * 0.7 if right else x - size * 0.7 - wide(name, size)
    for shift in (0.35, -0.75, 1.45, -1.85, 2.55):
        line = y + size * shift
        if all(
            abs(line - other) > size * 1.05 or start > end or start + wide(name, size) < begin
            for other, begin, end in taken
        ):
            taken.append((line, start, start + wide(name, size)))
            return [
                TextLabel(
                    start if right else x - size * 0.7,
                    line,
                    name,
                    Tone.INK,
                    size,
                    "start" if right else "end",
                )
            ]
    return []
