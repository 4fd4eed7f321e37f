"""Tables and closing lines of the commands: results, campaigns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.values.trust import TrustKind
from protocol.words import Reason, asks_for_it
from results.export.csv import csv_lines
from results.export.raw import json_lines, write_lines
from results.row.form import short_shapes
from results.row.names import with_distinct_names
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.simulated import marked
from results.row.strangers import strangers_line
from results.row.verdict import RowVerdict
from scheduler.core.failures import COPIED
from scheduler.output.terminal import name, number, print_lines, short, shrinking, table
from scheduler.store.progress import ADOPTED
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary
from scheduler.store.store import Store
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text
from swarm.base.units import local_time, show_elapsed

# -- campaigns -----------------------------------------------------------------------------------------------------------------


def campaigns_table(summaries: Sequence[CampaignSummary], *, scheduling: bool = True) -> Table:
    """A line for each campaign. `scheduling`: a scheduler process runs on this home."""
    experiments = any(item.experiment for item in summaries)
    return table(
        summaries,
        (name("campaign", 10), lambda item: item.campaign.id),
        (name("name", 8), lambda item: campaign_name(item.campaign, 30)),
        (name("status"), lambda item: campaign_state(item.campaign, scheduling=scheduling)),
        (number("tasks"), lambda item: str(item.tasks) if item.campaign.planned else "-"),
        (number("done"), lambda item: str(item.counts.get(TaskState.SUCCEEDED, 0))),
        (number("failed"), lambda item: str(item.counts.get(TaskState.FAILED, 0))),
        (name("submitted", 16), lambda item: local_time(item.campaign.created)),
        (name("took"), lambda item: _took(item.campaign) if item.campaign.ended else ""),
        (name("experiment"), lambda item: safe_text(f"{item.experiment} {item.finding}".strip(), 60))
        if experiments
        else None,
    )


def campaign_name(campaign: CampaignRow, limit: int) -> str:
    """Its name; a simulation is marked."""
    return marked(safe_text(campaign.name, limit), asks_for_it(campaign.spec))


def _took(campaign: CampaignRow) -> str:
    return show_elapsed((campaign.ended or campaign.created) - campaign.created)


def campaign_state(campaign: CampaignRow, *, scheduling: bool) -> Text:
    """Its status in a word."""
    if campaign.ended is None and not scheduling:
        return Text("halted", "yellow")
    adopted = campaign.status is CampaignStatus.ADOPTED
    return Text("elsewhere" if adopted else campaign.status, _CAMPAIGN_STYLES.get(campaign.status, ""))


_CAMPAIGN_STYLES: Final = {
    CampaignStatus.RUNNING: "cyan",
    CampaignStatus.CANCELLING: "yellow",
    CampaignStatus.SUCCEEDED: "green",
    CampaignStatus.FAILED: "red",
    CampaignStatus.CANCELLED: "yellow",
}


def finish(
    store: Store, campaign: CampaignRow, console: Console, *, csv: Path | None, raw: Path, as_json: bool
) -> int:
    """Show and write the results of a campaign that has ended; returns the exit code. Raises `ResourceError`."""
    stored = store.results.rows(campaign.id)
    rows = campaign_rows(stored)
    raw_file = raw / "raw.json"
    raw.mkdir(parents=True, exist_ok=True)
    write_lines(raw_file, json_lines(campaign.id, raw_results(stored)))
    csv_file = csv or raw / "results.csv"
    write_lines(csv_file, csv_lines(rows))
    code = exit_code(campaign, rows)
    if as_json:
        print_json(
            {
                "campaign": campaign.id,
                "status": campaign.status,
                "results": rows,
                "csv": str(csv_file.absolute()),
                "raw": str(raw_file.absolute()),
            }
        )
        return code
    show_results(rows, console)
    done = sum(row.status is RowStatus.COMPLETE for row in rows)
    lines = [f"{done} of {count(len(rows), 'task')} complete in {_took(campaign)}."]
    if disagreeing := len(disagreements(rows)):
        lines.append(f"{disagreeing} of the replicated tasks disagree: see Agreement.")
    if campaign.detail:
        lines.append(safe_text(campaign.detail, 2000))
    files = (f"CSV          {csv_file.absolute()}", f"Raw results  {raw_file.absolute()}")
    print_lines([*lines, *files], console)
    return code


def exit_code(campaign: CampaignRow, rows: Sequence[Row]) -> int:
    """0: every task succeeded, and no outputs differ from the reference; 3: none ran because nothing trusted fits; 5: because no device
    allows us; 1: anything else.
    """
    if campaign.outcome is CampaignStatus.SUCCEEDED:
        return int(any(row.verdict == RowVerdict.MISMATCH for row in rows))
    for reason, code in ((Reason.NOTHING_FITS, 3), (Reason.NOT_TRUSTED, 3), (Reason.NOT_ALLOWED, 5)):
        if rows and all(row.reason == reason for row in rows):
            return code
    return 1


# -- results -----------------------------------------------------------------------------------------------------------------------------

LEGEND: Final = "Medians in ms; ±: half of the 95 % interval of the median."
MAX_REMARKS: Final = 12
_STYLES: Final = {
    RowStatus.COMPLETE: "green",
    RowStatus.FAILED: "red",
    RowStatus.CANCELLED: "yellow",
    RowStatus.ADOPTED: "yellow",
}


def show_results(rows: Sequence[Row], console: Console) -> None:
    """Print `rows` and, below them, the legend, remarks, and why each failed one failed."""
    if line := strangers_line(rows):
        console.print(line, style="yellow", highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(results_table(rows))
    else:
        console.out("\n".join(plain_lines(rows)), highlight=False)
    lines, last = remarks(rows), ""
    for row in rows:
        if row.status is RowStatus.FAILED:
            why = failure_text(row)
            lines.append(f"{row.job_id} failed: {why if why != last else 'for the same reason'}")
            last = why
    if adopted := [row for row in rows if row.status is RowStatus.ADOPTED]:
        lines.append(adopted_line(adopted[0], len(adopted)))
    print_lines(lines, console)


def adopted_line(row: Row, tasks: int) -> str:
    """Of tasks that another scheduler took over; `row`: one of them."""
    subject = "1 task is" if tasks == 1 else f"{tasks} tasks are"
    words = COPIED if row.detail == COPIED else ADOPTED
    campaign = row.job_id.rpartition("/")[0]
    return f"{subject} {words}: the results will be there; sark-node watch {campaign}, on that machine"


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the table has no room for: the legend, and why a row is not simply valid. At most 14 lines."""
    lines: list[str] = []
    if simulated := [row.job_id.rpartition("/")[2] for row in rows if row.simulated]:
        which = "All of it is" if len(simulated) == len(rows) else f"{_numbers(simulated)}:"
        lines.append(f"{which} a simulation: its figures come from a script, nothing was measured.")
    for row in rows:
        if row.status is not RowStatus.COMPLETE:
            continue
        number = row.job_id.rpartition("/")[2]
        if row.verdict not in ("", RowVerdict.VALID, RowVerdict.SIMULATED):  # simulations share one line
            lines.append(f"{number} {row.verdict}: {safe_text(row.verdict_reason)}")
    lines += [safe_text(line) for line in disagreements(rows)]
    if (more := len(lines) - MAX_REMARKS) > 0:
        lines[MAX_REMARKS:] = [f"and {more} more: see Notes and AgreementReason in the CSV"]
    measured = any(row.load_ms_median is not None or row.inference_ms_median is not None for row in rows)
    return [LEGEND, *lines] if measured else lines


def _numbers(numbers: Sequence[str]) -> str:
    """A few of them, and how many more."""
    return ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def failure_text(row: Row) -> str:
    """Why it failed: the reason's word and its detail, which may be a small table of several lines."""
    first, *more = (safe_columns(line) for line in row.detail.splitlines()[:40] or [""])
    return "\n    ".join([": ".join(filter(None, [row.reason, first])) or "no reason was given", *more])


def safe_columns(line: str) -> str:
    """`line` made safe, with the spaces that align it."""
    return " ".join(safe_text(word, 400) for word in line.rstrip().split(" "))


def results_table(rows: Sequence[Row]) -> Table:
    """A table in which numbers stand whole, names are shortened, nothing is wrapped."""
    rows = with_distinct_names(rows)
    lines = table(rows, *_columns(rows), gap=1)
    lines.box, lines.pad_edge, lines.show_edge, lines.header_style = (
        box.SIMPLE_HEAD,
        False,
        False,
        "table.header",
    )
    return lines


def plain_lines(rows: Sequence[Row]) -> list[str]:
    """The same cells in full, in columns of spaces."""
    rows = with_distinct_names(rows)
    columns = _columns(rows)
    lines = [[str(head.header) for head, _ in columns]]
    lines += [[str(cell(row)) for _, cell in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if head.justify == "right" else cell.ljust(width)
            for (head, _), cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _columns(rows: Sequence[Row]) -> list[tuple[Column, Callable[[Row], str | Text]]]:
    """The task by its number, the shape of the first input, times as medians, ± how well they are known. The number of threads is shown
    where it tells rows apart, trust where a device is not this home's, inputs in a second where a batch was asked for; the last column is
    the verdict if every row has one.
    """
    threads = len({row.threads for row in rows if row.threads is not None}) > 1
    batches = any(row.batch is not None for row in rows)
    shapes = any(row.shapes for row in rows)
    trust = any(row.trust not in ("", TrustKind.OWN) for row in rows)
    complete = bool(rows) and all(row.status is RowStatus.COMPLETE for row in rows)

    def unit(row: Row) -> str:
        ran = f" ×{row.threads}" if threads and row.threads is not None else ""
        return safe_text(row.compute_units, 40) + ran + ("" if row.batch is None else f", batch {row.batch}")

    def outcome(row: Row) -> Text:
        verdict = row.verdict if row.status is RowStatus.COMPLETE else ""
        return Text(verdict or str(row.status).lower(), _STYLES.get(row.status, ""))

    def memory(row: Row) -> str:
        return "" if row.peak_inference_ram_usage is None else f"{row.peak_inference_ram_usage:.1f}"

    def per_s(row: Row) -> str:
        return "" if row.throughput_per_s is None else f"{row.throughput_per_s:.4g}"

    return [
        (name("Task"), lambda row: row.job_id.rpartition("/")[2]),
        (shrinking("Model"), lambda row: short(safe_text(row.file_name, 40))),
        *(
            [(shrinking("Shape"), lambda row: short(safe_text(short_shapes(row.shapes), 40)))]
            if shapes
            else []
        ),
        (shrinking("Unit"), lambda row: short(unit(row))),
        (shrinking("Device"), lambda row: short(safe_text(row.device_name, 60) or "-")),
        *([(name("Trust"), lambda row: safe_text(row.trust, 40) or "-")] if trust else []),
        (number("Load ms"), lambda row: _time(row.load_ms_median, None)),
        (number("Inference ms"), lambda row: _time(row.inference_ms_median, row.half_width_percent)),
        *([(number("Per s"), per_s)] if batches else []),
        (number("RAM MB"), memory),
        (name("Verdict" if complete else "Result"), outcome),
    ]


def _time(median: float | None, percent: float | None) -> str:
    """Three digits that mean something; `percent` of it is how far the truth may be away."""
    if median is None:
        return ""
    digits = 3 if median < 10 else 2 if median < 100 else 1
    return f"{median:.{digits}f}" + (
        "" if percent is None else f" ±{percent:.{0 if percent >= 9.95 else 1}f}%"
    )
