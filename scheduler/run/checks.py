"""Where records are read and checked: small ones of trusted devices at once, all others outside the event loop.

A small record takes less time than handing it to a thread, which then competes with the loop for the interpreter. But a record may hold
millions of numbers, which take seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.words import RunOutcome
from results.export.figures import figures_of
from results.row.acceptance import bounds_of, check, find_task_mismatch
from results.row.scores import WAITING, unanswered
from results.row.witness import refusal
from scheduler.conversation.effects import CheckedRecord, CheckRecord

SMALL: Final = 16 * 1024
"""Largest record, in bytes, that is checked at once: 0.4 ms for one of 600 inferences."""
FEW: Final = 300_000
"""Most numbers that such a record may hold, by its task. They are packed, so very many equal numbers take few bytes."""

RunInThread = Callable[[Callable[[], CheckedRecord]], Awaitable[CheckedRecord]]


@dataclass(eq=False)
class RecordChecks:
    run_in_thread: RunInThread
    """Does work outside the event loop."""
    _turn: trio.Lock = field(default_factory=trio.Lock)
    """One record at a time, since each may be large."""

    async def check(self, effect: CheckRecord) -> CheckedRecord:
        """The checked record. Raises `RemoteProtocolError`."""
        if effect.account is None and len(effect.body) <= SMALL and bounds_of(effect.task).total <= FEW:
            return checked(effect)
        async with self._turn:
            return await self.run_in_thread(lambda: checked(effect))


def checked(effect: CheckRecord) -> CheckedRecord:
    """Read and check a record. Raises `RemoteProtocolError`."""
    task = effect.task
    record, observed = check(effect.result, effect.body, effect.peer, task, effect.signed_task)
    rejection = find_task_mismatch(record, task)
    account = effect.account
    if account is not None:  # its inference is repeated later, and the columns follow from that
        account = account.model_copy(update={"confirmed": True})
    if account is not None and rejection is None and record.outcome is RunOutcome.COMPLETE:
        rejection = refusal(record, observed, account)
    scores = None if task.examples is None else unanswered(record) or WAITING
    return CheckedRecord(record, figures_of(task, record, account, observed), rejection, scores)
