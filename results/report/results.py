"""What a report says of results: medians by model, device and unit, comparisons, pictures of the samples, what failed and why. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from results.export.source import launches_of, warmups_of
from results.report.charts import bars, ratios
from results.report.charts_pareto import pareto
from results.report.charts_parts import names_of
from results.report.charts_task import distribution_of, trace_of
from results.report.drawing import digits
from results.report.facts import Named, Report
from results.report.page import (
    Block,
    Bullets,
    ColumnHead,
    Commands,
    Figures,
    Heading,
    Line,
    Paragraph,
    Section,
    Span,
    Table,
    TableCell,
    TextSpan,
)
from results.report.summary import where
from results.row.row import Row, RowStatus
from results.row.simulated import marked
from results.row.verdict import RowVerdict

MAX_PICTURES: Final = 60
"""Tasks whose samples are drawn; about 15 kB each."""
MAX_BARS: Final = 40
"""Bars in one picture."""
_TONES: Final = {"FASTER": "good", "SLOWER": "bad", "SAME": "", "AMBIGUOUS": "warn"}

Column = tuple[str, Callable[[Row], float | int | None]]
_TIMES: Final[tuple[Column, ...]] = (
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
"""Told where any row has them."""


def number(value: float | int | None) -> TableCell:
    """Empty for what was not measured."""
    if value is None:
        return TableCell([""])
    return TableCell([f"{value:,}" if isinstance(value, int) else digits(value)])


def text(value: str) -> TableCell:
    """Somebody's words."""
    return TableCell([TextSpan(value)])


def task_cell(row: Row) -> TableCell:
    """The task by its number."""
    return text(row.job_id.rpartition("/")[2])


def device_cell(row: Row) -> TableCell:
    """The device's name, with the mark of one that is not there."""
    return text(marked(row.device_name or "none", row.simulated))


def verdict_cell(row: Row) -> TableCell:
    """The verdict of a complete row, the status of another."""
    if row.status is RowStatus.COMPLETE:
        return TableCell([TextSpan(row.verdict)], "good" if row.verdict == RowVerdict.VALID else "warn")
    return TableCell([str(row.status).lower()], "bad")


# -- medians -----------------------------------------------------------------------------------------------------------------------


def medians(report: Report) -> Section:
    """Model × device × unit."""
    blocks: list[Block] = []
    for model in report.models:
        rows = report.all_of_model(model)
        for simulated in (False, True):  # a table of each, so that neither is among the other's
            alike = [row for row in rows if bool(row.simulated) == simulated]
            if alike:
                name = marked(model, simulated)
                blocks += [Heading([TextSpan(name)]), *_of_model(name, alike)]
    several = [row for row in report.done if row.inference_ms_median]
    if len(several) > 2 and (drawn := pareto(several)) is not None:
        blocks += [Heading(["Time and what it costs"]), Figures([drawn], told=False)]
        blocks.append(
            Paragraph(
                ["Joined by the line are those that no other beats in both; the figures are in the tables."]
            )
        )
    if not blocks:
        blocks.append(Paragraph(["No task has come to a result."]))
    return Section("results", "Results: model × device × unit", blocks)


def _of_model(model: str, rows: Sequence[Row]) -> Iterable[Block]:
    if len(rows) > 1 and (drawn := bars(rows[:MAX_BARS], model=False)) is not None:
        yield Figures([drawn], told=False)
    extra = [column for column in _TIMES if any(column[1](row) is not None for row in rows)]
    least = rows[0].inference_ms_median
    heads = [
        ColumnHead("device and unit"),
        ColumnHead("median ms", True),
        ColumnHead("95 % interval", True),
        ColumnHead("±", True),
    ]
    heads += [ColumnHead("× lowest", True)] if len(rows) > 1 else []
    heads += [*(ColumnHead(name, True) for name, _ in extra), ColumnHead("verdict")]
    lines = []
    for row in rows:
        line = [TableCell(_where(row)), number(row.inference_ms_median), interval(row), _within(row)]
        if len(rows) > 1:
            ratio = row.inference_ms_median / least if least and row.inference_ms_median else None
            line.append(TableCell(["" if ratio is None else f"{ratio:.2f}"]))
        lines.append([*line, *(number(told(row)) for _, told in extra), verdict_cell(row)])
    yield Table(["Medians of ", TextSpan(model), ", the lowest first"], heads, lines)
    yield from _remarks(rows)
    shapes = {row.shapes for row in rows}
    if len(shapes) > 1:
        told = "The input shapes differ: these rows are not to be compared with each other."
        if len({row.batch for row in rows}) == len(shapes):
            told = "The batches differ: one inference of a larger one does more. What can be compared is the inputs in a second."
        yield Paragraph([told], "warn")


def _where(row: Row) -> Line:
    line = where(row)
    return line if row.replica is None else [*line, f" · replica {row.replica}"]


def interval(row: Row) -> TableCell:
    """Its two ends."""
    low, high = row.inference_ms_median_low, row.inference_ms_median_high
    return TableCell(["" if low is None or high is None else f"{digits(low)} – {digits(high)}"])


def _within(row: Row) -> TableCell:
    return TableCell(["" if row.half_width_percent is None else f"{row.half_width_percent:.1f} %"])


def _remarks(rows: Sequence[Row]) -> Iterable[Block]:
    names = names_of(rows, model=False)
    lines: list[Line] = [
        [TextSpan(name), ": ", TextSpan(row.verdict), ", ", TextSpan(row.verdict_reason)]
        for name, row in zip(names, rows, strict=True)
        if row.verdict != RowVerdict.VALID
    ]
    if lines:
        yield Bullets(lines)


# -- comparisons -------------------------------------------------------------------------------------------------------------------


def comparison(report: Report) -> Section | None:
    """Each row beside the quickest of its model, and all beside other results."""
    blocks: list[Block] = []
    if report.against_name:
        blocks.append(Heading(["Beside ", TextSpan(report.against_name)]))
        blocks += _pairs(
            report.against,
            "The ratio is that of the times here to the times there: below 1 it is quicker here.",
        )
    if report.within:
        blocks.append(Heading(["Within this campaign: each beside the lowest median of its model"]))
        blocks += _pairs(
            report.within, "The ratio is that of each row's times to the times of its model's lowest median."
        )
    if report.left_out:
        blocks.append(Paragraph([f"{report.left_out} more were not compared: sark-node compare does it."]))
    if not blocks:
        return None
    told = (
        "FASTER and SLOWER need two things: the whole 95 % interval of the ratio lies beyond ±1 % of 1, and chance alone would put the "
        "launches' ranks that far apart in less than 1 % of cases. SAME: the interval lies within ±1 %. Everything else is AMBIGUOUS."
    )
    return Section("comparison", "Comparison", [Paragraph([told]), *blocks])


def _pairs(pairs: Sequence[Named], told: str) -> Iterable[Block]:
    yield Paragraph([told])
    if (drawn := ratios(pairs[:MAX_BARS])) is not None:
        yield Figures([drawn], told=False)
    heads = [
        ColumnHead("measurement"),
        ColumnHead("word"),
        ColumnHead("ratio", True),
        ColumnHead("95 % interval", True),
    ]
    heads += [ColumnHead("base ms", True), ColumnHead("ms", True), ColumnHead("remark")]
    lines = []
    for name, pair in pairs:
        said = pair.said
        ends = "" if said.low is None or said.high is None else f"{said.low:.3f} – {said.high:.3f}"
        word = TableCell([str(said.word)], _TONES[said.word]) if said.ratio is not None else TableCell(["–"])
        why = said.why if said.word == "AMBIGUOUS" or said.low is None else ""
        remark: list[Span] = [TextSpan("; ".join(filter(None, (why, pair.note))))]
        lines.append(
            [
                text(name),
                word,
                TableCell(["" if said.ratio is None else f"{said.ratio:.3f}"]),
                TableCell([ends]),
                number(pair.a.inference_ms_median if pair.a else None),
                number(pair.b.inference_ms_median if pair.b else None),
                TableCell(remark),
            ]
        )
    yield Table(["Ratios with their intervals"], heads, lines)


# -- samples -----------------------------------------------------------------------------------------------------------------------


def distributions(report: Report) -> Section | None:
    """Two pictures of each task."""
    done = [
        result for result in report.results if any(result.samples) and result.row.status is RowStatus.COMPLETE
    ]
    if not done:
        return None
    told = (
        "On the left every dot is one timed inference, a row of them for each launch, with the launch's middle half (shaded) and median "
        "(bar); the green line is the median of the launches' medians, the green band its 95 % interval. On the right the same "
        "inferences in the order in which they came, after the warm-up that is left out of all figures. Nothing is dropped."
    )
    blocks: list[Block] = [Paragraph([told])]
    names = names_of([result.row for result in done])
    for name, result in list(zip(names, done, strict=True))[:MAX_PICTURES]:
        row, launches = result.row, launches_of(result)
        drawn = [distribution_of(row, launches), trace_of(row, launches, warmups_of(result))]
        blocks.append(Heading([TextSpan(name)]))
        if row.per_sample is not None and row.per_sample > 1:
            blocks.append(
                Paragraph([f"Too short for the clock: each dot is the mean of {row.per_sample} inferences."])
            )
        blocks.append(Figures([picture for picture in drawn if picture is not None]))
        if counted := _outliers(row):
            blocks.append(Paragraph([counted]))
    if len(done) > MAX_PICTURES:
        left = len(done) - MAX_PICTURES
        blocks.append(
            Paragraph(
                [
                    f"{left} more tasks are not drawn here; a report of one task draws it: sark-node report CAMPAIGN/TASK."
                ]
            )
        )
    return Section("distributions", "Distributions: every sample", blocks)


def _outliers(row: Row) -> str:
    if (
        row.outliers_mild is None
        or row.outliers_severe is None
        or not row.outliers_mild + row.outliers_severe
    ):
        return ""
    return (
        f"Outliers, all kept: {row.outliers_mild} mild (beyond 1.5 widths of the middle half of their launch) and "
        f"{row.outliers_severe} severe (beyond 3)."
    )


# -- failures ----------------------------------------------------------------------------------------------------------------------


def failures(report: Report) -> Section | None:
    """What has no figure, and why."""
    rows = [
        row for row in report.rows if row.status is not RowStatus.COMPLETE or row.inference_ms_median is None
    ]
    detail = report.stored.detail if report.stored is not None else ""
    if not rows and not detail:
        return None
    blocks: list[Block] = [Paragraph([TextSpan(detail)])] if detail else []
    heads = [
        ColumnHead("task"),
        ColumnHead("model"),
        ColumnHead("unit"),
        ColumnHead("device"),
        ColumnHead("status"),
        ColumnHead("why"),
    ]
    lines = [
        [
            task_cell(row),
            text(row.file_name),
            text(row.compute_units),
            device_cell(row),
            verdict_cell(row),
            text(
                ": ".join(filter(None, (row.reason, "; ".join(row.detail.splitlines()))))
                or row.verdict_reason
                or "no reason told"
            ),
        ]
        for row in rows
    ]
    if lines:
        blocks.append(Table(["Tasks without a figure"], heads, lines))
        blocks.append(Paragraph(["What would help, where the campaign was submitted:"]))
        blocks.append(Commands([f"sark-node explain {shlex.quote(report.campaign)}"]))
    return Section("failed", "What failed, and why", blocks)
