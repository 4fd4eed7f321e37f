"""Commands that analyse results: verify, compare, matrix, report, chart. They need no network."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.text import Text

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import RESULTS, AsJson, opened, write_out
from swarm.base.screen import new_console, print_json
from swarm.base.text import count, safe_text

app = typer.Typer()

SOURCE: Final = "A campaign of this home, a task such as c-ab23cd45/3, or a file written with --raw or --csv."
Results = Annotated[
    str,
    typer.Argument(
        help="A campaign of this home, a task such as c-ab23cd45/3, or a file written with --raw.  \\[default: the latest campaign]",
        autocompletion=completion.campaigns,
    ),
]
CsvFile = Annotated[
    str | None, typer.Option(help="Write the table to a CSV file; - for standard output.", metavar="PATH")
]


@app.command(rich_help_panel=RESULTS)
def verify(
    ctx: typer.Context,
    result: Annotated[
        str, typer.Argument(help=SOURCE.replace(" or --csv", ""), autocompletion=completion.campaigns)
    ],
    model: Annotated[
        Path | None, typer.Option(help="Also check that this model was measured.", metavar="FILE")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also check this CSV against the raw samples.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the signatures, hashes and numbers of results.

    Checks the worker's signature and the hashes of task and model, and recomputes each row from the raw samples.

    Exit code 0: verified, 1: not verified, 2: the file cannot be read.
    """
    from results.analysis.verify import check_results
    from scheduler.models.describe import sha256_of
    from scheduler.output.comparisons import read_source, read_text

    source = read_source(result, ctx.obj)
    if source.rows:
        raise CampaignError(
            f"{safe_text(result)} is a CSV: it has no signatures and no raw samples",
            hint="verify the raw results together with the CSV: sark-node verify RAW --csv FILE",
        )
    findings = check_results(
        source.campaign,
        source.whole or source.results,
        text=source.text,
        model_sha256=None if model is None else sha256_of(model),
        table=None if csv is None else read_text(csv),
    )
    if len(source.results) < len(source.whole):  # one task of a campaign was named
        names = {item.row.job_id for item in source.results}
        findings = [finding for finding in findings if finding.task in names]
    wrong = [finding for finding in findings if finding.wrong]
    if as_json:
        print_json({"holds": not wrong, "findings": findings})
    else:
        for finding in findings:
            name = safe_text(finding.task or "the file")
            for error in finding.wrong:
                print(f"{name}: {safe_text(error, 400)}")
            if not finding.signed and not finding.wrong:
                print(f"{name}: not signed by a worker; only the scheduler states it")
        signed = sum(bool(finding.worker) for finding in findings)
        if wrong:
            print(f"not verified: {count(len(wrong), 'finding')} in {count(len(source.results), 'result')}")
        else:
            print(f"verified {count(signed, 'signed result')}: signatures, hashes and all numbers")
    if wrong:
        raise SystemExit(1)


@app.command(rich_help_panel=RESULTS)
def compare(
    ctx: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            help=f"The base. {SOURCE} With --by device, a device's name or id.",
            metavar="A",
            autocompletion=completion.sides,
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            help="What to compare with the base. Leave it out to compare the models of A that took turns (measure.against).",
            metavar="B",
            autocompletion=completion.sides,
        ),
    ] = "",
    by: Annotated[
        Literal["results", "device"],
        typer.Option(help="Compare results, or devices of --of.", metavar="results|device"),
    ] = "results",
    of: Annotated[
        str,
        typer.Option(
            help="With --by device, the results to use.  \\[default: the latest campaign]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    reference: Annotated[
        str,
        typer.Option(
            help="Divide each time by this model's time on the same side, to compare across devices.",
            metavar="MODEL",
            autocompletion=completion.models,
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare two results: which is faster, by how much, and how sure that is.

    Each pair of rows is FASTER, SLOWER, SAME or AMBIGUOUS, with the ratio of the medians and its 95 % interval.
    """
    from scheduler.output.compare_table import compare_lines
    from scheduler.output.comparisons import (
        PairInfo,
        compare_sources,
        compared_in_turns,
        one_device,
        read_source,
    )

    if of and by != "device":
        raise CampaignError("--of requires --by device", hint="name the results as A and B")
    if not b and (by == "device" or reference):
        raise CampaignError("there is no B to compare A with", hint=f"sark-node compare {a} B …")
    if not b:
        info, pairs = compared_in_turns(read_source(a, ctx.obj))
    else:
        if by == "device":
            source = read_source(of, ctx.obj)
            one, other = one_device(source, a), one_device(source, b)
        else:
            one, other = read_source(a, ctx.obj), read_source(b, ctx.obj)
        info, pairs = compare_sources(
            one, other, across_devices=by == "device", reference=reference, seed=seed
        )
    if as_json:
        print_json(info)
    if csv is not None:
        _write_table(csv, list(PairInfo.model_fields), map(dict, info.pairs))
    if as_json or csv is not None:
        return
    if not pairs:
        print("There is nothing to compare: one side has no rows.")
        return
    _print_lines(lambda width: compare_lines(pairs, width))


@app.command(rich_help_panel=RESULTS)
def matrix(
    ctx: typer.Context,
    results: Annotated[
        list[str], typer.Argument(help=f"{SOURCE} Several are combined.", autocompletion=completion.campaigns)
    ],
    base: Annotated[
        str,
        typer.Option(
            help="Add ratios to this device, unit, model or variant.",
            metavar="NAME",
            autocompletion=completion.bases,
        ),
    ] = "",
    prices: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with the price of an hour of each device or chip: currency: EUR, per_hour: {…}.",
            metavar="FILE",
        ),
    ] = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Show models and units by device in one table, with ratios, and throughput per watt and price."""
    from results.analysis.matrix import MatrixCell, read_prices
    from scheduler.output.compare_table import turned_lines
    from scheduler.output.comparisons import matrix_of, merged, read_source
    from scheduler.output.matrix_table import matrix_lines

    rows = [entry.row for entry in merged([read_source(name, ctx.obj) for name in results])]
    try:
        made = matrix_of(rows, base=base, prices=None if prices is None else read_prices(prices))
    except ValueError as exc:
        raise CampaignError(str(exc), hint="write the base as the table without --base shows it") from None
    if as_json:
        print_json(made)
    if csv is not None:
        _write_table(csv, [field.name for field in fields(MatrixCell)], (asdict(cell) for cell in made.cells))
    if not as_json and csv is None:
        _print_lines(
            lambda width: [*matrix_lines(made.cells, base, width), *turned_lines(made.in_turns, width)]
        )


@app.command(rich_help_panel=RESULTS)
def report(
    ctx: typer.Context,
    campaign: Results = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write the report; - for standard output.  \\[default: CAMPAIGN.html]",
            metavar="FILE",
        ),
    ] = None,
    format: Annotated[
        Literal["html", "md"] | None,
        typer.Option(help="Format.  \\[default: from the file's suffix, else html]", metavar="html|md"),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="Compare with these results: a campaign, a task or a file.",
            metavar="CAMPAIGN",
            autocompletion=completion.campaigns,
        ),
    ] = "",
) -> None:
    """Write a report of results as a self-contained HTML file or as Markdown."""
    from scheduler.output.comparisons import read_source
    from scheduler.output.render import ReportFormat, make_report, render

    source = read_source(campaign, ctx.obj)
    other = read_source(against, ctx.obj) if against else None
    stored = None
    if source.text is None:
        with opened(ctx) as store:
            stored = store.campaigns.summary(source.campaign)
    made = make_report(source, stored, time.time(), other)
    suffix = output.suffix.lower() if output else ""
    if format is None and suffix not in ("", ".html", ".htm", ".md", ".markdown"):
        raise CampaignError(
            f"a report is HTML or Markdown, not {safe_text(suffix, 20)}", hint="end the file in .html or .md"
        )
    form = ReportFormat(format or ("md" if suffix in (".md", ".markdown") else "html"))
    path = output or Path(f"{_file_name(source.campaign or source.name)}.{form}")
    write_out(path, [render(made, form)], f"the report of {safe_text(made.title)}")


@app.command(rich_help_panel=RESULTS)
def chart(
    ctx: typer.Context,
    campaign: Results = "",
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="An .svg file, or a .png file with the extra \\[report].", metavar="FILE"
        ),
    ] = Path("chart.svg"),
    kind: Annotated[
        Literal["bars", "distribution", "pareto"],
        typer.Option(
            help="Medians, all samples, or time against another property.", metavar="bars|distribution|pareto"
        ),
    ] = "bars",
    size: Annotated[
        Literal["16:9", "4:3", "1:1"], typer.Option(help="Aspect ratio of the slide.", metavar="16:9|4:3|1:1")
    ] = "16:9",
    axis: Annotated[
        Literal["energy", "memory", "load", "size", "error", "quality"] | None,
        typer.Option(
            help="With --kind pareto: energy, memory, load, size, error or quality.  \\[default: energy if measured, else memory]",
            metavar="TEXT",
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the chart.  \\[default: the campaign's name]")] = "",
    dark: Annotated[bool, typer.Option("--dark", help="Draw for a dark slide.")] = False,
) -> None:
    """Draw a chart of results for a slide."""
    from results.analysis.matrix import Axis
    from results.export.raw import replace_bytes
    from results.report.charts import ChartKind
    from scheduler.output.comparisons import read_source
    from scheduler.output.render import chart as draw_chart
    from scheduler.output.render import picture

    source = read_source(campaign, ctx.obj)
    if source.rows:
        raise CampaignError(
            f"{safe_text(source.name)} is a CSV, which has no samples", hint="name the campaign or a raw file"
        )
    if not title and source.text is None:
        with opened(ctx) as store:
            stored = store.campaigns.get(source.campaign)
        title = stored.name if stored is not None else ""
    title = title or source.campaign or source.name
    drawing = draw_chart(source.results, ChartKind(kind), size, title, Axis(axis) if axis else None)
    data = picture(drawing, output.suffix.lower(), dark=dark)
    replace_bytes(output, lambda out: out.write(data))
    print(f"wrote the chart of {safe_text(drawing.title)} to {output}", file=sys.stderr)


def _file_name(name: str) -> str:
    """A safe file name: campaign ids in a file may be anything."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name)
    return safe.strip(".-")[:80] or "report"


def _print_lines(lines: Callable[[int], Iterable[Text]]) -> None:
    """Print lines made for the terminal's width."""
    console = new_console()
    for line in lines(console.width):
        console.print(line, soft_wrap=True, highlight=False)


def _write_table(path: str, heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    from results.export.csv import csv_cell

    lines = [",".join(csv_cell(row[head]) for head in heads) + "\r\n" for row in rows]
    write_out(path, [",".join(heads) + "\r\n", *lines], count(len(lines), "row"))
