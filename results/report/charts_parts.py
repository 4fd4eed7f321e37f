"""What pictures of several tasks share: how large a sheet is, what its rows are called, where they lie. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from results.report.drawing import Box, Mark, Scale, Stroke, TextLabel, Tone, fit, tick_text, wide
from results.row.row import Row, RowStatus
from results.row.simulated import marked
from swarm.base.text import count, safe_text

PAGE: Final = 400.0
"""Width of a picture in a page, in its units."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """How large a picture is. `height` None: as its rows need it, in a page, without a title of its own."""

    width: float = PAGE
    height: float | None = None
    type: float = 12.0
    """Size of its letters."""

    @property
    def slide(self) -> bool:
        """Whether it stands by itself."""
        return self.height is not None


def complete(rows: Sequence[Row]) -> list[Row]:
    """Those with a median."""
    return [row for row in rows if row.status is RowStatus.COMPLETE and row.inference_ms_median is not None]


def names_of(rows: Sequence[Row], *, model: bool = True) -> list[str]:
    """What tells each of `rows` from the others: of model, device, unit, threads and batch those in which they differ; the task if none do.
    A simulation is marked.

    `model`: it is named, even if there is one only.
    """
    parts: list[Callable[[Row], str]] = []
    if model:
        parts.append(lambda row: row.file_name)
    for differ, part in (
        ({row.device_name for row in rows}, lambda row: row.device_name or "no device"),
        ({row.compute_units for row in rows}, lambda row: row.compute_units),
        (
            {row.threads for row in rows},
            lambda row: "" if row.threads is None else count(row.threads, "thread"),
        ),
        ({row.batch for row in rows}, lambda row: "" if row.batch is None else f"batch {row.batch}"),
    ):
        if len(differ) > 1:
            parts.append(part)
    if not parts:
        parts = [lambda row: row.device_name or "no device"]
    names = [
        marked(" · ".join(filter(None, (safe_text(part(row), 80) for part in parts))), row.simulated)
        for row in rows
    ]
    return [
        f"{name} · task {row.job_id.rpartition('/')[2]}" if names.count(name) > 1 else name
        for name, row in zip(names, rows, strict=True)
    ]


# -- rows on a sheet ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """Where rows lie: from `left` to `right`, each `deep`, its middle at `ys`; names and title are drawn."""

    left: float
    right: float
    top: float
    bottom: float
    deep: float
    ys: Sequence[float]
    marks: list[Mark]
    height: float


def frame_for(
    sheet: Sheet, title: str, names: Sequence[str], deep: float, left_out: int, end: float
) -> ChartFrame:
    """`deep`: what a row needs, in letters. `end`: room right of the rows. `left_out`: rows that the slide has no room for."""
    size = sheet.type
    marks: list[Mark] = []
    if sheet.height is None:
        step = size * (1.5 + deep)
        top = 4.0
        ys = []
        for at, name in enumerate(names):
            y = top + step * at
            back = min(wide(name, size), sheet.width) + 4  # the grid does not go through the name
            marks.append(Box(2, y, back, size * 1.45, Tone.PAPER))
            marks.append(TextLabel(4, y + size * 1.1, fit(name, size, sheet.width - 8), Tone.INK, size))
            ys.append(y + size * (1.45 + deep / 2))
        bottom = top + step * len(names) + 2
        return ChartFrame(8, sheet.width - 14 - end, top, bottom, size * deep, ys, marks, bottom + size * 3)
    margin = size * 1.6
    marks.append(
        TextLabel(
            margin,
            margin + size,
            fit(title, size * 1.5, sheet.width - 2 * margin),
            Tone.INK,
            size * 1.5,
            bold=True,
        )
    )
    lines = [_lines(name, size, sheet.width * 0.36) for name in names]
    if any(len(both) > 1 for both in lines):
        lines = [_lines(name, size, 0) for name in names]
    room = min(max(wide(line, size) for both in lines for line in both), sheet.width * 0.36)
    left, top, bottom = margin + room + size, margin + size * 3, sheet.height - size * 4.4
    step = min((bottom - top) / len(names), size * 7)
    if step < size * 2.4:  # no room for two lines
        lines = [(name,) for name in names]
    ys = [top + step * (at + 0.5) for at in range(len(names))]
    for both, y in zip(lines, ys, strict=True):
        for at, line in enumerate(both):
            base = y + size * (0.35 if len(both) == 1 else -0.2 + 1.15 * at)
            text = fit(line, size, room + 4)
            marks.append(
                TextLabel(left - size * 0.8, base, text, Tone.QUIET if at else Tone.INK, size, "end")
            )
    if left_out:
        told = f"and {left_out} more, which have no room here"
        marks.append(TextLabel(margin, sheet.height - size * 0.9, told, Tone.QUIET, size * 0.8))
    bottom = top + step * len(names)
    return ChartFrame(
        left, sheet.width - margin - end, top, bottom, min(step * 0.56, size * 3), ys, marks, sheet.height
    )


def _lines(name: str, size: float, room: float) -> tuple[str, ...]:
    """One line, or two where it is too long: what comes first, and the rest."""
    first, _, rest = name.partition(" · ")
    return (first, rest) if rest and wide(name, size) > room else (name,)


def fitting(sheet: Sheet, count: int) -> int:
    """Rows that a sheet has room for."""
    if sheet.height is None:
        return count
    return max(min(count, int((sheet.height - sheet.type * 9) / (sheet.type * 1.4))), 1)


def axis(frame: ChartFrame, scale: Scale, size: float, name: str) -> list[Mark]:
    small = size * 0.92
    marks: list[Mark] = []
    for value in scale.ticks(5):
        x = scale.at(value)
        marks.append(Stroke([(x, frame.top), (x, frame.bottom)]))
        marks.append(TextLabel(x, frame.bottom + small * 1.3, tick_text(value), Tone.QUIET, small, "middle"))
    name += ", logarithmic" if scale.log else ""
    middle = (frame.left + frame.right) / 2
    marks.append(TextLabel(middle, frame.bottom + small * 2.6, name, Tone.QUIET, small, "middle"))
    return marks
