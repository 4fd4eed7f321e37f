"""What is done with results that are there: verify, compare, matrix. No network is needed."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import JSON, PANEL, new_console, print_json
from swarm.base.home import Home
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from results.analysis.matrix import MatrixCell
    from results.row.row import Row

app = typer.Typer()

SOURCE = (
    "A file of results (--raw or --csv), a campaign of this home, or one task of it, such as c-ab23cd45/3."
)
CSV = typer.Option(help="Write the table there; - for standard output.", metavar="PATH")


@app.command(rich_help_panel=PANEL)
def verify(
    ctx: typer.Context,
    result: Annotated[
        str,
        typer.Argument(
            help=SOURCE.replace("(--raw or --csv)", "(--raw)"), autocompletion=completion.campaigns
        ),
    ],
    model: Annotated[
        Path | None, typer.Option(help="The model that it is said to be measured with.", metavar="FILE")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="A CSV to hold against the raw samples.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check results: the worker's signature, task and model by their hashes, and each row made again from the raw samples.

    Exit code 0: all holds, 1: something does not, 2: the file cannot be read.
    """
    from results.analysis.verify import check_results, finding_info
    from scheduler.models.describe import sha256_of
    from scheduler.output.comparisons import read_source, read_text

    source = read_source(result, ctx.obj)
    if source.rows:
        raise CampaignError(
            f"{safe_text(result)} is a CSV: it has no signatures and no raw samples",
            hint="verify the raw results, and hold the CSV against them: sark-node verify RAW --csv FILE",
        )
    findings = check_results(
        source.campaign,
        source.whole or source.results,
        text=source.text,
        model_sha256=None if model is None else sha256_of(model),
        table=None if csv is None else read_text(csv),
    )
    names = {item.row.job_id for item in source.results}
    if len(source.results) < len(source.whole):  # one task of a campaign was named
        findings = [finding for finding in findings if finding.task in names]
    wrong = [finding for finding in findings if finding.wrong]
    if as_json:
        print_json(
            {
                "holds": not wrong,
                "findings": [finding_info(finding).model_dump(mode="json") for finding in findings],
            }
        )
    else:
        for finding in findings:
            name = safe_text(finding.task) or "the file"
            for what in finding.wrong:
                print(f"{name}: {safe_text(what, 400)}")
            if not finding.signed and not finding.wrong:
                print(f"{name}: no worker signed anything of it; what it says is the scheduler's word")
        signed = sum(bool(finding.worker) for finding in findings)
        if wrong:
            print(
                f"{count(len(wrong), 'finding')} in {count(len(source.results), 'result')}: this does not hold."
            )
        else:
            print(f"{count(signed, 'signed result')}: signatures, hashes and all numbers hold.")
    if wrong:
        raise SystemExit(1)


@app.command(rich_help_panel=PANEL)
def compare(
    ctx: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            help=f"{SOURCE} With --by device: a device's name or id.",
            metavar="A",
            autocompletion=completion.sides,
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            help="The same. The output says how B compares with A.",
            metavar="B",
            autocompletion=completion.sides,
        ),
    ],
    by: Annotated[str, typer.Option(help="results, or device: A and B are devices of --of.")] = "results",
    of: Annotated[
        str,
        typer.Option(
            help="With --by device: whose results.  \\[default: the latest campaign]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    reference: Annotated[
        str,
        typer.Option(
            help="A model that both sides measured: each time is divided by its time there, so that devices can differ.",
            metavar="MODEL",
            autocompletion=completion.models,
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    csv: Annotated[str | None, CSV] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare results: FASTER, SLOWER, SAME or AMBIGUOUS, with the ratio of the medians and its 95 % interval."""
    from scheduler.output.comparisons import PAIR, both, both_units, compare_sources, one_device, read_source

    home: Home = ctx.obj
    if by not in ("results", "device"):
        raise CampaignError(
            f"--by {safe_text(by, 40)} is not known", hint="write --by results or --by device"
        )
    if of and by != "device":
        raise CampaignError("--of goes with --by device", hint="name what is compared as A and B")
    if by == "device":
        whole = read_source(of, home)
        one, other = one_device(whole, a), one_device(whole, b)
    else:
        one, other = read_source(a, home), read_source(b, home)
    table_info, pairs = compare_sources(
        one, other, across_devices=by == "device", reference=reference, seed=seed
    )
    if as_json:
        print_json(table_info.model_dump(mode="json"))
    if csv is not None:
        _write_table(csv, PAIR, [pair.model_dump(mode="json") for pair in table_info.pairs])
    if as_json or csv is not None:
        return
    if not pairs:
        print("Nothing to compare: one side has no rows.")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("B is", "model", "unit", "device", "A ms", "B ms", "ratio", "95 %"):
        table.add_column(head, justify="right" if head in ("A ms", "B ms", "ratio", "95 %") else "left")
    for pair in pairs:
        result = pair.comparison
        interval = (
            "" if result.low is None or result.high is None else f"{result.low:.3f} – {result.high:.3f}"
        )
        table.add_row(
            Text("–" if result.ratio is None else result.verdict, style=_STYLE[result.verdict]),
            Text(safe_text(both(pair, "file_name"))),
            Text(safe_text(both_units(pair))),
            Text(safe_text(both(pair, "device_name"))),
            _milliseconds(pair.a),
            _milliseconds(pair.b),
            "" if result.ratio is None else f"{result.ratio:.3f}",
            interval,
        )
    console = new_console()
    console.print(table)
    for pair in pairs:
        result = pair.comparison
        why = result.why if result.verdict == "AMBIGUOUS" or result.low is None else ""
        for line in filter(None, (why, pair.note)):
            name = safe_text(f"{both(pair, 'file_name')} × {both_units(pair)}")
            console.print(Text(f"{name}: {safe_text(line, 400)}"), soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def matrix(
    ctx: typer.Context,
    results: Annotated[
        list[str],
        typer.Argument(help=f"{SOURCE} Several are put together.", autocompletion=completion.campaigns),
    ],
    base: Annotated[
        str,
        typer.Option(
            help="A device, unit, model or variant that ratios are to.",
            metavar="NAME",
            autocompletion=completion.bases,
        ),
    ] = "",
    prices: Annotated[
        Path | None,
        typer.Option(
            help="YAML: currency: EUR, and per_hour: a price for each device or chip.", metavar="FILE"
        ),
    ] = None,
    csv: Annotated[str | None, CSV] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Model × device × unit, with the ratio to a base; per watt where it was measured, per price where a price file names the device."""
    from results.analysis.matrix import MatrixCell
    from results.analysis.prices import read_prices
    from scheduler.output.comparisons import matrix_of, merged, read_source

    rows = [entry.row for entry in merged([read_source(name, ctx.obj) for name in results])]
    try:
        told = matrix_of(rows, base=base, prices=None if prices is None else read_prices(prices))
    except ValueError as exc:
        raise CampaignError(str(exc), hint="write it as it stands in the table without --base") from None
    if as_json:
        print_json(told.model_dump(mode="json"))
    if csv is not None:
        _write_table(csv, [field.name for field in fields(MatrixCell)], [asdict(cell) for cell in told.cells])
    if as_json or csv is not None:
        return
    _show_matrix(told.cells, base)


def _show_matrix(cells: tuple[MatrixCell, ...], base: str) -> None:
    from results.row.simulated import marked
    from results.row.verdict import RowVerdict

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    money = next((cell.currency for cell in cells if cell.currency), "")
    heads = ["model", "device", "unit", "median ms", "95 %", *(["ratio"] if base else [])]
    batched = any(cell.batch is not None for cell in cells)
    heads += ["inputs per s"] if batched else []
    watt, priced = any(cell.per_watt for cell in cells), bool(money)
    heads += [*(["per s and W"] if watt else []), *([f"{money} per million"] if priced else [])]
    for head in heads:
        table.add_column(
            Text(safe_text(head)), justify="left" if head in ("model", "device", "unit") else "right"
        )
    for cell in cells:
        spread = (
            "" if cell.low_ms is None or cell.high_ms is None else f"{cell.low_ms:.4g} – {cell.high_ms:.4g}"
        )
        numbers = ["–" if cell.median_ms is None else f"{cell.median_ms:.4g}", spread]
        if base:
            numbers.append("" if cell.ratio is None else f"{cell.ratio:.3f}")
        if batched:
            numbers.append("" if cell.per_s is None else f"{cell.per_s:.4g}")
        if watt:
            numbers.append("" if cell.per_watt is None else f"{cell.per_watt:.4g}")
        if priced:
            numbers.append("" if cell.per_million is None else f"{cell.per_million:.4g}")
        device = marked(safe_text(cell.device), cell.verdict == RowVerdict.SIMULATED)
        names = (Text(safe_text(cell.model)), Text(device), Text(safe_text(_unit(cell))))
        table.add_row(*names, *numbers)
    console = new_console()
    console.print(table)
    for cell in cells:
        if cell.remark:
            where = f"{cell.model} × {cell.device or 'no device'} × {_unit(cell)}"
            console.print(Text(f"{safe_text(where)}: {safe_text(cell.remark, 400)}"), soft_wrap=True)


def _unit(cell: MatrixCell) -> str:
    from scheduler.output.comparisons import unit_words

    return unit_words(cell.unit, cell.threads, cell.batch)


_STYLE = {"FASTER": "green", "SLOWER": "red", "SAME": "", "AMBIGUOUS": "yellow"}


def _milliseconds(row: Row | None) -> str:
    return "" if row is None or row.inference_ms_median is None else f"{row.inference_ms_median:.4g}"


def _write_table(path: str, heads: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
    from results.export.raw import csv_cell, replace_file

    text = io.StringIO(newline="")
    text.write(",".join(heads) + "\r\n")
    for line in lines:
        text.write(",".join(csv_cell(line[head]) for head in heads) + "\r\n")
    if path == "-":
        sys.stdout.write(text.getvalue())
        return
    replace_file(Path(path), lambda out: out.write(text.getvalue()))
    print(f"{count(len(lines), 'row')} in {path}", file=sys.stderr)
