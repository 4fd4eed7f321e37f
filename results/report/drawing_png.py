"""A drawing as PNG, through matplotlib and the typeface that it brings: the same picture gives the same bytes on any machine."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from results.export.columnar import need
from results.report.drawing import Box, Dots, Drawing, Stroke, TextLabel, Tone, Wedge
from swarm.base.text import safe_text

DPI: Final = 100
_ANCHOR: Final = {"start": "left", "middle": "center", "end": "right"}


def png_bytes(
    drawing: Drawing,
    palette: Mapping[Tone, str],
    *,
    sharp: float = 2.0,
    load: Callable[[str], Any] = import_module,
) -> bytes:
    """`sharp` pixels for each unit of the drawing. Raises `ResourceError` where matplotlib is not installed. Blocking."""
    figures = need("matplotlib.figure", "PNG", load)
    agg = need("matplotlib.backends.backend_agg", "PNG", load)
    figure = figures.Figure(figsize=(drawing.width / DPI, drawing.height / DPI), dpi=DPI * sharp)
    agg.FigureCanvasAgg(figure)
    figure.patch.set_facecolor(palette[Tone.PAPER])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)  # downwards, as in SVG
    for at, mark in enumerate(drawing.marks):
        _draw(axes, mark, palette, at, load)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a letter that its typeface lacks is shown as a box
        figure.savefig(out, format="png", metadata={"Software": None}, facecolor=figure.get_facecolor())
    return out.getvalue()


def _draw(axes: Any, mark: Any, palette: Mapping[Tone, str], at: int, load: Callable[[str], Any]) -> None:
    patches = need("matplotlib.patches", "PNG", load)
    points = 72 / DPI  # matplotlib's widths are points
    colour = palette[mark.tone]
    match mark:
        case Stroke(points=line):
            style = (0, (4, 3)) if mark.dashed else "solid"
            width = mark.width * points
            xs, ys = [x for x, _ in line], [y for _, y in line]
            axes.plot(
                xs,
                ys,
                color=colour,
                lw=width,
                alpha=mark.opacity,
                ls=style,
                zorder=at,
                solid_joinstyle="round",
            )
        case Box():
            box = patches.Rectangle((mark.x, mark.y), mark.width, mark.height)
            box.set(facecolor=colour, linewidth=0, alpha=mark.opacity, zorder=at)
            axes.add_patch(box)
        case Dots(points=spots):
            area = (mark.size * points) ** 2
            xs, ys = [x for x, _ in spots], [y for _, y in spots]
            axes.scatter(xs, ys, s=area, c=colour, alpha=mark.opacity, linewidths=0, zorder=at)
        case Wedge():
            axes.add_patch(patches.Polygon(mark.corners, facecolor=colour, linewidth=0, zorder=at))
        case TextLabel():
            axes.text(
                mark.x,
                mark.y,
                safe_text(mark.text),
                color=colour,
                fontsize=mark.size * points,
                fontfamily="DejaVu Sans",
                fontweight="bold" if mark.bold else "normal",
                ha=_ANCHOR[mark.anchor],
                va="baseline",
                parse_math=False,  # a name with two dollars is no formula
                zorder=at,
            )
