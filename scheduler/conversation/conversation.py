"""The scheduler between its core, its store and its links. Pure: the trio service and the seeded simulation are shells around it.

    load, beat     users, time     commands to the store    `CommandWriter`
    received       links           messages to workers      effects, see `effects`

These guarantees hold whatever crashes and when:

* Commands are stored, in order, before anything that follows from them is sent: an intent before its commit, a lease before a start.
  They are written in the step that decides them. Several steps may reach the disk together: `Stored` waits for that.
* A result is accepted once its record is stored.
* A restarted scheduler leads its campaigns under a higher epoch, and adopts what workers hold before it renews anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.work import (
    Accepted,
    Commit,
    Denied,
    LaunchEnded,
    Preempt,
    Progress,
    Ready,
    Result,
    RevealRequest,
    Skip,
    Stale,
    Start,
)
from protocol.values.attempt import TaskEvent
from protocol.values.reading import DeviceReading
from protocol.values.task import TaskBodies, task_message
from protocol.wire.base import Message
from protocol.words import Reason, RunOutcome
from results.export.figures import unconfirmed
from results.row.canary import CanaryOutcome
from results.row.scores import WAITING
from results.row.witness import WitnessAccount
from scheduler.conversation.claims import Claims
from scheduler.conversation.effects import (
    CheckedRecord,
    CheckRecord,
    FetchRecord,
    RepeatInference,
    ScoreAnswers,
    SearchIndex,
    SleepUntil,
    Stored,
    WaitFor,
)
from scheduler.conversation.links import Shell, WorkerLinks
from scheduler.conversation.persist import CommandStore, CommandWriter
from scheduler.conversation.witness import SERVED, WitnessBook
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    Discover,
    Explain,
    LiveAttempt,
    ProbeWorker,
    RecordGrant,
    ReleaseOn,
)
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.explain import LACKS_SIBLING, why_none
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.stops import OwedStop
from swarm.base.event_log import EventLog

SURVEY_S: Final = 15.0
"""Seconds between two searches for devices that would fit if they were trusted, while no trusted device fits."""
DISHONESTY_REASONS: Final = (Reason.NOT_WITNESSED, Reason.WRONG_OUTPUTS)
"""Reasons with which no honest worker's result ends."""
MAX_EARLY: Final = 1024
"""Most runs that reported progress before the answers to their commits, and whose notes are kept."""
RIVALS_S: Final = 2.0
"""Seconds for which a queued lease that is ready waits for another worker's answer about the same task. The worker keeps its slot
longer.
"""


@dataclass(frozen=True, slots=True)
class RestoredCampaign:
    """A campaign as the store holds it."""

    limits: TaskLimits
    entries: Sequence[TaskEntry]
    bodies: TaskBodies
    """Signed tasks by id."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Units that cannot run the campaign's tasks for them, and why."""
    unscored: Mapping[str, int] = field(default_factory=dict)
    """Tasks whose answers are still to be scored, with the attempts that produced them."""


class CampaignSource(Protocol):
    """The campaigns of this scheduler's store."""

    def owed_stops(self) -> Sequence[OwedStop]:
        """Stops that an earlier scheduler requested and that were not confirmed."""
        ...

    def unfinished(self) -> Sequence[str]:
        """Ids of the campaigns that this process can lead."""
        ...

    async def restore(self, campaign: str, epoch: int) -> RestoredCampaign | None:
        """Read a campaign, to lead it under this epoch. None: it cannot be read, and is ended. Other work goes on meanwhile."""
        ...


@dataclass(eq=False)
class SchedulerConversation:
    """What this scheduler stores, sends and answers."""

    core: SchedulerCore
    _shell: Shell
    _store: CommandStore
    _campaigns: CampaignSource
    _claims: Claims
    _log: EventLog
    peer: str
    """Its own peer id, for the advice to owners."""
    sign: Callable[[bytes], bytes]
    """Signs bytes with this scheduler's key."""
    manifest: Callable[[str], tuple[str, int] | None]
    """Hash and size of a campaign's manifest, if there is one."""
    ended: Callable[[str], None]
    """Called with each campaign that ends."""
    learned: Callable[[str, bool, str], None] = lambda peer, right, why: None
    """Called with a stranger's peer id, whether its result was confirmed (or cannot be true), and why."""
    stride: Callable[[], int] = lambda: 1
    """By how much a new epoch exceeds the last. Random where copies of a home may run, so that two copies do not lead under one epoch."""
    links_type = WorkerLinks
    witness_type = WitnessBook

    def __post_init__(self) -> None:
        self.bodies = TaskBodies()
        """Signed tasks by id."""
        self.progress: dict[str, LiveAttempt] = {}
        """Progress by task that is not yet stored."""
        self.readings: dict[str, DeviceReading] = {}
        """Readings by worker that were not yet shown; the reader clears the dictionary."""
        self._early: dict[tuple[str, str], Progress] = {}
        """By worker and lease: the latest progress note on a run that is not yet known to have a lease."""
        self._writer = CommandWriter(self._store, self.progress, self._log, self.ended)
        self.links = self.links_type(self.core, self._shell, self._claims, self._log, self.carry_out)
        self.witness = self.witness_type(lambda message: self.sign(message))
        self._loaded = self._taking_up = False
        self._coming: dict[str, None] = {}
        """Campaigns that are still to be restored."""
        self._going_on = False
        self._receiving: set[str] = set()
        """Tasks whose record is being fetched: one record at a time for each, since it may have many megabytes."""

    # -- campaigns ----------------------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Start leading campaigns that are not under way yet, and handle cancel requests."""
        if not self._loaded:
            self._loaded = True
            self.core.state.stops.restore(self._campaigns.owed_stops())
            self.links.tell_owed()
        for campaign in self._campaigns.unfinished():
            if campaign not in self.core.state.campaigns:
                self._coming[campaign] = None
        if self._coming and not self._taking_up:
            self._taking_up = True
            self._shell.start(self._take_up_all())
        self.carry_out(self._cancel_requested())

    def _cancel_requested(self, campaign: str = "") -> list[Command]:
        """Commands for users' cancel requests in the campaigns under way. `campaign`: restricts requests for single tasks to this
        campaign.
        """
        now, core, store = self._shell.now(), self.core, self._store
        cancels = core.cancel_campaigns(store.campaigns.cancel_requests(), now)
        return cancels + core.cancel(store.tasks.cancel_requests(campaign), now)

    async def _take_up_all(self) -> None:
        try:
            while self._coming:
                campaign = next(iter(self._coming))
                await self._take_up(campaign)
                del self._coming[campaign]
                self._shell.wake()
                await SleepUntil(self._shell.now())
        finally:
            self._taking_up = False

    async def _take_up(self, campaign: str) -> None:
        """Lead the campaign from now on, under a higher epoch than any before."""
        restored = await self._campaigns.restore(campaign, self.next_epoch(campaign, 0))
        if restored is None:
            return
        self.bodies.add(restored.bodies)
        now, core = self._shell.now(), self.core
        commands = core.add(restored.limits, restored.entries, now, restored.unscored)
        self.carry_out(commands + self._cancel_requested(campaign))  # some may be newer than the read
        self.carry_out(core.end_unfit(campaign, restored.unfit, now))
        held = (attempt.worker for entry in restored.entries for attempt in entry.attempts())
        for peer in dict.fromkeys(held):
            self.links.adopt_at_worker(peer)
        for task, attempt in restored.unscored.items():
            self._shell.start(self._score(core.state.tasks[task], attempt))

    def next_epoch(self, campaign: str, above: int) -> int:
        """Store and return the campaign's new epoch, above both its present epoch and `above`."""
        return self._store.campaigns.next_epoch(campaign, above=above, step=self.stride())

    def beat(self) -> None:
        """Time passed. Call it a few times each second."""
        now, positions = self._shell.now(), self.core.state.positions
        self.witness.beat(now)
        if self.progress:
            self._store.attempts.set_progress(tuple(self.progress.values()))
            self.progress.clear()
        if positions:
            self._store.attempts.set_positions(tuple(positions.values()))
            positions.clear()
        self.links.beat(now)
        self.carry_out(self.core.tick(now))
        forgotten = self.core.forget(now)
        for campaign in forgotten:
            self._claims.forget(campaign.limits.campaign)
            for task in campaign.tasks:
                self.bodies.pop(task, None)
                self.witness.forget(task)
        if forgotten:
            self.load()  # one of them may run here again meanwhile

    # -- commands -----------------------------------------------------------------------------------------------------------------------

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Carry out commands that follow from an event, then those that the core decides. Commands for the store run in this very step and
        in order; commands for the network run once these are on disk, each in a procedure of its own.
        """
        commands = [*commands, *self.core.decide(self._shell.now())]
        self._writer.write(commands)
        for command in commands:
            self._send(command)
        self._shell.wake()
        if self._rests and not self._going_on:
            self._going_on = True
            self._shell.start(self._go_on())

    @property
    def _rests(self) -> bool:
        """Whether tasks are still to end or to be handed out, or notes are still to be stored."""
        state = self.core.state
        return bool(state.withdrawn or state.unfinished or self._writer.notes)

    async def _go_on(self) -> None:
        """Do in portions what is too much for one step, so that other work has its turn between two portions."""
        try:
            while self._rests:
                await SleepUntil(self._shell.now())
                self._writer.write_notes(self._shell.now())
                self.carry_out(())
        finally:
            self._going_on = False

    def _send(self, command: Command) -> None:
        start = self._shell.start
        match command:
            case CommitTo():
                start(self._commit(command))
            case ProbeWorker():
                start(self.links.probe(command.peer))
            case CancelOn() | ReleaseOn():
                start(self.links.stop(command))
            case Discover():
                start(self._discover(command))
            case Explain():
                start(self._explain(command))
            case _:
                pass

    def _commit_message(self, command: CommitTo) -> Commit:
        """The same command makes the same message, since a worker accepts an idempotency key only once."""
        task = self.core.state.tasks[command.task].form  # everything but its id
        campaign = task.campaign
        witnessed = command.trust.stranger and not task.unit.startswith(SERVED)
        if witnessed:
            self.witness.commit(command.task, command.attempt)
        body, manifest = self.bodies[command.task], self.manifest(campaign)
        return Commit(
            key=command.key,
            attempt=command.attempt,
            epoch=command.epoch,
            task=body,
            signature=self.sign(task_message(body)),
            priority=self.core.state.priority_of(task),
            queue=True,
            preempted=command.preempted,
            left_s=command.left_s,
            manifest=None if manifest is None else manifest[0],
            manifest_size=0 if manifest is None else manifest[1],
            proof=self._claims.proof(campaign),
            witnessed=True if witnessed else None,
        )

    def _is_strange(self, entry: TaskEntry, attempt: int, peer: str) -> bool:
        """Whether this attempt belongs to a stranger, or did when it was committed."""
        state = self.core.state
        return (
            self.witness.begun(entry.id, attempt) or state.trust_in(state.groups[entry.group], peer).stranger
        )

    async def _discover(self, command: Discover) -> None:
        adverts = await SearchIndex(command.requirement, command.want, command.trust)
        now = self._shell.now()
        self.carry_out(self.core.workers.add_adverts(command.group, adverts, now))
        group = self.core.state.groups.get(command.group)
        if group is not None and not group.fits and now - group.surveyed_at >= SURVEY_S:
            group.surveyed_at = now
            everybody = await SearchIndex(command.requirement, None)
            self.carry_out(self.core.workers.count_untrusted(command.group, everybody))

    async def _explain(self, command: Explain) -> None:
        adverts = await SearchIndex(command.requirement, None)
        state = self.core.state
        group = state.groups.get(command.group)
        if group is None:
            return
        declined = [f"{state.device(peer)}: {denied.detail}" for peer, denied in group.declined.items()]
        fits = [state.worker(peer) for peer in sorted(group.fits)]
        reason, text = why_none(
            command.requirement,
            adverts,
            fits,
            declined,
            scheduler=self.peer,
            untrusted=state.untrusted_in(group, adverts),
        )
        tasks = [state.tasks[task].task for task in group.tasks]
        if reason is Reason.NOTHING_FITS and any(task.replica is not None and task.note for task in tasks):
            text = "\n".join(dict.fromkeys([*(task.note for task in tasks if task.note), LACKS_SIBLING]))
        self.carry_out(self.core.timeouts.end_unplaceable(command.group, reason, text, self._shell.now()))

    # -- what workers say ---------------------------------------------------------------------------------------------------------------

    async def _commit(self, command: CommitTo) -> None:
        peer = command.peer
        await self.links.commit(command, self._commit_message(command))
        early = [note for (of, _), note in self._early.items() if of == peer]
        for note in early:
            if self.core.state.by_lease(peer, note.lease, note.fence) or not self.links.has_pending_commit(
                peer
            ):
                del self._early[peer, note.lease]
                self._advance(peer, note)

    def _advance(self, peer: str, note: Progress) -> None:
        """Handle a run's progress note from `peer`. It may arrive before the answer to the run's commit."""
        if self.core.state.by_lease(peer, note.lease, note.fence) is None and self.links.has_pending_commit(
            peer
        ):
            if (peer, note.lease) in self._early or len(self._early) < MAX_EARLY:
                self._early[peer, note.lease] = note
            return
        live = self.core.reconciler.progress(peer, note, self._shell.now())
        if live is not None:
            self.progress[live.task] = live
            if note.reading is not None:
                self.readings[peer] = note.reading

    async def received(self, peer: str, message: Message) -> Message | None:
        """Handle a worker's message. Returns the answer, or None for a note. Fails with `RemoteProtocolError` on a message that a worker
        does not send, and where there is no answer: the link is then reset, and the worker repeats the message.
        """
        if self._coming:  # the message may be about one of these campaigns
            await self._taken_up(message)
        answer = await self._answer(peer, message)
        if answer is not None:
            await Stored()
        return answer

    async def _answer(self, peer: str, message: Message) -> Message | None:
        """As `received`, but the answer may not be sent before the store's writes are on disk."""
        match message:
            case Progress():
                self._advance(peer, message)
                return None
            case Preempt(lease=lease, fence=fence, priority=priority):
                commands = self.core.reconciler.warn(peer, lease, fence, priority, self._shell.now())
                if commands:
                    self._log.info("task.yields", peer=peer, lease=lease, by=priority)
                    self.carry_out(commands)
                return None
            case LaunchEnded(lease=lease, fence=fence):
                held = self.core.state.by_lease(peer, lease, fence)
                if held is not None:
                    self.witness.note(held[0].id, held[1].number, message, self._shell.now())
                return None
            case RevealRequest():
                return await self._reveal(peer, message)
            case Ready():
                return await self._ready(peer, message)
            case Result():
                return await self._result(peer, message)
            case _:
                raise RemoteProtocolError(f"a worker does not send {type(message).__name__}")

    async def _taken_up(self, message: Message) -> None:
        """Wait until the subject of `message` is known; otherwise a result would be stale, and a queued lease unknown."""
        if isinstance(message, Result):
            await WaitFor(lambda: message.campaign not in self._coming)
        elif isinstance(message, (Ready, RevealRequest)):
            await WaitFor(lambda: not self._coming)

    async def _ready(self, peer: str, message: Ready) -> Message:
        core, lease = self.core, message.lease
        await self.links.wait_for_commits(peer)
        # Another worker may have granted a lease, and its answer may be on its way.
        await WaitFor(lambda: not core.hedging.rival_asked(peer, lease), self._shell.now() + RIVALS_S)
        now = self._shell.now()
        task, commands = core.reconciler.start(peer, lease, message.fence, now)
        self.carry_out(commands)
        if task is None:
            return Skip()
        entry = core.state.tasks[task]
        if entry.worker == peer:  # not the hedge beside a run
            self.progress.setdefault(task, LiveAttempt(task, entry.attempt, None))
        return Start()

    async def _reveal(self, peer: str, request: RevealRequest) -> Message:
        await self.links.wait_for_commits(peer)
        held = self.core.state.by_lease(peer, request.lease, request.fence)
        if held is None:
            asked = any(attempt.lease is None for _, attempt in self.core.state.held_at(peer))
            return Denied(reason=Reason.UNKNOWN, retry_s=RIVALS_S if asked else None)
        entry, attempt = held
        if not entry.counts(attempt) or not self._is_strange(entry, attempt.number, peer):
            return Denied(reason=Reason.NOT_ALLOWED, detail="the run of this lease is not witnessed")
        about, again = (entry.id, attempt.number, entry.replica_set), request.again is True
        return self.witness.reveal(*about, self._shell.now(), again=again)

    async def _result(self, peer: str, result: Result) -> Message:
        entry = self.core.state.tasks.get(result.task)
        arrived = self._shell.now()
        if entry is not None and self._ungranted(entry, peer) is not None:
            await self.links.wait_for_commits(peer)
            if self._ungranted(entry, peer) == result.attempt:  # it was quicker than the commit's answer
                grant = RecordGrant(entry.id, result.attempt, result.lease, result.fence, queued=False)
                self.carry_out(self.core.reconciler.grant(peer, grant, self._shell.now()))
        if entry is None or not self.is_current(entry, peer, result):
            return self.answer_old(peer, result)
        account: WitnessAccount | None = None
        if self._is_strange(entry, result.attempt, peer):
            self.witness.result_arrived(entry.id, result.attempt, arrived)
        await WaitFor(lambda: result.task not in self._receiving)
        if not self.is_current(entry, peer, result):
            return self.answer_old(peer, result)
        self._receiving.add(result.task)
        try:
            body = await FetchRecord(peer, result)
            if not self.is_current(entry, peer, result):
                return self.answer_old(peer, result)
            if self._is_strange(entry, result.attempt, peer):
                about = (entry.id, result.attempt, entry.replica_set, entry.form.unit)
                account = self.witness.account(
                    *about, anothers=self.witness.may_belong_to_former_scheduler(entry, peer)
                )
            checked = await CheckRecord(peer, result, body, entry.task, self.bodies[entry.id], account)
            if account is not None:
                checked, account = await self._repeat(entry, checked, account)
        except Unreachable as exc:  # no answer: the worker keeps the result and sends it again
            raise RemoteProtocolError(exc.what) from exc
        except RemoteProtocolError as exc:
            self._log.warning("result.refused", peer=peer, task=result.task, why=exc.what)
            args = ((result.lease,), Reason.BAD_REQUEST, self._shell.now(), exc.what)
            self.carry_out(self.core.failures.lose_leases(peer, *args))
            return Stale(reason=Reason.BAD_REQUEST)
        finally:
            self._receiving.discard(result.task)
            self._shell.wake()
        if not self.is_current(entry, peer, result):  # it ended while the record was being read
            return self.answer_old(peer, result)
        return self.settle(entry, peer, result, body, checked, account)

    @staticmethod
    async def _repeat(
        entry: TaskEntry, checked: CheckedRecord, account: WitnessAccount
    ) -> tuple[CheckedRecord, WitnessAccount]:
        """The record and its witness account after one of the record's inferences was repeated on this machine."""
        if checked.rejection is not None or checked.record.outcome is not RunOutcome.COMPLETE:
            return checked, account
        verdict = await RepeatInference(entry.task, checked.record)
        if verdict.outcome is CanaryOutcome.REFUTED:
            checked = replace(checked, rejection=(Reason.WRONG_OUTPUTS, verdict.why))
        confirmed = verdict.outcome is CanaryOutcome.CONFIRMED
        if not confirmed:
            checked = replace(checked, columns=unconfirmed(checked.columns))
        return checked, account.model_copy(update={"canary": verdict.text[:300], "confirmed": confirmed})

    @staticmethod
    def _ungranted(entry: TaskEntry, peer: str) -> int | None:
        """Number of the attempt at this worker, if the attempt waits for an answer."""
        attempt = entry.at(peer)
        return None if attempt is None or attempt.fence is not None else attempt.number

    @staticmethod
    def is_current(entry: TaskEntry, peer: str, result: Result) -> bool:
        """Whether a result belongs to an attempt whose result is accepted: the current one, or the hedge beside its run."""
        attempt = entry.at(peer)
        if attempt is None or not entry.counts(attempt):
            return False
        return (attempt.number, attempt.fence) == (result.attempt, result.fence)

    def settle(
        self,
        entry: TaskEntry,
        peer: str,
        result: Result,
        body: bytes,
        checked: CheckedRecord,
        account: WitnessAccount | None = None,
    ) -> Message:
        """Store the record, then apply its event to the task. Of two attempts the first good record decides; a record without a measurement
        ends only its own attempt, and is not kept. `account`: for a stranger's run.
        """
        record, failures, now = checked.record, self.core.failures, self._shell.now()
        event, reason, detail = failures.judge(record, checked.rejection)
        if account is not None and reason in DISHONESTY_REASONS:
            self.learned(peer, False, f"{entry.id}: {detail}")
        attempt = entry.at(peer)
        if entry.hedge is not None and attempt is not None:
            if event is not TaskEvent.SUCCEED:
                args = (entry, attempt, event, reason, detail, now)
                self.carry_out(failures.end_one_of_two(*args, permanent=record.permanent))
                return Stale(reason=Reason.FENCED)
            self.carry_out(failures.promote_decisive_attempt(entry, attempt, now))
        scores = checked.scores if event is TaskEvent.SUCCEED else None
        receipt = self._store.attempts.record_result(
            task=entry.id,
            attempt=result.attempt,
            fence=result.fence,
            worker=peer,
            sha256=result.sha256,
            body=body,
            signature=result.signature,
            event=event,
            reason=reason,
            detail=detail,
            figures=checked.columns,
            account=None if account is None else account.model_dump_json(),
            device_key=self.core.state.device_key(record.device.device, peer),
            scores=scores,
        )
        if receipt.stale is not None:
            return Stale(reason=receipt.stale)
        if not receipt.duplicate:
            if account is not None and account.confirmed and event is TaskEvent.SUCCEED:
                self.learned(peer, True, "")
            self.progress.pop(entry.id, None)
            if scores == WAITING:
                self.core.await_scores(entry)
                self._shell.start(self._score(entry, result.attempt))
            agrees = None if record.ran is None else record.ran.evidence
            self.carry_out(
                failures.settle(entry.id, event, reason, now, permanent=record.permanent, agrees=agrees)
            )
            self._log.info(
                "attempt.settled",
                task=entry.id,
                attempt=result.attempt,
                peer=peer,
                end=str(event),
                why=detail,
            )
        return Accepted()

    async def _score(self, entry: TaskEntry, attempt: int) -> None:
        """Have the answers of a stored record scored; the campaign ends when all are. The worker is free meanwhile, and holds nothing."""
        run = self.core.state.campaign_of(entry)

        def unwanted() -> str:
            if run.cancelled:
                return f"the campaign was cancelled before its answers were scored; {score_later(entry)}"
            return (
                f"the campaign's time limit passed before its answers were scored; {score_later(entry)}"
                if run.timed_out
                else ""
            )

        scores = await ScoreAnswers(entry.task, attempt, unwanted)
        self._store.scores.set(entry.id, attempt, scores)
        self._log.info("answers.scored", task=entry.id, scores=dict(scores.scores), why=scores.why)
        self.carry_out(self.core.finish_scoring(entry))

    def answer_old(self, peer: str, result: Result) -> Message:
        """The answer to a result that does not belong to the current attempt. Its run is over, whether or not a stop was requested."""
        over = self.core.state.stops.confirm(peer, (result.lease,))
        if over:
            self.carry_out(over)
        receipt = self._store.attempts.known_result(
            task=result.task, attempt=result.attempt, worker=peer, sha256=result.sha256
        )
        return Accepted() if receipt.stale is None else Stale(reason=receipt.stale)


def score_later(entry: TaskEntry) -> str:
    """Text that says how the task's owner can have the answers scored."""
    return f"they are kept: sark-node score {entry.form.campaign}"
