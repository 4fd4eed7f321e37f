"""What the book's orders write to disk: all of it at once and in their order, before anything is said to a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from scheduler.core.commands import (
    Command,
    CommitTo,
    EndAttempt,
    EndCampaign,
    EndHedge,
    EndPending,
    Intent,
    LiveAttempt,
    RecordEvent,
    RecordGrant,
    RecordWaitReason,
    SetAside,
    SwitchAttempt,
)
from scheduler.run.manifests import CampaignManifests
from scheduler.store.store import Store

log = structlog.get_logger("sark.scheduler")


class CommandWriter:
    """Writes orders down. `lives`: progress that is not on disk yet, dropped for what has ended; `epochs`: of the campaigns."""

    def __init__(
        self,
        store: Store,
        manifests: CampaignManifests,
        lives: dict[str, LiveAttempt],
        epochs: Mapping[str, int],
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._lives = lives
        self._epochs = epochs

    def carry_out(self, orders: Sequence[Command]) -> None:
        """Intents that follow each other are written together; whatever else moves a task finds there what was decided before it."""
        intents: list[Intent] = []
        for order in orders:
            if isinstance(order, CommitTo):
                intents.append(self._intent(order))
                continue
            if intents and isinstance(order, _MOVES):
                self._store.attempts.begin(intents)
                intents = []
            self._keep(order)
        if intents:
            self._store.attempts.begin(intents)

    def _intent(self, o: CommitTo) -> Intent:
        return Intent(o.task, o.attempt, o.key, o.peer, o.device, self._epochs[o.campaign], o.hedge)

    def _keep(self, order: Command) -> None:
        store = self._store
        match order:
            case RecordGrant():
                store.attempts.record_grant(
                    order.task,
                    order.attempt,
                    lease=order.lease,
                    fence=order.fence,
                    queued=order.queued,
                    position=order.position,
                    start_s=order.start_s,
                )
            case SwitchAttempt():
                store.attempts.switch(
                    order.task, order.attempt, order.before, reason=order.reason, detail=order.detail
                )
            case EndHedge():
                store.attempts.end_hedge(order.task, order.attempt, reason=order.reason, detail=order.detail)
            case EndAttempt():
                self._lives.pop(order.task, None)
                store.attempts.end(
                    order.task, order.attempt, order.event, reason=order.reason, detail=order.detail
                )
                log.info(
                    "attempt.ended",
                    task=order.task,
                    attempt=order.attempt,
                    end=str(order.event),
                    why=order.detail,
                )
            case EndPending():
                store.attempts.end_pending(order.tasks, order.event, reason=order.reason, detail=order.detail)
            case RecordWaitReason():
                store.tasks.set_notes([(task, order.words) for task in order.tasks])
            case EndCampaign():
                outcome = store.campaigns.end(order.campaign, detail=order.detail)
                self._manifests.forget(order.campaign)
                log.info("campaign.ended", campaign=order.campaign, outcome=str(outcome))
            case SetAside():
                log.warning("worker.set-aside", peer=order.peer, device=order.device, why=order.why)
                store.events.add(
                    order.campaigns,
                    "worker.set-aside",
                    peer=order.peer,
                    device=order.device,
                    seconds=order.seconds,
                    why=order.why,
                )
            case RecordEvent():
                fields: dict[str, Any] = dict(order.fields)
                store.events.add(order.campaigns, order.name, task=order.task, **fields)
            case _:
                pass


_MOVES = (RecordGrant, SwitchAttempt, EndHedge, EndAttempt, EndPending, EndCampaign)
"""Orders that move a task on disk, or say that a campaign has none open."""
