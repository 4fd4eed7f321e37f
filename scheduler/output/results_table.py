"""The results of a campaign or of `bench` as a table, and the lines below it. Imports no store, since `bench` needs none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from protocol.values.attempt import TaskState
from protocol.values.trust import TrustKind
from results.analysis.sittings import pooled_row, sittings_of
from results.row.comparison import verdict_phrase
from results.row.form import against_words, short_shapes
from results.row.names import with_distinct_names
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.scores import read_scores
from results.row.strangers import strangers_line
from results.row.verdicts import RowVerdict
from scheduler.core.words import COPIED, ELSEWHERE
from scheduler.output.terminal import Cell, ShortName, name, number, print_lines, shrinking, table
from swarm.base.text import ranges, safe_columns, safe_text
from swarm.base.units import show_duration, show_ms

LEGEND: Final = "Medians in ms; ±: half of their 95 % interval"
MAX_REMARKS: Final = 12
MAX_SHOWN: Final = 200
"""Most rows on a terminal: nobody reads thousands there, and computing them takes long."""
MAX_PIPED: Final = 10_000
"""Most rows elsewhere: a table is drawn as a whole."""
LESSER: Final = ("RAM MB", "Load ms", "Shape")
"""Columns dropped on a narrow terminal to make room for whole names, in this order; the last one stays where it tells rows apart."""
THREADS_NOTE: Final = "threads: "
"""The beginning of a driver's note that the number of threads differed from the request."""
MAX_NEED: Final = 100_000
_STYLES: Final = {
    RowStatus.COMPLETE: "green",
    RowStatus.FAILED: "red",
    RowStatus.CANCELLED: "yellow",
    RowStatus.ADOPTED: "yellow",
}


def show_results(rows: Sequence[Row], console: Console, *, ended: Mapping[str, int] | None = None) -> None:
    """Print `rows` and, below them, the legend, remarks, and why tasks failed; of very many rows only the first (`most_shown`). `ended`:
    the number of the campaign's tasks by status, if `rows` are not all of them.
    """
    ended = ended or Counter(str(row.status) for row in rows)
    rows = rows[: most_shown(console)]
    if line := strangers_line(rows):
        console.print(line, style="yellow", highlight=False, soft_wrap=True)
    if console.is_terminal:
        drawn, left_out = results_table(rows, console)
        console.print(drawn)
        if left_out:
            print_lines([f"{', '.join(left_out)}: shown in a wider terminal, or with --csv FILE"], console)
    else:
        console.out("\n".join(plain_lines(rows)), highlight=False)
    lines = [*remarks(rows), *failure_lines(rows)]
    if adopted := [row for row in rows if row.status is RowStatus.ADOPTED]:
        lines.append(adopted_line(adopted[0], len(adopted)))
    if len(rows) < sum(ended.values()):
        words = ", ".join(f"{number} {how.lower()}" for how, number in ended.items() if number)
        campaign = rows[0].job_id.rpartition("/")[0]
        lines.append(f"These are the first {len(rows)} of {sum(ended.values())} tasks ({words}).")
        lines.append(all_line(campaign, sum(ended.values())))
    print_lines(lines, console)


def most_shown(console: Console) -> int:
    """Most rows of a table on this console."""
    return MAX_SHOWN if console.is_terminal else MAX_PIPED


def all_line(campaign: str, tasks: int) -> str:
    """How to get more rows than are shown."""
    if tasks <= MAX_PIPED:
        return f"All of them: sark-node results {campaign} | less, or --csv FILE"
    return f"All of them: sark-node results {campaign} --csv FILE"


def ended_words(counts: Mapping[TaskState, int]) -> dict[str, int]:
    """The number of tasks by status, in the words of their rows."""
    words = {
        TaskState.SUCCEEDED: RowStatus.COMPLETE,
        TaskState.FAILED: RowStatus.FAILED,
        TaskState.CANCELLED: RowStatus.CANCELLED,
    }
    return {str(word): counts[state] for state, word in words.items() if state in counts}


def failure_lines(rows: Sequence[Row]) -> list[str]:
    """Why tasks failed; consecutive failures for the same reason share one line."""
    failed, lines = [row for row in rows if row.status is RowStatus.FAILED], list[str]()
    for why, alike in groupby(failed, failure_text):
        first, *others = (row.job_id for row in alike)
        lines.append(f"{first} failed: {why}")
        if others:
            numbers = [job.rpartition("/")[2] for job in others]
            which = ranges(map(int, numbers)) if all(map(str.isdecimal, numbers)) else _numbers(numbers)
            lines.append(f"{first.rpartition('/')[0]}/{which} failed for the same reason")
    return lines


def adopted_line(row: Row, tasks: int) -> str:
    """The line for tasks that another scheduler took over; `row`: one of them."""
    subject = "1 task is" if tasks == 1 else f"{tasks} tasks are"
    words = COPIED if row.detail == COPIED else ELSEWHERE
    campaign = row.job_id.rpartition("/")[0]
    return f"{subject} {words}: the results will be there; on that machine: sark-node watch {campaign}"


def remarks(rows: Sequence[Row]) -> list[str]:
    """Remarks for which the table has no room: the legend, and why a row is not simply valid. At most 14 lines."""
    lines: list[str] = []
    if simulated := [row.job_id.rpartition("/")[2] for row in rows if row.simulated]:
        which = "All of it is" if len(simulated) == len(rows) else f"{_numbers(simulated)}:"
        lines.append(f"{which} a simulation: its figures come from a script, nothing was measured.")
    for row in with_pooled(rows):
        if row.status is not RowStatus.COMPLETE:
            continue
        number = row.job_id.rpartition("/")[2]
        if _is_pooled(row):
            if row.compare_verdict:
                words = f"{compared_words(row)}: {safe_text(row.compare_reason)}"
                lines.append(f"{number} with its other sittings is {words}")
            continue
        if row.sustained:
            lines.append(f"{number} {sustained_line(row)}")
        if row.compare_verdict and not row.sittings:
            lines.append(f"{number} is {compared_words(row)}: {safe_text(row.compare_reason)}")
        if row.scores_why:
            lacks = "lacks scores" if row.scores else "has no scores"
            lines.append(f"{number} {lacks}: {safe_text(row.scores_why)}")
        if note := next((each for each in row.notes.split("; ") if each.startswith(THREADS_NOTE)), ""):
            lines.append(f"{number} has a note on {safe_text(note)}")
        if row.verdict not in ("", RowVerdict.VALID, RowVerdict.SIMULATED):  # simulations share one line
            lines.append(f"{number} {row.verdict}: {safe_text(row.verdict_reason)}")
        elif row.remarks:
            lines.append(f"{number} {row.verdict} · {safe_text(row.remarks)}")
    lines += [safe_text(line) for line in disagreements(rows)]
    if (more := len(lines) - MAX_REMARKS) > 0:
        lines[MAX_REMARKS:] = [f"and {more} more: see Notes and AgreementReason in the CSV"]
    measured = any(row.load_ms_median is not None or row.inference_ms_median is not None for row in rows)
    return [legend(rows), *lines] if measured else lines


def compared_words(row: Row) -> str:
    """`FASTER than yolo fp32`, for a row whose model took turns with another."""
    own = row.compute_units
    base = against_words(row.against, row.against_unit or own, row.file_name, own)
    return f"{verdict_phrase(row.compare_verdict)} {safe_text(base, 80)}"


def sustained_line(row: Row) -> str:
    """`sustained for 10 min: 5.02 ms at first, 5.6 ms at the end; 12 % slower from 95 s on; …; 0.31 J per inference (rapl package)`"""
    times = [
        f"{value:.3g} ms {when}"
        for value, when in ((row.burst_ms, "at first"), (row.steady_ms, "at the end"))
        if value is not None
    ]
    text = f"sustained for {show_duration(row.sustain_s or 0.0)}: {', '.join(times)}; {row.sustained}"
    joules = row.steady_j if row.steady_j is not None else row.energy_per_inference_j
    return text + (
        "" if joules is None else f"; {joules:.3g} J per inference ({safe_text(row.energy_source)})"
    )


def legend(rows: Sequence[Row]) -> str:
    """What the numbers mean, and under which conditions the intervals hold."""
    spans = [row.horizon_s for row in rows if row.horizon_s is not None]
    if not spans:
        return f"{LEGEND}."
    least, most = (
        show_ms(1000 * span) if span < 0.1 else f"{span:.2g} s" if span < 10 else f"{span:.0f} s"
        for span in (min(spans), max(spans))
    )
    unit = most.partition(" ")[2]
    within = most if least == most else f"{least.removesuffix(f' {unit}')} to {most}"
    pooled = (
        " The line `sittings N` pools all sittings on that device."
        if any(row.sittings for row in rows)
        else ""
    )
    return f"{LEGEND}, which holds for these {within}.{pooled}"


def _numbers(numbers: Sequence[str]) -> str:
    """The first numbers, and how many more there are."""
    return ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def failure_text(row: Row) -> str:
    """Why the task failed: the reason's word and its detail, which may be a small table of several lines."""
    first, *more = (safe_columns(line) for line in row.detail.splitlines()[:40] or [""])
    return "\n    ".join([": ".join(filter(None, [row.reason, first])) or "no reason was given", *more])


def results_table(rows: Sequence[Row], console: Console) -> tuple[Table, list[str]]:
    """A table in which numbers are complete and nothing is wrapped, and the heads of columns left out so that names are complete too. If
    that does not suffice, names are shortened.
    """
    rows = with_distinct_names(with_pooled(rows))
    endless = console.options.update(max_width=MAX_NEED)
    left_out: list[str] = []
    lines = _drawn(rows, left_out)
    telling = len({(row.file_name, row.shapes) for row in rows}) > len({row.file_name for row in rows})
    for head in LESSER[:-1] if telling else LESSER:
        if Measurement.get(console, endless, lines).maximum <= console.width:
            break
        if any(column.header == head for column in lines.columns):
            left_out.append(head)
            lines = _drawn(rows, left_out)
    return lines, left_out


def _drawn(rows: Sequence[Row], left_out: Collection[str]) -> Table:
    """Draw the table with new columns, since a column belongs to one table."""
    columns = [each for each in _columns(rows) if each[0].header not in left_out]
    lines = table(rows, *columns, gap=1)
    lines.box, lines.pad_edge, lines.show_edge, lines.header_style = (
        box.SIMPLE_HEAD,
        False,
        False,
        "table.header",
    )
    return lines


def plain_lines(rows: Sequence[Row]) -> list[str]:
    """The same cells in full, in columns separated by spaces."""
    rows = with_distinct_names(with_pooled(rows))
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


def with_pooled(rows: Sequence[Row]) -> list[Row]:
    """Adds, below the last of several sittings, a row with their pooled figures."""
    together = {sittings[-1].job_id: sittings for sittings in sittings_of(rows).values()}
    shown = (
        (row, pooled_row(row, together[row.job_id])) if row.job_id in together else (row,) for row in rows
    )
    return [each for some in shown for each in some]


def _is_pooled(row: Row) -> bool:
    return row.sittings is not None and row.sitting is None


def _columns(rows: Sequence[Row]) -> list[tuple[Column, Callable[[Row], Cell]]]:
    """The columns of the table: number of the task, shape of the first input, medians of times with ± half an interval. The number of
    threads appears where it tells rows apart, trust where a device is not this home's, inputs per second where a batch was asked for. The
    last column is the verdict if every row has one.
    """
    threads = len({row.threads for row in rows if row.threads is not None}) > 1
    batches = any(row.batch is not None for row in rows)
    shapes = any(row.shapes for row in rows)
    trust = any(row.trust not in ("", TrustKind.OWN) for row in rows)
    complete = bool(rows) and all(row.status is RowStatus.COMPLETE for row in rows)

    def unit(row: Row) -> str:
        ran = f" ×{row.threads}" if threads and row.threads is not None else ""
        return safe_text(row.compute_units, 40) + ran + ("" if row.batch is None else f", batch {row.batch}")

    def task(row: Row) -> str:
        return f"sittings {row.sittings}" if _is_pooled(row) else row.job_id.rpartition("/")[2]

    def outcome(row: Row) -> Text:
        if _is_pooled(row):
            span_s = row.sittings_span_s or 0.0
            return Text(f"in {show_duration(60.0 * round(span_s / 60) if span_s >= 600 else round(span_s))}")
        verdict = row.verdict if row.status is RowStatus.COMPLETE else ""
        return Text(verdict or str(row.status).lower(), _STYLES.get(row.status, ""))

    def memory(row: Row) -> str:
        if _is_pooled(row) or row.peak_inference_ram_usage is None:
            return ""
        return f"{row.peak_inference_ram_usage:.1f}"

    def ratio(row: Row) -> str:
        return "" if row.ratio is None else f"×{row.ratio:.3f}"

    def scores(row: Row) -> str:
        named = read_scores("" if _is_pooled(row) else row.scores).items()
        return ", ".join(f"{safe_text(name, 40)} {value:.4g}" for name, value in named)

    def per_s(row: Row) -> str:
        return "" if row.throughput_per_s is None else f"{row.throughput_per_s:.4g}"

    return [
        (name("Task"), task),
        (shrinking("Model"), lambda row: ShortName(safe_text(row.file_name, 40))),
        *(
            [(shrinking("Shape"), lambda row: ShortName(safe_text(short_shapes(row.shapes), 40)))]
            if shapes
            else []
        ),
        (shrinking("Unit"), lambda row: ShortName(unit(row))),
        (shrinking("Device"), lambda row: ShortName(safe_text(row.device_name, 60) or "-")),
        *([(name("Trust"), lambda row: safe_text(row.trust, 40) or "-")] if trust else []),
        (number("Load ms"), lambda row: "" if _is_pooled(row) else _time(row.load_ms_median, None)),
        (number("Inference ms"), lambda row: _time(row.inference_ms_median, row.half_width_percent)),
        *([(number("Ratio"), ratio)] if any(row.against for row in rows) else []),
        *([(number("Per s"), per_s)] if batches else []),
        (number("RAM MB"), memory),
        *([(shrinking("Scores"), scores)] if any(row.scores for row in rows) else []),
        (name("Verdict" if complete else "Result"), outcome),
    ]


def _time(median: float | None, percent: float | None) -> str:
    """The time with three significant digits; `percent`: half the width of its interval."""
    if median is None:
        return ""
    digits = 1 if median >= 100 else 2 if median >= 10 else 3
    if 0 < median < 0.1:
        digits = 2 - math.floor(math.log10(median))
    return f"{median:.{digits}f}" + (
        "" if percent is None else f" ±{percent:.{0 if percent >= 9.95 else 1}f}%"
    )
