"""Pictures as plain values: lines, boxes, dots and words on a sheet, and the SVG that they make. PNG: `results/report/drawing_png.py`.

A tone is what something means (ink, grid, first series); a palette gives it a colour. Within a page tones are classes, so that the
page's style colours them, by day and by night; a picture by itself carries its colours. Words are made safe here, whoever wrote them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Final, Literal

from swarm.base.text import safe_text

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


class Tone(StrEnum):
    """What a mark means."""

    PAPER = "paper"
    INK = "ink"
    QUIET = "quiet"
    GRID = "grid"
    FIRST = "first"
    SECOND = "second"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"


LIGHT: Final[Mapping[Tone, str]] = {
    Tone.PAPER: "#ffffff",
    Tone.INK: "#1c2330",
    Tone.QUIET: "#5a6475",
    Tone.GRID: "#d9dee7",
    Tone.FIRST: "#2563b8",
    Tone.SECOND: "#b45309",
    Tone.GOOD: "#18794e",
    Tone.BAD: "#c02b2b",
    Tone.WARN: "#946200",
}
DARK: Final[Mapping[Tone, str]] = {
    Tone.PAPER: "#12161d",
    Tone.INK: "#e6eaf1",
    Tone.QUIET: "#a3adbd",
    Tone.GRID: "#303846",
    Tone.FIRST: "#75aeff",
    Tone.SECOND: "#f0a458",
    Tone.GOOD: "#5fce94",
    Tone.BAD: "#ff8080",
    Tone.WARN: "#e6b84a",
}


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through `points`."""

    points: Sequence[Point]
    tone: Tone = Tone.GRID
    width: float = 1.0
    opacity: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone = Tone.FIRST
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Dots:
    """Round spots, `size` across."""

    points: Sequence[Point]
    tone: Tone = Tone.FIRST
    size: float = 4.0
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Wedge:
    """A small triangle: more lies that way."""

    x: float
    y: float
    way: Literal["right", "up"] = "right"
    tone: Tone = Tone.BAD
    size: float = 6.0

    @property
    def corners(self) -> tuple[Point, Point, Point]:
        """Its tip lies at (x, y)."""
        x, y, size = self.x, self.y, self.size
        if self.way == "right":
            return (x, y), (x - size, y - size * 0.7), (x - size, y + size * 0.7)
        return (x, y), (x - size * 0.7, y + size), (x + size * 0.7, y + size)


@dataclass(frozen=True, slots=True)
class TextLabel:
    """Text with its baseline at (x, y)."""

    x: float
    y: float
    text: str
    tone: Tone = Tone.INK
    size: float = 12.0
    anchor: Anchor = "start"
    bold: bool = False


Mark = Stroke | Box | Dots | Wedge | TextLabel


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of `width` × `height` units with its text alternative: `title` in a few words, `told` in sentences."""

    width: float
    height: float
    title: str
    told: str
    marks: Sequence[Mark] = field(default_factory=tuple)


# -- SVG ---------------------------------------------------------------------------------------------------------------------------------


def svg(drawing: Drawing, *, name: str = "picture", palette: Mapping[Tone, str] | None = None) -> str:
    """`drawing` as an `svg` element. `palette` None: its marks have classes (`f-ink`: filled, `s-ink`: drawn) and no colours; else it is a
    document by itself. `name`: for ids, unique in the page.
    """
    size = f'viewBox="0 0 {_number(drawing.width)} {_number(drawing.height)}"'
    whole = ""
    if palette is not None:
        size += f' width="{_number(drawing.width)}" height="{_number(drawing.height)}"'
        whole = _mark(Box(0, 0, drawing.width, drawing.height, Tone.PAPER), palette)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="{name}-t {name}-d" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif">'
        ),
        f'<title id="{name}-t">{_text(drawing.title)}</title>',
        f'<desc id="{name}-d">{_text(drawing.told, 2000)}</desc>',
        whole,
        *(_mark(mark, palette) for mark in drawing.marks),
        "</svg>",
    ]
    return "".join(parts) + ("\n" if palette is not None else "")


def _mark(mark: Mark, palette: Mapping[Tone, str] | None) -> str:
    match mark:
        case Stroke():
            path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in mark.points)
            dashed = ' stroke-dasharray="4 3"' if mark.dashed else ""
            drawn = _drawn(mark.tone, mark.width, mark.opacity, palette)
            return f'<path d="{path}" fill="none"{drawn}{dashed}/>' if mark.points else ""
        case Box():
            place = f'x="{_number(mark.x)}" y="{_number(mark.y)}" width="{_number(mark.width)}" height="{_number(mark.height)}"'
            return f"<rect {place}{_filled(mark.tone, mark.opacity, palette)}/>"
        case Dots():  # strokes without length and with round ends: a tenth of as many circles
            path = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in mark.points)
            drawn = _drawn(mark.tone, mark.size, mark.opacity, palette)
            return f'<path d="{path}" fill="none" stroke-linecap="round"{drawn}/>' if mark.points else ""
        case Wedge():
            path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in mark.corners) + "Z"
            return f'<path d="{path}"{_filled(mark.tone, 1.0, palette)}/>'
        case TextLabel():
            place = f'x="{_number(mark.x)}" y="{_number(mark.y)}" font-size="{_number(mark.size)}"'
            more = (f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else "") + (
                ' font-weight="600"' if mark.bold else ""
            )
            return f"<text {place}{more}{_filled(mark.tone, 1.0, palette)}>{_text(mark.text)}</text>"


def _filled(tone: Tone, opacity: float, palette: Mapping[Tone, str] | None) -> str:
    how = f' class="f-{tone}"' if palette is None else f' fill="{palette[tone]}"'
    return how + (f' fill-opacity="{_number(opacity)}"' if opacity < 1 else "")


def _drawn(tone: Tone, width: float, opacity: float, palette: Mapping[Tone, str] | None) -> str:
    how = f' class="s-{tone}"' if palette is None else f' stroke="{palette[tone]}"'
    return (
        f'{how} stroke-width="{_number(width)}"'
        + (f' stroke-opacity="{_number(opacity)}"' if opacity < 1 else "")
        + ' stroke-linejoin="round"'
    )


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(text: str, limit: int = 300) -> str:
    return escape(safe_text(text, limit))


# -- words ---------------------------------------------------------------------------------------------------------------------------------


def wide(text: str, size: float) -> float:
    """About how wide `text` is: enough to leave room for it, in whatever sans-serif it is shown."""
    return size * sum(1.0 if unicodedata.east_asian_width(char) in "WF" else 0.58 for char in text)


def fit(text: str, size: float, room: float) -> str:
    """`text`, safe, with its end left out where it is wider than `room`."""
    text = safe_text(text)
    if wide(text, size) <= room:
        return text
    while text and wide(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def digits(value: float) -> str:
    """Four digits that mean something, never an exponent: `0.01234`, `12.34`, `1,234`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    behind = 3 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(behind, 0), 9)}f}"


# -- axes ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` on a line from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` lies, held within the line."""
        low, high, told = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, told = math.log(low), math.log(high), math.log(told)
        return self.start + (self.end - self.start) * (told - low) / (high - low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values along it, about so many."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            decades = range(first, last + 1)
            for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
                found = [step * 10.0**power for power in decades for step in steps]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= about + 1:
                    break
            return found if len(found) <= 2 * about else found[:: -(-len(found) // about)]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next((n for n in (1, 2, 5) if (self.high - self.low) / (step * n) <= about), 10)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


WIDE_RANGE: Final = 30.0
"""From the least to the greatest value, above which a logarithmic axis is easier to read."""


def scale_over(
    values: Sequence[float], start: float, end: float, *, zero: bool = False, log: bool | None = None
) -> Scale:
    """A scale with some room around `values`. `log` None: where they reach over a wide range. `zero`: it begins there, if it is linear."""
    told = [value for value in values if value > 0] or [1.0]
    low, high = min(told), max(told)
    if log if log is not None else high / low > WIDE_RANGE:
        room = max((high / low) ** 0.06, 1.02)
        return Scale(low / room, high * room, start, end, log=True)
    if zero:
        return Scale(0.0, high * 1.04, start, end)
    room = max((high - low) * 0.06, high * 0.005)
    return Scale(max(low - room, 0.0), high + room, start, end)


def tick_text(value: float) -> str:
    """A tick's value without needless digits."""
    text = f"{value:,.6f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:,.0f}"
    return text if text not in ("0", "-0") or value == 0 else f"{value:.2g}"
