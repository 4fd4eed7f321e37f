"""Scores stored answers again, with the metrics installed now. Signed records stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import computed_field

from protocol.errors import CampaignError, RemoteProtocolError
from protocol.values.record import read_record
from protocol.values.task import read_task
from results.row.form import JsonModel
from results.row.scores import WAITING, Scores
from results.scoring.account import EvaluationAccount
from results.scoring.scorer import Scorer, shown_score
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store
from swarm.base.text import safe_text

PORTION = 50
"""Records in memory at a time."""
ELSEWHERE = "the references of its examples are on the machine that the campaign was submitted on"


class Rescored(JsonModel):
    """The outcome of scoring one task's answers again."""

    task: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    packages_before: Mapping[str, str]
    packages: Mapping[str, str]
    why: str = ""
    """Reason why scores are missing now."""
    kept: bool = False
    """Whether the earlier scores were kept, because some of them would be missing now."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def changed(self) -> bool:
        """Whether the scores, or the packages that made them, differ from before."""
        return not self.kept and (
            _shown(self.before) != _shown(self.after) or self.packages_before != self.packages
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def words(self) -> str:
        """The outcome in one line: `task 3: wer_x 0.31 → 0.29 (wer_x: my-metrics 1.2 → 1.3)`."""
        if self.kept:
            return f"{_number(self.task)}: unchanged: {safe_text(self.why)}"
        before, after = _shown(self.before), _shown(self.after)
        moved = _moves(before, after) or ["unchanged" if after else "no scores"]
        versions = _moves(self.packages_before, self.packages)
        more = f" ({'; '.join(versions)})" if versions else ""
        return f"{_number(self.task)}: {', '.join(moved)}{more}" + (
            f": {safe_text(self.why)}" if self.why else ""
        )


class Rescoring(JsonModel):
    """The outcome of scoring a campaign's answers again."""

    campaign: str
    changed: int
    """Number of tasks whose scores, or the packages that made them, differ from before."""
    tasks: tuple[Rescored, ...]
    """The tasks that have answers."""
    outdated: str = ""
    """URL where the results still have the earlier scores. Empty if there is none."""


def rescore_campaign(
    store: Store, campaign: str, scorer: Scorer, tell: Callable[[Rescored], None] = lambda each: None
) -> Rescoring:
    """`rescore` for all tasks; `tell` receives each result once it is stored. Raises `CampaignError` if no task has answers."""
    made: list[Rescored] = []
    for each in rescore(store, campaign, scorer):
        made.append(each)
        tell(each)
    if not made:
        raise CampaignError(
            f"{campaign} has no answers to score",
            hint="only models with evaluate answer examples, once they are measured: see docs/evaluation.md",
        )
    changed, sent = sum(each.changed for each in made), store.sendings.get(campaign)
    outdated = f"{sent.url}/{campaign}" if changed and sent is not None and sent.sent is not None else ""
    return Rescoring(campaign=campaign, changed=changed, tasks=tuple(made), outdated=outdated)


def rescore(store: Store, campaign: str, scorer: Scorer) -> Iterator[Rescored]:
    """Score the answers of all tasks of a campaign that have any, one after the other, and store the scores."""
    accounts = {
        name: EvaluationAccount.model_validate_json(text)
        for name, text in store.campaigns.evaluations(campaign).items()
    }
    last = sum(store.tasks.counts(campaign).values())
    for low in range(1, last + 1, PORTION):
        for item in store.results.rows(campaign, low, low + PORTION - 1):
            found = _rescored(item, accounts, scorer)
            if found is None:
                continue
            made, scores = found
            if made.changed:
                assert item.attempt is not None, "it has a record"
                store.scores.set(made.task, item.attempt, scores)
            yield made


def _rescored(
    item: ResultRow, accounts: Mapping[str, EvaluationAccount], scorer: Scorer
) -> tuple[Rescored, Scores] | None:
    """The new scores; None: the task has no answers, or they are being scored."""
    if item.scores is None or item.record is None or item.scores == WAITING.model_dump_json():
        return None
    before = Scores.model_validate_json(item.scores)
    examples = read_task(item.body).examples
    account = None if examples is None else accounts.get(examples.name)
    try:
        after = Scores(why=ELSEWHERE) if account is None else scorer.score(read_record(item.record), account)
    except RemoteProtocolError as exc:
        after = Scores(why=exc.what)
    made = Rescored(
        task=item.task.id,
        before=before.scores,
        after=after.scores,
        packages_before=before.packages,
        packages=after.packages,
        why=after.why,
        kept=bool(before.scores.keys() - after.scores.keys()) and bool(after.why),
    )
    return made, after


def _shown(scores: Mapping[str, float]) -> dict[str, str]:
    return {name: shown_score(figure) for name, figure in scores.items()}


def _moves(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {before.get(name, 'none')} → {after.get(name, 'none')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _number(task: str) -> str:
    return f"task {task.rpartition('/')[2]}"
