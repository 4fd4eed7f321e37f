"""What a report says of results: medians by model, device and unit, comparisons, charts of the samples, what failed and why. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from results.report.charts import bars, names_of, pareto, ratios
from results.report.drawing import digits
from results.report.facts import NamedPair, Report
from results.report.page import (
    Block,
    Bullets,
    Figures,
    Heading,
    Line,
    Paragraph,
    Section,
    ShellCommands,
    Span,
    Table,
    TableCell,
    TextSpan,
    heads,
)
from results.report.task_charts import distribution_chart, trace_chart
from results.row.row import Row, RowStatus
from results.row.simulated import marked
from results.row.verdict import RowVerdict
from swarm.base.text import count

MAX_CHARTS: Final = 60
"""Tasks whose samples are drawn; about 15 kB each."""
MAX_BARS: Final = 40
"""Bars in one chart."""
_TONES: Final = {"FASTER": "good", "SLOWER": "bad", "SAME": "", "AMBIGUOUS": "warn"}

_OPTIONAL_COLUMNS: Final[tuple[tuple[str, Callable[[Row], float | int | None]], ...]] = (
    ("inputs per s", lambda row: None if row.batch is None else row.throughput_per_s),
    ("p90 ms", lambda row: row.inference_ms_p90),
    ("p99 ms", lambda row: row.inference_ms_p99),
    ("load ms", lambda row: row.load_ms_median),
    ("memory MB", lambda row: row.peak_inference_ram_usage),
    ("J each", lambda row: row.energy_per_inference_j),
    ("first token ms", lambda row: row.ttft_ms_median),
    ("token ms", lambda row: row.tpot_ms_median),
    ("tokens per s", lambda row: row.tokens_per_second),
    ("goodput per s", lambda row: row.goodput),
    ("ROUGE-L", lambda row: row.rouge_l),
)
"""In a table where any of its rows has them."""


def number(value: float | int | None) -> TableCell:
    """Empty for what was not measured."""
    if value is None:
        return TableCell([""])
    return TableCell([f"{value:,}" if isinstance(value, int) else digits(value)])


def text(value: str) -> TableCell:
    """Text that others wrote."""
    return TableCell([TextSpan(value)])


def task_cell(row: Row) -> TableCell:
    """The task by its number."""
    return text(row.job_id.rpartition("/")[2])


def device_cell(row: Row) -> TableCell:
    """The device's name, with the mark of a simulated one."""
    return text(marked(row.device_name or "none", row.simulated))


def verdict_cell(row: Row) -> TableCell:
    """The verdict of a complete row, the status of another."""
    if row.status is RowStatus.COMPLETE:
        return TableCell([TextSpan(row.verdict)], "good" if row.verdict == RowVerdict.VALID else "warn")
    return TableCell([str(row.status).lower()], "bad")


def configuration(row: Row) -> list[Span]:
    """Device, unit, threads and batch."""
    line: list[Span] = [
        TextSpan(marked(row.device_name or "no device", row.simulated)),
        " · ",
        TextSpan(row.compute_units),
    ]
    line += [f" · {count(row.threads, 'thread')}"] if row.threads is not None else []
    line += [f" · batch {row.batch}"] if row.batch is not None else []
    return line


# -- medians -----------------------------------------------------------------------------------------------------------------------------


def medians(report: Report) -> Section:
    """Model × device × unit."""
    blocks: list[Block] = []
    for model in report.models:
        rows = report.all_of_model(model)
        for simulated in (False, True):  # a table of each, so that neither is among the other's
            if alike := [row for row in rows if bool(row.simulated) == simulated]:
                name = marked(model, simulated)
                blocks += [Heading([TextSpan(name)]), *_of_model(name, alike)]
    timed = [row for row in report.done if row.inference_ms_median]
    if len(timed) > 2 and (drawing := pareto(timed)) is not None:
        note = "Joined by the line are those that no other beats in both; the figures are in the tables."
        blocks += [
            Heading(["Time and what it costs"]),
            Figures([drawing], described=False),
            Paragraph([note]),
        ]
    if not blocks:
        blocks.append(Paragraph(["No task has come to a result."]))
    return Section("results", "Results: model × device × unit", blocks)


def _of_model(model: str, rows: Sequence[Row]) -> Iterable[Block]:
    if len(rows) > 1 and (drawing := bars(rows[:MAX_BARS], model=False)) is not None:
        yield Figures([drawing], described=False)
    optional = [column for column in _OPTIONAL_COLUMNS if any(column[1](row) is not None for row in rows)]
    ratio_head = ["× lowest#"] if len(rows) > 1 else []
    names = [f"{name}#" for name, _ in optional]
    columns = heads("device and unit", "median ms#", "95 % interval#", "±#", *ratio_head, *names, "verdict")
    lowest = rows[0].inference_ms_median
    lines = []
    for row in rows:
        replica = "" if row.replica is None else f" · replica {row.replica}"
        low, high = row.inference_ms_median_low, row.inference_ms_median_high
        interval = "" if low is None or high is None else f"{digits(low)} – {digits(high)}"
        within = "" if row.half_width_percent is None else f"{row.half_width_percent:.1f} %"
        line = [
            TableCell([*configuration(row), replica]),
            number(row.inference_ms_median),
            TableCell([interval]),
            TableCell([within]),
        ]
        if len(rows) > 1:
            ratio = row.inference_ms_median / lowest if lowest and row.inference_ms_median else None
            line.append(TableCell(["" if ratio is None else f"{ratio:.2f}"]))
        lines.append([*line, *(number(read(row)) for _, read in optional), verdict_cell(row)])
    yield Table(["Medians of ", TextSpan(model), ", the lowest first"], columns, lines)
    doubts: list[Line] = [
        [TextSpan(name), ": ", TextSpan(row.verdict), ", ", TextSpan(row.verdict_reason)]
        for name, row in zip(names_of(rows, model=False), rows, strict=True)
        if row.verdict != RowVerdict.VALID
    ]
    if doubts:
        yield Bullets(doubts)
    shapes = {row.shapes for row in rows}
    if len(shapes) > 1:
        note = "The input shapes differ: these rows are not to be compared with each other."
        if len({row.batch for row in rows}) == len(shapes):
            note = "The batches differ: one inference of a larger batch does more. Compare the inputs per second."
        yield Paragraph([note], "warn")


# -- comparisons -------------------------------------------------------------------------------------------------------------------------


def comparison(report: Report) -> Section | None:
    """Each row with the quickest of its model, and all with other results."""
    blocks: list[Block] = []
    if report.against_name:
        blocks.append(Heading(["Compared with ", TextSpan(report.against_name)]))
        note = "The ratio is that of the times here to the times there: below 1 it is quicker here."
        blocks += _pairs(report.against, note)
    if report.within:
        blocks.append(Heading(["Within this campaign: each compared with the lowest median of its model"]))
        note = "The ratio is that of each row's times to the times of its model's lowest median."
        blocks += _pairs(report.within, note)
    if report.left_out:
        blocks.append(Paragraph([f"{report.left_out} more were not compared: sark-node compare does it."]))
    if not blocks:
        return None
    note = (
        "FASTER and SLOWER need two things: the whole 95 % interval of the ratio lies beyond ±1 % of 1, and chance alone would put the "
        "launches' ranks that far apart in less than 1 % of cases. SAME: the interval lies within ±1 %. Everything else is AMBIGUOUS."
    )
    return Section("comparison", "Comparison", [Paragraph([note]), *blocks])


def _pairs(pairs: Sequence[NamedPair], note: str) -> Iterable[Block]:
    yield Paragraph([note])
    if (drawing := ratios(pairs[:MAX_BARS])) is not None:
        yield Figures([drawing], described=False)
    lines = []
    for name, pair in pairs:
        result = pair.comparison
        no_interval = result.low is None or result.high is None
        why = result.why if no_interval or result.verdict == "AMBIGUOUS" else ""
        lines.append(
            [
                text(name),
                TableCell(["–"])
                if result.ratio is None
                else TableCell([str(result.verdict)], _TONES[result.verdict]),
                TableCell(["" if result.ratio is None else f"{result.ratio:.3f}"]),
                TableCell(["" if no_interval else f"{result.low:.3f} – {result.high:.3f}"]),
                number(pair.a.inference_ms_median if pair.a else None),
                number(pair.b.inference_ms_median if pair.b else None),
                text("; ".join(filter(None, (why, pair.note)))),
            ]
        )
    columns = heads("measurement", "verdict", "ratio#", "95 % interval#", "base ms#", "ms#", "remark")
    yield Table(["Ratios with their intervals"], columns, lines)


# -- samples -----------------------------------------------------------------------------------------------------------------------------


def distributions(report: Report) -> Section | None:
    """Two charts of each task."""
    done = [
        result for result in report.results if any(result.samples) and result.row.status is RowStatus.COMPLETE
    ]
    if not done:
        return None
    note = (
        "On the left every dot is one timed inference, a row of them for each launch, with the launch's middle half (shaded) and median "
        "(bar); the green line is the median of the launches' medians, the green band its 95 % interval. On the right the same "
        "inferences in the order in which they came, after the warm-up that is left out of all figures. Nothing is dropped."
    )
    blocks: list[Block] = [Paragraph([note])]
    names = names_of([result.row for result in done])
    for name, result in list(zip(names, done, strict=True))[:MAX_CHARTS]:
        row, launches = result.row, result.launches
        charts = [distribution_chart(launches, row), trace_chart(launches, result.warmup_launches)]
        blocks.append(Heading([TextSpan(name)]))
        if row.per_sample is not None and row.per_sample > 1:
            note = f"Too short for the clock: each dot is the mean of {row.per_sample} inferences."
            blocks.append(Paragraph([note]))
        blocks.append(Figures([chart for chart in charts if chart is not None]))
        if row.outliers_mild or row.outliers_severe:
            note = (
                f"Outliers, none dropped: {row.outliers_mild} mild (beyond 1.5 widths of the middle half of their launch) and "
                f"{row.outliers_severe} severe (beyond 3)."
            )
            blocks.append(Paragraph([note]))
    if (rest := len(done) - MAX_CHARTS) > 0:
        note = f"{rest} more tasks are not drawn here; a report of one task draws it: sark-node report CAMPAIGN/TASK."
        blocks.append(Paragraph([note]))
    return Section("distributions", "Distributions: every sample", blocks)


# -- failures ----------------------------------------------------------------------------------------------------------------------------


def failures(report: Report) -> Section | None:
    """What has no figure, and why."""
    rows = [
        row for row in report.rows if row.status is not RowStatus.COMPLETE or row.inference_ms_median is None
    ]
    detail = report.stored.detail if report.stored is not None else ""
    if not rows and not detail:
        return None
    blocks: list[Block] = [Paragraph([TextSpan(detail)])] if detail else []
    if rows:
        columns = heads("task", "model", "unit", "device", "status", "why")
        lines = [
            [
                task_cell(row),
                text(row.file_name),
                text(row.compute_units),
                device_cell(row),
                verdict_cell(row),
                text(_why(row)),
            ]
            for row in rows
        ]
        blocks.append(Table(["Tasks without a figure"], columns, lines))
        blocks.append(Paragraph(["What would help, where the campaign was submitted:"]))
        blocks.append(ShellCommands([f"sark-node explain {shlex.quote(report.campaign)}"]))
    return Section("failed", "What failed, and why", blocks)


def _why(row: Row) -> str:
    why = ": ".join(filter(None, (row.reason, "; ".join(row.detail.splitlines()))))
    return why or row.verdict_reason or "no reason given"
