"""A chart as plain values (lines, boxes, dots, text) and as SVG or PNG.

A tone is the meaning of a mark (ink, grid, first series); a theme gives it a colour. All text is made safe here, whatever its source.
"""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any, Final, Literal

from results.export.columnar import import_extra
from swarm.base.text import safe_text

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
Theme = Literal["page", "light", "dark"]
"""`page`: CSS classes instead of colours, for a page with a style sheet; otherwise a standalone document."""


class Tone(StrEnum):
    PAPER = "paper"
    INK = "ink"
    QUIET = "quiet"
    GRID = "grid"
    FIRST = "first"
    SECOND = "second"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"


_COLOURS: Final = {
    Tone.PAPER: ("#ffffff", "#12161d"),
    Tone.INK: ("#1c2330", "#e6eaf1"),
    Tone.QUIET: ("#5a6475", "#a3adbd"),
    Tone.GRID: ("#d9dee7", "#303846"),
    Tone.FIRST: ("#2563b8", "#75aeff"),
    Tone.SECOND: ("#b45309", "#f0a458"),
    Tone.GOOD: ("#18794e", "#5fce94"),
    Tone.BAD: ("#c02b2b", "#ff8080"),
    Tone.WARN: ("#946200", "#e6b84a"),
}
LIGHT, DARK = ({tone: pair[at] for tone, pair in _COLOURS.items()} for at in (0, 1))
_PALETTES: Final = {"light": LIGHT, "dark": DARK}


@dataclass(frozen=True, slots=True)
class Stroke:
    points: Sequence[Point]
    tone: Tone = Tone.GRID
    width: float = 1.0
    opacity: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle. `hint`: what it stands for, shown on hover."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone = Tone.FIRST
    opacity: float = 1.0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Dots:
    """Dots with diameter `size`. `hint`: what they stand for, shown on hover."""

    points: Sequence[Point]
    tone: Tone = Tone.FIRST
    size: float = 4.0
    opacity: float = 1.0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Wedge:
    """A small triangle with its tip at (x, y): more samples lie in that direction."""

    x: float
    y: float
    direction: Literal["right", "up"] = "right"
    tone: Tone = Tone.BAD
    size: float = 6.0

    @property
    def corners(self) -> tuple[Point, Point, Point]:
        x, y, size = self.x, self.y, self.size
        if self.direction == "right":
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
    """A chart of `width` × `height` units with its text alternative: `title` in a few words, `description` in sentences."""

    width: float
    height: float
    title: str
    description: str
    marks: Sequence[Mark] = field(default_factory=tuple)


# -- SVG ---------------------------------------------------------------------------------------------------------------------------------


def svg(drawing: Drawing, theme: Theme = "page", *, name: str = "chart") -> str:
    """`drawing` as an `svg` element. With `theme` "page", marks have the classes `f-TONE` (filled) and `s-TONE` (stroked); otherwise the
    result is a standalone document. `name`: prefix of its ids, unique in the page.
    """
    palette = _PALETTES.get(theme)
    size = f'viewBox="0 0 {_number(drawing.width)} {_number(drawing.height)}"'
    background = ""
    if palette is not None:
        size += f' width="{_number(drawing.width)}" height="{_number(drawing.height)}"'
        background = _mark(Box(0, 0, drawing.width, drawing.height, Tone.PAPER), palette)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="{name}-t {name}-d" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif">'
        f'<title id="{name}-t">{_text(drawing.title)}</title>'
        f'<desc id="{name}-d">{_text(drawing.description, 2000)}</desc>'
        f"{background}{''.join(_mark(mark, palette) for mark in drawing.marks)}</svg>"
        + "\n"
        * (palette is not None)
    )


def _mark(mark: Mark, palette: Mapping[Tone, str] | None) -> str:
    match mark:
        case Stroke(points=points):
            dashed = ' stroke-dasharray="4 3"' if mark.dashed else ""
            stroke = _stroke(mark.tone, mark.width, mark.opacity, palette)
            return f'<path d="{_path(points)}" fill="none"{stroke}{dashed}/>' if points else ""
        case Box():
            corner = f'x="{_number(mark.x)}" y="{_number(mark.y)}"'
            size = f'width="{_number(mark.width)}" height="{_number(mark.height)}"'
            return _element("rect", f"{corner} {size}{_fill(mark.tone, mark.opacity, palette)}", mark.hint)
        case Dots(points=points):  # zero-length strokes with round ends: a tenth of the size of circles
            path = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in points)
            stroke = _stroke(mark.tone, mark.size, mark.opacity, palette)
            attributes = f'd="{path}" fill="none" stroke-linecap="round"{stroke}'
            return _element("path", attributes, mark.hint) if points else ""
        case Wedge():
            return f'<path d="{_path(mark.corners)}Z"{_fill(mark.tone, 1.0, palette)}/>'
        case TextLabel():
            corner = f'x="{_number(mark.x)}" y="{_number(mark.y)}" font-size="{_number(mark.size)}"'
            anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else ""
            bold = ' font-weight="600"' if mark.bold else ""
            return f"<text {corner}{anchor}{bold}{_fill(mark.tone, 1.0, palette)}>{_text(mark.text)}</text>"


def _element(tag: str, attributes: str, hint: str) -> str:
    return f"<{tag} {attributes}><title>{_text(hint)}</title></{tag}>" if hint else f"<{tag} {attributes}/>"


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _fill(tone: Tone, opacity: float, palette: Mapping[Tone, str] | None) -> str:
    colour = f' class="f-{tone}"' if palette is None else f' fill="{palette[tone]}"'
    return colour + (f' fill-opacity="{_number(opacity)}"' if opacity < 1 else "")


def _stroke(tone: Tone, width: float, opacity: float, palette: Mapping[Tone, str] | None) -> str:
    colour = f' class="s-{tone}"' if palette is None else f' stroke="{palette[tone]}"'
    faint = f' stroke-opacity="{_number(opacity)}"' if opacity < 1 else ""
    return f'{colour} stroke-width="{_number(width)}"{faint} stroke-linejoin="round"'


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(text: str, limit: int = 300) -> str:
    return escape(safe_text(text, limit))


# -- PNG ---------------------------------------------------------------------------------------------------------------------------------

DPI: Final = 100
SHARPNESS: Final = 2.0
"""Pixels of a PNG per unit of the drawing."""
_ALIGNMENT: Final = {"start": "left", "middle": "center", "end": "right"}


def png_bytes(drawing: Drawing, *, dark: bool = False) -> bytes:
    """Render `drawing` with matplotlib and its bundled typeface: the same drawing gives the same bytes on any machine.

    Raises `ResourceError` if matplotlib is not installed. Blocking.
    """
    palette = DARK if dark else LIGHT
    figures = import_extra("matplotlib.figure", "PNG")
    figure = figures.Figure(figsize=(drawing.width / DPI, drawing.height / DPI), dpi=DPI * SHARPNESS)
    import_extra("matplotlib.backends.backend_agg", "PNG").FigureCanvasAgg(figure)
    patches = import_extra("matplotlib.patches", "PNG")
    figure.patch.set_facecolor(palette[Tone.PAPER])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)  # downwards, as in SVG
    for order, mark in enumerate(drawing.marks):
        _plot(axes, patches, mark, palette[mark.tone], order)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a character that the typeface lacks is shown as a box
        figure.savefig(out, format="png", metadata={"Software": None}, facecolor=figure.get_facecolor())
    return out.getvalue()


def _plot(axes: Any, patches: Any, mark: Mark, colour: str, order: int) -> None:
    points = 72 / DPI  # matplotlib's widths are points
    match mark:
        case Stroke():
            look = {"lw": mark.width * points, "ls": (0, (4, 3)) if mark.dashed else "solid"}
            xs, ys = [x for x, _ in mark.points], [y for _, y in mark.points]
            axes.plot(xs, ys, color=colour, alpha=mark.opacity, zorder=order, solid_joinstyle="round", **look)
        case Box():
            box = patches.Rectangle((mark.x, mark.y), mark.width, mark.height)
            box.set(facecolor=colour, linewidth=0, alpha=mark.opacity, zorder=order)
            axes.add_patch(box)
        case Dots():
            area = (mark.size * points) ** 2
            xs, ys = [x for x, _ in mark.points], [y for _, y in mark.points]
            axes.scatter(xs, ys, s=area, c=colour, alpha=mark.opacity, linewidths=0, zorder=order)
        case Wedge():
            axes.add_patch(patches.Polygon(mark.corners, facecolor=colour, linewidth=0, zorder=order))
        case TextLabel():
            axes.text(
                mark.x,
                mark.y,
                safe_text(mark.text),
                color=colour,
                fontsize=mark.size * points,
                fontfamily="DejaVu Sans",
                fontweight="bold" if mark.bold else "normal",
                ha=_ALIGNMENT[mark.anchor],
                va="baseline",
                parse_math=False,  # a name with two dollar signs is not a formula
                zorder=order,
            )


# -- text --------------------------------------------------------------------------------------------------------------------------------


def text_width(text: str, size: float) -> float:
    """The approximate width of `text`: enough to reserve space for it in any sans-serif font."""
    return size * sum(1.0 if unicodedata.east_asian_width(char) in "WF" else 0.58 for char in text)


def fit_text(text: str, size: float, width: float) -> str:
    """`text`, made safe, and truncated if it is wider than `width`."""
    text = safe_text(text)
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def digits(value: float) -> str:
    """Four significant digits, never an exponent: `0.01234`, `12.34`, `1,234`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    behind = 3 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(behind, 0), 9)}f}"


def tick_text(value: float) -> str:
    """A tick's value without superfluous digits."""
    text = f"{value:,.6f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:,.0f}"
    return text if text not in ("0", "-0") or value == 0 else f"{value:.2g}"


# -- axes --------------------------------------------------------------------------------------------------------------------------------

WIDE_RANGE: Final = 30.0
"""Ratio of the largest to the smallest value above which a logarithmic axis is easier to read."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` on a line from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The position of `value`, clamped to the line."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, about: int = 5) -> list[float]:
        """About `about` round values along the scale."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values: list[float] = []
            for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
                values = [step * 10.0**power for power in decades for step in steps]
                values = [value for value in values if self.low <= value <= self.high]
                if len(values) <= about + 1:
                    break
            return values if len(values) <= 2 * about else values[:: -(-len(values) // about)]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next((n for n in (1, 2, 5) if (self.high - self.low) / (step * n) <= about), 10)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def scale_over(
    values: Sequence[float], start: float, end: float, *, zero: bool = False, log: bool | None = None
) -> Scale:
    """A scale with some margin around `values`. `log` None: logarithmic if they span a wide range. `zero`: a linear scale starts at
    zero.
    """
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    if log if log is not None else high / low > WIDE_RANGE:
        margin = max((high / low) ** 0.06, 1.02)
        return Scale(low / margin, high * margin, start, end, log=True)
    if zero:
        return Scale(0.0, high * 1.04, start, end)
    margin = max((high - low) * 0.06, high * 0.005)
    return Scale(max(low - margin, 0.0), high + margin, start, end)


def axis_below(scale: Scale, top: float, bottom: float, name: str, size: float) -> list[Mark]:
    """Grid, ticks and name of a horizontal axis below `bottom`; `size`: font size."""
    marks: list[Mark] = []
    for value in scale.ticks(5):
        x = scale.at(value)
        marks.append(Stroke([(x, top), (x, bottom)]))
        marks.append(TextLabel(x, bottom + size * 1.3, tick_text(value), Tone.QUIET, size, "middle"))
    name += ", logarithmic" if scale.log else ""
    marks.append(
        TextLabel((scale.start + scale.end) / 2, bottom + size * 2.6, name, Tone.QUIET, size, "middle")
    )
    return marks


def axis_left(scale: Scale, left: float, right: float, size: float) -> list[Mark]:
    """Grid and ticks of a vertical axis left of `left`."""
    marks: list[Mark] = []
    for value in scale.ticks(4):
        y = scale.at(value)
        marks.append(Stroke([(left, y), (right, y)]))
        marks.append(TextLabel(left - size * 0.5, y + size * 0.35, tick_text(value), Tone.QUIET, size, "end"))
    return marks
