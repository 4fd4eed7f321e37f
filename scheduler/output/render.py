"""From the store or a file to a report's text and to pictures: what the command line and the HTTP API share. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Final

from protocol.errors import CampaignError
from results.export.raw import RawResult
from results.export.source import ResultEntry, ResultSource, launches_of
from results.report.charts import bars, strips
from results.report.charts_pareto import Quality, pareto
from results.report.charts_parts import Sheet
from results.report.document import make_page
from results.report.drawing import DARK, LIGHT, Drawing, svg
from results.report.drawing_png import png_bytes
from results.report.facts import Report, gather
from results.report.html import html_report
from results.report.markdown import markdown_report
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from swarm.base.text import safe_text


class ReportFormat(StrEnum):
    """How a report is written."""

    HTML = "html"
    MD = "md"


class ChartKind(StrEnum):
    """What a chart shows."""

    BARS = "bars"
    DISTRIBUTION = "distribution"
    PARETO = "pareto"


SIZES: Final[dict[str, tuple[float, float]]] = {
    "16:9": (1280.0, 720.0),
    "4:3": (1024.0, 768.0),
    "1:1": (900.0, 900.0),
}
"""Of a slide, in units; a PNG has two pixels for each."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """What this home's store knows of a campaign beside its results; nothing of a file's."""

    campaign: CampaignRow | None = None
    tasks: int | None = None


def look_up(store: Store, source: ResultSource) -> StoredReport:
    """What is kept of the campaign of `source`."""
    found = store.summary(source.campaign) if source.text is None else None
    if found is None:
        return StoredReport()
    one = len(source.results) < len(source.whole)
    return StoredReport(found.campaign, None if one else found.tasks)


def report_on(
    source: ResultSource, kept: StoredReport, now: float, other: ResultSource | None = None
) -> Report:
    """The facts of `source`. `now`: wall seconds; `other`: what it is held against. Takes a processor for a while.

    Raises `CampaignError` for a CSV, which has no samples.
    """
    if source.rows:
        raise CampaignError(
            f"{safe_text(source.name)} is a CSV: it has no raw samples to draw and nothing to verify",
            hint="name the campaign, or a file of sark-node results --raw",
        )
    stored = kept.campaign
    title = safe_text(stored.name if stored is not None else source.campaign or source.name)
    return gather(
        source.results,
        campaign=source.campaign,
        title=title or "results",
        written=now,
        version=version("sark-node"),
        stored=stored,
        tasks=kept.tasks,
        source=_called(source),
        from_file=source.text is not None,
        checked=source.whole or source.results,
        other=other.entries() if other is not None else (),
        other_name=_called(other) if other is not None else "",
    )


def _called(source: ResultSource) -> str:
    """A file by its name; a campaign by its whole id, a task of it likewise."""
    if source.text is not None or source.rows:
        return source.name
    one = len(source.results) < len(source.whole)
    return source.results[0].row.job_id if one else source.campaign


def render(report: Report, form: ReportFormat) -> str:
    """The whole file."""
    page = make_page(report)
    return html_report(page) if form is ReportFormat.HTML else markdown_report(page)


def chart(
    results: Sequence[RawResult], kind: ChartKind, size: str, title: str, against: Quality | None = None
) -> Drawing:
    """A slide's picture. Raises `CampaignError` where there is nothing to draw."""
    width, height = SIZES[size]
    sheet = Sheet(width, height, height / 36)
    entries = [ResultEntry(result.row, launches_of(result)) for result in results]
    rows = [entry.row for entry in entries]
    drawn = {
        ChartKind.BARS: lambda: bars(rows, sheet, title=title),
        ChartKind.DISTRIBUTION: lambda: strips(entries, sheet, title=title),
        ChartKind.PARETO: lambda: pareto(rows, sheet, title=title, quality=against),
    }[kind]()
    if drawn is None:
        what = {
            ChartKind.BARS: "no task has a median",
            ChartKind.DISTRIBUTION: "no task has samples",
            ChartKind.PARETO: "fewer than two tasks have both figures",
        }[kind]
        raise CampaignError(f"nothing to draw: {what}", hint="see what there is: sark-node results")
    return drawn


def svg_bytes(drawing: Drawing, *, dark: bool = False) -> bytes:
    """A document by itself."""
    return svg(drawing, palette=DARK if dark else LIGHT).encode()


def picture(
    drawing: Drawing, suffix: str, *, dark: bool = False, load: Callable[[str], Any] | None = None
) -> bytes:
    """`.svg` or `.png`. Raises `CampaignError` for another suffix, `ResourceError` where a PNG needs what is not installed."""
    if suffix == ".svg":
        return svg_bytes(drawing, dark=dark)
    if suffix == ".png":
        palette = DARK if dark else LIGHT
        return png_bytes(drawing, palette) if load is None else png_bytes(drawing, palette, load=load)
    raise CampaignError(
        f"a chart is .svg or .png, not {safe_text(suffix, 20) or 'without an ending'}",
        hint="name the file so: -o chart.svg",
    )
