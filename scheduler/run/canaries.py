"""Canaries: inferences of strangers' runs that this home repeats, a few at a time, while other work goes on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import SarkError
from protocol.values.record import LaunchOutput, Record
from protocol.values.task import Task
from results.row.canary import CanaryOutcome, CanaryVerdict, judge_canary, seed_of, unchecked
from swarm.base.threads import CANARIES

AT_ONCE: Final = 1
"""Inferences repeated at a time; few, since the submitting machine is in somebody's use."""
WAIT_S: Final = 20.0
"""Longest time, in seconds, for which a result waits for its turn …"""
ANSWER_S: Final = 30.0
"""… and for its model's outputs."""

log = structlog.get_logger("sark.scheduler")

AnswerModel = Callable[[Path, Task, int], LaunchOutput]
"""A model's outputs on this machine's processor for a task's inputs with this seed. Blocks; raises `SarkError`."""


def no_answers(model: Path, task: Task, seed: int) -> LaunchOutput:
    """`AnswerModel` of a home that runs no models."""
    raise SarkError("this home runs no models itself")


@dataclass(eq=False)
class Canaries:
    """Repeats inferences of strangers' runs. `spool`: the folder of the models, by hash."""

    answer: AnswerModel
    spool: Path
    draw: Callable[[int], int] = secrets.randbelow
    """A random number below another, unpredictable for workers."""
    _turns: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(AT_ONCE))

    async def check(self, task: Task, record: Record) -> CanaryVerdict:
        """Repeat one inference of a complete record. Never fails."""
        launch = 1 + self.draw(max(1, len(record.timings)))
        seed = seed_of(record, launch)
        said = record.timings[launch - 1].output if record.timings else None
        if seed is None or said is None:
            return unchecked("its inputs do not follow from a reveal")
        turn = object()
        with trio.move_on_after(WAIT_S) as waiting:
            await self._turns.acquire_on_behalf_of(turn)
        if waiting.cancelled_caught:
            return unchecked("this home had too many other inferences to repeat")
        try:
            with trio.move_on_after(ANSWER_S) as working:
                return await self._judge(task, launch, seed, said)
        except SarkError as exc:
            return unchecked(exc.what)
        finally:
            self._turns.release_on_behalf_of(turn)
        assert working.cancelled_caught
        return unchecked(f"this home did not repeat an inference within {ANSWER_S:g} s")

    async def _judge(self, task: Task, launch: int, seed: int, said: LaunchOutput) -> CanaryVerdict:
        own = await self._answer(task, seed)
        verdict = judge_canary(launch, said, own, await self._answer(task, seed ^ 1))
        if verdict.outcome is CanaryOutcome.REFUTED:
            again = judge_canary(launch, await self._answer(task, seed), own, said)
            if again.outcome is CanaryOutcome.REFUTED:
                return unchecked("the model answers differently each time")
            log.warning("canary.refuted", task=task.task, launch=launch, why=verdict.why)
        return verdict

    async def _answer(self, task: Task, seed: int) -> LaunchOutput:
        model = self.spool / task.model.sha256
        return await CANARIES.run(self.answer, model, task, seed, abandon_on_cancel=True)
