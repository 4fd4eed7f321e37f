"""Results for people: a table that fits a terminal of 80 columns, or plain lines when they are piped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.verdict import RowVerdict
from scheduler.store.progress import ADOPTED
from swarm.base.text import safe_text

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
    first, *more = (kept_columns(line) for line in row.detail.splitlines()[:40] or [""])
    return "\n    ".join([": ".join(filter(None, [row.reason, first])) or "no reason was given", *more])


def kept_columns(line: str) -> str:
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
