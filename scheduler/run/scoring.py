"""Scores stored answers, one run after the other, while other work goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.row.scores import Scores
from results.scoring.account import EvaluationAccount
from results.scoring.foreign import ForeignProcess
from results.scoring.scorer import Learned, Scorer
from scheduler.conversation.effects import ScoreAnswers
from swarm.base.isolated_process import IsolatedProcessStopped
from swarm.base.threads import SCORING

NO_REFERENCES: Final = "the references are on the machine that the campaign was submitted on"

log = structlog.get_logger("sark.scheduler")


@dataclass(eq=False)
class Scorings:
    """Scores the answers of one store."""

    records: Callable[[str, int], bytes | None]
    """Returns the signed record of a task's attempt."""
    evaluations: Callable[[str], Mapping[str, str]]
    """How the answers to a campaign's examples are scored (`EvaluationAccount`), as JSON, keyed as tasks name them."""
    _learned: Learned = field(default_factory=Learned)

    async def score(self, order: ScoreAnswers) -> Scores:
        """Score the answers of an attempt. Never fails. A slow metric has a time limit of its own, and scoring also ends with
        `order.unwanted`.
        """
        task, over = order.task, trio.Event()
        assert task.examples is not None, "it has answers to examples"
        by = self.evaluations(task.campaign).get(task.examples.name)
        body = self.records(task.task, order.attempt)
        if by is None or body is None:
            return Scores(why=NO_REFERENCES)
        try:
            return await SCORING.run(
                lambda: self._score(order, body, by, over.is_set), abandon_on_cancel=True
            )
        finally:
            over.set()

    def _score(self, order: ScoreAnswers, body: bytes, by: str, over: Callable[[], bool]) -> Scores:
        if why := order.unwanted():
            return Scores(why=why)
        log.info("answers.score", task=order.task.task)
        process = ForeignProcess(stopped=lambda: over() or bool(order.unwanted()))
        with Scorer(process, self._learned, check_steady=True) as scorer:
            try:
                return scorer.score(read_record(body), EvaluationAccount.model_validate_json(by))
            except IsolatedProcessStopped:
                return Scores(why=order.unwanted() or "this scheduler was stopped")
            except (RemoteProtocolError, ValueError) as why:  # from another version
                return Scores(why=f"its answers cannot be read: {why}")
