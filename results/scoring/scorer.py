"""Scores the answers of runs: metrics of our own here, those of other packages in a process of their own."""

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
"""Answers that a metric of a package scores twice, in two processes, before it is believed."""
TRIES: Final = 2
"""So often in one campaign a metric may reach a limit; then it is not begun again."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of metrics of packages, each for the campaign that it was learned of: the next may find a mended one."""

    unsteady: dict[tuple[str, str], str] = field(default_factory=dict)
    """By campaign and metric: what it made of the same answers; empty: the same."""
    cut_off: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often it reached a limit."""


class Scorer:
    """For one thread at a time; to be closed."""

    def __init__(
        self,
        foreign: ForeignProcess | None = None,
        learned: Learned | None = None,
        *,
        check_steady: bool = False,
    ) -> None:
        """`check_steady`: see first whether a metric of a package scores the same answers alike."""
        self._foreign = ForeignProcess() if foreign is None else foreign
        self._learned = Learned() if learned is None else learned
        self._check_steady = check_steady

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def close(self) -> None:
        """End its process; the next metric of a package gets a new one."""
        self._foreign.close()

    def score(self, record: Record, account: EvaluationAccount) -> Scores:
        """What the record's answers score. Never fails for what a device sent or a metric does: where a score is missing, `why` says so.
        Raises `StoppedApart`."""
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
        """What each metric made of them, in no order."""
        foreign: list[str] = []
        for name in account.metrics:
            try:
                if not is_foreign("metric", name):
                    yield name, ForeignScores(score_answers([find_metric(name)], answers), "")
                elif self._learned.cut_off[campaign, name] >= TRIES:
                    yield (
                        name,
                        ForeignScores({}, "", f"metric {name!r} failed so before, and was not begun again"),
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
        """Have a sample scored in two processes. What fails is no sign of chance."""
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
    """Why two scorings of the same answers are not to be believed; empty: they are alike."""
    for score in sorted(one.scores.keys() | other.scores.keys()):
        first, second = (shown_score(each.scores.get(score)) for each in (one, other))
        if first != second:
            of = f" of {one.package}" if one.package else ""
            return f"metric {name!r}{of} is not repeatable: {score} was {first}, and {second} for the same answers"
    return ""


def shown_score(figure: float | None) -> str:
    """A score as rows have it."""
    return "none" if figure is None else f"{figure:.9g}"


def merged(names: Sequence[str], scored: Iterable[tuple[str, ForeignScores]]) -> Scores:
    """All of them in one, in the order of `names`. Of two metrics that give the same score the first counts."""
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
    """What one record's answers score."""
    with Scorer() as scorer:
        return scorer.score(record, account)
