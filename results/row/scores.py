"""The scores of an evaluated model's answers, in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from protocol.values.record import Record
    from protocol.values.task import Task

ROUGE: Final[Mapping[str, str]] = {"rouge1": "rouge1", "rouge2": "rouge2", "rougel": "rouge_l"}
"""Scores that have a column of their own, with its field."""


class Scores(BaseModel):
    """Scores of a run's answers by metric, and why scores are missing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scores: Mapping[str, float] = {}
    why: str = ""
    packages: Mapping[str, str] = {}
    """For metrics that are not Sark's own: the package that provides each, with its version, such as `my-metrics 1.2`."""


WAITING: Final = Scores(why="its answers are not scored yet")
"""For answers whose metrics have not run yet."""


def unanswered(record: Record) -> Scores | None:
    """Why the answers of `record` cannot be scored; None if they can."""
    if record.answers is None:
        return Scores(why="the run ended before the examples were answered")
    return Scores(why=record.answers.why) if record.answers.why else None


def read_scores(text: str) -> dict[str, float]:
    """Read a row's column: scores by metric."""
    named = (each.partition("=") for each in text.split("; ") if each)
    return {name: float(value) for name, _, value in named}


def read_packages(text: str) -> dict[str, str]:
    """Read a row's column: packages by metric."""
    named = (each.partition("=") for each in text.split("; ") if each)
    return {name: package for name, _, package in named}


def score_columns(task: Task, record: Record, scores: Scores | None) -> dict[str, object]:
    """Score columns by field of the row; none if the model is not evaluated."""
    if task.examples is None:
        return {}
    answered = record.answers
    found = scores or Scores(why=answered.why if answered is not None else "")
    return {
        "scores": "; ".join(f"{name}={value:.9g}" for name, value in sorted(found.scores.items())),
        "scores_why": found.why,
        "scored_by": "; ".join(f"{name}={package}" for name, package in sorted(found.packages.items())),
        "examples_sha256": task.examples.sha256,
        "answers_sha256": (answered and answered.sha256) or "",
        **{field: found.scores[name] for name, field in ROUGE.items() if name in found.scores},
    }
