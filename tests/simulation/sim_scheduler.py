"""A scheduler of the model: the real core in a shell that does what `scheduler.run.service` and `scheduler.run.links` do around it.

Mirrored: orders for the disk before those for the network; a kept link to each worker with leases of ours, renewed every RENEW_EVERY_S
and adopted anew whenever it comes up; commits said again under the same key for a lease's time; a worker given up LEASE_TTL_S after the
last renewal that was answered was sent, or GONE_S after its machine refuses; a result recorded by compare-and-set before it is accepted;
after a restart everything from the store, under a higher epoch. A disk that takes nothing ends the process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from protocol.messages.work import Accepted, Commit, Preempt, Progress, Ready, Result, Skip, Stale, Start
from protocol.values.advert import Advert
from protocol.values.record import read_record
from protocol.wire.base import Message
from protocol.words import Reason
from scheduler.core.allocator import ELSEWHERE_S
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    Discover,
    EndAttempt,
    EndCampaign,
    EndHedge,
    EndPending,
    Explain,
    Intent,
    ProbeWorker,
    RecordGrant,
    ReleaseOn,
    SwitchAttempt,
)
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.state import TaskEntry, TaskLimits
from scheduler.run.links import SETTLE_S
from tests.simulation import adapter
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Kernel, Process
from tests.simulation.shelf import Folder, Shelf
from tests.simulation.sim_lines import Line, Lines
from tests.simulation.wire import Air, End, Station

BEAT_S = 1.0
"""Slower than the real one's, to save time."""
RIVALS_S = 2.0
Tell = Callable[..., None]


class SimScheduler(Lines):
    """One scheduler. Its disk (`shelf`) outlives its process."""

    def __init__(
        self,
        kernel: Kernel,
        air: Air,
        name: str,
        rng: random.Random,
        tell: Tell,
        *,
        shelf: Shelf,
        adverts: Callable[[], list[Advert]],
        broke: Callable[[SimScheduler], None],
        make_book: Callable[[random.Random], SchedulerCore] = SchedulerCore,
        peer: str = "",
        mutant: frozenset[str] = frozenset(),
    ) -> None:
        """`adverts`: what the index answers now. `broke`: told when the disk took something no more.

        `peer`: its identity, where that is not its name.
        """
        self.name = name
        self.shelf = shelf
        self.process = Process(kernel, name, offset=rng.uniform(0, 1000), rate=rng.uniform(0.9, 1.1))
        self.process.failed = lambda error: broke(self)
        self.station = Station(self.process, self._serve, closed=self._closed, peer=peer)
        self.peer = peer or name
        self.core: SchedulerCore
        self._air = air
        self._rng = rng
        self._tell = tell
        self._adverts = adverts
        self._make_book = make_book
        self._mutant = mutant
        air.stations[name] = self.station

    # -- its life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process opens the store."""
        self.process.start()
        self.core = self._make_book(random.Random(self._rng.random()))
        self._epochs: dict[str, int] = {}
        self._bodies: dict[str, bytes] = {}
        self.station.speaks = {}
        self._lines: dict[str, Line] = {}
        self._kept: set[str] = set()
        self._opening: dict[str, Flag] = {}
        self._running: dict[str, int] = {}
        self._moved = Flag()
        self.process.spawn(self._live())

    async def _live(self) -> None:
        await self._beat()

    def crash(self) -> None:
        """kill -9."""
        self.process.kill()
        self.shelf.crashed()
        self._air.lost(self.station, silent=False)

    # -- the service --------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._load()
            running, self._running = self._running, {}
            for task, attempt in running.items():
                self.shelf.set_running(task, attempt)
            if self.shelf.unfinished() or not self.core.idle:
                self._carry_out(self.core.tick(self.now()))
                self.core.check()
            for course in self.core.forget(self.now()):
                self._epochs.pop(course.limits.campaign, None)
            await self.process.sleep(BEAT_S)

    def _load(self) -> None:
        for folder in self.shelf.unfinished():
            forgets = "forgets-campaigns" in self._mutant and folder.epoch
            if folder.id not in self.core.state.campaigns and not forgets:
                self._take_up(folder)
        self._carry_out(self.core.cancel(self.shelf.cancel_requests(), self.now()))

    def _take_up(self, folder: Folder) -> None:
        if "same-epoch" not in self._mutant or not folder.epoch:
            self.shelf.next_epoch(folder.id)
        self._epochs[folder.id] = self.station.speaks[folder.id] = folder.epoch
        rows = [self.shelf.tasks[task] for task in folder.tasks]
        self._bodies |= {row.id: row.body for row in rows}
        entries = [adapter.restored_entry(row, self.shelf.tries(row.id)) for row in rows]
        terms = TaskLimits(
            campaign=folder.id,
            attempts=folder.attempts,
            backoff_s=folder.backoff_s,
            wait_s=folder.wait_s,
            priority=folder.priority,
            epoch=folder.epoch,
        )
        self._carry_out(self.core.add(terms, entries, self.now()))
        for peer in dict.fromkeys(ticket.worker for entry in entries for ticket in entry.attempts()):
            self._adopt_on(peer)

    def _carry_out(self, orders: Sequence[Command]) -> None:
        for order in orders:
            if isinstance(order, CommitTo):
                o = order
                epoch = self._epochs[o.campaign]
                intent = Intent(o.task, o.attempt, o.key, o.peer, o.device, epoch, o.hedge)
                self.shelf.begin_attempts([intent], self._others)
            self._keep_on_disk(order)
        for order in orders:
            self._send(order)
        moved, self._moved = self._moved, Flag()
        moved.set()

    def _others(self, intent: Intent) -> int:
        """Workers that could have had it and have not tried it."""
        entry = self.core.state.tasks[intent.task]
        if self.now() >= entry.not_before + ELSEWHERE_S:
            return 0  # they had their time
        fits = self.core.state.groups[entry.group].fits - entry.tried
        siblings = [
            self.core.state.tasks[task]
            for task in self.core.state.replicas.get(entry.replica_set, ())
            if task != entry.id
        ]
        taken = {ticket.worker for other in siblings for ticket in other.attempts()}
        taken |= {other.worker for other in siblings if other.over and other.worker}
        return sum(
            1 for peer in fits - taken if peer != intent.worker and self.core.state.worker(peer).hopeful()
        )

    def _keep_on_disk(self, order: Command) -> None:
        match order:
            case RecordGrant():
                self.shelf.record_grant(
                    order.task, order.attempt, lease=order.lease, fence=order.fence, queued=order.queued
                )
            case SwitchAttempt():
                self.shelf.switch(order.task, order.attempt, order.before)
            case EndHedge():
                self.shelf.end_second(order.task, order.attempt)
            case EndAttempt():
                self._running.pop(order.task, None)
                self.shelf.end_attempt(order.task, order.attempt, order.event, order.reason)
            case EndPending():
                self.shelf.end_pending(order.tasks, order.event, order.reason)
            case EndCampaign():
                self.shelf.end_campaign(order.campaign)
            case _:
                pass

    def _send(self, order: Command) -> None:
        match order:
            case CommitTo():
                self.process.spawn(self._commit(order, self._commit_message(order)))
            case ProbeWorker():
                self.process.spawn(self._probe(order.peer))
            case CancelOn() | ReleaseOn():
                self.process.spawn(self._stop(order))
            case Discover():
                self.process.spawn(self._discover(order))
            case Explain():
                self.process.spawn(self._explain(order))
            case _:
                pass

    def _commit_message(self, order: CommitTo) -> Commit:
        return Commit.model_construct(
            key=order.key,
            attempt=order.attempt,
            epoch=self._epochs[order.campaign],
            task=self._bodies[order.task],
            signature=b"",
            priority=self.core.state.campaigns[order.campaign].limits.priority,
            queue=True,
            preempted=order.preempted,
            left_s=order.left_s,
            manifest="d" * 64,
            manifest_size=1,
            proof=self._proof(order.campaign),
        )

    async def _discover(self, order: Discover) -> None:
        await self.process.sleep(self._rng.uniform(0.05, 0.5))
        self._carry_out(self.core.on_adverts(order.group, self._adverts(), self.now()))

    async def _explain(self, order: Explain) -> None:
        await self.process.sleep(self._rng.uniform(0.05, 0.5))
        self._carry_out(self.core.on_explanation(order.group, Reason.NOTHING_FITS, "none", self.now()))

    # -- what workers say ---------------------------------------------------------------------------------------------------

    async def _serve(self, end: End, message: Message) -> Message | None:
        match message:
            case Progress():
                live = self.core.on_progress(end.peer, message, self.now())
                if live is not None:
                    self._running[live.task] = live.attempt
                return None
            case Ready():
                return await self._ready(end.peer, message)
            case Result():
                return await self._result(end.peer, message)
            case Preempt():
                self._carry_out(
                    self.core.on_preempt(end.peer, message.lease, message.fence, message.priority, self.now())
                )
                return None
            case _:
                raise AssertionError(f"a worker does not say {type(message).__name__}")

    async def _quiet(self, peer: str) -> None:
        await self._line(peer).quiet.wait(self.process, SETTLE_S)

    async def _ready(self, peer: str, message: Ready) -> Message:
        await self._quiet(peer)
        until = self.now() + RIVALS_S
        while self.core.rival_asked(peer, message.lease) and self.now() < until:
            await self._moved.wait(self.process, until - self.now())
        now = self.now()
        task, orders = self.core.on_ready(peer, message.lease, message.fence, now)
        self._carry_out(orders)
        if task is None:
            self._carry_out(self.core.on_stopped(peer, (message.lease,), now))
            return Skip()
        entry = self.core.state.tasks[task]
        self._tell(
            Kind.WANTED,
            who=self.name,
            task=task,
            attempt=entry.attempt,
            worker=peer,
            fence=message.fence.key(),
        )
        self._running.setdefault(task, entry.attempt)
        return Start()

    async def _result(self, peer: str, result: Result) -> Message:
        entry = self.core.state.tasks.get(result.task)
        ticket = entry.at(peer) if entry is not None else None
        if entry is not None and ticket is not None and ticket.fence is None:
            await self._quiet(peer)
            ticket = entry.at(peer)
        early = ticket is not None and ticket.fence is None and ticket.number == result.attempt
        if entry is not None and early:
            self._carry_out(
                self.core.on_grant(
                    peer, entry.id, result.attempt, result.lease, result.fence, self.now(), queued=False
                )
            )
        if entry is None or (entry.worker, entry.attempt) != (peer, result.attempt):
            return self._old(peer, result)
        if "ack-first" in self._mutant:
            self.process.spawn(self._settle(entry, peer, result))
            self._acknowledged(peer, result)
            return Accepted()
        answer = self._settle_now(entry, peer, result)
        if isinstance(answer, Accepted):
            self._acknowledged(peer, result)
        return answer

    async def _settle(self, entry: TaskEntry, peer: str, result: Result) -> None:
        await self.process.sleep(0.2)
        self._settle_now(entry, peer, result)

    def _settle_now(self, entry: TaskEntry, peer: str, result: Result) -> Message:
        if not _current(entry, result) and "any-fence" not in self._mutant:
            return self._old(peer, result)
        assert result.body is not None
        record = read_record(result.body)
        said = (record.task, record.attempt, record.fence, record.worker)
        if said != (entry.id, result.attempt, result.fence, peer):
            self._carry_out(self.core.on_lost(peer, (result.lease,), Reason.BAD_REQUEST, self.now()))
            return Stale(reason=Reason.BAD_REQUEST)
        event, reason, _ = self.core.judge(record)
        kept = self.shelf.record_result(
            task=entry.id,
            attempt=result.attempt,
            fence=result.fence,
            worker=peer,
            sha256=result.sha256,
            event=event,
        )
        if kept.stale is not None:
            return Stale(reason=kept.stale)
        if not kept.duplicate:
            self._running.pop(entry.id, None)
            self._carry_out(
                self.core.on_result(entry.id, event, reason, self.now(), permanent=record.permanent)
            )
        return Accepted()

    def _old(self, peer: str, result: Result) -> Message:
        kept = self.shelf.known_result(
            task=result.task, attempt=result.attempt, worker=peer, sha256=result.sha256
        )
        if kept.stale is not None:
            return Stale(reason=kept.stale)
        self._acknowledged(peer, result)
        return Accepted()

    def _acknowledged(self, peer: str, result: Result) -> None:
        self._tell(Kind.ACKNOWLEDGED, who=self.name, worker=peer, task=result.task, sha256=result.sha256)


def _current(entry: TaskEntry, result: Result) -> bool:
    return not entry.over and (entry.attempt, entry.fence) == (result.attempt, result.fence)
