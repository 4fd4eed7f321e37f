"""Records are read and checked beside everything else: one may hold millions of numbers, which take seconds.

Those that wait are checked together, so that very many small ones do not each wait for a thread; large ones one at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.errors import RemoteProtocolError
from protocol.words import RunOutcome
from results.export.figures import figures_of
from results.row.acceptance import check, not_as_asked
from results.row.scores import WAITING, unanswered
from results.row.witness import refusal
from scheduler.conversation.effects import CheckedRecord, CheckRecord

TOGETHER: Final = 64
"""Records that are checked in one go at most."""
TOGETHER_BYTES: Final = 256 * 1024
"""All of them together, unless it is one."""

Aside = Callable[[Callable[[], None]], Awaitable[None]]


@dataclass(eq=False)
class _Waiting:
    """A record, and what became of it; None: it still waits."""

    effect: CheckRecord
    outcome: CheckedRecord | RemoteProtocolError | None = None


@dataclass(eq=False)
class RecordChecks:
    aside: Aside
    """Does work beside everything else."""
    _waiting: list[_Waiting] = field(default_factory=list)
    """In the order in which they have the turn."""
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def check(self, effect: CheckRecord) -> CheckedRecord:
        """The checked record. Raises `RemoteProtocolError`."""
        mine = _Waiting(effect)
        self._waiting.append(mine)
        try:
            async with self._turn:
                if mine.outcome is None:
                    assert self._waiting[0] is mine, "whoever has the turn is the first of those that wait"
                    together = self._next()
                    await self.aside(lambda: _check_all(together))
        finally:
            self._waiting = [each for each in self._waiting if each is not mine and each.outcome is None]
        assert mine.outcome is not None, "a check ends with an outcome"
        if isinstance(mine.outcome, RemoteProtocolError):
            raise mine.outcome
        return mine.outcome

    def _next(self) -> list[_Waiting]:
        together, size = self._waiting[:1], len(self._waiting[0].effect.body)
        for each in self._waiting[1:TOGETHER]:
            size += len(each.effect.body)
            if size > TOGETHER_BYTES:
                break
            together.append(each)
        return together


def _check_all(together: Sequence[_Waiting]) -> None:
    for each in together:
        try:
            each.outcome = checked(each.effect)
        except RemoteProtocolError as exc:
            each.outcome = exc


def checked(effect: CheckRecord) -> CheckedRecord:
    """Read and check a record. Raises `RemoteProtocolError`."""
    task = effect.task
    record, observed = check(effect.result, effect.body, effect.peer, task, effect.signed_task)
    rejection = not_as_asked(record, task)
    account = effect.account
    if account is not None:  # an inference is repeated later: what lists show follows then
        account = account.model_copy(update={"confirmed": True})
    if account is not None and rejection is None and record.outcome is RunOutcome.COMPLETE:
        rejection = refusal(record, observed, account)
    scores = None if task.examples is None else unanswered(record) or WAITING
    return CheckedRecord(record, figures_of(task, record, account, observed), rejection, scores)
