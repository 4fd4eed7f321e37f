"""Renders reports and charts from the store or a file, for the command line and the HTTP API. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from typing import Final

from protocol.errors import CampaignError
from results.analysis.matrix import Axis
from results.export.raw import RawResult, ResultSource
from results.report.charts import ChartKind, Sheet, bars, pareto, strips
from results.report.document import make_page
from results.report.drawing import Drawing, png_bytes, svg
from results.report.facts import Report
from results.report.html import html_report
from results.report.markdown import markdown_report
from scheduler.store.rows import CampaignSummary
from swarm.base.text import safe_text


class ReportFormat(StrEnum):
    """Format of a report."""

    HTML = "html"
    MD = "md"


SIZES: Final[dict[str, tuple[float, float]]] = {
    "16:9": (1280.0, 720.0),
    "4:3": (1024.0, 768.0),
    "1:1": (900.0, 900.0),
}
"""Sizes of a slide, in units; a PNG has two pixels for each."""


def make_report(
    source: ResultSource, stored: CampaignSummary | None, now: float, other: ResultSource | None = None
) -> Report:
    """The facts of `source`. `stored`: what this home's store knows of its campaign; `now`: wall seconds; `other`: results to compare with.
    Uses a processor for a while.

    Raises `CampaignError` for a CSV, which has no samples.
    """
    if source.rows:
        raise CampaignError(
            f"{safe_text(source.name)} is a CSV: it has no raw samples to draw and nothing to verify",
            hint="name the campaign, or a file of sark-node results --raw",
        )
    title = safe_text(stored.campaign.name if stored else source.campaign or source.name)
    return Report(
        source.results,
        campaign=source.campaign,
        title=title or "results",
        written=now,
        version=version("sark-node"),
        stored=stored.campaign if stored else None,
        all_tasks=stored.tasks if stored and not _is_part(source) else None,
        source=_name(source),
        from_file=source.text is not None,
        checked=source.whole,
        other=other.entries() if other is not None else (),
        other_name=_name(other) if other is not None else "",
    )


def _is_part(source: ResultSource) -> bool:
    """Whether the source is one task of a campaign."""
    return len(source.results) < len(source.whole)


def _name(source: ResultSource) -> str:
    """A file's name, or the whole id of a campaign or task."""
    if source.text is not None or source.rows:
        return source.name
    return source.results[0].row.job_id if _is_part(source) else source.campaign


def render(report: Report, form: ReportFormat) -> str:
    """The whole report as text."""
    page = make_page(report)
    return html_report(page) if form is ReportFormat.HTML else markdown_report(page)


def chart(
    results: Sequence[RawResult], kind: ChartKind, size: str, title: str, axis: Axis | None = None
) -> Drawing:
    """A slide. `size`: one of `SIZES`; `axis`: the second axis of a Pareto chart, beside time. Raises `CampaignError` if there is nothing
    to draw.
    """
    width, height = SIZES[size]
    sheet = Sheet(width, height, height / 36)
    rows = [result.row for result in results]
    match kind:
        case ChartKind.BARS:
            drawing, missing = bars(rows, sheet, title=title), "no task has a median"
        case ChartKind.DISTRIBUTION:
            drawing = strips([result.entry() for result in results], sheet, title=title)
            missing = "no task has samples"
        case ChartKind.PARETO:
            drawing = pareto(rows, sheet, title=title, axis=axis)
            missing = "fewer than two tasks have both figures, or their energies come from several sources"
    if drawing is None:
        raise CampaignError(f"nothing to draw: {missing}", hint="see the results: sark-node results")
    return drawing


def picture(drawing: Drawing, suffix: str, *, dark: bool = False) -> bytes:
    """A `.svg` or `.png` file. Raises `CampaignError` for another suffix, `ResourceError` where PNG support is not installed."""
    if suffix == ".svg":
        return svg(drawing, "dark" if dark else "light").encode()
    if suffix == ".png":
        return png_bytes(drawing, dark=dark)
    raise CampaignError(
        "a chart file needs the suffix .svg or .png" + (f", not {safe_text(suffix, 20)}" if suffix else ""),
        hint="for example: -o chart.svg",
    )
