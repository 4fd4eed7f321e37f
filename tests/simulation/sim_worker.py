"""A worker of the model: the real conversation, ledger and outbox on virtual time, with links and a disk of the model.

This module replaces only what `node.serve.shell` and `node.serve.run_manager` do: carrying out commands, and runs with their phases, their
timed window and their end. The rest tells the history what happened.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from node.capacity.allocations import SLOT_HOLDING_STATES, Allocation, KillCommand, RunCommand
from node.capacity.ledger import Ledger
from node.capacity.slots import MUTE_S
from node.conversation.commands import (
    ControlDevice,
    DiskCommand,
    DropLink,
    RevealRun,
    SendCall,
    SendNote,
    SendReply,
    WriteRecord,
)
from node.conversation.conversation import WorkerConversation
from node.conversation.outbox import Outbox
from node.conversation.requests import WorkerContext
from node.store.outbox_files import OutboxFiles
from protocol.errors import ResourceError, Unreachable
from protocol.formats.chain import launch_seed
from protocol.formats.phase import Phase
from protocol.messages.permission import CallPermission
from protocol.messages.work import (
    AdoptRequest,
    Cancel,
    Commit,
    Denied,
    Granted,
    Queued,
    Release,
    Renew,
    Renewed,
    Result,
    Reveal,
)
from protocol.values.advert import Advert
from protocol.values.lease import LeaseState
from protocol.values.record import (
    DeviceFacts,
    LaunchOutput,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    read_record,
    record_body,
)
from protocol.wire.base import Message
from protocol.words import Reason, RunOutcome
from tests.simulation import adapter
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Kernel, Process
from tests.simulation.sim_disk import SimDisk
from tests.simulation.wire import Air, End, Station

Tell = Callable[..., None]
COUNTED = SLOT_HOLDING_STATES | {LeaseState.QUEUED}
"""States that a quota counts."""
KILL_S = 0.4
"""The longest time that processes take to die."""
PRETEND_S = 2.0
"""Time between two reports of a run that never ends."""
BEGAN_AT = 1.8e9
"""The reading of all wall clocks at the start, in seconds since 1970."""
WorkerImage = tuple[int, int, dict[str, bytes]]
"""A number, the incarnation and the files."""
BUSY = frozenset({LeaseState.REPORTING, LeaseState.CLOSED})


@dataclass
class Runs:
    """How runs behave on this worker."""

    seconds: tuple[float, float] = (0.2, 6.0)
    crashes: float = 0.0
    """Share of runs that crash."""
    lies: bool = False
    """The worker sends results twice, late, and some that are false."""
    holds: float = 0.0
    """Share of runs that never begin: the worker grants and renews, and never runs anything."""
    steps: int = 1
    """Reports of progress in the timed part of a run."""
    pretends: bool = False
    """Whether it reports progress of the runs that never begin."""


@dataclass
class Request:
    """A call that is not answered yet."""

    reply: Message | None = None
    done: Flag = field(default_factory=Flag)


@dataclass
class Run:
    """A run in this life."""

    lingers_until: float = 0.0
    """Time on the worker's clock before which the run does not end."""
    stop: Flag = field(default_factory=Flag)
    why: Reason = Reason.CANCELLED
    go_on: Flag = field(default_factory=Flag)
    """Set when the run is to stop, or when its inputs are revealed."""
    revealed: Reveal | Denied | None = None


@dataclass(frozen=True)
class Entry:
    """A campaign manifest that a worker has."""

    sha256: str
    size: int


class SimManifests:
    """Has every manifest at once that a scheduler named."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}

    def of(self, campaign: str, owner: str) -> Entry | None:
        return self._entries.get((campaign, owner))

    def note(self, campaign: str, owner: str, peer: str, sha256: str, size: int) -> None:
        self._entries[campaign, owner] = Entry(sha256, size)


class SimWorker:
    """One device. Its disk outlives its process."""

    def __init__(
        self,
        kernel: Kernel,
        air: Air,
        name: str,
        rng: random.Random,
        tell: Tell,
        *,
        runs: Runs,
        slots: int,
        permit: Callable[[str, str], CallPermission | None],
        advert: Callable[[], Advert],
        owner_first: bool = False,
        make_ledger: Callable[..., Ledger] = Ledger,
        make_conversation: Callable[..., WorkerConversation] = WorkerConversation,
        mutant: frozenset[str] = frozenset(),
    ) -> None:
        """`permit(worker, peer)`: the peer's permission now."""
        self.name = name
        self.slots = slots
        self.runs = runs
        self.process = Process(kernel, name, offset=rng.uniform(0, 1000), rate=rng.uniform(0.9, 1.1))
        self.station = Station(self.process, self._serve, self._opened, self._closed)
        self.incarnation = 0
        self._images = 0
        self.disk = SimDisk()
        self.disk.syncs = "no-sync" not in mutant
        self.clock_off_s = 0.0
        """Error of its wall clock, in seconds."""
        self.conversation: WorkerConversation
        self.lost_changes: Callable[[int], None] = lambda number: None
        """Called with the number of changes on its disk that were lost when power failed."""
        self.broken: frozenset[str] = frozenset()
        """Tasks whose model fails wherever it runs."""
        self._air = air
        self._rng = rng
        self._chance = random.Random(
            f"{name} {self.process.offset}"
        )  # a separate source, so that all other draws stay the same
        self._report = tell
        self._permit = permit
        self._advert = advert
        self._owner_first = owner_first
        self._manifests = SimManifests()
        self._make_ledger = make_ledger
        self._make_conversation = make_conversation
        self._mutant = mutant
        air.stations[name] = self.station

    @property
    def ledger(self) -> Ledger:
        """The ledger of the present life."""
        return self.conversation.ledger

    # -- life of the process ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a new life."""
        if "same-incarnation" not in self._mutant or not self.incarnation:
            self.incarnation += 1
        self.process.start()
        self._files = OutboxFiles(self.disk)
        self._floor = 0.0
        context = WorkerContext(
            now=self._now,
            wall=self._wall,
            permit=self._may,
            authenticate=self._no_credentials,
            advert=self._advert,
            has_model=lambda sha256: False,
            manifests=self._manifests,
            sign=lambda message: bytes(64),
            verify=lambda peer, message, signature: True,
            log=adapter.Silence(),
            read_task=adapter.read,
        )
        self.conversation = self._make_conversation(
            self._make_ledger(
                self.incarnation, name=self.name, slots=self.slots, owner_first=self._owner_first
            ),
            Outbox(context.wall, context.now, self._files.waiting, self._files.settled),
            context,
        )
        self._records = _settled(self.conversation.outbox)
        for sha256 in self._records:
            self._tell(Kind.RESTORED, sha256=sha256)
        self._runs: dict[str, Run] = {}
        self._disk: deque[DiskCommand] = deque()
        self._to_disk = Flag()
        self._shadow: dict[str, LeaseState] = {}
        self._newest = 0
        self._unanswered: dict[str, float] = {}
        self._counted: dict[str, int] = {}
        self._changed = Flag()
        self._let_in = Flag()
        self._tell(Kind.BORN, fence=(self.incarnation, 0))
        self.process.spawn(self._keep_time())
        self.process.spawn(self._keep_disk())

    def crash(self, *, silent: bool = False) -> None:
        """Kill the process as kill -9 does, or cut the power (`silent`)."""
        self._tell(Kind.DIED)
        self.process.kill()
        self._air.lost(self.station, silent=silent)
        if silent:
            self.lost_changes(self.disk.lose_power(self._chance))

    def awaiting_reveal(self) -> list[Allocation]:
        """Runs that wait for their inputs."""
        leases = ((self.ledger.allocation(lease), run) for lease, run in self._runs.items())
        return [
            place
            for place, run in leases
            if place is not None and place.request.commit.witnessed and run.revealed is None
        ]

    def held(self) -> int:
        """Number of granted and queued leases, and of runs that are not dead."""
        return sum(place.state not in BUSY for place in self.ledger.allocations()) + len(self._runs)

    def linger(self, lease: str, seconds: float) -> None:
        """Make a run take at least `seconds` more."""
        self._runs[lease].lingers_until = self._now() + seconds

    def evict(self, peer: str) -> None:
        """End the leases of a peer whose permission is revoked."""
        self.ledger.evict(peer, Reason.NOT_ALLOWED, self._now())
        self._carry_out()

    def hold(self, why: str) -> None:
        """Apply the owner's rules: take no new work while `why` is not empty."""
        self.ledger.condition.hold(why)
        self._carry_out()

    def presented(self) -> None:
        """A peer may have got a permission that it did not have before."""
        if self.process.alive:
            news, self._let_in = self._let_in, Flag()
            news.set()

    def image(self) -> WorkerImage:
        """The content of its disk."""
        self._images += 1
        self._tell(Kind.IMAGED, number=self._images)
        return self._images, self.incarnation, self.disk.image()

    def roll_back(self, image: WorkerImage) -> None:
        """Set its machine back to an earlier moment, and leave it off."""
        self.crash(silent=True)
        number, self.incarnation, files = image
        self.disk.become(files)
        self._tell(Kind.ROLLED_BACK, number=number)

    def _wall(self) -> float:
        return max(0.0, BEGAN_AT + self.process.kernel.now + self.clock_off_s)

    def _now(self) -> float:
        return max(self._floor, self.process.now())

    def _tell(self, kind: Kind, **what: object) -> None:
        self._report(kind, worker=self.name, **what)

    # -- links ------------------------------------------------------------------------------------------------------------

    def _may(self, peer: str, message: Message, campaign: str | None = None) -> CallPermission | Denied:
        permission = self._permit(self.name, peer)
        if permission is None and "no-permission" in self._mutant:
            permission = CallPermission(principal=peer, rights=frozenset())
        return permission or Denied(reason=Reason.NOT_ALLOWED)

    @staticmethod
    def _no_credentials(peer: str, message: Message) -> Denied:
        raise AssertionError("schedulers of the model need no token")

    async def _serve(self, end: End, message: Message) -> Message | None:
        request = Request()
        before = {
            place.lease: (place.state, place.request.task.campaign) for place in self.ledger.allocations()
        }
        self.conversation.received(end, message, request)
        self._carry_out()
        if not isinstance(request.reply, Denied):
            self._tell_effect(end, message, request.reply, before)
        await request.done.wait(self.process)
        return request.reply

    def _tell_effect(
        self, end: End, message: Message, reply: Message | None, before: dict[str, tuple[LeaseState, str]]
    ) -> None:
        """Tell the history that a request took effect now. The answer may come later, when the permission may be gone."""
        may = self._permit(self.name, end.peer) is not None
        self._tell(Kind.VERB, peer=end.peer, word=type(message).__name__.lower(), number=int(may))
        match message:
            case Commit() if isinstance(reply, (Granted, Queued)):
                if reply.fence.incarnation == self.incarnation and reply.fence.number > self._newest:
                    self._newest = reply.fence.number
                    self._spoke(end, adapter.task_of(message).campaign, "commit", message.epoch)
            case AdoptRequest():
                self._spoke(end, message.campaign, "adopt", message.epoch)
            case Cancel() | Release():
                for item in message.held:
                    place, (state, campaign) = (
                        self.ledger.allocation(item.lease),
                        before.get(item.lease, (None, "")),
                    )
                    if isinstance(message, Cancel):
                        self._tell(Kind.CANCEL_RECEIVED, peer=end.peer, lease=item.lease)
                    if state is not None and (place is None or place.state is not state):
                        self._spoke(end, campaign, type(message).__name__.lower(), item.epoch)
            case Renew() if isinstance(reply, Renewed):
                epochs = {item.lease: item.epoch for item in message.held}
                for lease in reply.renewed:
                    place = self.ledger.allocation(lease)
                    campaign = place.request.task.campaign if place is not None else ""
                    self._spoke(end, campaign, "renew", epochs[lease])
            case _:
                pass

    def _spoke(self, end: End, campaign: str, word: str, epoch: int | None = None) -> None:
        number = end.far.speaks.get(campaign, 0) if epoch is None else epoch
        self._tell(Kind.SPOKE, who=end.station.process.name, campaign=campaign, word=word, number=number)

    def _opened(self, end: End) -> None:
        self.process.spawn(self._use(end))

    async def _use(self, end: End) -> None:
        while self._permit(self.name, end.peer) is None:
            await self._let_in.wait(self.process)
        if not end.closed.is_set:
            self.conversation.connected(end)
            self._carry_out()

    def _closed(self, end: End) -> None:
        self.conversation.disconnected(end)
        self._carry_out()

    async def _call(self, command: SendCall) -> None:
        end: Any = command.link
        result = command.message if isinstance(command.message, Result) else None
        if result is not None:
            self._tell(Kind.SENT, sha256=result.sha256)
        try:
            reply = await end.call(command.message, command.timeout_s)
        except Unreachable:
            reply = None
        if result is not None and reply is not None:
            self._tell(Kind.ANSWERED, sha256=result.sha256)
            if self.runs.lies:
                self.process.spawn(self._lie(end, result))
        self.conversation.commands.answered(command, reply)
        self._carry_out()

    async def _lie(self, end: End, result: Result) -> None:
        """Send the result again, or a false one."""
        assert result.body is not None
        if self._rng.random() < 0.5:
            changes: list[dict[str, Any]] = [
                {"attempt": result.attempt + 1},
                {"fence": result.fence.model_copy(update={"number": result.fence.number + 1})},
                {"task": result.task[:-1] + "1"},
                {"lease": result.lease + "0"},
            ]
            change = self._rng.choice(changes)
            body = record_body(read_record(result.body).model_copy(update=change))
            sha256 = hashlib.sha256(body).hexdigest()
            if sha256 != result.sha256:  # the task may have been the first already
                self._air.lies.add(sha256)
            result = result.model_copy(update={**change, "body": body, "sha256": sha256})
        await self.process.sleep(self._rng.choice((0.0, 1.0, 10.0)))
        try:
            await end.call(result, 10.0)
        except Unreachable:
            return

    # -- commands ---------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        self.conversation.carry_out()
        for command in self.conversation.commands.take():
            match command:
                case SendReply(Request() as request, message):
                    request.reply = message
                    request.done.set()
                case SendCall():
                    self.process.spawn(self._call(command))
                case SendNote(link, note):
                    end: Any = link
                    end.tell(note)
                case DropLink(link):
                    self.process.kernel.after(0.0, link.drop)  # type: ignore[attr-defined]
                case RunCommand():
                    self._begin_run(command.lease)
                case KillCommand():
                    self._tell(Kind.STOP_ORDERED, lease=command.lease, word=str(command.reason))
                    run = self._runs[command.lease]
                    run.why = command.reason
                    run.stop.set()
                    run.go_on.set()
                case RevealRun(lease, message) if lease in self._runs:
                    self._runs[lease].revealed = self._runs[lease].revealed or message
                    self._runs[lease].go_on.set()
                case RevealRun():
                    pass
                case SendReply() | ControlDevice():
                    raise AssertionError("nobody here asks for that")
                case _:
                    self._disk.append(command)
                    self._to_disk.set()
        self._look()
        self._changed.set()

    async def _keep_time(self) -> None:
        while True:
            self._changed = Flag()
            deadline = self.conversation.next_deadline()
            now = self._now()
            await self._changed.wait(self.process, None if deadline is None else deadline - now)
            if deadline is not None and deadline <= self._now() + 1e-6:
                self._floor = deadline  # its clock is a sum of floats
                self.conversation.run_timers()
                self._carry_out()

    async def _keep_disk(self) -> None:
        while True:
            await self._to_disk.wait(self.process)
            self._to_disk = Flag()
            while self._disk:
                command, data, error = self._disk[0], None, ""
                await self.process.sleep(self._rng.uniform(0.001, 0.02))
                self._disk.popleft()
                try:
                    data = self._files.carry_out(command)
                    if isinstance(command, WriteRecord):
                        self._tell(Kind.STORED, sha256=command.item.sha256, number=1)
                except ResourceError as exc:
                    error = exc.what
                self.conversation.commands.disk_done(command, data, error)
                if error and isinstance(command, WriteRecord):
                    self._tell(Kind.STORED, sha256=command.item.sha256, number=0)
                self._carry_out()

    # -- runs -------------------------------------------------------------------------------------------------------------

    def _begin_run(self, lease: str) -> None:
        self._runs[lease] = run = Run()
        place = self.ledger.allocation(lease)
        assert place is not None
        task = place.request.task
        self._tell(
            Kind.BEGAN,
            lease=lease,
            fence=place.fence.key(),
            task=task.task,
            attempt=place.request.commit.attempt,
            sha256="f" * 64 if "wrong-model" in self._mutant else task.model.sha256,
        )
        self.process.spawn(self._run(place, run))

    async def _run(self, place: Allocation, run: Run) -> None:
        process, lease, task = self.process, place.lease, place.request.task
        seconds = self._rng.uniform(*self.runs.seconds)
        crash = self._rng.random() < self.runs.crashes
        if self.runs.holds and self._rng.random() < self.runs.holds:
            await self._hold(lease, run)
        witnessed = bool(place.request.commit.witnessed)
        outputs: list[LaunchOutput] = []
        for phase, share in ((Phase.FETCH, 0.2), (Phase.LOAD, 0.2), (Phase.RUN, 0.5), (Phase.CHECK, 0.1)):
            self.conversation.report_progress(lease, phase)
            self._set_timing(lease, on=phase is Phase.RUN)
            if witnessed and phase is Phase.LOAD:
                self.conversation.ask_reveal(lease)
                self._carry_out()
                await run.go_on.wait(process)
                if not isinstance(run.revealed, Reveal):
                    break
            for step in range(1, self.runs.steps if phase is Phase.RUN else 1):
                if not await run.stop.wait(process, seconds * share / self.runs.steps):
                    self.conversation.report_progress(lease, phase, step, self.runs.steps)
                    self._carry_out()
            left = share / self.runs.steps if phase is Phase.RUN else share
            if phase is Phase.RUN:
                left /= 2
                if not await run.stop.wait(process, seconds * left):
                    self._begin_next_launch(lease, run)
            if await run.stop.wait(process, seconds * left) or (crash and phase is Phase.RUN):
                break
            if witnessed and phase in (Phase.LOAD, Phase.RUN):
                outputs.append(LaunchOutput(sha256=hashlib.sha256(lease.encode()).hexdigest()))
                self.conversation.report_launch(lease, len(outputs), outputs[-1].digest().hex())
                self.conversation.ask_reveal(lease)  # once more, and the same inputs come again
                self._carry_out()
        while self._now() < run.lingers_until and not await run.stop.wait(process, PRETEND_S):
            pass
        if run.stop.is_set:
            await process.sleep(self._rng.uniform(0.006, KILL_S))
        self._set_timing(lease, on=False)
        outcome, reason, permanent = RunOutcome.COMPLETE, None, False
        if run.stop.is_set:
            outcome, reason = RunOutcome.CANCELLED, run.why
        elif task.task in self.broken:
            outcome, reason, permanent = RunOutcome.FAILED, Reason.BROKEN_MODEL, True
        elif crash:
            outcome, reason = RunOutcome.FAILED, Reason.CRASHED
        elif isinstance(run.revealed, Denied):
            outcome, reason = RunOutcome.FAILED, run.revealed.reason
        chain = _chain(run.revealed, outputs, seconds) if isinstance(run.revealed, Reveal) else {}
        record = Record(
            campaign=task.campaign,
            task=task.task,
            attempt=place.request.commit.attempt,
            fence=place.fence,
            worker=self.name,
            task_sha256=place.request.task_sha256,
            model_sha256=task.model.sha256,
            outcome=outcome,
            reason=reason,
            permanent=permanent,
            device=DeviceFacts(device=adapter.device_of(self.name), name=self.name[-2:]),
            **chain,
        )
        self._tell(Kind.DEAD, lease=lease)
        del self._runs[lease]
        self.conversation.processes_ended(lease, record)
        self._carry_out()
        if self.ledger.condition.suspect:
            self.ledger.condition.record_examination("")  # the model works
        self.conversation.finish_run(lease, record)
        self._carry_out()

    async def _hold(self, lease: str, run: Run) -> None:
        """Run nothing until a scheduler stops the run, or the worker changes its behaviour."""
        step = 0
        while self.runs.holds and not await run.stop.wait(self.process, PRETEND_S):
            step += 1
            if self.runs.pretends:
                self.conversation.report_progress(lease, Phase.RUN, step)
                self._carry_out()

    def _begin_next_launch(self, lease: str, run: Run) -> None:
        """Go on to the next launch, unless a higher priority wants the slot."""
        self._tell(Kind.TIMING, lease=lease, number=0)
        self.conversation.yield_between_launches(lease)
        self._carry_out()
        if not run.stop.is_set:
            self._set_timing(lease, on=True)

    def _set_timing(self, lease: str, *, on: bool) -> None:
        place = self.ledger.allocation(lease)
        if place is not None and place.timed is not on:
            self._tell(Kind.TIMING, lease=lease, number=int(on))
            self.conversation.set_timing(lease, on)
        self._carry_out()

    # -- for the history --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Tell the history what has changed, and check the ledger against its own limits."""
        now = {place.lease: place for place in self.ledger.allocations()}
        for lease, state in self._shadow.items():
            place = now.get(lease)
            if state in SLOT_HOLDING_STATES and (place is None or place.state not in SLOT_HOLDING_STATES):
                self._tell(Kind.LEFT, lease=lease, word=str(place.state if place else "closed"))
            if state is LeaseState.OFFERED and place is not None and place.state is LeaseState.QUEUED:
                self._unanswered[place.peer] = self._now()
        counted: dict[str, int] = {}
        for lease, place in now.items():
            before = self._shadow.get(lease)
            if place.request.permission.slots is not None and place.state in COUNTED:
                counted[place.request.principal] = counted.get(place.request.principal, 0) + 1
                self._count(place, counted[place.request.principal])
            if before is LeaseState.QUEUED and place.state is LeaseState.OFFERED:
                self._tell(Kind.TURN, lease=lease, number=self._passed_over(place, now.values()))
            if before is None or before not in SLOT_HOLDING_STATES:
                if place.state in SLOT_HOLDING_STATES:
                    self._tell_place(Kind.TAKEN, place)
                elif before is None and place.state is LeaseState.QUEUED:
                    self._tell_place(Kind.QUEUED, place)
        self._shadow = {lease: place.state for lease, place in now.items()}
        records = _settled(self.conversation.outbox)
        for sha256, settled in self._records.items():
            if not settled and records.get(sha256, True):
                self._tell(Kind.LET_GO, sha256=sha256, number=int(sha256 in records))
        self._records = records

    def _count(self, place: Allocation, number: int) -> None:
        """Report the number of leases of a principal with a quota, whenever it rises."""
        principal = place.request.principal
        if number > self._counted.get(principal, 0):
            self._counted[principal] = number
            self._report(
                Kind.SIZE,
                who=self.name,
                word=f"places of {principal}",
                number=number,
                cap=place.request.permission.slots,
            )

    def _passed_over(self, place: Allocation, places: Iterable[Allocation]) -> int:
        """Number of the owner's queued leases that should have been offered this slot."""
        if not self._owner_first or place.request.owner:
            return 0
        since = self._now() - MUTE_S
        linked = {
            peer for peer in self.conversation.links.peers() if self._unanswered.get(peer, -1e9) < since
        }
        return sum(
            one.state is LeaseState.QUEUED and one.request.owner and one.peer in linked for one in places
        )

    def _tell_place(self, kind: Kind, place: Allocation) -> None:
        self._tell(
            kind,
            lease=place.lease,
            fence=place.fence.key(),
            task=place.request.task.task,
            attempt=place.request.commit.attempt,
            peer=place.peer,
        )


def _chain(told: Reveal, outputs: list[LaunchOutput], seconds: float) -> dict[str, Any]:
    """The chain of a witnessed run. It claims no more time than another clock would show, as its own may run a tenth fast."""
    nothing = pack_samples(())
    timings = (
        Timing(samples=nothing, warmup=nothing, cpu_s=0.0, wall_s=0.15 * seconds, output=o) for o in outputs
    )
    facts = RunFacts(unit="u", driver="d", runtime="r", seed=launch_seed(told.opening, 1))
    return {"opening": told.opening, "reveal": told.reveal, "timings": tuple(timings), "ran": facts}


def _settled(outbox: Outbox) -> dict[str, bool]:
    """By sha256, for all records: whether the record is settled."""
    return dict.fromkeys(outbox._waiting, False) | dict.fromkeys(outbox._settled, True)
