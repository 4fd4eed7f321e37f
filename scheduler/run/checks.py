"""Where records are read and checked: small ones of trusted devices at once, all others beside everything else.

A small record takes less time than handing it to a thread, which then fights the loop for the interpreter. But one may hold millions of
numbers, which take seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.words import RunOutcome
from results.export.figures import figures_of
from results.row.acceptance import bounds_of, check, not_as_asked
from results.row.scores import WAITING, unanswered
from results.row.witness import refusal
from scheduler.conversation.effects import CheckedRecord, CheckRecord

SMALL: Final = 16 * 1024
"""Bytes of a record that is checked at once: 0.4 ms for one of 600 inferences."""
FEW: Final = 300_000
"""Numbers that such a record may hold by what its task asks for: they are packed, and one of very many alike takes few bytes."""

Aside = Callable[[Callable[[], CheckedRecord]], Awaitable[CheckedRecord]]


@dataclass(eq=False)
class RecordChecks:
    aside: Aside
    """Does work beside everything else."""
    _turn: trio.Lock = field(default_factory=trio.Lock)
    """One at a time: each may be large."""

    async def check(self, effect: CheckRecord) -> CheckedRecord:
        """The checked record. Raises `RemoteProtocolError`."""
        if effect.account is None and len(effect.body) <= SMALL and bounds_of(effect.task).total <= FEW:
            return checked(effect)
        async with self._turn:
            return await self.aside(lambda: checked(effect))


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
