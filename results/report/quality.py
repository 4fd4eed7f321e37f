"""The report section on answer quality: the scores of the models' answers, and how far the answers lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from results.analysis.drift import RowDrift, drifts
from results.report.facts import Report
from results.report.measurements import configuration, number, task_number
from results.report.page import Block, Section, Table, quote
from results.row.row import Row, RowStatus
from results.row.scores import read_scores
from results.scoring.account import EvaluationAccount
from swarm.base.text import count, safe_text

MAX_METRICS: Final = 8


def quality(report: Report) -> Section | None:
    """The section; None if no model was evaluated."""
    rows = [row for row in report.rows if row.examples_sha256 and row.status is RowStatus.COMPLETE]
    if not rows:
        return None
    apart = {each.row.job_id: each for each in drifts(report.results)}
    titles = {
        (result.row.file_name, result.row.examples_sha256): _title(result.evaluation)
        for result in report.results
        if result.evaluation is not None
    }
    blocks: list[Block] = []
    for model, examples in dict.fromkeys((row.file_name, row.examples_sha256) for row in rows):
        alike = [row for row in rows if (row.file_name, row.examples_sha256) == (model, examples)]
        title = f"{quote(model)}: {quote(titles.get((model, examples), 'its examples'))}"
        blocks += _of_model(title, alike, apart)
    return Section("quality", "Quality: scores of the answers", blocks)


def _title(account: EvaluationAccount) -> str:
    return f"{account.title}, {count(len(account.references), 'example')}"


def _of_model(title: str, rows: Sequence[Row], apart: dict[str, RowDrift]) -> Iterable[Block]:
    scored = [read_scores(row.scores) for row in rows]
    metrics = sorted({metric for scores in scored for metric in scores})[:MAX_METRICS]
    known = [each for row in rows if (each := apart.get(row.job_id))]
    first = known[0].reference if any(each.drift is not None for each in known) else None
    columns = ["device and unit", "task#", *(f"{safe_text(metric, 40)}#" for metric in metrics)]
    if first is not None:
        columns += [f"drift from {_task(first)}#", "largest#"]
    columns.append("")
    lines = []
    for row, scores in zip(rows, scored, strict=True):
        line = [
            configuration(row),
            task_number(row),
            *(number(scores.get(metric)) for metric in metrics),
        ]
        each = apart.get(row.job_id)
        if first is not None:
            line += ["", ""] if each is None else [_share(each.drift), _share(each.drift_max)]
        lines.append([*line, quote(_remark(row, each))])
    yield Table(title, columns, lines)
    if first is not None:
        yield (
            "Drift: the median and the largest distance, over the examples, from the outputs of the named task. For real numbers it is the "
            "Euclidean distance divided by the norm of those outputs, for whole numbers the share that differs."
        )


def _share(value: float | None) -> str:
    """Two significant digits."""
    return "" if value is None else f"{value:.2g}"


def _remark(row: Row, drift: RowDrift | None) -> str:
    why = row.scores_why or (drift.why if drift is not None else "")
    if why or drift is None or not drift.alike:
        return why
    return (
        "identical bit for bit" if drift.drift is not None else f"the same texts as {_task(drift.reference)}"
    )


def _task(row: Row) -> str:
    return f"task {safe_text(row.job_id.rpartition('/')[2], 20)}"
