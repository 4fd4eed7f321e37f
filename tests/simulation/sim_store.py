"""The scheduler's store as plain dictionaries, with the compare-and-set of the real store, which also tells the history what it did.

`SimStore` stands in for `scheduler.store.store.Store` where ten thousand runs have to be quick; a test checks that both tell the same
history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from protocol.errors import LocalProtocolError
from protocol.messages.work import Reveal
from protocol.values.attempt import TASK, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import Task, task_body
from protocol.wire.table import final, step
from protocol.words import Reason
from scheduler.core.commands import (
    CommitTo,
    EndAttempt,
    EndHedge,
    EndPending,
    EndStop,
    LiveAttempt,
    RecordGrant,
    SwitchAttempt,
)
from scheduler.core.entries import TaskEntry
from scheduler.core.stops import OwedStop
from scheduler.run.restore import owed_stops
from scheduler.store.rows import (
    UNKNOWN_WORKER,
    UNOBSERVED_EPOCH,
    AttemptState,
    CampaignStatus,
    ResultReceipt,
    WorkerTask,
    stale_reason,
)
from tests.simulation.history import Kind

TRIES: Final = frozenset({TaskEvent.LOSE, TaskEvent.RETRY})
ENDS_AS: Final = {
    TaskEvent.REFUSE: AttemptState.REFUSED,
    TaskEvent.LOSE: AttemptState.LOST,
    TaskEvent.RETRY: AttemptState.FAILED,
    TaskEvent.FAIL: AttemptState.FAILED,
    TaskEvent.SUCCEED: AttemptState.SUCCEEDED,
    TaskEvent.CANCEL: AttemptState.CANCELLED,
    TaskEvent.PREEMPT: AttemptState.PREEMPTED,
    TaskEvent.DISCOUNT: AttemptState.FAILED,
}
_OPEN: Final = (AttemptState.INTENDED, AttemptState.QUEUED)
_HEDGEABLE: Final = (TaskState.QUEUED, TaskState.LEASED, TaskState.RUNNING)
_AS_CURRENT: Final = {
    AttemptState.INTENDED: TaskState.COMMITTING,
    AttemptState.QUEUED: TaskState.QUEUED,
    AttemptState.GRANTED: TaskState.LEASED,
}
Tell = Callable[..., None]


@dataclass(slots=True)
class Row:
    """A task."""

    id: str
    campaign: str
    body: bytes
    state: TaskState = TaskState.PENDING
    attempt: int = 0
    tries: int = 0
    worker: str | None = None
    lease: str | None = None
    fence: Fence | None = None
    preempted: int = 0
    cancel: bool = False
    reason: Reason | None = None
    trust: str = ""
    ended: float | None = None
    """Not stored: a task that has ended counts as ended just now."""
    ended_at: float | None = None
    """For the history: when the task ended, by the wall clock."""


@dataclass(slots=True)
class Try:
    """An attempt."""

    task: str
    attempt: int
    worker: str
    state: AttemptState = AttemptState.INTENDED
    lease: str | None = None
    fence: Fence | None = None
    sha256: str = ""
    epoch: int = 1
    reason: Reason | None = None
    ended: float | None = None
    """For an unconfirmed stop: the latest time at which its run is over, by the wall clock."""
    beside: bool = False
    """The attempt was asked for beside a run."""


@dataclass(slots=True)
class SimCampaign:
    """A campaign."""

    id: str
    attempts: int
    backoff_s: float
    wait_s: float
    priority: int
    epoch: int = 0
    ended: str | None = None
    tasks: list[str] = field(default_factory=list)


StoreImage = tuple[int, dict[str, SimCampaign], dict[str, Row], dict[tuple[str, int], Try], Path | None]
"""A number, the tables, and a copy of the file, where there is one."""


class SimStore:
    """One scheduler's disk. It survives the process."""

    def __init__(self, owner: str, tell: Tell, wall: Callable[[], float]) -> None:
        self.owner = owner
        self._tell_now = tell
        self._gathered: Callable[[], None] | None = None
        self._before: dict[str, tuple[Row, dict[int, Try]]] = {}
        """Tasks that changed since the last commit, as they are on disk."""
        self._unheard: list[tuple[float, Kind, dict[str, object]]] = []
        self.wall = wall
        self.campaigns: dict[str, SimCampaign] = {}
        self.tasks: dict[str, Row] = {}
        self.attempts: dict[tuple[str, int], Try] = {}
        self.revealed: dict[tuple[str, str, str], Reveal] = {}
        """(worker, lease, task) → what was revealed, by this process or an earlier one."""
        self.full = False
        """The disk takes no writes."""
        self.changes = 0
        """Rises when anything other than the scheduler writes: campaigns, and requests to cancel."""
        self._images = 0
        self.others: Callable[[CommitTo], int] = lambda intent: 0
        """Number of workers that could have taken an attempt and have not tried the task."""

    # -- group commit -------------------------------------------------------------------------------------------------------------------

    def gather(self, gathered: Callable[[], None]) -> None:
        """Start group commit: from now on, changes of tasks are on disk, and have happened, only once they are committed. `gathered` is
        called when there is something to commit.
        """
        self._gathered = gathered

    @property
    def uncommitted(self) -> bool:
        """Whether a crash would lose changes."""
        return bool(self._before)

    def commit(self) -> None:
        """Put all pending changes on disk."""
        if self._before:
            self._open()
            self._before = {}
            unheard, self._unheard = self._unheard, []
            for at, kind, what in unheard:
                self._tell_now(kind, **what, ago=round(self.wall() - at, 3))

    def tell(self, kind: Kind, **what: object) -> None:
        """Tell the history, once every earlier decision is on disk."""
        if self._before:
            self._unheard.append((self.wall(), kind, what))
        else:
            self._tell_now(kind, **what)

    def _gathers(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """`change` as part of a later commit."""

        def gathering(*args: Any, **named: Any) -> Any:
            first = self._gathered is not None and not self._before
            for task in tasks_in(args, named) if self._gathered is not None else ():
                row = self.tasks.get(task)
                if row is not None and task not in self._before:
                    self._before[task] = replace(row), {one.attempt: replace(one) for one in self.tries(task)}
            answer = change(*args, **named)
            if first and self._before and self._gathered is not None:
                self._gathered()
            return answer

        return gathering

    def create(self, folder: SimCampaign, tasks: Sequence[Task]) -> None:
        """Store a campaign, as `submit` does."""
        self.changes += 1
        self.campaigns[folder.id] = folder
        for task in tasks:
            folder.tasks.append(task.task)
            self.tasks[task.task] = Row(task.task, folder.id, task_body(task))
        self.tell(Kind.ACCEPTED, who=self.owner, campaign=folder.id)

    def crashed(self) -> None:
        """The process was killed. Uncommitted changes are lost, and nothing else."""
        self._forget(self.tasks, self.attempts)
        self._before, self._unheard, self._gathered = {}, [], None

    def _forget(self, tasks: dict[str, Row], attempts: dict[tuple[str, int], Try]) -> None:
        """Remove uncommitted changes from these tables."""
        for task, (row, tries) in self._before.items():
            tasks[task] = row
            for attempt in [one for one in attempts if one[0] == task]:
                del attempts[attempt]
            attempts |= {(task, number): one for number, one in tries.items()}

    def image(self) -> StoreImage:
        """Everything that is on disk now, as in a backup, or in a snapshot of the machine."""
        self._images += 1
        self._tell_now(Kind.IMAGED, who=self.owner, number=self._images)
        image = deepcopy((self._images, self.campaigns, self.tasks, self.attempts, None))
        self._forget(image[2], image[3])
        return deepcopy(image)

    def tell_all(self) -> None:
        """For a copy of a home: tell the history which tasks are open in it, and which have ended."""
        for row in self.tasks.values():
            if row.ended_at is not None:
                ago_ms = round(1000 * (self.wall() - row.ended_at))
                self.tell(Kind.ENDED, who=self.owner, task=row.id, word=str(row.state), number=ago_ms)
        begun = []
        for (task, attempt), one in self.attempts.items():
            row = self.tasks[task]
            if one.state in _AS_CURRENT and not final(TASK, row.state):
                values = {"attempt": attempt, "worker": one.worker, "fence": one.fence and one.fence.key()}
                word = "beside" if attempt != row.attempt and row.state is not TaskState.QUEUED else ""
                self._tell_row(Kind.COMMITTED, row, **values, word=word)
                if one.state is AttemptState.GRANTED:
                    begun.append((row, values))
        for row, values in begun:
            self._tell_row(Kind.WANTED, row, **values)

    def become(self, image: StoreImage) -> None:
        """Restore the content of an image."""
        _, self.campaigns, self.tasks, self.attempts, _ = deepcopy(image)

    def put_back(self, worker: str) -> None:
        """A worker is set back to an earlier moment: it will use the names of its later leases again."""
        self.revealed = {about: told for about, told in self.revealed.items() if about[0] != worker}

    def take_over(
        self,
        folder: SimCampaign,
        bodies: Mapping[str, bytes],
        found: Mapping[str, WorkerTask],
        *,
        epoch: int,
    ) -> None:
        """Like `CampaignRepository.take_over` in `scheduler.store.campaigns`."""
        self._open()
        folder.epoch = epoch
        self.campaigns[folder.id] = folder
        before = max((max(one.attempt, one.highest) for one in found.values()), default=1)
        for task, body in bodies.items():
            folder.tasks.append(task)
            at = found.get(task)
            if at is None:
                self.tasks[task] = Row(task, folder.id, body, attempt=before)
                self.attempts[task, before] = Try(
                    task, before, UNKNOWN_WORKER, AttemptState.REFUSED, epoch=UNOBSERVED_EPOCH
                )
                continue
            row = self.tasks[task] = Row(
                task,
                folder.id,
                body,
                TaskState.QUEUED if at.queued else TaskState.LEASED,
                at.attempt,
                worker=at.worker,
                lease=at.lease,
                fence=at.fence,
            )
            state = AttemptState.QUEUED if at.queued else AttemptState.GRANTED
            self.attempts[task, at.attempt] = Try(
                task, at.attempt, at.worker, state, at.lease, at.fence, epoch=UNOBSERVED_EPOCH
            )
            if at.highest > at.attempt:
                self.attempts[task, at.highest] = Try(
                    task, at.highest, UNKNOWN_WORKER, AttemptState.REFUSED, epoch=UNOBSERVED_EPOCH
                )
            self._tell_row(Kind.COMMITTED, row)
            if not at.queued:
                self._tell_row(Kind.WANTED, row)
        self.tell(Kind.ACCEPTED, who=self.owner, campaign=folder.id)

    def close(self) -> None:
        """Nothing: only the real store has something to close."""

    def restored(self, campaign: str) -> list[TaskEntry]:
        """The campaign's tasks after a restart, if this store has a real one beside it; else empty."""
        return []

    # -- reading ------------------------------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[SimCampaign]:
        """Campaigns that have not ended."""
        return [folder for folder in self.campaigns.values() if folder.ended is None]

    def cancel_requests(self, campaign: str = "") -> list[str]:
        """Open tasks, of one campaign or of all, that a user wants cancelled."""
        some = self.campaigns[campaign].tasks if campaign else self.tasks
        rows = (self.tasks[task] for task in some)
        return [row.id for row in rows if row.cancel and not final(TASK, row.state)]

    def open_besides(self, task: str, attempt: int) -> int:
        """Number of other attempts of the task that could still be started, except one that was asked for beside its run."""
        others = (one for one in self.tries(task) if one.attempt != attempt and not one.beside)
        return sum(one.state in _OPEN for one in others)

    def tries(self, task: str) -> list[Try]:
        """The attempts of a task."""
        return [one for one in self.attempts.values() if one.task == task]

    def unconfirmed(self) -> list[Try]:
        """Attempts whose stop was not confirmed."""
        return [one for one in self.attempts.values() if one.state is AttemptState.UNCONFIRMED]

    def owed_stops(self, now: float) -> list[OwedStop]:
        """The owed stops, for a scheduler whose monotonic clock reads `now`."""
        rows: Any = SimpleNamespace(attempts=self, campaigns=SimpleNamespace(get=self.campaigns.get))
        return owed_stops(rows, now, self.wall())

    # -- writing ------------------------------------------------------------------------------------------------------------------------

    def next_epoch(self, campaign: str, *, above: int = 0, step: int = 1) -> int:
        """A higher epoch than any before."""
        self.commit()
        self._open()
        folder = self.campaigns[campaign]
        folder.epoch = max(folder.epoch, above) + step
        return folder.epoch

    def request_cancel(self, tasks: Iterable[str]) -> None:
        """Request that tasks are cancelled, as `cancel` does."""
        self.changes += 1
        for task in tasks:
            self.tasks[task].cancel = True

    def begin_attempts(self, intents: Sequence[CommitTo]) -> None:
        """Store the intents of attempts."""
        self._open()
        for intent in intents:
            row = self.tasks[intent.task] if intent.hedge else self._step(intent.task, TaskEvent.COMMIT)
            if row.state not in (_HEDGEABLE if intent.hedge else (TaskState.PENDING,)):
                raise LocalProtocolError(f"attempt {intent.attempt} of {intent.task}, which is {row.state}")
            last = max((one.attempt for one in self.tries(intent.task)), default=0)
            if intent.attempt != last + 1:
                raise LocalProtocolError(f"attempt {intent.attempt} of {intent.task} after {last}")
            if not intent.hedge:
                row.state = TaskState.COMMITTING
                row.attempt, row.worker, row.lease, row.fence = intent.attempt, intent.peer, None, None
                row.trust = intent.trust.text
            beside = intent.hedge and row.state is not TaskState.QUEUED
            each = Try(intent.task, intent.attempt, intent.peer, beside=beside)
            self.attempts[intent.task, intent.attempt] = each
            word = "beside" if beside else ""
            values = {"attempt": intent.attempt, "worker": intent.peer, "word": word}
            self._tell_row(Kind.COMMITTED, row, **values, number=self.others(intent))

    def record_grant(self, grant: RecordGrant) -> None:
        """Store a lease, granted or queued."""
        self._open()
        task, attempt, queued, lease, fence = (
            grant.task,
            grant.attempt,
            grant.queued,
            grant.lease,
            grant.fence,
        )
        event = TaskEvent.ENQUEUE if queued else TaskEvent.GRANT
        row = self.tasks[task]
        if row.attempt == attempt:
            row.state = step(TASK, row.state, event, story=task)
            row.lease, row.fence = lease, fence
        elif not (queued or grant.beside) or self._second(row, attempt) is None:
            raise LocalProtocolError(f"a grant for attempt {attempt} of {task}, which is at {row.attempt}")
        known = self.attempts[task, attempt]
        known.state = AttemptState.QUEUED if queued else AttemptState.GRANTED
        known.lease, known.fence = lease, fence
        if not queued:
            self._tell_row(Kind.WANTED, row, attempt=attempt, worker=known.worker, fence=fence.key())

    def switch(self, change: SwitchAttempt) -> None:
        """Make the second attempt the current one."""
        self._open()
        task, attempt, before = change.task, change.attempt, change.before
        row = self.tasks[task]
        second = self._second(row, attempt)
        if second is None or row.attempt != before:
            raise LocalProtocolError(f"attempt {attempt} of {task} after {before}, which is at {row.attempt}")
        row.state = _AS_CURRENT[second.state]
        row.attempt, row.worker = attempt, second.worker
        row.lease, row.fence = second.lease, second.fence
        self._end_one(row, before, change.event)

    def end_second(self, end: EndHedge) -> None:
        """End a second attempt."""
        self._open()
        task, attempt = end.task, end.attempt
        row = self.tasks[task]
        if self._second(row, attempt) is None:
            raise LocalProtocolError(f"attempt {attempt} of {task} is no second one, or is over")
        self._end_one(row, attempt, end.event)

    def set_progress(self, lives: Sequence[LiveAttempt]) -> None:
        """Store the progress of runs."""
        self._open()
        for live in lives:
            row = self.tasks[live.task]
            if row.attempt == live.attempt and row.state in _HEDGEABLE:
                row.state = TaskState.RUNNING if live.phase is not None else TaskState.LEASED

    def record_result(
        self,
        *,
        task: str,
        attempt: int,
        fence: Fence,
        worker: str,
        sha256: str,
        event: TaskEvent,
        **_: object,
    ) -> ResultReceipt:
        """Compare the attempt, store the result and change the task's state, in one step."""
        self._open()
        row = self.tasks.get(task)
        if row is None:
            return ResultReceipt(Reason.UNKNOWN)
        known = self.attempts.get((task, attempt))
        if known is not None and known.worker == worker and known.sha256:
            return ResultReceipt(duplicate=True) if known.sha256 == sha256 else ResultReceipt(Reason.FENCED)
        if row.state is TaskState.CANCELLED:
            return ResultReceipt(stale_reason(row.state, row.reason))
        if not self.current(row, attempt, worker, fence):
            return ResultReceipt(Reason.FENCED)
        state = step(TASK, row.state, event)
        self.attempts[task, attempt].sha256 = sha256
        counts = event in TRIES
        self._tell_row(
            Kind.RECORDED,
            row,
            fence=fence.key(),
            sha256=sha256,
            word=str(state),
            number=int(counts),
            worker=worker,
        )
        self._end(row, event)
        return ResultReceipt()

    def current(self, row: Row, attempt: int, worker: str, fence: Fence) -> bool:
        """Whether the attempt is the current one: the compare of the compare-and-set."""
        if final(TASK, row.state) or row.state is TaskState.PENDING:
            return False
        return (row.attempt, row.worker, row.fence) == (attempt, worker, fence)

    def known_result(self, *, task: str, attempt: int, worker: str, sha256: str) -> ResultReceipt:
        """The receipt for a result that does not belong to the current attempt."""
        row = self.tasks.get(task)
        if row is None:
            return ResultReceipt(Reason.UNKNOWN)
        known = self.attempts.get((task, attempt))
        if known is not None and known.worker == worker and known.sha256 == sha256:
            return ResultReceipt(duplicate=True)
        return ResultReceipt(stale_reason(row.state, row.reason))

    def end_attempt(self, end: EndAttempt) -> None:
        """End an attempt without a record."""
        self._open()
        event = end.event
        row = self._step(end.task, event)
        self._same(row, end.attempt, event)
        row.reason = end.reason
        word = "lost" if event in TRIES else str(ENDS_AS[event])
        self._tell_row(Kind.ATTEMPT_ENDED, row, word=word)
        self._end(row, event)
        if end.stop is not None:
            known = self.attempts[end.task, end.attempt]
            known.state, known.ended = AttemptState.UNCONFIRMED, self.wall() + end.stop.left_s
            self._tell_stop(Kind.OWED, known)

    def end_stop(self, end: EndStop) -> None:
        """A run with an unconfirmed stop is over."""
        self._open()
        known = self.attempts.get((end.task, end.attempt))
        if known is not None and known.state is AttemptState.UNCONFIRMED:
            failed = self.tasks[end.task].state is TaskState.FAILED
            known.state = AttemptState.FAILED if failed else AttemptState.CANCELLED
            self._tell_stop(Kind.PAID, known, word="confirmed" if end.confirmed else "lapsed")

    def end_pending(self, end: EndPending) -> None:
        """End many waiting tasks at once."""
        self._open()
        for task in end.tasks:
            row = self._step(task, end.event)
            row.reason = end.reason
            if row.state is not TaskState.PENDING:
                raise LocalProtocolError(f"{task} is {row.state}, not pending")
            self._end(row, end.event)

    def end_campaign(self, campaign: str, **_: object) -> None:
        """End a campaign, all of whose tasks have ended."""
        self.commit()
        self._open()
        folder = self.campaigns[campaign]
        if any(not final(TASK, self.tasks[task].state) for task in folder.tasks):
            raise LocalProtocolError(f"campaign {campaign} still has open tasks")
        left = any(self.tasks[task].reason is Reason.ADOPTED for task in folder.tasks)
        folder.ended = CampaignStatus.ADOPTED if left else "ended"

    def face(self) -> Any:
        """The repositories that the conversation uses. Data that only users read is not kept here."""
        changes: dict[str, Callable[..., Any]] = {
            "begin": self.begin_attempts,
            "record_grant": self.record_grant,
            "switch": self.switch,
            "end_hedge": self.end_second,
            "end": self.end_attempt,
            "end_pending": self.end_pending,
            "end_stop": self.end_stop,
            "record_result": self.record_result,
            "set_progress": self.set_progress,
            "set_positions": lambda positions: None,
        }
        gathering = {name: self._gathers(change) for name, change in changes.items()}
        attempts = SimpleNamespace(known_result=self.known_result, **gathering)
        return SimpleNamespace(
            attempts=attempts,
            tasks=SimpleNamespace(
                set_wait_reason=lambda tasks, words: None,
                set_wait_until=lambda waits: None,
                cancel_requests=self.cancel_requests,
            ),
            campaigns=SimpleNamespace(
                end=self.end_campaign, next_epoch=self.next_epoch, cancel_requests=lambda: ()
            ),
            events=SimpleNamespace(add=lambda campaigns, name, **fields: None),
        )

    # -- internals ----------------------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.full:
            raise OSError("the disk is full")

    def _step(self, task: str, event: TaskEvent) -> Row:
        row = self.tasks[task]
        step(TASK, row.state, event, story=task)
        return row

    @staticmethod
    def _same(row: Row, attempt: int, event: TaskEvent) -> None:
        if row.attempt != attempt:
            raise LocalProtocolError(f"{event} for attempt {attempt} of {row.id}, which is at {row.attempt}")

    def _second(self, row: Row, attempt: int) -> Try | None:
        """The attempt, if it is not the current one and waits for an answer or in a queue."""
        known = self.attempts.get((row.id, attempt))
        return known if known is not None and attempt != row.attempt and known.state in _AS_CURRENT else None

    def _end_one(self, row: Row, attempt: int, event: TaskEvent) -> None:
        """End one of two attempts; the task continues with the other."""
        known = self.attempts[row.id, attempt]
        known.state = ENDS_AS[event]
        word = {TaskEvent.REFUSE: "refused", TaskEvent.CANCEL: "overtaken"}.get(event, "dropped")
        self._tell_row(Kind.ATTEMPT_ENDED, row, attempt=attempt, worker=known.worker, word=word)

    def _end(self, row: Row, event: TaskEvent) -> None:
        before = row.state
        row.state = step(TASK, row.state, event, story=row.id)
        row.tries += event in TRIES
        row.preempted += event is TaskEvent.PREEMPT
        known = self.attempts.get((row.id, row.attempt))
        if before is not TaskState.PENDING and known is not None:
            known.state = ENDS_AS[event]
        if final(TASK, row.state):
            row.ended_at = self.wall()
            self.tell(Kind.ENDED, who=self.owner, task=row.id, word=str(row.state))

    def _tell_stop(self, kind: Kind, known: Try, **what: object) -> None:
        about = {"task": known.task, "attempt": known.attempt, "worker": known.worker}
        self.tell(kind, who=self.owner, lease=known.lease or "", **about, **what)

    def _tell_row(self, kind: Kind, row: Row, **what: object) -> None:
        values: dict[str, object] = {"task": row.id, "attempt": row.attempt, "worker": row.worker or ""}
        if row.fence is not None:
            values["fence"] = row.fence.key()
        self.tell(kind, who=self.owner, **(values | what))


def tasks_in(args: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """The tasks that the arguments of a change name."""
    if "task" in named:
        return [named["task"]]
    (first,) = args
    if isinstance(first, (list, tuple)):
        return [one.task for one in first]
    return list(first.tasks) if hasattr(first, "tasks") else [first.task]
