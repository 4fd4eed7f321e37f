"""Puts a campaign into the store as if it had always been here: what its manifest says, and where the workers say its tasks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.task import Task
from scheduler.store import schema as t
from scheduler.store.rows import AttemptState, NewCampaign, NewModel
from scheduler.store.transactions import Transactions

HEARSAY: Final = 0
"""The epoch of attempts that no scheduler of this store asked for: a worker told of them. Real ones begin at 1."""
NOBODY: Final = "unknown"
"""The worker of attempts of which nothing is known any more."""
_BEFORE: Final[dict[str, Any]] = {
    "state": str(AttemptState.REFUSED),
    "detail": "before the campaign was adopted",
}


@dataclass(frozen=True, slots=True)
class FoundCampaign:
    """A task that a worker has: waiting, running or ended."""

    task: str
    attempt: int
    worker: str
    device: str
    lease: str
    fence: Fence
    queued: bool = False
    over: bool = False
    """It has run; its result is there."""
    highest: int = 0
    """The highest attempt of the task that any worker told: its next one is counted on from there."""


class TakeoverRepository(Transactions):
    """Part of `scheduler.store.Store`."""

    def take_over(
        self,
        new: NewCampaign,
        models: Sequence[NewModel],
        tasks: Sequence[tuple[Task, bytes]],
        found: Mapping[str, FoundCampaign],
        *,
        epoch: int,
        created: float,
    ) -> None:
        """All of a campaign, or nothing of it. `epoch`: the highest that its workers heard; `created`: wall seconds.

        What is not found at a worker is to be done. Its attempts are counted on from the highest that any worker told, so that none
        of them gives an old answer to a new question. Raises `CampaignError` when the campaign is in the store already.
        """
        before = max((max(one.attempt, one.highest) for one in found.values()), default=1)
        with self._writing() as c:
            if c.execute(sa.select(t.campaigns.c.id).where(t.campaigns.c.id == new.id)).first():
                raise CampaignError(f"{new.id} is on this home already", hint=f"sark-node watch {new.id}")
            self._put_campaign(c, new, models, epoch=epoch, planned=True, created=created)
            self._event(
                c, new.id, "campaign.taken-over", None, tasks=len(tasks), found=len(found), epoch=epoch
            )
            for n, (task, body) in enumerate(tasks, start=1):
                self._put(c, new.id, n, task, body, found.get(task.task), before)

    def _put(
        self,
        c: sa.Connection,
        campaign: str,
        n: int,
        task: Task,
        body: bytes,
        at: FoundCampaign | None,
        before: int,
    ) -> None:
        place: dict[str, Any] = {}
        if at is not None:
            place = {
                "worker": at.worker,
                "device": at.device,
                "lease": at.lease,
                "incarnation": at.fence.incarnation,
                "number": at.fence.number,
            }
        attempt = at.attempt if at is not None else before
        state = TaskState.PENDING
        if at is not None:
            state = TaskState.QUEUED if at.queued else TaskState.LEASED
        c.execute(
            t.tasks.insert().values(
                id=task.task,
                campaign=campaign,
                n=n,
                body=body,
                model=task.model.name,
                sha256=task.model.sha256,
                unit=task.unit,
                state=str(state),
                attempt=attempt,
                replica=task.replica,
                **place,
            )
        )
        live = {"state": str(AttemptState.QUEUED if at is not None and at.queued else AttemptState.GRANTED)}
        self._attempt(c, task.task, attempt, place | live if place else _BEFORE)
        if at is not None and at.highest > attempt:
            self._attempt(c, task.task, at.highest, _BEFORE)

    def _attempt(self, c: sa.Connection, task: str, number: int, values: dict[str, Any]) -> None:
        now = self._wall()
        row: dict[str, Any] = {
            "task": task,
            "attempt": number,
            "key": f"{task}/{number}",
            "worker": NOBODY,
            "device": "",
            "epoch": HEARSAY,
            "begun": now,
        }
        if values is _BEFORE:
            row["ended"] = now
        c.execute(t.attempts.insert().values(**row | values))
