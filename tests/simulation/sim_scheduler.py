"""A scheduler of the model: the real core and conversation on virtual time, with links and a store of the model.

This module replaces only what `scheduler.run.service` and `scheduler.run.shell` do: effects, the beat, and taking up campaigns under a
higher epoch. The rest tells the history what happened. A full disk ends the process.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Coroutine
from math import ceil
from types import SimpleNamespace
from typing import Any

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.messages.work import (
    Accepted,
    AdoptRequest,
    Cancel,
    Commit,
    Denied,
    Progress,
    Ready,
    Release,
    Renewed,
    Result,
    Reveal,
    RevealRequest,
    Start,
    Stopped,
)
from protocol.values.advert import Advert
from protocol.values.record import read_record
from protocol.values.task import TaskBodies
from protocol.values.trust import OWN, Trust, TrustScope
from protocol.wire.base import Message
from protocol.words import Reason, RunOutcome
from results.row.canary import unchecked
from results.row.record import observe
from results.row.witness import refusal
from scheduler.conversation import effects
from scheduler.conversation.claims import Rival, RivalKind
from scheduler.conversation.conversation import RestoredCampaign, SchedulerConversation
from scheduler.conversation.effects import CheckedRecord, drive
from scheduler.conversation.links import CONNECT_S, SILENT_S, STOOD_STILL_S
from scheduler.core.commands import CommitTo
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.retry import ELSEWHERE_S
from scheduler.core.run_times import MOST
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.stops import OwedStop
from scheduler.run.epochs import ADOPTION_EPOCH_STEP, FIRST, MAX_EPOCH_STEP, LeadershipClaims
from tests.scheduler.core_invariants import check
from tests.simulation import adapter
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Kernel, Process
from tests.simulation.sim_store import SimStore, StoreImage
from tests.simulation.wire import Air, End, Station

HELD_S = 5.0
"""How long a held task and an idle worker may exist side by side."""
BEAT_S = 1.0
"""Longer than the real scheduler's, to save time."""
COMMITS_S = (0.0, 0.0, 0.01, 0.05)
"""How long written changes wait for their commit."""
Tell = Callable[..., None]


class SimClaims(LeadershipClaims):
    """Every adopting scheduler of the model has the right to adopt: a name and an epoch stand for a signature."""

    def __init__(
        self,
        peer: str,
        epochs: dict[str, int],
        next_epoch: Callable[[str, int], int],
        left: Callable[[str], None],
    ) -> None:
        """`epochs`: the epoch of each campaign, kept for the history. `left`: called with a campaign that is left to a copy of the home."""
        identity: Any = SimpleNamespace(peer_id=peer)
        super().__init__(identity, tuple, next_epoch)
        self.peer, self.epochs, self.next_epoch, self.left = peer, epochs, next_epoch, left

    def changed(self, kind: type[SimClaims]) -> SimClaims:
        """These claims with a mistake built in."""
        other = kind(self.peer, self.epochs, self.next_epoch, self.left)
        other._claims = self._claims
        return other

    def take_up(self, campaign: str, owner: str, epoch: int) -> None:
        super().take_up(campaign, owner, epoch)
        self.epochs[campaign] = epoch

    def prove(self, campaign: str, epoch: int, owner: str) -> bytes | None:
        return f"{self.peer} {epoch}".encode() if epoch > FIRST else None

    def proven(self, proof: bytes, campaign: str, owner: str) -> tuple[str, int]:
        peer, epoch = proof.decode().split()
        return peer, int(epoch)

    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        rival = super().rival(campaign, peer, denied)
        if rival is not None and rival.kind is RivalKind.COPY:
            self.left(campaign)
        return rival

    def adopted(self, campaign: str, denied: Denied) -> bool:
        """Whether a denial proves that another scheduler adopted the campaign: the answer of `rival`, without side effects."""
        if denied.reason is not Reason.STALE_EPOCH or denied.proof is None:
            return False
        (leader, epoch), own = self.proven(denied.proof, campaign, ""), self.epochs.get(campaign, 0)
        return epoch - own >= ADOPTION_EPOCH_STEP or (epoch > own and leader != self.peer)

    def forget(self, campaign: str) -> None:
        super().forget(campaign)
        self.epochs.pop(campaign, None)


class SimScheduler:
    """One scheduler. Its store outlives its process."""

    def __init__(
        self,
        kernel: Kernel,
        air: Air,
        name: str,
        rng: random.Random,
        tell: Tell,
        *,
        store: SimStore,
        adverts: Callable[[], list[Advert]],
        broke: Callable[[SimScheduler], None],
        make_core: Callable[..., SchedulerCore] = SchedulerCore,
        make_conversation: Callable[..., SchedulerConversation] = SchedulerConversation,
        peer: str = "",
        trust_of: Callable[[str], Trust] = lambda peer: OWN,
        mutant: frozenset[str] = frozenset(),
    ) -> None:
        """`adverts`: what the index answers now. `broke`: called when the disk takes no more writes.

        `peer`: its peer id, where that is not its name.
        """
        self.name = name
        self.store = store
        self.process = Process(kernel, name, offset=rng.uniform(0, 1000), rate=rng.uniform(0.9, 1.1))
        self.process.failed = lambda error: broke(self)
        self.station = Station(self.process, self._serve, peer=peer)
        self.peer = peer or name
        self.conversation: SchedulerConversation
        self.has_copy = False
        """Two processes have its key and its campaigns, so one process does not see what a worker showed to the other."""
        self._air = air
        self._rng = rng
        self._chance = random.Random(
            f"{name} {self.process.offset}"
        )  # the operating system's randomness, which no copy of a home shares
        self._disk = random.Random(f"the disk of {name} {self.process.offset}")
        self._tell = tell
        self._adverts = adverts
        self._make_core = make_core
        self._trust_of = trust_of
        self._make_conversation = make_conversation
        self._mutant = mutant
        air.stations[name] = self.station

    @property
    def core(self) -> SchedulerCore:
        """The core of the present process."""
        return self.conversation.core

    # -- life of the process ----------------------------------------------------------------------------------------------

    def start(self, *_: object) -> None:
        """Start a new process, which opens the store."""
        self.process.start()
        self._tell(Kind.UP, worker=self.name)
        self.station.speaks = {}
        self._opening: dict[str, Flag] = {}
        self._happened = Flag()
        self._answered: dict[str, float] = {}
        self._looked_at = self.process.now()
        self._stirred = True
        """Something other than time may have changed the state since its last check."""
        self._could: dict[str, float] = {}
        self.claims = SimClaims(
            self.peer,
            self.station.speaks,
            lambda name, above: self.conversation.next_epoch(name, above),
            lambda name: self.store.tell(Kind.STEPPED_DOWN, who=self.name, campaign=name),
        )
        self.store.others = self._others
        self.store.gather(lambda: self.process.spawn(self._commit()))
        self._committed = Flag()
        self.conversation = self._make_conversation(
            self._make_core(random.Random(self._rng.random()), self._trust_of),
            Shell(self),
            self.store.face(),
            self,
            self.claims,
            adapter.Silence(),
            peer=self.peer,
            sign=lambda message: hashlib.sha512(self.peer.encode() + message).digest(),
            manifest=lambda campaign: ("d" * 64, 1),
            ended=lambda campaign: None,
            stride=lambda: 1 + self._chance.randrange(MAX_EPOCH_STEP),
        )
        self.process.spawn(self._live())

    async def _live(self) -> None:
        await self._beat()

    async def _commit(self) -> None:
        """Commit like `scheduler.run.commits.GroupCommit`, which waits until 20 ms after its last commit. The wait here is longer, so that
        something happens meanwhile.
        """
        await self.process.sleep(self._disk.choice(COMMITS_S))
        self.store.commit()
        committed, self._committed = self._committed, Flag()
        committed.set()

    def crash(self) -> None:
        """End the process as kill -9 does."""
        self._tell(Kind.DIED, worker=self.name)
        self.process.kill()
        self.store.crashed()
        self._air.lost(self.station, silent=False)

    def roll_back(self, image: StoreImage) -> None:
        """Set its machine back to an earlier moment, and leave it off."""
        self.crash()
        self.store.become(image)
        self._tell(Kind.ROLLED_BACK, who=self.name, number=image[0])

    async def _beat(self) -> None:
        changes = -1
        while True:
            if changes != self.store.changes:
                changes = self.store.changes
                self.conversation.load()
            if self.store.unfinished() or not self.core.idle:
                self.conversation.beat()
                self._look_for_silence()
                self._look_for_held()
                checked = (
                    "unchecked" not in self._mutant and not self.store.full
                )  # a full disk ends the process
                if self._stirred and checked:
                    self._stirred = False
                    check(self.core.state)
                    self._compare_tries()
            await self.process.sleep(BEAT_S)

    def unfinished(self) -> list[str]:
        """See `CampaignSource`."""
        forgets = "forgets-campaigns" in self._mutant
        return [each.id for each in self.store.unfinished() if not (forgets and each.epoch)]

    def owed_stops(self) -> list[OwedStop]:
        """See `CampaignSource`."""
        return [] if "forgets-stops" in self._mutant else self.store.owed_stops(self.process.now())

    async def restore(self, name: str, epoch: int) -> RestoredCampaign:
        """See `CampaignSource`."""
        campaign = self.store.campaigns[name]
        self.claims.take_up(name, self.peer, epoch)
        rows = [self.store.tasks[task] for task in campaign.tasks]
        limits = TaskLimits(
            campaign=name,
            attempts=campaign.attempts,
            backoff_s=campaign.backoff_s,
            wait_s=campaign.wait_s,
            priority=campaign.priority,
            epoch=epoch,
            trust=TrustScope(anyone=True),
        )
        entries = self.store.restored(name) or [
            adapter.restored_entry(row, self.store.tries(row.id)) for row in rows
        ]
        return RestoredCampaign(limits, entries, TaskBodies({row.id: row.body for row in rows}))

    def _others(self, intent: CommitTo) -> int:
        """Workers that could have taken the task and have not tried it."""
        state = self.core.state
        entry = state.tasks[intent.task]
        if self.process.now() >= entry.not_before + ELSEWHERE_S:
            return 0  # the time that these workers have is over
        group = state.groups[entry.group]
        fits = group.fits - entry.tried
        siblings = [
            state.tasks[task] for task in state.replicas.get(entry.replica_set, ()) if task != entry.id
        ]
        taken = {attempt.worker for other in siblings for attempt in other.attempts()}
        taken |= {other.worker for other in siblings if other.over and other.worker}
        marks = {mark for peer in taken for mark in state.exclusive_keys(group, state.worker(peer))}
        views = [state.worker(peer) for peer in fits if peer != intent.peer]
        views = [view for view in views if marks.isdisjoint(state.exclusive_keys(group, view))]
        now = self.process.now()
        return sum(view.may_serve_soon() and not view.avoids(entry.model_key, now) for view in views)

    # -- links ------------------------------------------------------------------------------------------------------------

    async def _serve(self, end: End, message: Message) -> Message | None:
        self._stirred = True
        try:
            reply = await drive(self.conversation.received(end.peer, message), self.perform)
        except RemoteProtocolError:
            end.drop()
            return None
        if isinstance(message, Ready) and isinstance(reply, Start):
            held = self.core.state.by_lease(end.peer, message.lease, message.fence)
            if held is not None:
                entry, attempt = held
                word = {"task": entry.id, "attempt": attempt.number, "fence": message.fence.key()}
                rivals = 0 if self.has_copy else self.store.open_besides(entry.id, attempt.number)
                ago = round(self.process.now() - attempt.leased_at, 3)  # told once it is on disk
                self._tell(Kind.WANTED, who=self.name, worker=end.peer, **word, number=rivals, ago=ago)
        if isinstance(message, Progress):
            held = self.core.state.by_lease(end.peer, message.lease, message.fence)
            if held is not None and held[1].advanced_at is not None:
                entry, attempt = held
                what = {"task": entry.id, "attempt": attempt.number}
                self._tell(Kind.REPORTED, who=self.name, worker=end.peer, **what)
        if isinstance(message, RevealRequest) and isinstance(reply, Reveal):
            held = self.core.state.by_lease(end.peer, message.lease, message.fence)
            # the attempt may have ended while it waited for a commit, and the worker may not hear of it any more
            if held is not None and not end.far.closed.is_set:
                before = self.store.revealed.setdefault((end.peer, message.lease, held[0].id), reply)
                assert before == reply, f"{end.peer} was told something else of {message.lease}"
        if isinstance(message, Result) and isinstance(reply, Accepted):
            word = {"task": message.task, "sha256": message.sha256}
            self._tell(Kind.ACKNOWLEDGED, who=self.name, worker=end.peer, **word)
        return reply

    def peek(self, peer: str) -> End | None:
        """The live link to a worker, if there is one."""
        return next((end for end in self.station.ends if end.peer == peer), None)

    async def connect(self, peer: str) -> End:
        """The existing link, or a new one. Concurrent callers share it."""
        while peer in self._opening:
            await self._opening[peer].wait(self.process)
        end = self.peek(peer)
        if end is None:
            opening = self._opening[peer] = Flag()
            try:
                end = await self._air.open(self.station, peer, CONNECT_S)
            finally:
                if self._opening.pop(peer, None) is not None:
                    opening.set()
        return end

    # -- for the history ---------------------------------------------------------------------------------------------------

    def _look_for_proof(self, message: Message, reply: Message) -> None:
        """Tell the history when a worker proves that another scheduler leads a campaign of this one."""
        if isinstance(message, AdoptRequest):
            campaign = message.campaign
        elif isinstance(message, Commit):
            campaign = adapter.task_of(message).campaign
        else:
            return
        if isinstance(reply, Denied) and self.claims.adopted(campaign, reply):
            self.store.tell(Kind.STEPPED_DOWN, who=self.name, campaign=campaign)

    def _look_for_silence(self) -> None:
        """Tell the history of workers that count as alive and have not answered for too long."""
        now, before = self.process.now(), self._looked_at
        self._looked_at = now
        for peer in self.core.state.workers:
            if now - before > STOOD_STILL_S or not self.core.renewable_on(peer):
                self._answered[peer] = now  # this process itself stood still, or no answer is due
            silent_s = now - self._answered.setdefault(peer, now)
            if silent_s > SILENT_S + 2 * BEAT_S:
                self._tell(Kind.SILENT, who=self.name, worker=peer, number=round(silent_s))

    def _look_for_held(self) -> None:
        """Tell the history of tasks that workers hold for longer than any run may take."""
        state, now = self.core.state, self.process.now()
        for task in state.leased:
            entry = state.tasks[task]
            attempt = entry.current
            assert attempt is not None
            longest_s = state.allowance_s(entry, attempt) * (1.0 if attempt.advanced_at is None else MOST)
            held_s = now - attempt.since
            if entry.hedge is None and not entry.stopping and held_s > longest_s and self._free(entry):
                since = self._could.setdefault(task, now)
                if now - since > HELD_S:
                    what = {"worker": attempt.worker, "task": task, "number": round(held_s)}
                    self._tell(Kind.HELD, who=self.name, **what)
            else:
                self._could.pop(task, None)
        self._could = {task: at for task, at in self._could.items() if task in state.leased}

    def _free(self, entry: TaskEntry) -> bool:
        """Whether an idle worker could be asked."""
        state, now = self.core.state, self.process.now()
        if entry.replica_set:
            return False
        fits = state.groups[entry.group].fits - entry.tried - {entry.worker}
        return any(peer in state.idle and state.workers[peer].serving(now) for peer in fits)

    def _compare_tries(self) -> None:
        """Check that the number of tries is the same on disk."""
        for task, entry in self.core.state.tasks.items():
            row = self.store.tasks[task]
            if entry.tries != row.tries:
                raise LocalProtocolError(f"{task} had {entry.tries} tries, on disk {row.tries}")

    # -- effects ----------------------------------------------------------------------------------------------------------

    def start_job(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job beside the others."""
        self._stirred = True
        driven: Any = Driven(job, self.perform)
        self.process.spawn(driven)

    def wake(self) -> None:
        """Wake the jobs that wait for an event."""
        happened, self._happened = self._happened, Flag()
        happened.set()

    async def perform(self, effect: Any) -> Any:
        """Like `scheduler.run.shell.TrioShell.perform`."""
        self._stirred = True
        end: Any
        match effect:
            case effects.Connect(peer):
                return await self.connect(peer)
            case effects.Call(end, message, max_wait_s):
                sent_at = self.process.kernel.now
                reply = await end.call(message, max_wait_s)
                self._answered[end.peer] = self.process.now()
                what = {
                    "word": _answer(reply),
                    "number": ceil(self.process.kernel.now - sent_at),
                }
                self._tell(Kind.HEARD, who=self.name, worker=end.peer, **what)
                self._look_for_proof(message, reply)
                if isinstance(message, (Cancel, Release)) and isinstance(reply, Stopped):
                    for lease in reply.leases:
                        self._tell(Kind.CANCEL_CONFIRMED, who=self.name, worker=end.peer, lease=lease)
                return reply
            case effects.Stored():
                if self.store.uncommitted and "answers-before-the-commit" not in self._mutant:
                    await self._committed.wait(self.process)
            case effects.Reset(end):
                end.drop()
            case effects.Drop(peer):
                stored = self.peek(peer)
                if stored is not None:
                    stored.drop()
            case effects.WaitFor(ready, until):
                while not ready() and self.process.now() < until:  # its clock is a sum of floats
                    await self._happened.wait(self.process, max(1e-6, until - self.process.now()))
            case effects.SleepUntil(until):
                while self.process.now() < until:  # its clock is a sum of floats
                    await self.process.sleep(max(1e-6, until - self.process.now()))
                return None
            case effects.WaitClosed(end, until):
                return await end.closed.wait(self.process, until - self.process.now())
            case effects.SearchIndex():
                await self.process.sleep(self._rng.uniform(0.05, 0.5))
                return self._adverts()
            case effects.FetchRecord(_, result):
                return result.body
            case effects.CheckRecord(peer, result, body, account=account):
                record = read_record(body)
                lines = (record.task, record.attempt, record.fence, record.worker)
                if lines != (result.task, result.attempt, result.fence, peer):
                    raise RemoteProtocolError("the record is of another attempt")
                if account is not None and record.outcome is RunOutcome.COMPLETE:
                    refused = refusal(record, observe(record), account)
                    lie = result.sha256 in self._air.lies
                    assert refused is None or self.has_copy or lie, f"an honest record is refused: {refused}"
                    return CheckedRecord(record, {}, refused)
                return CheckedRecord(record, {})
            case effects.RepeatInference():
                await self.process.sleep(self._rng.uniform(0.05, 5.0))
                return unchecked("nothing runs here")
            case effects.Reintroduce():
                return False
            case effects.Introduce():
                pass
            case _:
                raise AssertionError(f"{effect} is unknown here")
        return None


def _answer(reply: Message) -> str:
    """The name of an answer; `stale`: a renewal denied because another scheduler leads the campaign."""
    stale = isinstance(reply, Renewed) and any(each.reason is Reason.STALE_EPOCH for each in reply.lost)
    return "stale" if stale else type(reply).__name__.lower()


class Driven:
    """A procedure of the conversation as a job of the kernel. It is closed with the process, even if it never began."""

    def __init__(self, job: Coroutine[Any, Any, None], perform: Callable[[Any], Any]) -> None:
        self._job = job
        self._drive = drive(job, perform)
        self.send = self._drive.send

    def close(self) -> None:
        """The process was killed."""
        self._drive.close()
        self._job.close()


class Shell:
    """What the conversation calls on its shell without waiting."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self.now = scheduler.process.now
        self.start = scheduler.start_job
        self.wake = scheduler.wake
        self.peek = scheduler.peek

    def is_needlessly_relayed(self, link: object) -> bool:
        return False

    def reached(self, peer: str) -> None:
        """Nothing: addresses in the model do not change."""
