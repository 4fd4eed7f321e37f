"""Charts of one task, from its raw samples and the facts in its record. Pure.

Nothing is dropped: samples so far out that they would shrink the rest to a line are drawn as triangles at the edge, counted and described.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from protocol.values.record import Record
from results.report.charts import MAX_DOTS, PAGE_WIDTH, strip_marks
from results.report.drawing import (
    Anchor,
    Box,
    Dots,
    Drawing,
    Mark,
    Point,
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
)
from results.report.operators import operators_chart
from results.report.sustained_chart import sustained_chart
from results.row.operators import operator_uses
from results.row.record import RecordBlock, RecordView, observe
from results.row.row import Row
from results.row.stats import histogram_bins, median, median_of_sorted, nearest_rank
from swarm.base.text import count

MAX_POINTS: Final = 240
"""Maximum points of a launch's line; for more samples, the minimum and maximum of each stretch."""
MAX_BLOCKS: Final = 300
"""Maximum blocks of the host's state that are drawn; beyond that, neighbouring blocks are merged."""
FAR: Final = 6.0
"""A sample further above the middle half than this many of its widths is drawn at the edge."""
COLD: Final = 4.0
"""First inferences are drawn to scale up to this many times the median."""
LETTERS: Final = 11.0

Launches = Sequence[Sequence[int]]


class TaskChart(StrEnum):
    """What a chart of one task shows."""

    HISTOGRAM = "histogram"
    DISTRIBUTION = "distribution"
    TRACE = "trace"
    HOST = "host"
    STAGES = "stages"
    OPERATORS = "operators"
    SUSTAINED = "sustained"


def task_chart(kind: TaskChart, record: Record, row: Row | None = None) -> Drawing | None:
    """A chart of `record`; None if there is nothing to draw. `row`: source of the median and interval to draw, if it has them.

    Raises `RemoteProtocolError` if the record cannot be read.
    """
    observed = observe(record)
    launches = [launch.samples for launch in observed.launches]
    match kind:
        case TaskChart.HISTOGRAM:
            return histogram_chart(observed.runs, row)
        case TaskChart.DISTRIBUTION:
            return distribution_chart(launches, row)
        case TaskChart.TRACE:
            return trace_chart(launches, [launch.warmup for launch in observed.launches])
        case TaskChart.HOST:
            return host_chart(observed, [timing.began_s for timing in record.timings])
        case TaskChart.STAGES:
            return stages_chart([(stage.stage, stage.seconds) for stage in record.stages])
        case TaskChart.OPERATORS:
            return operators_chart(operator_uses(record.ran))
        case TaskChart.SUSTAINED:
            return sustained_chart(record)


# -- distribution of the samples ---------------------------------------------------------------------------------------------------------


def histogram_chart(samples: Sequence[int], row: Row | None = None) -> Drawing | None:
    """A histogram of all timed samples, with the median and its interval. None without samples."""
    bins = histogram_bins(samples)
    if not bins.counts:
        return None
    left, right, top, bottom = 44.0, PAGE_WIDTH - 14, 24.0, 170.0
    edges = bins.edges_ms
    across = Scale(edges[0], edges[-1], left, right, log=bins.log)
    if edges[0] == edges[-1]:
        across = scale_over(edges, left, right, log=False)
    upward = Scale(0, max(bins.counts) * 1.04, bottom, top)
    marks = axis_below(across, top, bottom, "ms per inference", LETTERS)
    marks += axis_left(upward, left, right, LETTERS)
    marks.append(TextLabel(left - 6, top - 10, "samples", Tone.QUIET, LETTERS, "middle"))
    marks += _interval(row, across, top, bottom)
    for number, first, last in zip(bins.counts, edges, edges[1:], strict=False):
        if number:
            x, y = across.at(first), min(upward.at(number), bottom - 1.5)  # a single sample stays visible
            width = max(across.at(last) - x - 0.5, 1.0)
            hint = f"{digits(first)} to {digits(last)} ms: {count(number, 'sample')}, {number / len(samples):.2%}"
            marks.append(Box(x, y, width, bottom - y, Tone.FIRST, 0.85, hint))
    marks += _median(row, across, top, bottom, left)
    text = f"{count(len(samples), 'sample')} from {digits(edges[0])} to {digits(edges[-1])} ms."
    text += _median_text(row, "Median")
    return Drawing(PAGE_WIDTH, bottom + 36, "How often each time occurred", text, marks)


def distribution_chart(launches: Launches, row: Row | None = None) -> Drawing | None:
    """A strip of dots for each launch with its middle half and median, and the overall interval. None without samples."""
    times = [[ns / 1e6 for ns in sorted(launch)] for launch in launches if launch]
    if not times:
        return None
    every = sorted(ms for launch in times for ms in launch)
    edge = _edge(every, times)
    depth = max(min(200.0 / len(times), 24.0), 5.0)
    left, top = 44.0, 22.0
    bottom = top + depth * len(times)
    ends = [value for value in _ends(row) if value <= edge]
    scale = scale_over([every[0], min(every[-1], edge), *ends], left, PAGE_WIDTH - 14, log=False)
    marks = axis_below(scale, top, bottom, "ms per inference", LETTERS)
    marks.append(Stroke([(scale.start, bottom), (scale.end, bottom)], Tone.QUIET))
    marks += _interval(row, scale, top, bottom)
    for number, launch in enumerate(times, start=1):
        y = top + depth * (number - 0.5)
        low, high, half = nearest_rank(launch, 25), nearest_rank(launch, 75), median_of_sorted(launch)
        hint = f"launch {number}: median {digits(half)} ms, middle half {digits(low)} to {digits(high)} ms"
        marks += strip_marks(launch, scale, y, depth, edge=edge, hint=hint)
        if depth >= 9 or number % 5 == 1:
            marks.append(TextLabel(left - 8, y + 4, str(number), Tone.QUIET, LETTERS, "end"))
    marks += _median(row, scale, top, bottom, left)
    marks.append(TextLabel(left - 8, top - 8, "launch", Tone.QUIET, LETTERS, "end"))
    text = (
        f"{count(len(every), 'sample')} in {count(len(times), 'launch', 'launches')}, "
        f"from {digits(every[0])} to {digits(every[-1])} ms; the middle half of all lies between "
        f"{digits(nearest_rank(every, 25))} and {digits(nearest_rank(every, 75))} ms."
    )
    text += _median_text(row, "Median of the launches' medians") + _beyond_text(every, edge, "right edge")
    if any(len(launch) > MAX_DOTS for launch in times):
        text += f" For each launch, {MAX_DOTS} samples at even ranks are drawn."
    return Drawing(PAGE_WIDTH, bottom + 36, "Distribution of the timed inferences", text, marks)


def _ends(row: Row | None) -> tuple[float, ...]:
    """The ends of the median's interval; empty without one."""
    if row is None or row.inference_ms_median_low is None or row.inference_ms_median_high is None:
        return ()
    return row.inference_ms_median_low, row.inference_ms_median_high


def _interval(row: Row | None, scale: Scale, top: float, bottom: float) -> list[Mark]:
    if not (ends := _ends(row)):
        return []
    low, high = (scale.at(end) for end in ends)
    return [Box(low, top, max(high - low, 1.0), bottom - top, Tone.GOOD, 0.18)]


def _median(row: Row | None, scale: Scale, top: float, bottom: float, left: float) -> list[Mark]:
    if row is None or row.inference_ms_median is None:
        return []
    x, text = scale.at(row.inference_ms_median), f"{digits(row.inference_ms_median)} ms"
    anchor: Anchor = "start" if x < left + 60 else "end" if x > PAGE_WIDTH - 80 else "middle"
    line = Stroke([(x, top - 4), (x, bottom)], Tone.GOOD, 1.6, dashed=True)
    return [line, TextLabel(x, top - 8, text, Tone.GOOD, 12, anchor, bold=True)]


def _median_text(row: Row | None, name: str) -> str:
    if row is None or row.inference_ms_median is None:
        return ""
    text = f" {name}: {digits(row.inference_ms_median)} ms."
    return text + (" 95 % interval: {} to {} ms.".format(*map(digits, ends)) if (ends := _ends(row)) else "")


def _beyond_text(times: Sequence[float], edge: float, name: str) -> str:
    beyond = sum(ms > edge for ms in times)
    if not beyond:
        return ""
    verb = "lies" if beyond == 1 else "lie"
    return f" {beyond} {verb} beyond the {name}, shown as triangles: up to {digits(max(times))} ms."


def _edge(ordered: Sequence[float], launches: Sequence[Sequence[float]]) -> float:
    """The largest time drawn to scale: never so low that it cuts into a launch's middle half."""
    low, high = nearest_rank(ordered, 25), nearest_rank(ordered, 75)
    most = max(nearest_rank(launch, 75) for launch in launches)
    return max(high + FAR * max(high - low, high * 0.01), most * 1.05)


# -- samples in order --------------------------------------------------------------------------------------------------------------------


def trace_chart(launches: Launches, warmups: Launches) -> Drawing | None:
    """All times in measuring order: warm-up and timed inferences of each launch. None without samples."""
    timed = [[ns / 1e6 for ns in launch] for launch in launches]
    warm = [[ns / 1e6 for ns in launch] for launch in warmups]
    warm += [[]] * (len(timed) - len(warm))
    every = sorted(ms for launch in timed for ms in launch)
    if not every:
        return None
    edge = _edge(every, [sorted(launch) for launch in timed if launch]) * 1.15
    firsts = [launch[0] for launch in warm if launch]
    if firsts:  # the warm-up is drawn to show how first inferences differ
        edge = max(edge, min(median(firsts) * 1.1, COLD * median_of_sorted(every)))
    left, top, bottom, right = 52.0, 22.0, 172.0, PAGE_WIDTH - 8
    drawn = [*every, *(ms for launch in warm for ms in launch)]
    scale = scale_over([ms for ms in drawn if ms <= edge], bottom, top, log=False)
    marks = axis_left(scale, left, right, LETTERS)
    marks.append(TextLabel(left - 6, top - 8, "ms", Tone.QUIET, LETTERS, "end"))
    width = (right - left) / len(timed)
    for at, (before, after) in enumerate(zip(warm, timed, strict=False)):
        start = left + at * width
        if at:
            marks.append(Stroke([(start, top), (start, bottom)], Tone.GRID, 1.0, dashed=True))
        step = (width - 6) / max(len(before) + len(after) - 1, 1)
        points = [(start + 3 + step * n, ms) for n, ms in enumerate([*before, *after])]
        line = _line(points[: len(before) + 1], scale, edge)
        marks.append(Stroke(line, Tone.SECOND, 1.4, 0.9))
        marks.append(Dots(line[: min(len(before), MAX_POINTS)], Tone.SECOND, 3.2))
        marks.append(Stroke(_line(points[len(before) :], scale, edge), Tone.FIRST, 1.3, 0.9))
        marks += [Wedge(x, top - 2, "up", size=5) for x in _apart([x for x, ms in points if ms > edge])]
        if len(timed) <= 25:
            marks.append(
                TextLabel(start + width / 2, bottom + 15, str(at + 1), Tone.QUIET, LETTERS, "middle")
            )
    marks.append(Stroke([(left, bottom), (right, bottom)], Tone.QUIET))
    name = "launches, each with its inferences in order"
    marks.append(TextLabel((left + right) / 2, bottom + 30, name, Tone.QUIET, LETTERS, "middle"))
    for x, tone, name in ((left + 6, Tone.SECOND, "warm-up"), (left + 76, Tone.FIRST, "timed")):
        marks.append(Dots([(x, top - 12)], tone, 6))
        marks.append(TextLabel(x + 7, top - 8, name, Tone.QUIET, LETTERS))
    text = _trace_text(warm, timed) + _beyond_text(drawn, edge, "upper edge")
    return Drawing(PAGE_WIDTH, bottom + 36, "Every inference in the order in which it ran", text, marks)


def _trace_text(warm: Sequence[Sequence[float]], timed: Sequence[Sequence[float]]) -> str:
    middles = [digits(median(launch)) for launch in timed if launch]
    text = (
        f"{sum(map(len, warm))} warm-up and {sum(map(len, timed))} timed inferences in "
        f"{count(len(timed), 'launch', 'launches')}, with medians of "
        f"{', '.join(middles[:20])}{'' if len(middles) <= 20 else ', …'} ms."
    )
    firsts = [launch[0] for launch in warm if launch]
    return text + (f" The first inference of a launch took {digits(median(firsts))} ms." if firsts else "")


def _line(points: Sequence[Point], scale: Scale, edge: float) -> list[Point]:
    """Points of a line, held below the edge; for too many, the minimum and maximum of each stretch."""

    def time(point: Point) -> float:
        return point[1]

    if len(points) > MAX_POINTS:
        size = -(-2 * len(points) // MAX_POINTS)
        stretches = [points[at : at + size] for at in range(0, len(points), size)]
        ends = [(min(part, key=time), max(part, key=time)) for part in stretches]
        points = [point for pair in ends for point in sorted(pair)]
    return [(x, scale.at(min(ms, edge))) for x, ms in points]


def _apart(places: Sequence[float]) -> list[float]:
    """The positions of triangles, far enough apart to be distinct."""
    matches: list[float] = []
    for x in places:
        if not matches or x - matches[-1] >= 4:
            matches.append(x)
    return matches


# -- the host and the stages -------------------------------------------------------------------------------------------------------------

_HOST: Final[tuple[tuple[str, str, float, Callable[[Sequence[RecordBlock]], float | None]], ...]] = (
    ("something waited for a processor", "%", 10, lambda blocks: _percent(blocks, "stall_ns")),
    ("processor time of the process; 100 % is one core", "%", 100, lambda blocks: _percent(blocks, "cpu_ns")),
    ("times the system took the processor away", "times", 1, lambda blocks: _sum(blocks, "switches")),
)
"""Each panel's name, unit, minimum range, and its value over a stretch of blocks; None: the system does not report it."""


def host_chart(observed: RecordView, began_s: Sequence[float]) -> Drawing | None:
    """The state of the device over the blocks of the launches, which began at `began_s` seconds. None if the device reports nothing."""
    size = -(-sum(len(launch.blocks) for launch in observed.launches) // MAX_BLOCKS) or 1
    stretches: list[tuple[int, float, float, Sequence[RecordBlock]]] = []
    for number, (observed_launch, start) in enumerate(zip(observed.launches, began_s, strict=True), start=1):
        for at in range(0, len(observed_launch.blocks), size):
            blocks = observed_launch.blocks[at : at + size]
            seconds = sum(block.wall_ns for block in blocks) / 1e9
            stretches.append((number, start, seconds, blocks))
            start += seconds
    values = [[value(blocks) for *_, blocks in stretches] for *_, value in _HOST]
    panels = [
        (name, unit, least, heights)
        for (name, unit, least, _), heights in zip(_HOST, values, strict=True)
        if any(heights)
    ]
    if not panels:
        return None
    left, right, deep, step = 44.0, PAGE_WIDTH - 14, 56.0, 84.0
    end = max(start + seconds for _, start, seconds, _ in stretches)
    across = Scale(0.0, end or 1.0, left, right)
    marks: list[Mark] = []
    bottom = 0.0
    for at, (name, unit, least, heights) in enumerate(panels):
        top = 20 + at * step
        bottom = top + deep
        upward = Scale(0.0, max(least, *(value or 0.0 for value in heights)), bottom, top)
        marks.append(TextLabel(4, top - 7, name, Tone.QUIET, LETTERS))
        for tick in (0.0, upward.high):
            y = upward.at(tick)
            marks.append(Stroke([(left, y), (right, y)]))
            marks.append(TextLabel(left - 6, y + 4, digits(tick), Tone.QUIET, LETTERS, "end"))
        for (launch, start, seconds, _), value in zip(stretches, heights, strict=True):
            if value is not None:
                x, y = across.at(start), min(upward.at(value), bottom - 1)
                width = max(across.at(start + seconds) - x - 0.5, 1.0)
                hint = (
                    f"launch {launch}, at {digits(start)} s, for {digits(seconds)} s: {digits(value)} {unit}"
                )
                marks.append(
                    Box(x, y, width, bottom - y, Tone.FIRST if launch % 2 else Tone.SECOND, 0.85, hint)
                )
    marks += axis_below(across, bottom, bottom, "seconds since the first launch's window began", LETTERS)
    text = "; ".join(
        f"{name}: at most {digits(max(value for value in heights if value is not None))} {unit}"
        for name, unit, _, heights in panels
    )
    return Drawing(PAGE_WIDTH, bottom + 36, "State of the device during the launches", text + ".", marks)


def _sum(blocks: Sequence[RecordBlock], field: str) -> int | None:
    numbers = [getattr(block, field) for block in blocks]
    return None if None in numbers else sum(numbers)


def _percent(blocks: Sequence[RecordBlock], field: str) -> float | None:
    part, whole = _sum(blocks, field), sum(block.wall_ns for block in blocks)
    return None if part is None or not whole else 100 * part / whole


def stages_chart(stages: Sequence[tuple[str, float]]) -> Drawing | None:
    """Consecutive stages as bars on one time line, with their seconds. None without stages."""
    total = sum(seconds for _, seconds in stages)
    if not total:
        return None
    left, right, step, top = 120.0, PAGE_WIDTH - 14, 20.0, 4.0
    bottom = top + step * len(stages)
    scale = Scale(0.0, total, left, right)
    marks = axis_below(scale, top, bottom, "seconds", LETTERS)
    start, sentences = 0.0, []
    for at, (name, seconds) in enumerate(stages):
        y = top + step * at
        sentences.append(f"{name}: {digits(seconds)} s")
        marks.append(
            TextLabel(left - 8, y + 14, fit_text(name, LETTERS, left - 12), Tone.INK, LETTERS, "end")
        )
        x = scale.at(start)
        width = max(scale.at(start + seconds) - x, 1.5)
        marks.append(Box(x, y + 4, width, step - 8, Tone.FIRST, 0.85, sentences[-1]))
        start += seconds
    title = f"Where the time went on the device: {digits(total)} s in total"
    return Drawing(PAGE_WIDTH, bottom + 36, title, "; ".join(sentences) + ".", marks)
