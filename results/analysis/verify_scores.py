"""Verifies the scores of a row: runs the metrics again on the answers that the worker signed.

A claimed score must follow from the row's answers. Why scores are missing is the scheduler's own account, and so is which package scored.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.values.record import Record
from protocol.values.task import Task
from protocol.words import RunOutcome
from results.export.raw import RawResult
from results.row.row import Row
from results.row.scores import ROUGE, Scores, read_packages, read_scores
from results.scoring.scorer import Scorer, shown_score


def check_scores(
    result: RawResult, task: Task, record: Record, scorer: Scorer
) -> tuple[list[str], Scores | None]:
    """What is wrong with the row's scores, one line each, and the scores to recompute the row with."""
    if task.examples is None or record.outcome is not RunOutcome.COMPLETE:
        return [], None
    row = result.row
    packages = read_packages(row.scored_by)
    try:
        claimed = read_scores(row.scores)
        own = Scores(scores=_in_full(row, claimed), why=row.scores_why, packages=packages)
    except ValueError:
        return ["its scores cannot be read: Scores is not a list of name=number"], None
    if not claimed:
        return [], own
    if result.evaluation is None:
        return ["its scores cannot be checked: the file has no references for its answers"], own
    again = scorer.score(record, result.evaluation)
    wrong: list[str] = []
    missing = [name for name in claimed if name not in again.scores]
    if missing and again.why:
        wrong.append(f"its scores cannot be checked here: {again.why}{_versions(packages, again.packages)}")
    for name, figure in sorted(claimed.items()):
        second = again.scores.get(name)
        if shown_score(figure) == shown_score(second) or (second is None and again.why):
            continue
        wrong.append(
            f"its score {name} is {shown_score(figure)}, but scoring its answers again gives {shown_score(second)}"
            + _versions(packages, again.packages)
        )
    if not row.scores_why and (left_out := sorted(again.scores.keys() - claimed.keys())):
        wrong.append(
            f"it omits a score of its answers: {left_out[0]} is {shown_score(again.scores[left_out[0]])}"
        )
    return wrong, own


def _in_full(row: Row, claimed: dict[str, float]) -> dict[str, float]:
    """The claimed scores with all digits, taken from a score's own column if that agrees."""
    figures = dict(claimed)
    for name, field in ROUGE.items():
        figure = getattr(row, field)
        if name in claimed and figure is not None and shown_score(figure) == shown_score(claimed[name]):
            figures[name] = figure
    return figures


def _versions(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which packages scored, if different ones are installed here."""
    changed = [
        f"{name}: scored with {package}, {now.get(name, 'none')} is installed here"
        for name, package in sorted(then.items())
        if now.get(name) != package
    ]
    return f" ({'; '.join(changed)})" if changed else ""
