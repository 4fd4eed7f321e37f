"""From the store to what the commands show: rows, lists and the last words of a campaign."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.values.requirement import show_size
from protocol.words import Reason, WorkerState, asks_for_it
from results.export.raw import write_csv, write_raw
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.simulated import marked, shown_name
from results.row.verdict import RowVerdict
from scheduler.output.fleet import ObservedDevice, device_info
from scheduler.output.schemas import status_of
from scheduler.store.progress import ADOPTED
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import CampaignOutcome, CampaignRow, CampaignSummary
from scheduler.store.store import Store
from swarm.base.text import count, safe_text
from swarm.base.units import show_elapsed
from swarm.net.paths import path_words

# -- campaigns -----------------------------------------------------------------------------------------------------------------


def campaigns_table(summaries: Sequence[CampaignSummary], *, scheduling: bool = True) -> Table:
    """A line for each campaign. `scheduling`: a scheduler process runs on this home."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("campaign", "name", "status", "tasks", "done", "failed", "begun", "took"):
        table.add_column(
            column,
            no_wrap=True,
            overflow="ellipsis",
            min_width={"campaign": 10, "name": 8, "begun": 16}.get(column),
            justify="right" if column in ("tasks", "done", "failed") else "left",
        )
    if any(item.experiment for item in summaries):
        table.add_column("experiment", no_wrap=True, overflow="ellipsis")
    for item in summaries:
        campaign = item.campaign
        table.add_row(
            campaign.id,
            Text(marked(safe_text(campaign.name, 30), asks_for_it(campaign.spec))),
            _shown_status(item, scheduling=scheduling),
            str(item.tasks) if campaign.planned else "-",
            str(item.counts.get(TaskState.SUCCEEDED, 0)),
            str(item.counts.get(TaskState.FAILED, 0)),
            datetime.fromtimestamp(campaign.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M"),
            show_elapsed(campaign.ended - campaign.created) if campaign.ended else "",
            *(
                (Text(safe_text(f"{item.experiment} {item.finding}".strip(), 60)),)
                if len(table.columns) > 8
                else ()
            ),
        )
    return table


def _shown_status(item: CampaignSummary, *, scheduling: bool) -> str:
    if item.campaign.outcome is CampaignOutcome.ADOPTED:
        return "carried on elsewhere"
    return status_of(item.campaign) if scheduling or item.campaign.ended is not None else "halted"


def finish(
    store: Store, campaign: CampaignRow, console: Console, *, csv: Path | None, raw: Path, as_json: bool
) -> int:
    """Show and write what came of a campaign that has ended; gives the exit code. Raises `ResourceError` when it cannot be written."""
    stored = store.results.rows(campaign.id)
    rows = campaign_rows(stored)
    raw_file = raw / "raw.json"
    raw.mkdir(parents=True, exist_ok=True)
    write_raw(raw_file, campaign.id, raw_results(stored))
    csv_file = csv or raw / "results.csv"
    write_csv(csv_file, rows)
    code = exit_code(campaign, rows)
    if as_json:
        document = {
            "campaign": campaign.id,
            "status": status_of(campaign),
            "results": [row.model_dump(mode="json") for row in rows],
            "csv": str(csv_file.absolute()),
            "raw": str(raw_file.absolute()),
        }
        json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return code
    show_results(rows, console)
    done = sum(row.status == "Complete" for row in rows)
    took = show_elapsed((campaign.ended or campaign.created) - campaign.created)
    console.print(f"{done} of {count(len(rows), 'task')} complete in {took}.", highlight=False)
    odd = disagreements(rows)
    if odd:
        console.print(
            f"{len(odd)} of the replicated tasks came out differently: see Agreement.", highlight=False
        )
    if campaign.detail:
        console.print(Text(safe_text(campaign.detail, 2000)))
    console.print(f"CSV          {csv_file.absolute()}", highlight=False, soft_wrap=True)
    console.print(f"Raw results  {raw_file.absolute()}", highlight=False, soft_wrap=True)
    return code


def exit_code(campaign: CampaignRow, rows: Sequence[Row]) -> int:
    """0: every task succeeded; 3: none ran because nothing fits; 5: because no device allows us; 1: anything else."""
    if campaign.outcome is CampaignOutcome.SUCCEEDED:
        return 0
    for reason, code in ((Reason.NOTHING_FITS, 3), (Reason.NOT_ALLOWED, 5)):
        if rows and all(row.reason == reason for row in rows):
            return code
    return 1


# -- devices -------------------------------------------------------------------------------------------------------------------


def peer_json(seen: ObservedDevice) -> dict[str, Any]:
    """A device for programs."""
    return device_info(seen).model_dump(mode="json")


ROOMY: Final = 110
"""Columns from which there is room for processor and peer id."""


def peers_table(seen: Sequence[ObservedDevice], width: int = 80) -> Table:
    """A line for each device. Where there is little room the end of the worker's id stands for it, and states and units are wrapped."""
    roomy = width >= ROOMY
    ways = [path_words(item.path) for item in seen if item.path is not None and item.path.direct]
    direct = max(map(len, ways), default=4)  # `direct, 53 ms` is not torn in two; a gate's address may be
    table = Table(box=None, padding=(0, 2 if roomy else 1, 0, 0), header_style="dim")
    heads = ("device", "peer", *(("id",) if roomy else ()), "state", *(("soc",) if roomy else ()))
    for column in (*heads, "cores", "ram", "units", "path"):
        wraps = column in ("device", "state", "soc", "units", "path")
        table.add_column(
            column,
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            min_width={"id": 18, "peer": 9, "ram": 8, "cores": 5, "path": direct}.get(
                column
            ),  # an id is there to be copied
        )
    for item in seen:
        advert = item.advert
        state = "unreachable" if item.pong is None else str(item.pong.state or "up")
        if item.pong is not None and item.pong.why:
            why = safe_text(item.pong.why, 60)
            state = why if item.pong.state is WorkerState.DRAINING else f"{state} ({why})"
        units = ", ".join(safe_text(unit.unit) for unit in advert.units) or "none"
        table.add_row(
            Text(shown_name(advert), style="" if item.fit.fits else "dim"),
            Text(f"…{advert.peer[-8:]}"),
            *((Text(safe_text(advert.device, 40)),) if roomy else ()),
            Text(state, style="red" if item.pong is None else ""),
            *((Text(safe_text(advert.soc, 28)),) if roomy else ()),
            "" if advert.cores is None else str(advert.cores),
            "" if advert.ram is None else show_size(advert.ram),
            Text(units),
            Text(
                path_words(item.path, advert.addresses),
                style="" if item.path is None or item.path.direct else "yellow",
            ),
        )
    return table


def peer_remarks(seen: Sequence[ObservedDevice]) -> list[str]:
    """What stands below the table: every clause that a device does not meet, and which workers are one and the same device."""
    told = [
        f"{shown_name(item.advert)} does not fit: "
        + "; ".join(safe_text(str(clause)) for clause in item.fit.missing)
        for item in seen
        if not item.fit.fits
    ]
    shared = Counter(item.advert.device for item in seen)
    pretend = sum(bool(item.advert.simulated) for item in seen)
    if pretend:
        told.append(f"{pretend} of {len(seen)} are simulations: these devices are not there")
    return told + [
        f"{workers} workers share the device {safe_text(device, 40)}: spread: device measures it once"
        for device, workers in shared.items()
        if workers > 1
    ]


HEADS: Final = ("Task", "Model", "Unit", "Device", "Load ms", "Inference ms", "RAM MB", "Result")
PER_S: Final = "Per s"
"""A column beside the inferences' time where a batch was asked for: inputs in a second."""
_AFTER: Final = HEADS.index("Inference ms") + 1
VERDICT: Final = "Verdict"
"""What the last column is called when every row has one."""
LEGEND: Final = "Medians in ms; ±: half of the 95 % interval of the median."
MAX_REMARKS: Final = 12
_TOLD_NOTES: Final = ("not given", "names no dynamic dimension")
_RIGHT: Final = frozenset({"Load ms", "Inference ms", PER_S, "RAM MB"})
_SHORTENED: Final = (1, 2, 3)
"""Model, unit and device give way when the table is too wide."""
SHORTEST: Final = 6
_STYLES: Final = {
    RowStatus.COMPLETE: "green",
    RowStatus.FAILED: "red",
    RowStatus.CANCELLED: "yellow",
    RowStatus.ADOPTED: "yellow",
}


def show_results(rows: Sequence[Row], console: Console) -> None:
    """Print `rows` and, below them, what their columns mean, what is to be said of some, and why each failed one failed."""
    if console.is_terminal:
        console.print(results_table(rows, console.width))
    else:
        for line in plain_lines(rows):
            console.out(line, highlight=False)
    for line in remarks(rows):
        console.print(Text(line), soft_wrap=True)
    told = ""
    for row in rows:
        if row.status is RowStatus.FAILED:
            why = failure_text(row)
            console.print(
                Text(f"{row.job_id} failed: {why if why != told else 'for the same reason'}"), soft_wrap=True
            )
            told = why
    gone = [row for row in rows if row.status is RowStatus.ADOPTED]
    if gone:
        console.print(Text(adopted_line(gone[0].job_id.rpartition("/")[0], len(gone))), soft_wrap=True)


def adopted_line(campaign: str, tasks: int) -> str:
    """What is to be said of tasks that another scheduler took over."""
    what = "1 task is" if tasks == 1 else f"{tasks} tasks are"
    return (
        f"{what} {ADOPTED}: the results will be there; look on: sark-node watch {campaign}, on that machine"
    )


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the table has no room for: the legend, why a row is not simply valid, and which sizes were guessed. At most 14 lines."""
    found: list[str] = []
    if any(row.simulated for row in rows):
        which = [row.job_id.rpartition("/")[2] for row in rows if row.simulated]
        found.append(
            ("All of it is" if len(which) == len(rows) else f"{_numbers(which)}:")
            + " a simulation: its figures come from a script, nothing was measured."
        )
    noted: dict[str, list[str]] = {}
    for row in rows:
        if row.status is not RowStatus.COMPLETE:
            continue
        number = row.job_id.rpartition("/")[2]
        if row.verdict not in (
            "",
            RowVerdict.VALID,
            RowVerdict.SIMULATED,
        ):  # simulations are told of in one line
            found.append(f"{number} {row.verdict}: {safe_text(row.verdict_reason)}")
        notes = [note for note in row.notes.split("; ") if any(word in note for word in _TOLD_NOTES)]
        if notes:
            noted.setdefault(safe_text("; ".join(notes)), []).append(number)
    found += [f"{_numbers(numbers)}: {notes}" for notes, numbers in noted.items()]
    found += [safe_text(line) for line in disagreements(rows)]
    more = len(found) - MAX_REMARKS
    if more > 0:
        found[MAX_REMARKS:] = [f"and {more} more: see Notes and AgreementReason in the CSV"]
    measured = any(row.load_ms_median is not None or row.inference_ms_median is not None for row in rows)
    return [LEGEND, *found] if measured else found


def _numbers(numbers: Sequence[str]) -> str:
    """A few of them, and how many more."""
    return ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _heads(rows: Sequence[Row]) -> tuple[str, ...]:
    complete = bool(rows) and all(row.status is RowStatus.COMPLETE for row in rows)
    heads = (*HEADS[:-1], VERDICT) if complete else HEADS
    return (*heads[:_AFTER], PER_S, *heads[_AFTER:]) if _batches(rows) else heads


def _batches(rows: Sequence[Row]) -> bool:
    return any(row.batch is not None for row in rows)


def failure_text(row: Row) -> str:
    """Why it failed: the reason's word and what was said of it, which may be a small table of several lines."""
    first, *more = (safe_columns(line) for line in row.detail.splitlines()[:40] or [""])
    return "\n    ".join([": ".join(filter(None, [row.reason, first])) or "no reason was given", *more])


def safe_columns(line: str) -> str:
    """`line` made safe, the spaces that align it left as they are."""
    return " ".join(safe_text(word, 400) for word in line.rstrip().split(" "))


def results_table(rows: Sequence[Row], width: int = 80) -> Table:
    """A table `width` columns wide at most: numbers stand whole, names are shortened, nothing is wrapped."""
    heads, cells = _heads(rows), _cells(rows)
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads))]
    while sum(widths) + len(heads) > width:
        longest = max(_SHORTENED, key=lambda column: widths[column])
        if widths[longest] <= SHORTEST:
            break
        widths[longest] -= 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for head, wide in zip(heads, widths, strict=True):
        table.add_column(
            head, justify="right" if head in _RIGHT else "left", no_wrap=True, overflow="ellipsis", width=wide
        )
    for row, line in zip(rows, cells, strict=True):
        table.add_row(*(Text(cell) for cell in line[:-1]), Text(line[-1], style=_STYLES.get(row.status, "")))
    return table


def plain_lines(rows: Sequence[Row]) -> list[str]:
    """The same cells in full, in columns of spaces."""
    heads = _heads(rows)
    lines = [heads, *_cells(rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if head in _RIGHT else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The number of threads is shown where it tells rows apart, the batch where one was asked for."""
    threads = len({row.threads for row in rows if row.threads is not None}) > 1
    return [result_cells(row, threads=threads, batches=_batches(rows)) for row in rows]


def result_cells(row: Row, *, threads: bool = False, batches: bool = False) -> tuple[str, ...]:
    """One row in words: the task by its number, times as medians, ± how well they are known; why it failed is told elsewhere."""
    complete = row.status is RowStatus.COMPLETE and row.verdict
    return (
        row.job_id.rpartition("/")[2],
        safe_text(row.file_name, 40),
        safe_text(row.compute_units, 40)
        + (f" ×{row.threads}" if threads and row.threads is not None else "")
        + (f", batch {row.batch}" if row.batch is not None else ""),
        safe_text(row.device_name, 40) or "-",
        _time(row.load_ms_median, None),
        _time(row.inference_ms_median, row.half_width_percent),
        *(("" if row.throughput_per_s is None else f"{row.throughput_per_s:.4g}",) if batches else ()),
        "" if row.peak_inference_ram_usage is None else f"{row.peak_inference_ram_usage:.1f}",
        row.verdict if complete else str(row.status).lower(),
    )


def _time(median: float | None, percent: float | None) -> str:
    """Three digits that mean something; `percent` of it is how far the truth may be away."""
    if median is None:
        return ""
    digits = 3 if median < 10 else 2 if median < 100 else 1
    return f"{median:.{digits}f}" + (
        "" if percent is None else f" ±{percent:.{0 if percent >= 9.95 else 1}f}%"
    )
