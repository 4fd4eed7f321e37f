"""Scores the answers of runs: built-in metrics in this process, metrics of packages in a process of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.values.answers import AnswerSet
from protocol.values.record import Record
from results.row.scores import Scores, unanswered
from results.scoring.account import EvaluationAccount
from results.scoring.evaluation import score_answers
from results.scoring.foreign import ForeignProcess, ForeignScores, is_foreign
from results.scoring.packing import answers_of
from results.scoring.plugins import Answer, find_metric

SAMPLE: Final = 16
"""Answers that a package's metric scores twice, in two processes, before its scores are trusted."""
TRIES: Final = 2
"""Maximum times that a metric may reach a limit in one campaign; after that it is not started again."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known about metrics of packages, per campaign: the next campaign may find a fixed version."""

    unsteady: dict[tuple[str, str], str] = field(default_factory=dict)
    """By campaign and metric: how its scores of the same answers differed; empty if they were equal."""
    cut_off: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often the metric reached a limit."""


class Scorer:
    """Used by one thread at a time. Must be closed."""

    def __init__(
        self,
        foreign: ForeignProcess | None = None,
        learned: Learned | None = None,
        *,
        check_steady: bool = False,
    ) -> None:
        """`check_steady`: first check that a package's metric gives the same answers the same scores."""
        self._foreign = ForeignProcess() if foreign is None else foreign
        self._learned = Learned() if learned is None else learned
        self._check_steady = check_steady

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process; the next metric of a package starts a new one."""
        self._foreign.close()

    def score(self, record: Record, account: EvaluationAccount) -> Scores:
        """The scores of the record's answers. Never fails because of what a device sent or a metric does: `why` explains missing scores.
        Raises `IsolatedProcessStopped`.
        """
        answered = record.answers
        if (none := unanswered(record)) is not None or answered is None:
            return none or Scores()
        try:
            answers = answers_of(answered, account.references)
        except ValueError as why:
            return Scores(why=str(why))
        return merged(account.metrics, self._scored(record.campaign, account, answered, answers))

    def _scored(
        self, campaign: str, account: EvaluationAccount, answered: AnswerSet, answers: Sequence[Answer]
    ) -> Iterable[tuple[str, ForeignScores]]:
        """The scores of each metric, in no particular order."""
        foreign: list[str] = []
        for name in account.metrics:
            try:
                if not is_foreign("metric", name):
                    yield name, ForeignScores(score_answers([find_metric(name)], answers), "")
                elif self._learned.cut_off[campaign, name] >= TRIES:
                    yield (
                        name,
                        ForeignScores(
                            {}, "", f"metric {name!r} failed in this way before, and was not started again"
                        ),
                    )
                else:
                    foreign.append(name)
            except ValueError as why:
                yield name, ForeignScores({}, "", str(why))
        if self._check_steady:
            self._compare(
                campaign,
                [name for name in foreign if (campaign, name) not in self._learned.unsteady],
                account,
                answered,
            )
        steady = [name for name in foreign if not self._learned.unsteady.get((campaign, name))]
        yield from (
            (name, ForeignScores({}, "", self._learned.unsteady[campaign, name]))
            for name in foreign
            if name not in steady
        )
        for name, scored in zip(
            steady, self._foreign.score(steady, answered, account.references), strict=True
        ):
            self._learned.cut_off[campaign, name] += scored.cut_off
            yield name, scored

    def _compare(
        self, campaign: str, names: Sequence[str], account: EvaluationAccount, answered: AnswerSet
    ) -> None:
        """Score a sample in two processes. A failure is not taken as a sign of randomness."""
        if not names:
            return
        twice: list[list[ForeignScores]] = []
        for _ in range(2):
            self._foreign.close()
            twice.append(list(self._foreign.score(names, answered, account.references, SAMPLE)))
        for name, one, other in zip(names, *twice, strict=True):
            self._learned.cut_off[campaign, name] += one.cut_off or other.cut_off
            known = not (one.why or other.why)
            self._learned.unsteady[campaign, name] = difference(name, one, other) if known else ""


def difference(name: str, one: ForeignScores, other: ForeignScores) -> str:
    """How two scorings of the same answers differ; empty if they agree."""
    for score in sorted(one.scores.keys() | other.scores.keys()):
        first, second = (shown_score(each.scores.get(score)) for each in (one, other))
        if first != second:
            of = f" of {one.package}" if one.package else ""
            return f"metric {name!r}{of} is not repeatable: {score} was {first}, then {second} for the same answers"
    return ""


def shown_score(figure: float | None) -> str:
    """A score as written in rows."""
    return "none" if figure is None else f"{figure:.9g}"


def merged(names: Sequence[str], scored: Iterable[tuple[str, ForeignScores]]) -> Scores:
    """All scores in one, in the order of `names`. If two metrics give the same score, the first one counts."""
    found = dict(scored)
    scores: dict[str, float] = {}
    packages: dict[str, str] = {}
    why: list[str] = []
    for name in names:
        one = found[name]
        if one.why:
            why.append(one.why)
        elif twice := sorted(one.scores.keys() & scores.keys()):
            why.append(f"metric {name!r} gives {twice[0]!r}, which another metric gives too")
        else:
            scores |= one.scores
        if one.package:
            packages[name] = one.package
    return Scores(scores=scores, why="; ".join(why), packages=packages)


def score(record: Record, account: EvaluationAccount) -> Scores:
    """The scores of one record's answers."""
    with Scorer() as scorer:
        return scorer.score(record, account)
