"""Where a task's operators ran: a bar of the time by type and provider, and a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from results.report.charts import PAGE_WIDTH, names_of
from results.report.drawing import Box, Drawing, Mark, TextLabel, Tone, digits, fit_text, text_width
from results.report.facts import Report
from results.report.page import Badge, Block, Bullets, Figures, Heading, Section, Table, quote
from results.row.operators import OperatorLine, OperatorUses, operator_uses
from results.row.row import RowStatus

MAX_TASKS: Final = 20
"""Maximum tasks of a report whose operators are shown."""
MAX_PARTS: Final = 10
"""Maximum types in a provider's bar; the rest form one part."""
LETTERS: Final = 11.0
ISSUED: Final = (
    "The times of a device are the times the host took to issue its work; the device computes meanwhile."
)
SEPARATE: Final = "Recorded in one extra inference, apart from the timed ones, with the runtime's profiler, which slows it down."


def operators_chart(uses: OperatorUses | None) -> Drawing | None:
    """A bar for each provider, split by operator type: by time, or by number of operators if none is timed."""
    if uses is None:
        return None
    timed = any(line.ms for line in uses.lines)
    own, others = (
        [(line, _size(line, timed)) for line in uses.lines if line.fell_back is away and _size(line, timed)]
        for away in (False, True)
    )
    total = sum(size for _, size in (*own, *others))
    if not total:
        return None
    left, width, deep, top = 4.0, PAGE_WIDTH - 8.0, 22.0, 4.0
    marks: list[Mark] = []
    sentences: list[str] = []
    names = list(dict.fromkeys(line.provider for line, _ in (*own, *others)))
    for name in names:
        parts = [(line, size) for line, size in (*own, *others) if line.provider == name]
        parts.sort(key=lambda part: -part[1])
        whole = sum(size for _, size in parts)
        tone = Tone.SECOND if parts[0][0].fell_back else Tone.FIRST
        amount = f"{digits(whole)} ms" if timed else f"{whole:.0f} operators"
        label = f"{name}: {amount}, {whole / total:.0%}"
        label += ", fell back" if parts[0][0].fell_back else ""
        marks.append(TextLabel(left, top + 11, fit_text(label, LETTERS, width), Tone.INK, LETTERS))
        top += 17
        x = left
        shown = [(line.op, size) for line, size in parts[:MAX_PARTS]]
        if rest := sum(size for _, size in parts[MAX_PARTS:]):
            shown.append((f"{len(parts) - MAX_PARTS} other types", rest))
        for at, (op, size) in enumerate(shown):
            wide = width * size / total
            hint = f"{op}: {f'{digits(size)} ms' if timed else f'{size:.0f}'}, {size / total:.1%}"
            marks.append(Box(x, top, max(wide - 0.8, 0.4), deep, tone, 0.9 if at % 2 == 0 else 0.6, hint))
            if wide > text_width(op, LETTERS) + 8:
                marks.append(TextLabel(x + 4, top + deep * 0.68, op, Tone.PAPER, LETTERS))
            x += wide
        sentences.append(f"{label}: " + ", ".join(f"{op} {size / total:.0%}" for op, size in shown[:3]))
        top += deep + 8
    title = "Time by type of operator" if timed else "Operators by type"
    return Drawing(PAGE_WIDTH, top, title, "; ".join(sentences) + ".", marks)


def _size(line: OperatorLine, timed: bool) -> float:
    return (line.ms or 0.0) if timed else float(line.ran or line.nodes or 0)


def where_it_ran(report: Report) -> Section | None:
    """Operators of each task whose record has them; tasks with operators that fell back come first."""
    done = [result for result in report.results if result.row.status is RowStatus.COMPLETE]
    names = names_of([result.row for result in done])
    known = [
        (name, uses)
        for name, result in zip(names, done, strict=True)
        if (uses := operator_uses(result.ran)) is not None
    ]
    if not known:
        return None
    known.sort(key=lambda each: not any(line.fell_back for line in each[1].lines))
    blocks: list[Block] = [SEPARATE]
    for name, uses in known[:MAX_TASKS]:
        blocks += [Heading(quote(name)), quote(uses.summary)]
        if (drawing := operators_chart(uses)) is not None:
            blocks.append(Figures([drawing], described=False))
        fell = [line for line in uses.lines if line.fell_back]
        if fell:
            blocks.append(
                Bullets(
                    [f"{quote(one.op)} fell back to {quote(one.provider)}: {quote(one.why)}" for one in fell]
                )
            )
        blocks.append(_table(uses))
        if uses.issued:
            blocks.append(ISSUED)
    if (rest := len(known) - MAX_TASKS) > 0:
        blocks.append(f"{rest} more tasks are not shown here: sark-node report CAMPAIGN/TASK shows one.")
    return Section("operators", "Where it ran: operators by provider", blocks)


def _table(uses: OperatorUses) -> Table:
    shown, left, share = uses.first()
    caption = "Operators by type, slowest first"
    if left:
        caption += f"; {left} more types took {share:.1%} of the time"
    columns = ["operator", "ran on", "in the graph#", "kernels#", "ms#", "share#"]
    return Table(caption, columns, [_row(line) for line in shown])


def _row(line: OperatorLine) -> Sequence[str | Badge]:
    return (
        quote(".".join(filter(None, (line.domain, line.op)))),
        Badge(quote(line.provider), "warn") if line.fell_back else quote(line.provider),
        "" if line.nodes is None else str(line.nodes),
        str(line.ran),
        "" if line.ms is None else digits(line.ms),
        "" if line.share is None else f"{line.share:.1%}",
    )
