"""Pictures of one task, from its raw samples: how they are distributed, launch by launch, and how they came, warm-up first. Pure.

Nothing is dropped: what lies so far out that the rest would shrink to a line is drawn as a triangle at the edge, counted and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
    digits,
    scale_over,
    tick_text,
)
from results.row.row import Row
from results.row.stats import median, middle
from swarm.base.text import count

WIDTH: Final = 400.0
SPOTS: Final = 150
"""Dots of a launch; of more samples, so many at even ranks, the least and the greatest among them."""
POINTS: Final = 240
"""Corners of a launch's line; of more samples, the least and the greatest of each stretch."""
FAR: Final = 6.0
"""Beyond so many widths of the middle half above it a sample is drawn at the edge."""
COLD: Final = 4.0
"""Times the median up to which first inferences are drawn to scale."""
_GOLDEN: Final = 0.618034

Launches = Sequence[Sequence[int]]


def distribution_of(row: Row, launches: Launches) -> Drawing | None:
    """A strip of dots for each launch, its middle half and median, and the interval of the whole. None without samples."""
    told = [[ns / 1e6 for ns in sorted(launch)] for launch in launches if launch]
    if not told:
        return None
    every = sorted(ms for launch in told for ms in launch)
    edge = _edge(every, told)
    high = min(every[-1], edge)
    deep = max(min(200.0 / len(told), 24.0), 5.0)
    left, top = 44.0, 22.0
    bottom = top + deep * len(told)
    drawn = [
        every[0],
        high,
        *(value for value in (_low(row), _high(row)) if value is not None and value <= edge),
    ]
    scale = scale_over(drawn, left, WIDTH - 14, log=False)
    marks: list[Mark] = [*_below(scale, top, bottom, bottom, "ms for one inference")]
    if (low := _low(row)) is not None and (up := _high(row)) is not None:
        marks.append(
            Box(scale.at(low), top, max(scale.at(up) - scale.at(low), 1.0), bottom - top, Tone.GOOD, 0.18)
        )
    for number, launch in enumerate(told, start=1):
        y = top + deep * (number - 0.5)
        shown = _even(launch)
        near = [ms for ms in shown if ms <= edge]
        spots = [(scale.at(ms), y + ((at * _GOLDEN) % 1 - 0.5) * deep * 0.62) for at, ms in enumerate(near)]
        ends = [scale.at(_rank(launch, percent)) for percent in (25, 75)]
        marks.append(
            Box(ends[0], y - deep * 0.36, max(ends[1] - ends[0], 0.5), deep * 0.72, Tone.FIRST, 0.16)
        )
        marks.append(Dots(spots, Tone.FIRST, min(deep * 0.26, 4.5), 0.55))
        x = scale.at(middle(launch))
        marks.append(Stroke([(x, y - deep * 0.42), (x, y + deep * 0.42)], Tone.FIRST, 2.2))
        if launch[-1] > edge:
            marks.append(Wedge(WIDTH - 6, y, "right"))
        if deep >= 9 or number % 5 == 1:
            marks.append(TextLabel(left - 8, y + 4, str(number), Tone.QUIET, 11, "end"))
    if row.inference_ms_median is not None:
        x = scale.at(row.inference_ms_median)
        marks.append(Stroke([(x, top - 4), (x, bottom)], Tone.GOOD, 1.6, dashed=True))
        anchor: Anchor = "start" if x < left + 60 else "end" if x > WIDTH - 80 else "middle"
        marks.append(
            TextLabel(x, top - 8, f"{digits(row.inference_ms_median)} ms", Tone.GOOD, 12, anchor, bold=True)
        )
    marks.append(TextLabel(left - 8, top - 8, "launch", Tone.QUIET, 11, "end"))
    return Drawing(
        WIDTH, bottom + 36, "Distribution of the timed inferences", _told_distribution(row, told, edge), marks
    )


def _told_distribution(row: Row, launches: Sequence[Sequence[float]], edge: float) -> str:
    every = sorted(ms for launch in launches for ms in launch)
    parts = [
        (
            f"{count(len(every), 'sample')} in {count(len(launches), 'launch', 'launches')}, "
            f"from {digits(every[0])} to {digits(every[-1])} ms; "
            f"the middle half of all lies between {digits(_rank(every, 25))} and {digits(_rank(every, 75))} ms."
        )
    ]
    if row.inference_ms_median is not None:
        parts.append(f"Median of the launches' medians: {digits(row.inference_ms_median)} ms.")
    if (low := _low(row)) is not None and (high := _high(row)) is not None:
        parts.append(f"95 % interval: {digits(low)} to {digits(high)} ms.")
    if beyond := sum(ms > edge for ms in every):
        parts.append(
            f"{beyond} {'lies' if beyond == 1 else 'lie'} beyond the right edge, shown as triangles: up to {digits(every[-1])} ms."
        )
    if any(len(launch) > SPOTS for launch in launches):
        parts.append(f"Of each launch {SPOTS} samples at even ranks are drawn.")
    return " ".join(parts)


def trace_of(row: Row, launches: Launches, warmups: Launches) -> Drawing | None:
    """All times in the order in which they came: warm-up and timed inferences of each launch. None without samples."""
    timed = [[ns / 1e6 for ns in launch] for launch in launches]
    warm = [[ns / 1e6 for ns in launch] for launch in warmups]
    warm += [[]] * (len(timed) - len(warm))
    every = sorted(ms for launch in timed for ms in launch)
    if not every:
        return None
    edge = _edge(every, [sorted(launch) for launch in timed if launch]) * 1.15
    firsts = [launch[0] for launch in warm if launch]
    if firsts:  # how the first differ is what a warm-up is drawn for
        edge = max(edge, min(median(firsts) * 1.1, COLD * middle(every)))
    highest = max([every[-1], *(ms for launch in warm for ms in launch)])
    left, top, bottom, right = 52.0, 22.0, 172.0, WIDTH - 8
    shown = [ms for ms in (*every, *(ms for launch in warm for ms in launch)) if ms <= edge]
    scale = scale_over(shown, bottom, top, log=False)
    marks: list[Mark] = []
    for value in scale.ticks(4):
        y = scale.at(value)
        marks.append(Stroke([(left, y), (right, y)]))
        marks.append(TextLabel(left - 6, y + 4, tick_text(value), Tone.QUIET, 11, "end"))
    marks.append(TextLabel(left - 6, top - 8, "ms", Tone.QUIET, 11, "end"))
    room = (right - left) / len(timed)
    beyond = 0
    for at, (before, after) in enumerate(zip(warm, timed, strict=False)):
        start, count = left + at * room, len(before) + len(after)
        if at:
            marks.append(Stroke([(start, top), (start, bottom)], Tone.GRID, 1.0, dashed=True))
        step = (room - 6) / max(count - 1, 1)
        warmed = [(start + 3 + step * n, ms) for n, ms in enumerate(before)]
        timings = [(start + 3 + step * (len(before) + n), ms) for n, ms in enumerate(after)]
        line = _line([*warmed, *timings[:1]], scale, edge)
        marks.append(Stroke(line, Tone.SECOND, 1.4, 0.9))
        marks.append(Dots(line[: min(len(before), POINTS)], Tone.SECOND, 3.2))
        marks.append(Stroke(_line(timings, scale, edge), Tone.FIRST, 1.3, 0.9))
        over = [x for x, ms in (*warmed, *timings) if ms > edge]
        beyond += len(over)
        marks += [Wedge(x, top - 2, "up", size=5) for x in _thin(over)]
        if len(timed) <= 25:
            marks.append(TextLabel(start + room / 2, bottom + 15, str(at + 1), Tone.QUIET, 11, "middle"))
    marks.append(Stroke([(left, bottom), (right, bottom)], Tone.QUIET))
    marks.append(
        TextLabel(
            (left + right) / 2,
            bottom + 30,
            "launch, and in it one inference after the other",
            Tone.QUIET,
            11,
            "middle",
        )
    )
    marks.append(Dots([(left + 6, top - 12)], Tone.SECOND, 6))
    marks.append(TextLabel(left + 13, top - 8, "warm-up", Tone.QUIET, 11))
    marks.append(Dots([(left + 76, top - 12)], Tone.FIRST, 6))
    marks.append(TextLabel(left + 83, top - 8, "timed", Tone.QUIET, 11))
    told = _told_trace(warm, timed)
    if beyond:
        told += f" {beyond} {'lies' if beyond == 1 else 'lie'} above the upper edge, shown as triangles: up to {digits(highest)} ms."
    return Drawing(WIDTH, bottom + 36, "Every inference in the order in which it came", told, marks)


def _told_trace(warm: Launches | Sequence[Sequence[float]], timed: Sequence[Sequence[float]]) -> str:
    middles = [median(launch) for launch in timed if launch]
    told = (
        f"{sum(map(len, warm))} warm-up and {sum(map(len, timed))} timed inferences in "
        f"{count(len(timed), 'launch', 'launches')}, whose medians are "
    )
    listed = ", ".join(digits(value) for value in middles[:20]) + ("" if len(middles) <= 20 else ", …")
    told += f"{listed} ms."
    firsts = [launch[0] for launch in warm if launch]
    return told + (f" The first inference of a launch took {digits(median(firsts))} ms." if firsts else "")


# -- the parts ---------------------------------------------------------------------------------------------------------------------------


def _edge(ordered: Sequence[float], launches: Sequence[Sequence[float]]) -> float:
    """Up to which times are drawn to scale: never less than what a launch has for its middle half."""
    low, high = _rank(ordered, 25), _rank(ordered, 75)
    most = max(_rank(launch, 75) for launch in launches)
    return max(high + FAR * max(high - low, high * 0.01), most * 1.05)


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def _even(ordered: Sequence[float]) -> list[float]:
    if len(ordered) <= SPOTS:
        return list(ordered)
    last = len(ordered) - 1
    return [ordered[round(at * last / (SPOTS - 1))] for at in range(SPOTS)]


def _line(found: Sequence[Point], scale: Scale, edge: float) -> list[Point]:
    """Corners of a line, held below the edge; of too many, the least and the greatest of each stretch."""
    if len(found) > POINTS:
        size = -(-2 * len(found) // POINTS)
        stretches = [found[at : at + size] for at in range(0, len(found), size)]
        ends = [(min(part, key=_time), max(part, key=_time)) for part in stretches]
        found = [point for pair in ends for point in sorted(pair)]
    return [(x, scale.at(min(ms, edge))) for x, ms in found]


def _time(point: Point) -> float:
    return point[1]


def _thin(places: Sequence[float]) -> list[float]:
    """So many triangles that they can be told apart."""
    found: list[float] = []
    for x in places:
        if not found or x - found[-1] >= 4:
            found.append(x)
    return found


def _below(scale: Scale, top: float, bottom: float, base: float, name: str) -> list[Mark]:
    """Grid, ticks and name of a level axis below `base`."""
    marks: list[Mark] = []
    for value in scale.ticks(5):
        x = scale.at(value)
        marks.append(Stroke([(x, top), (x, bottom)]))
        marks.append(TextLabel(x, base + 15, tick_text(value), Tone.QUIET, 11, "middle"))
    marks.append(Stroke([(scale.start, bottom), (scale.end, bottom)], Tone.QUIET))
    marks.append(TextLabel((scale.start + scale.end) / 2, base + 30, name, Tone.QUIET, 11, "middle"))
    return marks


def _low(row: Row) -> float | None:
    return row.inference_ms_median_low


def _high(row: Row) -> float | None:
    return row.inference_ms_median_high
