"""The first page of a report: what it is, and what came out, in plain sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from results.report.drawing import digits
from results.report.facts import Report, instant
from results.report.page import Bullets, Line, Paragraph, Section, Span, TextSpan
from results.row.replicas import disagreements
from results.row.row import Row, RowStatus
from results.row.simulated import counting, marked
from results.row.verdict import RowVerdict
from swarm.base.text import count

NAMED: Final = 6
"""Names in a sentence; of more, how many."""
MODELS: Final = 12
"""Models of which the summary says which device was quickest."""


def facts_of(report: Report) -> list[tuple[str, Line]]:
    """What stands below the title."""
    found: list[tuple[str, Line]] = [("campaign", [TextSpan(report.campaign, code=True)])]
    if (stored := report.stored) is not None:
        when: list[Span] = [instant(stored.created)]
        if stored.ended is not None:
            when.append(f", took {lasted(stored.ended - stored.created)}")
        found.append(("begun", when))
    found.append(("status", [report.status]))
    schedulers = sorted({task.scheduler for task in report.asked})
    if schedulers:
        found.append(("submitted by", [TextSpan(schedulers[0], code=True)]))
    devices = _devices(report.rows)
    if devices:
        found.append(("devices", listed(devices)))
    found.append(("written", [f"{instant(report.written)} by sark-node {report.version}"]))
    return found


def summary(report: Report) -> Section:
    """What came out."""
    lines = [_ended(report), *_measured(report), *_quickest(report), *_trust(report), *_beside(report)]
    blocks: list[Paragraph | Bullets] = [Bullets([line for line in lines if line])]
    if pretended := sum(bool(row.simulated) for row in report.rows):
        whole = pretended == len(report.rows)
        which = "All of this is" if whole else f"Of {pretended} of the {len(report.rows)} rows all is"
        told = f"{which} a simulation: its figures come from a script. They are no results"
        blocks.insert(
            0, Paragraph([told + ("." if whole else ", and stand apart from what was measured.")], "bad")
        )
    return Section("summary", "Summary", blocks)


def _ended(report: Report) -> Line:
    states = Counter(row.status for row in report.rows)
    told = ", ".join(f"{states[status]} {str(status).lower()}" for status in RowStatus if states[status])
    line = f"{count(report.tasks, 'task')}: {told or 'none has ended'}"
    left = report.tasks - len(report.rows)
    if report.open or left > 0:
        line += f"; {left} not ended yet" if left > 0 else ""
        line += ". The campaign is not over: this report is of what there is so far" if report.open else ""
    return [f"{line}."]


def _measured(report: Report) -> Iterable[Line]:
    if not report.done:
        yield ["Nothing was measured."]
        return
    rows = counting(report.done)
    models = list(dict.fromkeys(row.file_name for row in rows))
    units = list(dict.fromkeys(row.compute_units for row in rows))
    yield [
        f"{'Simulated' if rows[0].simulated else 'Measured'}: {count(len(models), 'model')} (",
        *listed(models),
        f") on {count(len(_devices(rows)), 'device')} (",
        *listed(_devices(rows)),
        f") and {count(len(units), 'unit')} (",
        *listed(units),
        ").",
    ]


def _quickest(report: Report) -> Iterable[Line]:
    models = [name for name in report.models if report.of_model(name)]
    for model in models[:MODELS]:
        rows = report.of_model(model)
        words = {pair.b.job_id: str(pair.said.word) for _, pair in report.within if pair.b is not None}
        first = rows[0]
        line: list[Span] = [TextSpan(model), ": "]
        if len(rows) > 1:
            line += ["the lowest median is ", *_time(first), ", on ", *where(first)]
        else:
            line += [*_time(first), " on ", *where(first)]
        last = rows[-1]
        if len(rows) > 1 and first.inference_ms_median and last.inference_ms_median:
            times = last.inference_ms_median / first.inference_ms_median
            line += [f"; the highest, {digits(last.inference_ms_median)} ms on ", *where(last)]
            line += [f", is {times:.2f} times that"]
            line += [f" ({words[last.job_id]})"] if last.job_id in words else []
        yield [*line, "."]
    if len(models) > MODELS:
        yield [f"{len(models) - MODELS} more models are in the table."]


def _trust(report: Report) -> Iterable[Line]:
    if report.done:
        verdicts = Counter(row.verdict for row in report.done)
        good, pretended = verdicts.pop(RowVerdict.VALID, 0), verdicts.pop(RowVerdict.SIMULATED, 0)
        measured = len(report.done) - pretended
        if not measured:
            yield ["Nothing was measured: all figures are of simulations."]
        elif not verdicts:
            yield [f"All {good} measurements are valid: checked, steady, on a host that did nothing else."]
        else:
            told = ", ".join(f"{number} {word}" for word, number in verdicts.most_common())
            yield [
                f"{good} of {measured} measurements are valid; ",
                TextSpan(told),
                (
                    ": these figures are what was measured, under conditions that a repeat may not have. "
                    "The reasons stand below each table."
                ),
            ]
    for told in disagreements(report.rows):
        yield [TextSpan(told), "."]
    if report.findings is None:
        yield ["Too large to be verified while it was written: see the last section for how to do that."]
        return
    wrong = sum(bool(finding.wrong) for finding in report.findings)
    signed = sum(bool(finding.worker) for finding in report.findings)
    if wrong:
        yield [
            f"{count(wrong, 'result')} did not hold when verified: see the last section. Do not rely on this report."
        ]
    elif signed:
        yield [
            (
                f"{count(signed, 'result')} bore a worker's signature that held when this was written; "
                "every figure was made again from the signed raw samples."
            )
        ]


def _beside(report: Report) -> Iterable[Line]:
    if not report.against_name:
        return
    words = Counter(str(pair.said.word) for _, pair in report.against if pair.said.ratio is not None)
    lone = sum(pair.said.ratio is None for _, pair in report.against)
    told = (
        ", ".join(f"{number} {word}" for word, number in words.most_common()) or "nothing could be compared"
    )
    yield [
        "Beside ", TextSpan(report.against_name), f": {told}" + (f"; {lone} not compared" if lone else "") + ".",
    ]  # fmt: skip


def _time(row: Row) -> list[Span]:
    told = f"{digits(row.inference_ms_median or 0.0)} ms"
    low, high = row.inference_ms_median_low, row.inference_ms_median_high
    return [
        told if low is None or high is None else f"{told} (95 % interval {digits(low)} to {digits(high)})"
    ]


def where(row: Row) -> list[Span]:
    """Device, unit, threads and batch."""
    line: list[Span] = [
        TextSpan(marked(row.device_name or "no device", row.simulated)),
        " · ",
        TextSpan(row.compute_units),
    ]
    if row.threads is not None:
        line.append(f" · {count(row.threads, 'thread')}")
    if row.batch is not None:
        line.append(f" · batch {row.batch}")
    return line


def lasted(seconds: float) -> str:
    """`43 s`, `2 min 31 s`, `1 h 2 min`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def listed(names: Sequence[str]) -> list[Span]:
    """`a, b and c`; of many, the first and how many more."""
    found: list[Span] = []
    shown = names if len(names) <= NAMED else names[: NAMED - 1]
    for at, name in enumerate(shown):
        if at:
            found.append(" and " if at == len(names) - 1 else ", ")
        found.append(TextSpan(name))
    return [*found, f" and {len(names) - len(shown)} more"] if len(shown) < len(names) else found


def _devices(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(marked(row.device_name, row.simulated) for row in rows if row.device_name))
