"""Writes the core's commands to the store: all of them in order, before anything is sent to a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.words import Reason
from results.row.scores import Scores
from scheduler.core.commands import (
    Command,
    CommitTo,
    EndAttempt,
    EndCampaign,
    EndHedge,
    EndPending,
    EndStop,
    LiveAttempt,
    QueuePosition,
    RecordEvent,
    RecordGrant,
    RecordWaitReason,
    SetAside,
    SwitchAttempt,
)
from swarm.base.event_log import EventLog

STATE_CHANGING_COMMANDS: Final = (RecordGrant, SwitchAttempt, EndHedge, EndAttempt, EndPending, EndCampaign)
"""Commands that change a task's state in the store, or that rely on no task being open."""
MAX_NOTES: Final = 500
"""Most notes stored in one transaction."""


class AttemptStore(Protocol):
    """The methods of `scheduler.store.attempts.AttemptRepository` that are used here."""

    def begin(self, intents: Sequence[CommitTo]) -> None: ...

    def record_grant(self, grant: RecordGrant) -> None: ...

    def switch(self, change: SwitchAttempt) -> None: ...

    def end_hedge(self, end: EndHedge) -> None: ...

    def end(self, end: EndAttempt) -> None: ...

    def end_stop(self, end: EndStop) -> None: ...

    def end_pending(self, end: EndPending) -> None: ...

    def record_result(
        self,
        *,
        task: str,
        attempt: int,
        fence: Fence,
        worker: str,
        sha256: str,
        body: bytes,
        signature: bytes,
        event: TaskEvent,
        reason: Reason | None,
        detail: str,
        figures: Any,
        account: str | None,
        device_key: str,
        scores: Scores | None,
    ) -> Receipt: ...

    def known_result(self, *, task: str, attempt: int, worker: str, sha256: str) -> Receipt: ...

    def set_progress(self, lives: Sequence[LiveAttempt]) -> None: ...

    def set_positions(self, positions: Sequence[QueuePosition]) -> None: ...


class Receipt(Protocol):
    """What became of a result; see `scheduler.store.rows.ResultReceipt`."""

    @property
    def stale(self) -> Reason | None: ...

    @property
    def duplicate(self) -> bool: ...


class TaskStore(Protocol):
    def cancel_requests(self, campaign: str = "") -> Sequence[str]: ...

    def set_wait_reason(self, tasks: Sequence[str], words: str) -> None: ...

    def set_wait_until(self, waits: Sequence[tuple[str, str, float]]) -> None: ...


class CampaignStore(Protocol):
    def cancel_requests(self) -> Sequence[str]: ...

    def next_epoch(self, campaign: str, *, above: int = 0, step: int = 1) -> int: ...

    def end(self, campaign: str, *, detail: str) -> object: ...


class ScoreStore(Protocol):
    """The methods of `scheduler.store.scores.ScoreRepository` that are used here."""

    def set(self, task: str, attempt: int, scores: Scores) -> None: ...


class EventStore(Protocol):
    def add(
        self, campaigns: Sequence[str], event: str, /, *, task: str | None = None, **fields: Any
    ) -> None: ...


class CommandStore(Protocol):
    """The methods of `scheduler.store.store.Store` that are used here."""

    @property
    def attempts(self) -> AttemptStore: ...

    @property
    def tasks(self) -> TaskStore: ...

    @property
    def campaigns(self) -> CampaignStore: ...

    @property
    def events(self) -> EventStore: ...

    @property
    def scores(self) -> ScoreStore: ...


@dataclass(frozen=True)
class CommandWriter:
    store: CommandStore
    progress: dict[str, LiveAttempt]
    """Progress not yet stored; an ended task's is dropped."""
    log: EventLog
    ended: Callable[[str], None]
    """Called with each campaign that ends."""
    notes: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    """Why tasks wait, and until when, by task: not yet stored."""

    def write_notes(self, now: float) -> None:
        """Store some of the notes. There may be one for each of very many tasks."""
        tasks_by_words: dict[str, list[str]] = {}
        waits: list[tuple[str, str, float]] = []
        for task in tuple(islice(self.notes, MAX_NOTES)):
            words, until = self.notes.pop(task)
            if until is None:
                tasks_by_words.setdefault(words, []).append(task)
            else:
                waits.append((task, words, until - now))
        for words, tasks in tasks_by_words.items():
            self.store.tasks.set_wait_reason(tasks, words)
        if waits:
            self.store.tasks.set_wait_until(waits)

    def write(self, commands: Sequence[Command]) -> None:
        """Write consecutive intents together. Any other command that changes a task finds earlier decisions in the store."""
        intents: list[CommitTo] = []
        for command in commands:
            if isinstance(command, CommitTo):
                intents.append(command)
                continue
            if intents and isinstance(command, STATE_CHANGING_COMMANDS):
                self.store.attempts.begin(intents)
                intents = []
            self._write(command)
        if intents:
            self.store.attempts.begin(intents)

    def _write(self, command: Command) -> None:
        store = self.store
        match command:
            case RecordGrant():
                store.attempts.record_grant(command)
            case SwitchAttempt():
                store.attempts.switch(command)
            case EndHedge():
                store.attempts.end_hedge(command)
            case EndAttempt(task, attempt, event, _, detail):
                self.progress.pop(task, None)
                store.attempts.end(command)
                self.log.info("attempt.ended", task=task, attempt=attempt, end=str(event), why=detail)
            case EndStop(task, attempt, confirmed):
                store.attempts.end_stop(command)
                self.log.info("stop.ended", task=task, attempt=attempt, confirmed=confirmed)
            case EndPending():
                store.attempts.end_pending(command)
            case RecordWaitReason(tasks, words, until):
                self.notes.update(dict.fromkeys(tasks, (words, until)))
            case EndCampaign(campaign, detail):
                outcome = store.campaigns.end(campaign, detail=detail)
                self.ended(campaign)
                self.log.info("campaign.ended", campaign=campaign, outcome=str(outcome))
            case SetAside(peer, device, seconds, why, campaigns):
                self.log.warning("worker.set-aside", peer=peer, device=device, why=why)
                store.events.add(
                    campaigns, "worker.set-aside", peer=peer, device=device, seconds=seconds, why=why
                )
            case RecordEvent(campaigns, name, fields, task):
                store.events.add(campaigns, name, task=task, **dict(fields))
            case _:
                pass
