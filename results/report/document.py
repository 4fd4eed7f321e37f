"""A report as a page: its facts, a summary in plain sentences, then the other sections in order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from results.report.drawing import digits
from results.report.facts import Report, show_instant
from results.report.measurements import comparison, configuration, distributions, failures, interval, medians
from results.report.method import fingerprints, host, method, verification
from results.report.operators import where_it_ran
from results.report.page import Block, Bullets, ReportPage, Section, Warn, code, quote
from results.report.quality import quality
from results.report.sustained_chart import sustained_runs
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.simulated import mark_simulated, prefer_measured
from results.row.strangers import strangers_line
from results.row.verdicts import RowVerdict
from swarm.base.text import count
from swarm.base.units import show_duration

MAX_NAMES: Final = 6
"""Maximum names in a sentence; the rest are counted."""
MAX_MODELS: Final = 12
"""Maximum models for which the summary says which device was fastest."""


def make_page(report: Report) -> ReportPage:
    sections = (
        summary(report),
        medians(report),
        quality(report),
        comparison(report),
        distributions(report),
        sustained_runs(report),
        where_it_ran(report),
        failures(report),
        host(report),
        method(report),
        fingerprints(report),
        verification(report),
    )
    written = f"{show_instant(report.written)} by sark-node {report.version}"
    return ReportPage(
        title=report.title,
        kicker="Benchmark report",
        facts=[*_facts(report), ("written", written)],
        sections=[section for section in sections if section is not None],
        foot=f"Written {written} from signed raw samples.",
    )


def _facts(report: Report) -> Iterable[tuple[str, str]]:
    yield "campaign", code(report.campaign)
    if (stored := report.stored) is not None:
        took = "" if stored.ended is None else f", took {show_duration(round(stored.ended - stored.created))}"
        yield "submitted", show_instant(stored.created) + took
    yield "status", report.status
    if urls := sorted({row.results_url for row in report.rows} - {""}):
        yield "results at", ", ".join(map(code, urls))
    if schedulers := sorted({task.scheduler for task in report.signed_tasks}):
        yield "submitted by", code(schedulers[0])
    if devices := _devices(report.rows):
        yield "devices", _list(devices)


def summary(report: Report) -> Section:
    lines = [_ended(report), *_measured(report), *_fastest(report), *_trust(report), *_compared(report)]
    blocks: list[Block] = [Bullets(lines)]
    if simulated := sum(bool(row.simulated) for row in report.rows):
        text = "All of this is a simulation: the figures come from a script and are not results."
        if simulated < len(report.rows):
            which = "is a simulation: its" if simulated == 1 else "are simulations: their"
            text = (
                f"{simulated} of the {len(report.rows)} rows {which} figures come from a script, are not results, and are shown "
                "separately from the measurements."
            )
        blocks.insert(0, Warn(text, "bad"))
    if line := strangers_line(report.rows):
        blocks.insert(0, Warn(line, "bad"))
    return Section("summary", "Summary", blocks)


def _ended(report: Report) -> str:
    states = Counter(row.status for row in report.rows)
    ended = ", ".join(f"{states[status]} {str(status).lower()}" for status in RowStatus if states[status])
    line = f"{count(report.tasks, 'task')}: {ended or 'none has ended'}"
    left = report.tasks - len(report.rows)
    line += f"; {left} not ended yet" if left > 0 else ""
    line += ". The campaign has not ended: this report covers the results so far" if report.open else ""
    return f"{line}."


def _measured(report: Report) -> Iterable[str]:
    if not report.done:
        yield "Nothing was measured."
        return
    rows = prefer_measured(report.done)
    models = list(dict.fromkeys(row.file_name for row in rows))
    units = list(dict.fromkeys(row.compute_units for row in rows))
    devices = _devices(rows)
    yield (
        f"{'Simulated' if rows[0].simulated else 'Measured'}: {count(len(models), 'model')} ({_list(models)}) on "
        f"{count(len(devices), 'device')} ({_list(devices)}) and {count(len(units), 'unit')} ({_list(units)})."
    )


def _fastest(report: Report) -> Iterable[str]:
    models = [name for name in report.models if report.of_model(name)]
    verdicts = {
        pair.b.job_id: str(pair.comparison.verdict) for _, pair in report.within if pair.b is not None
    }
    for model in models[:MAX_MODELS]:
        rows = report.of_model(model)
        first, last = rows[0], rows[-1]
        if len(rows) == 1:
            yield f"{quote(model)}: {_time(first)} on {configuration(first)}."
            continue
        line = f"{quote(model)}: the lowest median is {_time(first)}, on {configuration(first)}"
        if first.inference_ms_median and last.inference_ms_median:
            line += f"; the highest, {digits(last.inference_ms_median)} ms on {configuration(last)}"
            line += f", is {last.inference_ms_median / first.inference_ms_median:.2f} times that"
            line += f" ({verdicts[last.job_id]})" if last.job_id in verdicts else ""
        yield f"{line}."
    if len(models) > MAX_MODELS:
        yield f"{len(models) - MAX_MODELS} more models are in the table."


def _trust(report: Report) -> Iterable[str]:
    if report.done:
        verdicts = Counter(row.verdict for row in report.done)
        valid, simulated = verdicts.pop(RowVerdict.VALID, 0), verdicts.pop(RowVerdict.SIMULATED, 0)
        measured = len(report.done) - simulated
        if not measured:
            yield "Nothing was measured: all figures come from simulations."
        elif not verdicts:
            yield f"All {valid} measurements are valid: checked, steady, on an otherwise idle host."
        else:
            others = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
            yield (
                f"{valid} of {measured} measurements are valid; {quote(others)}: these figures are what was measured, under conditions "
                "that may differ when the measurement is repeated. The reasons are below each table."
            )
    yield from (f"{quote(disagreement)}." for disagreement in disagreements(report.rows))
    if report.findings is None:
        yield "This report was too large to verify while it was written: the last section says how to verify it."
        return
    wrong = sum(bool(finding.wrong) for finding in report.findings)
    signed = sum(bool(finding.worker) for finding in report.findings)
    if wrong:
        failed = count(wrong, "result")
        yield f"{failed} failed verification: see the last section. Do not rely on this report."
    elif signed:
        held = f"{count(signed, 'result')} had a worker's valid signature when this was written"
        yield f"{held}; every figure was recomputed from the signed raw samples."


def _compared(report: Report) -> Iterable[str]:
    if report.other_name:
        results = [pair.comparison for _, pair in report.against]
        verdicts = Counter(str(result.verdict) for result in results if result.ratio is not None)
        rest = sum(result.ratio is None for result in results)
        text = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        text = (text or "nothing could be compared") + (f"; {rest} not compared" if rest else "")
        yield f"Compared with {quote(report.other_name)}: {text}."


def _time(row: Row) -> str:
    text = f"{digits(row.inference_ms_median or 0.0)} ms"
    ends = interval(row, " to ")
    return f"{text} (95 % interval {ends})" if ends else text


def _list(names: Sequence[str]) -> str:
    """`a, b and c`; for many names, the first ones and the number of the rest."""
    shown = [quote(name) for name in (names if len(names) <= MAX_NAMES else names[: MAX_NAMES - 1])]
    last = f"{len(names) - len(shown)} more" if len(shown) < len(names) else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def _devices(rows: Sequence[Row]) -> list[str]:
    return list(
        dict.fromkeys(mark_simulated(row.device_name, row.simulated) for row in rows if row.device_name)
    )
