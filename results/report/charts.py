"""Pictures of several tasks: medians as bars, all samples as strips, and ratios. Pure.

For a page they are narrow, with each name above its row; for a slide they fill it, with the names on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from results.analysis.pairs import Pair
from results.export.source import ResultEntry
from results.report.charts_parts import Sheet, axis, complete, fitting, frame_for, names_of
from results.report.drawing import (
    Box,
    Dots,
    Drawing,
    Stroke,
    TextLabel,
    Tone,
    Wedge,
    digits,
    scale_over,
    wide,
)
from results.row.row import Row
from results.row.verdict import RowVerdict
from swarm.base.text import count

SPOTS: Final = 300
"""Dots in a strip; of more samples, so many at even ranks."""
_GOLDEN: Final = 0.618034
_UNTOLD: Final = frozenset({RowVerdict.VALID, RowVerdict.SIMULATED})
"""Verdicts that a bar does not tell: the one is as it should be, the other stands in the name."""
_TONES: Final = {"FASTER": Tone.GOOD, "SLOWER": Tone.BAD, "SAME": Tone.FIRST, "AMBIGUOUS": Tone.WARN}


# -- medians -----------------------------------------------------------------------------------------------------------------------------


def bars(
    rows: Sequence[Row], sheet: Sheet = Sheet(), *, title: str = "", model: bool = True
) -> Drawing | None:
    """Medians as bars from 0 with their intervals; over a wide range as points on a logarithmic axis. None where there is none."""
    there = complete(rows)
    if not there:
        return None
    shown = there[: fitting(sheet, len(there))]
    names = names_of(there, model=model)[: len(shown)]
    medians = [row.inference_ms_median or 0.0 for row in shown]
    ends = [
        value
        for row in shown
        for value in (row.inference_ms_median_low, row.inference_ms_median_high)
        if value is not None
    ]
    size = sheet.type
    end = max(wide(_value(row), size) for row in shown) + size
    frame = frame_for(sheet, title, names, 1.1, len(there) - len(shown), end)
    scale = scale_over([*medians, *ends], frame.left, frame.right, zero=True)
    marks = [*axis(frame, scale, size, "ms for one inference (median)"), *frame.marks]
    for row, value, y in zip(shown, medians, frame.ys, strict=True):
        faint = 1.0 if row.verdict == RowVerdict.VALID else 0.5
        x = scale.at(value) if value > 0 else frame.left
        if scale.log:
            marks.append(Stroke([(frame.left, y), (x, y)], Tone.FIRST, 1.5, 0.35))
            marks.append(Dots([(x, y)], Tone.FIRST, size * 0.8, faint))
        else:
            marks.append(
                Box(
                    frame.left,
                    y - frame.deep / 2,
                    max(x - frame.left, 1.0),
                    frame.deep,
                    Tone.FIRST,
                    faint * 0.85,
                )
            )
        most = x
        if row.inference_ms_median_low is not None and row.inference_ms_median_high is not None:
            low, most = scale.at(row.inference_ms_median_low), scale.at(row.inference_ms_median_high)
            marks.append(Stroke([(low, y), (most, y)], Tone.INK, 1.6))
            marks += [
                Stroke([(at, y - frame.deep * 0.28), (at, y + frame.deep * 0.28)], Tone.INK, 1.6)
                for at in (low, most)
            ]
        marks.append(TextLabel(max(most, x) + size * 0.5, y + size * 0.35, _value(row), Tone.INK, size))
    told = "; ".join(f"{name}: {_spoken(row)}" for name, row in zip(names, shown, strict=True))
    return Drawing(sheet.width, frame.height, title or "Medians with their 95 % intervals", told + ".", marks)


def _value(row: Row) -> str:
    told = f"{digits(row.inference_ms_median or 0.0)} ms"
    return told if row.verdict in _UNTOLD else f"{told}  {row.verdict}"


def _spoken(row: Row) -> str:
    told = f"{digits(row.inference_ms_median or 0.0)} ms"
    if row.inference_ms_median_low is not None and row.inference_ms_median_high is not None:
        told += f" ({digits(row.inference_ms_median_low)} to {digits(row.inference_ms_median_high)})"
    return told + ("" if row.verdict in _UNTOLD else f", {row.verdict}")


# -- samples -----------------------------------------------------------------------------------------------------------------------------


def strips(entries: Sequence[ResultEntry], sheet: Sheet = Sheet(), *, title: str = "") -> Drawing | None:
    """All samples of each task as dots on one axis, with their middle half and the median. None where there are no samples."""
    there = [entry for entry in entries if complete([entry.row]) and any(entry.launches)]
    if not there:
        return None
    shown = there[: fitting(sheet, len(there))]
    names = names_of([entry.row for entry in there])[: len(shown)]
    samples = [sorted(ns / 1e6 for launch in entry.launches for ns in launch) for entry in shown]
    frame = frame_for(sheet, title, names, 1.5, len(there) - len(shown), 0)
    edges = [
        _quarter(ms, 75) + 6 * max(_quarter(ms, 75) - _quarter(ms, 25), ms[len(ms) // 2] * 0.01)
        for ms in samples
    ]
    medians = [entry.row.inference_ms_median or 0.0 for entry in shown]
    ends = [min(ms[-1], edge) for ms, edge in zip(samples, edges, strict=True)]
    scale = scale_over([*(ms[0] for ms in samples), *ends, *medians], frame.left, frame.right)
    marks = [*axis(frame, scale, sheet.type, "ms for one inference"), *frame.marks]
    limit = max(ends)
    for ms, whole, y in zip(samples, medians, frame.ys, strict=True):
        low, high = scale.at(_quarter(ms, 25)), scale.at(_quarter(ms, 75))
        step = (len(ms) - 1) / (SPOTS - 1) if len(ms) > SPOTS else 1.0
        even = [ms[round(at * step)] for at in range(min(len(ms), SPOTS))]
        near = [value for value in even if value <= limit]
        spots = [
            (scale.at(value), y + ((at * _GOLDEN) % 1 - 0.5) * frame.deep * 0.8)
            for at, value in enumerate(near)
        ]
        marks.append(Box(low, y - frame.deep / 2, max(high - low, 1.0), frame.deep, Tone.FIRST, 0.16))
        marks.append(Dots(spots, Tone.FIRST, sheet.type * 0.36, 0.5))
        x = scale.at(whole)
        marks.append(Stroke([(x, y - frame.deep * 0.6), (x, y + frame.deep * 0.6)], Tone.INK, 2.4))
        if ms[-1] > limit:
            marks.append(Wedge(frame.right + sheet.type * 0.6, y, "right", size=sheet.type * 0.55))
    told = "; ".join(
        f"{name}: {count(len(ms), 'sample')} from {digits(ms[0])} to {digits(ms[-1])} ms, median {digits(whole)} ms"
        for name, ms, whole in zip(names, samples, medians, strict=True)
    )
    return Drawing(
        sheet.width, frame.height, title or "Distribution of the timed inferences", told + ".", marks
    )


def _quarter(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


# -- ratios ------------------------------------------------------------------------------------------------------------------------------


def ratios(pairs: Sequence[tuple[str, Pair]], sheet: Sheet = Sheet(), *, title: str = "") -> Drawing | None:
    """Each named pair's ratio with its interval; 1 is no difference. None where no pair has a ratio."""
    there = [(name, pair.said) for name, pair in pairs if pair.said.ratio is not None and pair.said.ratio > 0]
    if not there:
        return None
    shown = there[: fitting(sheet, len(there))]
    size = sheet.type
    end = max(wide(f"{said.ratio or 0.0:.3f}  {said.word}", size) for _, said in shown) + size * 0.5
    frame = frame_for(sheet, title, [name for name, _ in shown], 1.0, len(there) - len(shown), end)
    values = [value for _, said in shown for value in (said.ratio, said.low, said.high) if value is not None]
    scale = scale_over([*values, 0.95, 1.05], frame.left, frame.right, log=True)
    marks = [*axis(frame, scale, size, "ratio of the times")]
    near = (scale.at(0.99), scale.at(1.01))
    marks.append(Box(near[0], frame.top, near[1] - near[0], frame.bottom - frame.top, Tone.QUIET, 0.18))
    marks += [Stroke([(scale.at(1), frame.top), (scale.at(1), frame.bottom)], Tone.QUIET, 1.4), *frame.marks]
    for (_, said), y in zip(shown, frame.ys, strict=True):
        tone, x = _TONES[said.word], scale.at(said.ratio or 1.0)
        if said.low is not None and said.high is not None:
            ends = scale.at(said.low), scale.at(said.high)
            marks.append(Stroke([(ends[0], y), (ends[1], y)], tone, 2.4))
            marks += [Stroke([(at, y - size * 0.35), (at, y + size * 0.35)], tone, 2.0) for at in ends]
        marks.append(Dots([(x, y)], tone, size * 0.75))
        marks.append(
            TextLabel(
                frame.right + size * 0.6,
                y + size * 0.35,
                f"{said.ratio or 0.0:.3f}  {said.word}",
                tone,
                size,
            )
        )
    told = "; ".join(f"{name}: {said.word}, {said.why}" for name, said in shown)
    return Drawing(sheet.width, frame.height, title or "Ratios with their 95 % intervals", told + ".", marks)
