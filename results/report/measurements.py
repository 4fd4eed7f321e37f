"""A report's results: medians by model, device and unit, comparisons, charts of the samples, and what failed and why. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from results.report.charts import bars, names_of, pareto, ratios
from results.report.drawing import digits
from results.report.facts import NamedPair, Report
from results.report.page import (
    Badge,
    Block,
    Bullets,
    Figures,
    Heading,
    Section,
    ShellCommands,
    Table,
    Warn,
    quote,
)
from results.report.task_charts import distribution_chart, trace_chart
from results.row.form import against_words, short_shapes, without_names
from results.row.row import Row, RowStatus
from results.row.simulated import mark_simulated
from results.row.verdicts import RowVerdict
from swarm.base.text import count

MAX_CHARTS: Final = 60
"""Maximum tasks with charts of their samples, each about 15 kB."""
MAX_BARS: Final = 40
"""Maximum bars in one chart."""
_TONES: Final = {"FASTER": "good", "SLOWER": "bad", "SAME": "", "AMBIGUOUS": "warn"}

_OPTIONAL_COLUMNS: Final = {
    "inputs per s": "throughput_per_s",
    "p90 ms": "inference_ms_p90",
    "p99 ms": "inference_ms_p99",
    "load ms": "load_ms_median",
    "memory MB": "peak_inference_ram_usage",
    "J per inference": "energy_per_inference_j",
    "first token ms": "ttft_ms_median",
    "ms per token": "tpot_ms_median",
    "tokens per s": "tokens_per_second",
    "goodput per s": "goodput",
    "ROUGE-L": "rouge_l",
}
"""Table columns that appear only if any row has the field."""


def number(value: float | int | None) -> str:
    """The formatted number; empty if it was not measured."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else digits(value)


def task_number(row: Row) -> str:
    return quote(row.job_id.rpartition("/")[2])


def device_name(row: Row) -> str:
    """The device's name, marked if simulated."""
    return quote(mark_simulated(row.device_name or "none", row.simulated))


def verdict(row: Row) -> Badge:
    """The verdict of a complete row, or the status of any other row."""
    if row.status is RowStatus.COMPLETE:
        words = " · ".join(filter(None, (row.verdict, row.remarks)))
        return Badge(quote(words), "good" if row.verdict == RowVerdict.VALID else "warn")
    return Badge(str(row.status).lower(), "bad")


def interval(row: Row, to: str) -> str:
    """The ends of the median's interval; empty without one."""
    low, high = row.inference_ms_median_low, row.inference_ms_median_high
    return "" if low is None or high is None else f"{digits(low)}{to}{digits(high)}"


def configuration(row: Row) -> str:
    line = (
        f"{quote(mark_simulated(row.device_name or 'no device', row.simulated))} · {quote(row.compute_units)}"
    )
    line += f" · {count(row.threads, 'thread')}" if row.threads is not None else ""
    return line + (f" · batch {row.batch}" if row.batch is not None else "")


# -- medians -----------------------------------------------------------------------------------------------------------------------------


def medians(report: Report) -> Section:
    blocks: list[Block] = []
    for model in report.models:
        rows = report.all_of_model(model)
        for simulated in (False, True):  # separate tables, so that the two are never mixed
            if alike := [row for row in rows if bool(row.simulated) == simulated]:
                name = mark_simulated(model, simulated)
                blocks += [Heading(quote(name)), *_of_model(name, alike)]
    timed = [row for row in report.compared if row.inference_ms_median]
    if len(timed) > 2 and (drawing := pareto(timed)) is not None:
        note = "The line joins the results that no other result beats in both; the figures are in the tables."
        blocks += [Heading("Time and what it costs"), Figures([drawing], described=False), note]
    return Section("results", "Results: model × device × unit", blocks or ["No task has a result yet."])


def _of_model(model: str, rows: Sequence[Row]) -> Iterable[Block]:
    if len(rows) > 1 and (drawing := bars(rows[:MAX_BARS], model=False)) is not None:
        yield Figures([drawing], described=False)
    optional = [
        (f"{name}#", field)
        for name, field in _OPTIONAL_COLUMNS.items()
        if any(_optional(row, field) is not None for row in rows)
    ]
    ratio_head = ["× lowest#"] if len(rows) > 1 else []
    names = [name for name, _ in optional]
    lowest = rows[0].inference_ms_median
    lines = []
    for row in rows:
        which = "" if row.replica is None else f" · replica {row.replica}"
        which += f" · {row.sittings} sittings" if row.sittings and row.sitting is None else ""
        within = "" if row.half_width_percent is None else f"{row.half_width_percent:.1f} %"
        line: list[str | Badge] = [
            configuration(row) + which,
            number(row.inference_ms_median),
            interval(row, " – "),
            within,
        ]
        if len(rows) > 1:
            ratio = row.inference_ms_median / lowest if lowest and row.inference_ms_median else None
            line.append("" if ratio is None else f"{ratio:.2f}")
        lines.append([*line, *(number(_optional(row, field)) for _, field in optional), verdict(row)])
    shapes = {without_names(row.shapes) for row in rows}
    if len(shapes) > 1:
        for line, row in zip(lines, rows, strict=True):
            line[0] = " · ".join(filter(None, (str(line[0]), quote(short_shapes(row.shapes)))))
    columns = ["device and unit", "median ms#", "95 % interval#", "±#", *ratio_head, *names, "verdict"]
    shape = quote(short_shapes(rows[0].shapes)) if len(shapes) == 1 else ""
    title = f"Medians of {quote(model)}{f' ({shape})' if shape else ''}, lowest first"
    yield Table(title, columns, lines)
    doubts = [
        f"{quote(name)}: {quote(row.verdict)}, {quote(row.verdict_reason)}"
        for name, row in zip(names_of(rows, model=False), rows, strict=True)
        if row.verdict != RowVerdict.VALID
    ]
    if doubts:
        yield Bullets(doubts)
    if len(shapes) > 1:
        note = "The input shapes differ: do not compare these rows with each other."
        if len({row.batch for row in rows}) == len(shapes):
            note = "The batches differ: one inference of a larger batch does more. Compare the inputs per second."
        yield Warn(note)


def _optional(row: Row, field: str) -> float | None:
    """The field's value. Without a batch, inputs per second add nothing to the median."""
    value: float | None = getattr(row, field)
    return None if field == "throughput_per_s" and row.batch is None else value


# -- comparisons -------------------------------------------------------------------------------------------------------------------------


def comparison(report: Report) -> Section | None:
    """Each row compared with the fastest of its model, and all rows compared with other results."""
    blocks: list[Block] = []
    if report.in_turns:
        blocks.append(Heading("In turns: each model compared with the one it took turns with"))
        blocks += _turns(report.in_turns)
    if report.other_name:
        blocks.append(Heading(f"Compared with {quote(report.other_name)}"))
        note = "The ratio is the time in these results divided by the time in the others: below 1, these are faster."
        blocks += _pairs(report.against, note)
    if report.within:
        blocks.append(Heading("Within this campaign: each row compared with the lowest median of its model"))
        note = "The ratio is each row's time divided by the time of the row with its model's lowest median."
        blocks += _pairs(report.within, note)
    if report.left_out:
        blocks.append(f"{report.left_out} more were not compared here: use sark-node compare.")
    note = (
        "FASTER and SLOWER need two things: the whole 95 % interval of the ratio lies beyond ±1 % of 1, and chance alone would put the "
        "launches' ranks that far apart in less than 1 % of cases. SAME: the interval lies within ±1 %. Everything else is AMBIGUOUS."
    )
    notes = [note] if report.other_name or report.within else []
    return Section("comparison", "Comparison", [*notes, *blocks]) if blocks else None


def _turns(pairs: Sequence[NamedPair]) -> Iterable[Block]:
    yield (
        "Short blocks of both models' inferences took turns, in an order drawn at random each round. The ratio is this model's time "
        "divided by the other's, once by wall time and once by CPU time of all threads. One of the two beyond ±1 % is enough for FASTER or "
        "SLOWER unless the other contradicts it. All intervals, of every look and both kinds of time, hold the true ratio in 98 % of "
        "cases. Ratios of several sittings are pooled by random effects; their interval holds beyond these sittings."
    )
    if (drawing := ratios(pairs[:MAX_BARS], title="Ratios of wall times with their intervals")) is not None:
        yield Figures([drawing], described=False)
    lines: list[list[str | Badge]] = []
    for name, pair in pairs:
        result, base, own = pair.comparison, pair.a, pair.b
        other = (
            base
            and own
            and against_words(base.file_name, base.compute_units, own.file_name, own.compute_units)
        )
        over = "" if pair.sittings is None else f"{pair.sittings} sittings"
        cpu = "" if result.cpu is None else _ratio_words(result.cpu.ratio, result.cpu.low, result.cpu.high)
        lines.append(
            [
                quote(name),
                quote(other or ""),
                Badge(str(result.verdict), _TONES[result.verdict]),
                _ratio_words(result.ratio, result.low, result.high),
                cpu,
                number(base.inference_ms_median if base else None),
                number(own.inference_ms_median if own else None),
                quote("; ".join(filter(None, (over, "contention" if result.contention else "", pair.note)))),
            ]
        )
    columns = [
        "measurement",
        "against",
        "verdict",
        "by wall time#",
        "by CPU time#",
        "against ms#",
        "ms#",
        "remark",
    ]
    yield Table("Models in turns: ratios with their intervals", columns, lines)


def _ratio_words(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} ({low:.3f} – {high:.3f})"


def _pairs(pairs: Sequence[NamedPair], note: str) -> Iterable[Block]:
    yield note
    if (drawing := ratios(pairs[:MAX_BARS])) is not None:
        yield Figures([drawing], described=False)
    lines: list[list[str | Badge]] = []
    for name, pair in pairs:
        result = pair.comparison
        no_interval = result.low is None or result.high is None
        why = result.why if no_interval or result.verdict == "AMBIGUOUS" else ""
        lines.append(
            [
                quote(name),
                "–" if result.ratio is None else Badge(str(result.verdict), _TONES[result.verdict]),
                "" if result.ratio is None else f"{result.ratio:.3f}",
                "" if no_interval else f"{result.low:.3f} – {result.high:.3f}",
                number(pair.a.inference_ms_median if pair.a else None),
                number(pair.b.inference_ms_median if pair.b else None),
                quote("; ".join(filter(None, (why, pair.note)))),
            ]
        )
    columns = ["measurement", "verdict", "ratio#", "95 % interval#", "base ms#", "ms#", "remark"]
    yield Table("Ratios with their intervals", columns, lines)


# -- samples -----------------------------------------------------------------------------------------------------------------------------


def distributions(report: Report) -> Section | None:
    done = [
        result for result in report.results if any(result.samples) and result.row.status is RowStatus.COMPLETE
    ]
    if not done:
        return None
    note = (
        "On the left, each dot is one timed inference and each row of dots one launch, with the launch's middle half (shaded) and median "
        "(bar). The green line is the median of the launches' medians, the green band its 95 % interval. On the right are the same "
        "inferences in the order in which they ran, after the warm-up, which counts in no figure. Nothing is dropped."
    )
    blocks: list[Block] = [note]
    names = names_of([result.row for result in done])
    for name, result in list(zip(names, done, strict=True))[:MAX_CHARTS]:
        row, launches = result.row, result.launches
        charts = [distribution_chart(launches, row), trace_chart(launches, result.warmup_launches)]
        blocks.append(Heading(quote(name)))
        if row.per_sample is not None and row.per_sample > 1:
            blocks.append(
                f"One inference is too short for the clock: each dot is the mean of {row.per_sample} inferences."
            )
        blocks.append(Figures([chart for chart in charts if chart is not None]))
        if row.outliers_mild or row.outliers_severe:
            blocks.append(
                f"Outliers, none dropped: {row.outliers_mild} mild (beyond 1.5 widths of the middle half of their launch) and "
                f"{row.outliers_severe} severe (beyond 3)."
            )
    if (rest := len(done) - MAX_CHARTS) > 0:
        hint = "to draw one: sark-node report CAMPAIGN/TASK."
        blocks.append(f"{rest} more tasks are not drawn here; {hint}")
    return Section("distributions", "Distributions: every sample", blocks)


# -- failures ----------------------------------------------------------------------------------------------------------------------------


def failures(report: Report) -> Section | None:
    """The tasks without a figure, and why."""
    rows = [
        row for row in report.rows if row.status is not RowStatus.COMPLETE or row.inference_ms_median is None
    ]
    detail = report.stored.detail if report.stored is not None else ""
    if not rows and not detail:
        return None
    blocks: list[Block] = [quote(detail)] if detail else []
    if rows:
        lines: list[list[str | Badge]] = [
            [
                task_number(row),
                quote(row.file_name),
                quote(row.compute_units),
                device_name(row),
                verdict(row),
                quote(_why(row)),
            ]
            for row in rows
        ]
        blocks += [
            Table("Tasks without a figure", ["task", "model", "unit", "device", "status", "why"], lines),
            "To see what would help, run this where the campaign was submitted:",
            ShellCommands([f"sark-node explain {shlex.quote(report.campaign)}"]),
        ]
    return Section("failed", "What failed, and why", blocks)


def _why(row: Row) -> str:
    why = ": ".join(filter(None, (row.reason, "; ".join(row.detail.splitlines()))))
    return why or row.verdict_reason or "no reason given"
