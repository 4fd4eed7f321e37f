"""A sustained run over time: medians of stretches and levels, the rest and its probes; heat, clock and power if known. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.values.record import Record, read_record
from results.export.raw import RawResult
from results.report.charts import PAGE_WIDTH, names_of
from results.report.drawing import (
    Dots,
    Drawing,
    Mark,
    Scale,
    Stroke,
    TextLabel,
    Tone,
    axis_below,
    axis_left,
    digits,
    scale_over,
)
from results.report.facts import Report
from results.report.page import Block, Figures, Heading, Section, quote
from results.row.energy import measured_energy
from results.row.record import observe
from results.row.sustained import Stretch, SustainedPhases, phases, probes_of, stretches_of

MAX_TASKS: Final = 40
HOW: Final = (
    "Each blue dot is the median of a stretch of the run; the green lines are levels that differ by 5 % or more; the red line is the knee: "
    "from there on the device is slower and stays so. Orange dots are a few inferences after a rest."
)
LETTERS: Final = 11.0
LEFT: Final = 52.0
RIGHT: Final = PAGE_WIDTH - 12
TALL: Final = 130.0
LOW: Final = 46.0
STEP: Final = 78.0

_PANELS: Final[tuple[tuple[str, str, Callable[[Stretch], float | None]], ...]] = (
    ("temperature", "°C", lambda one: one.temperature_c),
    ("clock", "MHz", lambda one: one.clock_mhz),
    ("power", "W", lambda one: one.joules / one.wall_s if one.joules is not None and one.wall_s else None),
)
"""Name, unit, and the value of a stretch; None: unknown."""


def sustained_chart(record: Record) -> Drawing | None:
    """The chart; None for a run that was not sustained. Raises `RemoteProtocolError` if the record cannot be read."""
    observed = observe(record)
    energy = measured_energy(record, observed)
    stretches = stretches_of(observed, energy.stretch_j if energy else ())
    seen = phases(stretches, probes_of(observed))
    if seen is None:
        return None
    part = observed.sustained.part if observed.sustained else ""
    source = energy.source if energy else ""
    return _drawing(stretches, seen, {"temperature": part, "clock": part, "power": source})


def sustained_runs(report: Report) -> Section | None:
    """A chart for each sustained task."""
    done = [result for result in report.results if result.row.sustained]
    if not done:
        return None
    names = names_of([result.row for result in done])
    blocks: list[Block] = [HOW]
    for name, result in list(zip(names, done, strict=True))[:MAX_TASKS]:
        drawing = _chart_of(result)
        blocks.append(Heading(quote(name)))
        blocks.append("Its record cannot be read." if drawing is None else Figures([drawing]))
    if (rest := len(done) - MAX_TASKS) > 0:
        blocks.append(f"{rest} more tasks are not shown here: sark-node report CAMPAIGN/TASK shows one.")
    return Section("sustained", "Sustained runs", blocks)


def _chart_of(result: RawResult) -> Drawing | None:
    """The chart; also None if the record cannot be read, since results may come from a file."""
    try:
        return sustained_chart(read_record(base64.b64decode(result.record)))
    except (RemoteProtocolError, ValueError):
        return None


def _drawing(stretches: Sequence[Stretch], seen: SustainedPhases, of: dict[str, str]) -> Drawing:
    end_s = stretches[-1].start_s + stretches[-1].wall_s
    rested = [(end_s + rest_s, ms) for rest_s, ms in seen.probes]
    across = Scale(0.0, max([end_s, *(at for at, _ in rested)]) or 1.0, LEFT, RIGHT)
    top, bottom = 24.0, 24.0 + TALL
    upward = scale_over(
        [*(one.median_ms for one in stretches), *(ms for _, ms in rested)], bottom, top, log=False
    )
    marks = axis_left(upward, LEFT, RIGHT, LETTERS)
    marks.append(TextLabel(LEFT - 6, top - 10, "ms", Tone.QUIET, LETTERS, "end"))
    points = [(across.at(one.start_s + one.wall_s / 2), upward.at(one.median_ms)) for one in stretches]
    marks.append(Dots(points, Tone.FIRST, 3.0, 0.7))
    for level in seen.levels:
        ends = (across.at(level.start_s), across.at(level.end_s))
        marks.append(Stroke([(x, upward.at(level.median_ms)) for x in ends], Tone.GOOD, 1.8))
    if rested:
        where = [(across.at(at), upward.at(ms)) for at, ms in rested]
        marks.append(
            Stroke([(across.at(end_s), top), (across.at(end_s), bottom)], Tone.GRID, 1.0, dashed=True)
        )
        marks.append(Dots(where, Tone.SECOND, 5.0, hint="after a rest"))
        marks.append(TextLabel(RIGHT, top - 10, "after a rest", Tone.SECOND, LETTERS, "end"))
    if seen.knee_s is not None:
        x = across.at(seen.knee_s)
        marks.append(Stroke([(x, top - 4), (x, bottom)], Tone.BAD, 1.4, dashed=True))
        marks.append(TextLabel(x, top - 8, f"knee, {digits(seen.knee_s)} s", Tone.BAD, LETTERS, "middle"))
    sentences = [f"{seen.text().capitalize()}."]
    sentences.append(f"At first {digits(seen.burst.median_ms)} ms" + _each(seen.burst.joules) + ".")
    if seen.steady is not None:
        sentences.append(f"At the end {digits(seen.steady.median_ms)} ms" + _each(seen.steady.joules) + ".")
    for name, unit, value in _PANELS:
        values = [value(one) for one in stretches]
        known = [one for one in values if one is not None]
        if not known:
            continue
        top, bottom = bottom + STEP - LOW, bottom + STEP
        marks += _panel(f"{name} of {of[name]}" if of[name] else name, unit, stretches, values, across, top)
        sentences.append(f"{name.capitalize()}: {digits(min(known))} to {digits(max(known))} {unit}.")
    marks += axis_below(across, bottom, bottom, "seconds since the start", LETTERS)
    title = f"Sustained for {digits(end_s)} s, then at rest"
    return Drawing(PAGE_WIDTH, bottom + 36, title, " ".join(sentences), marks)


def _each(joules: float | None) -> str:
    return "" if joules is None else f" and {digits(joules)} J per inference"


def _panel(
    name: str,
    unit: str,
    stretches: Sequence[Stretch],
    values: Sequence[float | None],
    across: Scale,
    top: float,
) -> list[Mark]:
    """A line over the stretches whose value is known."""
    known = [value for value in values if value is not None]
    scale = scale_over(known, top + LOW, top, log=False)
    marks: list[Mark] = [TextLabel(4, top - 7, f"{name}, {unit}", Tone.QUIET, LETTERS)]
    for tick in (min(known), max(known)):
        y = scale.at(tick)
        marks.append(Stroke([(LEFT, y), (RIGHT, y)]))
        if tick == max(known) or max(known) - min(known) > 0.02 * max(known):
            marks.append(TextLabel(LEFT - 6, y + 4, digits(tick), Tone.QUIET, LETTERS, "end"))
    line = [
        (across.at(one.start_s + one.wall_s / 2), scale.at(value))
        for one, value in zip(stretches, values, strict=True)
        if value is not None
    ]
    marks.append(Stroke(line, Tone.FIRST, 1.4, 0.9))
    return marks
