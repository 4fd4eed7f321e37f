"""Charts of several results: medians as bars, samples as strips, ratios, and time against another figure. Pure.

Each row's name stands above it. In a page a chart is narrow and as high as its rows; on a slide it fills the sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from results.analysis.matrix import MORE_IS_BETTER, Axis, one_source, pareto_front
from results.analysis.pairs import Pair
from results.export.raw import ResultEntry
from results.report.drawing import (
    Box,
    Dots,
    Drawing,
    Mark,
    Scale,
    Stroke,
    TextLabel,
    Tone,
    Wedge,
    axis_below,
    axis_left,
    digits,
    fit_text,
    scale_over,
    text_width,
)
from results.row.names import with_distinct_names
from results.row.row import Row, RowStatus
from results.row.simulated import mark_simulated, prefer_measured
from results.row.stats import median_of_sorted, nearest_rank
from results.row.verdicts import RowVerdict
from swarm.base.text import count, safe_text

PAGE_WIDTH: Final = 400.0
MAX_DOTS: Final = 150
"""Maximum dots in a strip; of more samples, this many at even ranks are drawn."""
MAX_NAMES: Final = 24
"""Maximum points of a Pareto chart that get a name."""
JITTER: Final = 0.618034
_TONES: Final = {"FASTER": Tone.GOOD, "SLOWER": Tone.BAD, "SAME": Tone.FIRST, "AMBIGUOUS": Tone.WARN}


class ChartKind(StrEnum):
    """What a chart of a campaign shows."""

    BARS = "bars"
    DISTRIBUTION = "distribution"
    PARETO = "pareto"


@dataclass(frozen=True, slots=True)
class Sheet:
    """The size of a chart. `height` None: in a page, as high as its rows need, without a title of its own."""

    width: float = PAGE_WIDTH
    height: float | None = None
    type: float = 12.0
    """Font size; a slide with many rows uses a smaller size for the rows."""


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows with a median."""
    return [row for row in rows if row.status is RowStatus.COMPLETE and row.inference_ms_median is not None]


def names_of(rows: Sequence[Row], *, model: bool = True) -> list[str]:
    """Names that tell `rows` apart: the properties in which they differ, out of model, device, unit, threads and batch, or else the task.
    Simulations are marked. `model`: always name the model, even if there is only one.
    """
    rows = with_distinct_names(rows)
    parts: list[Callable[[Row], str]] = [
        lambda row: row.device_name or "no device",
        lambda row: row.compute_units,
        lambda row: "" if row.threads is None else count(row.threads, "thread"),
        lambda row: "" if row.batch is None else f"batch {row.batch}",
    ]
    parts = [part for part in parts if len({part(row) for row in rows}) > 1]
    parts = (
        [lambda row: row.file_name, *parts]
        if model
        else parts or [lambda row: row.device_name or "no device"]
    )
    names = [
        mark_simulated(" · ".join(filter(None, (safe_text(part(row), 80) for part in parts))), row.simulated)
        for row in rows
    ]
    return [
        f"{name} · task {row.job_id.rpartition('/')[2]}" if names.count(name) > 1 else name
        for name, row in zip(names, rows, strict=True)
    ]


# -- rows on a sheet ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """The layout of rows: from `left` to `right`, each `depth` deep and centred on `ys`, with names and title drawn in font size `size`."""

    left: float
    right: float
    top: float
    bottom: float
    depth: float
    size: float
    ys: Sequence[float]
    marks: list[Mark]
    height: float


def _lay_out(sheet: Sheet, title: str, names: Sequence[str], depth: float, end: float) -> _Rows:
    """Lay out the rows. `depth`: height of a row below its name, in font sizes. `end`: space to the right of the rows. A slide shows only
    the rows that fit.
    """
    size, top, margin, number = sheet.type, 4.0, 0.0, len(names)
    step = size * (1.5 + depth)
    marks: list[Mark] = []
    if sheet.height is not None:
        margin, top = size * 1.6, size * 4.6
        space = sheet.height - top - size * 4.4
        size = min(size, max(space / number / (1.5 + depth), size * 0.6))
        number = min(number, int(space / size / (1.5 + depth)))
        step = min(space / number, sheet.type * 7)
        marks.append(_slide_title(sheet, title))
        if rest := len(names) - number:
            note, y = f"and {rest} more that do not fit", sheet.height - sheet.type * 0.9
            marks.append(TextLabel(margin, y, note, Tone.QUIET, sheet.type * 0.8))
    for at, name in enumerate(names[:number]):
        y, space = top + step * at, sheet.width - 2 * margin
        back = min(text_width(name, size), space) + 4  # keeps grid lines out of the name
        marks.append(Box(margin + 2, y, back, size * 1.45, Tone.PAPER))
        marks.append(TextLabel(margin + 4, y + size * 1.1, fit_text(name, size, space - 8), Tone.INK, size))
    depth = step - size * 1.5
    ys = [top + step * at + size * 1.45 + depth / 2 for at in range(number)]
    bottom, right = top + step * number + 2, sheet.width - max(margin, 14) - end
    return _Rows(margin + 8, right, top, bottom, depth, size, ys, marks, sheet.height or bottom + size * 3)


def _slide_title(sheet: Sheet, title: str) -> TextLabel:
    size, margin = sheet.type * 1.5, sheet.type * 1.6
    text = fit_text(title, size, sheet.width - 2 * margin)
    return TextLabel(margin, margin + sheet.type, text, Tone.INK, size, bold=True)


def strip_marks(
    ordered: Sequence[float], scale: Scale, y: float, depth: float, *, edge: float, hint: str
) -> list[Mark]:
    """Sorted samples as dots around `y`, with their middle half as a box and their median as a bar; a wedge stands for samples beyond
    `edge`.
    """
    low, high = scale.at(nearest_rank(ordered, 25)), scale.at(nearest_rank(ordered, 75))
    dots = [
        (scale.at(value), y + ((at * JITTER) % 1 - 0.5) * depth * 0.64)
        for at, value in enumerate(at_even_ranks(ordered))
        if value <= edge
    ]
    x = scale.at(median_of_sorted(ordered))
    marks: list[Mark] = [
        Box(low, y - depth * 0.36, max(high - low, 0.5), depth * 0.72, Tone.FIRST, 0.16, hint),
        Dots(dots, Tone.FIRST, min(depth * 0.26, 4.5), 0.55),
        Stroke([(x, y - depth * 0.44), (x, y + depth * 0.44)], Tone.INK, 2.2),
    ]
    if ordered[-1] > edge:
        marks.append(Wedge(scale.end + 8, y))
    return marks


def at_even_ranks(ordered: Sequence[float]) -> Sequence[float]:
    """At most `MAX_DOTS` of the sorted samples, including the smallest and the largest."""
    last = len(ordered) - 1
    if last < MAX_DOTS:
        return ordered
    return [ordered[round(at * last / (MAX_DOTS - 1))] for at in range(MAX_DOTS)]


# -- medians -----------------------------------------------------------------------------------------------------------------------------


def bars(
    rows: Sequence[Row], sheet: Sheet = Sheet(), *, title: str = "", model: bool = True
) -> Drawing | None:
    """Medians as bars from 0 with their intervals, or as points on a logarithmic axis if they span a wide range. None without medians."""
    rows = complete(rows)
    if not rows:
        return None
    values = [_median_and_verdict(row) for row in rows]
    end = max(text_width(value, sheet.type) for value in values) + sheet.type
    names = names_of(rows, model=model)
    frame = _lay_out(sheet, title, names, 1.1, end)
    size, shown = frame.size, rows[: len(frame.ys)]
    times = [
        time
        for row in shown
        for time in (row.inference_ms_median, row.inference_ms_median_low, row.inference_ms_median_high)
        if time is not None
    ]
    scale = scale_over(times, frame.left, frame.right, zero=True)
    marks = axis_below(scale, frame.top, frame.bottom, "ms per inference (median)", sheet.type * 0.92)
    marks += frame.marks
    sentences = [f"{name}: {_spoken(row)}" for name, row in zip(names, shown, strict=False)]
    for row, value, sentence, y in zip(shown, values, sentences, frame.ys, strict=False):
        opacity = 1.0 if row.verdict == RowVerdict.VALID else 0.5
        median = row.inference_ms_median or 0.0
        x = most = scale.at(median) if median > 0 else frame.left
        if scale.log:
            marks.append(Stroke([(frame.left, y), (x, y)], Tone.FIRST, 1.5, 0.35))
            marks.append(Dots([(x, y)], Tone.FIRST, size * 0.8, opacity, hint=sentence))
        else:
            top, width = y - frame.depth / 2, max(x - frame.left, 1.0)
            marks.append(Box(frame.left, top, width, frame.depth, Tone.FIRST, opacity * 0.85, hint=sentence))
        if row.inference_ms_median_low is not None and row.inference_ms_median_high is not None:
            low, most = scale.at(row.inference_ms_median_low), scale.at(row.inference_ms_median_high)
            marks += _whisker(low, most, y, frame.depth * 0.28, Tone.INK, 1.6)
        marks.append(TextLabel(max(most, x) + size * 0.5, y + size * 0.35, value, Tone.INK, size))
    title = title or "Medians with their 95 % intervals"
    return Drawing(sheet.width, frame.height, title, "; ".join(sentences) + ".", marks)


def _whisker(low: float, high: float, y: float, half: float, tone: Tone, width: float) -> list[Mark]:
    ends = [Stroke([(x, y - half), (x, y + half)], tone, width) for x in (low, high)]
    return [Stroke([(low, y), (high, y)], tone, width), *ends]


def _median_and_verdict(row: Row) -> str:
    """The median with a verdict other than `valid`. A simulation's verdict is part of its name."""
    median = f"{digits(row.inference_ms_median or 0.0)} ms"
    return median if row.verdict in (RowVerdict.VALID, RowVerdict.SIMULATED) else f"{median}  {row.verdict}"


def _spoken(row: Row) -> str:
    text = _median_and_verdict(row).replace("  ", ", ")
    if row.inference_ms_median_low is None or row.inference_ms_median_high is None:
        return text
    interval = f"({digits(row.inference_ms_median_low)} to {digits(row.inference_ms_median_high)})"
    return text.replace(" ms", f" ms {interval}", 1)


# -- samples -----------------------------------------------------------------------------------------------------------------------------


def strips(entries: Sequence[ResultEntry], sheet: Sheet = Sheet(), *, title: str = "") -> Drawing | None:
    """All samples of each task as dots on one axis, with their middle half and median. None without samples."""
    entries = [entry for entry in entries if complete([entry.row]) and any(entry.launches)]
    if not entries:
        return None
    names = names_of([entry.row for entry in entries])
    frame = _lay_out(sheet, title, names, 1.5, 0)
    samples = [
        sorted(ns / 1e6 for launch in entry.launches for ns in launch) for entry in entries[: len(frame.ys)]
    ]
    edge = 0.0
    for times in samples:
        low, high = nearest_rank(times, 25), nearest_rank(times, 75)
        edge = max(edge, min(times[-1], high + 6 * max(high - low, median_of_sorted(times) * 0.01)))
    scale = scale_over([*(times[0] for times in samples), edge], frame.left, frame.right)
    marks = axis_below(scale, frame.top, frame.bottom, "ms per inference", sheet.type * 0.92)
    marks += frame.marks
    sentences = []
    for name, times, y in zip(names, samples, frame.ys, strict=False):
        span = (
            f"from {digits(times[0])} to {digits(times[-1])} ms, median {digits(median_of_sorted(times))} ms"
        )
        sentences.append(f"{name}: {count(len(times), 'sample')} {span}")
        marks += strip_marks(times, scale, y, frame.depth, edge=edge, hint=sentences[-1])
    title = title or "Distribution of the timed inferences"
    return Drawing(sheet.width, frame.height, title, "; ".join(sentences) + ".", marks)


# -- ratios ------------------------------------------------------------------------------------------------------------------------------


def ratios(pairs: Sequence[tuple[str, Pair]], sheet: Sheet = Sheet(), *, title: str = "") -> Drawing | None:
    """The ratio of each named pair with its interval; 1 is no difference. None if no pair has a ratio."""
    rated = [
        (name, comparison, comparison.ratio)
        for name, comparison in ((name, pair.comparison) for name, pair in pairs)
        if comparison.ratio is not None and comparison.ratio > 0
    ]
    if not rated:
        return None
    labels = [f"{ratio:.3f}  {comparison.verdict}" for _, comparison, ratio in rated]
    end = max(text_width(label, sheet.type) for label in labels) + sheet.type * 0.5
    frame = _lay_out(sheet, title, [name for name, *_ in rated], 1.0, end)
    size, shown = frame.size, rated[: len(frame.ys)]
    values = [
        value for _, comparison, ratio in shown for value in (ratio, comparison.low, comparison.high) if value
    ]
    scale = scale_over([*values, 0.95, 1.05], frame.left, frame.right, log=True)
    marks = axis_below(scale, frame.top, frame.bottom, "ratio of the times", sheet.type * 0.92)
    low, high = scale.at(0.99), scale.at(1.01)
    marks.append(Box(low, frame.top, high - low, frame.bottom - frame.top, Tone.QUIET, 0.18))
    marks += [Stroke([(scale.at(1), frame.top), (scale.at(1), frame.bottom)], Tone.QUIET, 1.4), *frame.marks]
    sentences = [f"{name}: {comparison.verdict}, {comparison.why}" for name, comparison, _ in shown]
    for (_, comparison, ratio), label, sentence, y in zip(shown, labels, sentences, frame.ys, strict=False):
        tone = _TONES[comparison.verdict]
        if comparison.low is not None and comparison.high is not None:
            marks += _whisker(scale.at(comparison.low), scale.at(comparison.high), y, size * 0.35, tone, 2.2)
        marks.append(Dots([(scale.at(ratio), y)], tone, size * 0.75, hint=sentence))
        marks.append(TextLabel(frame.right + size * 0.6, y + size * 0.35, label, tone, size))
    title = title or "Ratios with their 95 % intervals"
    return Drawing(sheet.width, frame.height, title, "; ".join(sentences) + ".", marks)


# -- time against another figure ---------------------------------------------------------------------------------------------------------

_COSTS: Final[dict[Axis, tuple[str, str, str]]] = {
    Axis.ENERGY: ("energy_per_inference_j", "energy per inference", "J"),
    Axis.MEMORY: ("peak_inference_ram_usage", "memory of the run", "MB"),
    Axis.LOAD: ("load_ms_median", "load time", "ms"),
    Axis.SIZE: ("file_size", "model size", "bytes"),
    Axis.ERROR: ("max_error", "largest difference from the reference", ""),
    Axis.QUALITY: ("quality", "quality (accuracy, or ROUGE-L)", ""),
}
"""Field of a row, label and unit."""
CHART_AXES: Final = tuple(_COSTS)
"""The axes that `pareto` can draw: rows have no price."""


def default_axis(rows: Sequence[Row]) -> Axis:
    """The axis to plot against time: energy if two tasks have it from one source, else memory."""
    sources = [row.energy_source for row in complete(rows) if row.energy_per_inference_j is not None]
    return Axis.ENERGY if len(sources) > 1 and one_source(sources) else Axis.MEMORY


def pareto(
    rows: Sequence[Row], sheet: Sheet = Sheet(), *, title: str = "", axis: Axis | None = None
) -> Drawing | None:
    """The time of one inference against `axis`, one of `CHART_AXES`; a line joins the results that no other beats in both. None if fewer
    than two rows have both values, or their energies come from different sources.
    """
    axis = axis or default_axis(rows)
    field, words, unit = _COSTS[axis]
    rows = [row for row in complete(rows) if (getattr(row, field) or 0.0) > 0 and row.inference_ms_median]
    if len(rows) < 2 or (axis is Axis.ENERGY and not one_source(row.energy_source for row in rows)):
        return None
    size, height = sheet.type, sheet.height or sheet.width * 0.72
    top = size * 1.8 if sheet.height is None else size * 5
    left, right, bottom = size * 5.5, sheet.width - size * 2, height - size * 4
    points = [(row.inference_ms_median or 0.0, float(getattr(row, field))) for row in rows]
    across = scale_over([x for x, _ in points], left, right)
    upward = scale_over([y for _, y in points], bottom, top)
    marks = axis_below(across, top, bottom, "ms per inference (median)", size * 0.92)
    marks += axis_left(upward, left, right, size * 0.92)
    label = f"{words}{f', {unit}' if unit else ''}{', logarithmic' if upward.log else ''}"
    marks.append(TextLabel(size * 0.6, top - size * 0.8, label, Tone.QUIET, size * 0.92))
    if sheet.height is not None:
        marks.append(_slide_title(sheet, title))
    counted = {row.job_id for row in prefer_measured(rows)}
    eligible = [at for at, row in enumerate(rows) if row.job_id in counted]
    best = pareto_front([points[at] for at in eligible], more_is_better=axis in MORE_IS_BETTER)
    front = [eligible[at] for at in best]
    spots = [(across.at(x), upward.at(y)) for x, y in points]
    marks.append(Stroke([spots[at] for at in front], Tone.GOOD, 1.8, 0.8))
    names = names_of(rows)
    sentences = [
        f"{name}: {digits(x)} ms, {digits(y)} {unit}".rstrip()
        for name, (x, y) in zip(names, points, strict=True)
    ]
    taken = [(y + size * 0.35, x - size * 0.5, x + size * 0.5) for x, y in spots]
    for number, at in enumerate([*front, *(other for other in range(len(rows)) if other not in front)]):
        tone = Tone.GOOD if at in front else Tone.QUIET
        marks.append(Dots([spots[at]], tone, size * 0.85, hint=sentences[at]))
        if number < MAX_NAMES:
            marks += _name_point(names[at], *spots[at], size * 0.92, (left, right), taken)
    text = "; ".join(sentences[:MAX_NAMES])
    text += f". No other result beats these in both: {', '.join(names[at] for at in front[:MAX_NAMES])}."
    better = "higher is better for the second" if axis in MORE_IS_BETTER else "lower is better for both"
    return Drawing(sheet.width, height, title or f"Time against {words}; {better}", text, marks)


def _name_point(
    name: str,
    x: float,
    y: float,
    size: float,
    ends: tuple[float, float],
    taken: list[tuple[float, float, float]],
) -> list[Mark]:
    """The name next to its point, on the side with more space; empty if other names leave no room."""
    to_the_right = x < (ends[0] + ends[1]) / 2
    name = fit_text(name, size, (ends[1] - x if to_the_right else x - ends[0]) - size)
    width = text_width(name, size)
    start = x + size * 0.7 if to_the_right else x - size * 0.7 - width
    for shift in (0.35, -0.75, 1.45, -1.85, 2.55):
        base = y + size * shift
        if all(
            abs(base - other) > size * 1.05 or start > end or start + width < begin
            for other, begin, end in taken
        ):
            taken.append((base, start, start + width))
            if to_the_right:
                return [TextLabel(start, base, name, Tone.INK, size)]
            return [TextLabel(x - size * 0.7, base, name, Tone.INK, size, "end")]
    return []
