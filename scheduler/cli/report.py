"""What is made of results for others to read: report, chart. No network is needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import PANEL
from swarm.base.home import Home
from swarm.base.text import safe_text

app = typer.Typer()

SOURCE = "A campaign of this home, one task of it, such as c-ab23cd45/3, or a file of --raw.  \\[default: the latest]"
FORMS = "html or md.  \\[default: by the file's ending, else html]"


@app.command(rich_help_panel=PANEL)
def report(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help=SOURCE, autocompletion=completion.campaigns)] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="- for standard output.  \\[default: CAMPAIGN.html]", metavar="FILE"
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help=FORMS, metavar="FORM")] = "",
    against: Annotated[
        str,
        typer.Option(
            help="Results to hold them against: a campaign, a task or a file.",
            metavar="CAMPAIGN",
            autocompletion=completion.campaigns,
        ),
    ] = "",
) -> None:
    """Write a report of results: one HTML file that needs nothing else, or Markdown."""
    from results.export.raw import replace_file
    from scheduler.output.comparisons import read_source
    from scheduler.output.render import ReportFormat, StoredCampaign, find_stored, make_report, render
    from scheduler.store.opening import has_store, open_store

    home: Home = ctx.obj
    wanted = form or {".md": "md", ".markdown": "md"}.get(output.suffix.lower() if output else "", "html")
    if wanted not in tuple(ReportFormat):
        raise CampaignError(
            f"a report is no {safe_text(wanted, 40)}", hint="write --format html or --format md"
        )
    source = read_source(campaign, home)
    other = read_source(against, home) if against else None
    stored = StoredCampaign()
    if source.text is None and has_store(home):
        with open_store(home) as store:
            stored = find_stored(store, source)
    made = make_report(source, stored, time.time(), other)
    text = render(made, ReportFormat(wanted))
    if output is not None and str(output) == "-":
        sys.stdout.write(text)
        return
    path = output or Path(f"{_file_name(source.campaign or source.name)}.{wanted}")
    replace_file(path, lambda out: out.write(text))
    print(f"report of {safe_text(made.title)} in {path}", file=sys.stderr)


@app.command(rich_help_panel=PANEL)
def chart(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help=SOURCE, autocompletion=completion.campaigns)] = "",
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="An .svg, or with the extra \\[report] a .png.", metavar="FILE"),
    ] = Path("chart.svg"),
    kind: Annotated[str, typer.Option(help="bars, distribution or pareto.")] = "bars",
    size: Annotated[str, typer.Option(help="Of the slide: 16:9, 4:3 or 1:1.")] = "16:9",
    against: Annotated[
        str,
        typer.Option(
            help="With --kind pareto: energy, memory, load, size, error or quality.  \\[default: energy where it was measured, else memory]"
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Above it.  \\[default: the campaign's name]")] = "",
    dark: Annotated[bool, typer.Option("--dark", help="For a dark slide.")] = False,
) -> None:
    """Draw results for a slide: medians, all samples, or the time against what it costs."""
    from results.analysis.pareto import Axis
    from results.export.raw import replace_bytes
    from results.report.charts import CHART_AXES, ChartKind
    from scheduler.output.comparisons import read_source
    from scheduler.output.render import SIZES, picture
    from scheduler.output.render import chart as drawn
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    for what, value, known in (
        ("kind", kind, tuple(ChartKind)),
        ("size", size, tuple(SIZES)),
        ("against", against, ("", *CHART_AXES)),
    ):
        if value not in known:
            raise CampaignError(
                f"--{what} {safe_text(value, 40)} is not known",
                hint=f"one of {', '.join(str(word) for word in known if word)}",
            )
    source = read_source(campaign, home)
    if source.rows:
        raise CampaignError(
            f"{safe_text(source.name)} is a CSV, without samples", hint="name the campaign or a raw file"
        )
    if not title and source.text is None:
        with open_store(home) as store:
            stored = store.campaigns.get(source.campaign)
        title = stored.name if stored is not None else ""
    drawing = drawn(
        source.results,
        ChartKind(kind),
        size,
        title or source.campaign or source.name,
        Axis(against) if against else None,
    )
    data = picture(drawing, output.suffix.lower(), dark=dark)
    replace_bytes(output, lambda out: out.write(data))
    print(f"{safe_text(drawing.title)} in {output}", file=sys.stderr)


def _file_name(name: str) -> str:
    """A campaign's id is one by its form; that in a file may be anything."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name)
    return kept.strip(".-")[:80] or "report"
