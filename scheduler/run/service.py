"""The scheduler: runs every unfinished campaign of its store, from finding devices to the last recorded result.

    beat       every 0.2 s: what the command line wrote, progress to disk, time to the core
    carry_out  the book's orders: those for the disk at once and in order, those for the network each in a task of its own
    answer     what workers say on their links: Ready, Result, Progress, Preempt

Killed at any point it carries on from the store: every intent is on disk before a worker is asked, and every result before it is accepted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, ResourceError, Unreachable
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import Accepted, Preempt, Progress, Ready, Result, Skip, Stale, Start
from protocol.values.record import Record
from protocol.values.task import Task
from protocol.wire.base import Message
from protocol.words import Reason
from results.export.columns import figures_of
from results.row.acceptance import check, not_as_asked
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    Discover,
    Explain,
    LiveAttempt,
    ProbeWorker,
    ReleaseOn,
)
from scheduler.core.explain import LACKS_SIBLING, why_none
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.state import TaskEntry, TaskLimits
from scheduler.models.describe import by_devices
from scheduler.planning.candidates import DeviceFinder, find, survey
from scheduler.planning.devices import fix_plan
from scheduler.run.calls import commit_message
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.epochs import LeadershipClaims
from scheduler.run.links import WorkerLinks
from scheduler.run.manifests import manifests_in
from scheduler.run.missing_models import MissingModels
from scheduler.run.model_sources import ModelSources
from scheduler.run.persist import CommandWriter
from scheduler.run.receive import pull
from scheduler.run.restore import end_unreadable, entries_of
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from swarm.blobs.server import serve_blobs
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.network import Network
from swarm.pools.membership import Credential

BEAT_S: Final = 0.2
LOOKS: Final = 8
"""In each beat, how often to see whether another process wrote to the store."""
LOOKUPS: Final = 8
"""Questions to the index at once."""
RIVALS_S: Final = 2.0
"""How long a ticket whose place is up waits for another worker's answer about the same task. It keeps the place for longer."""
LINGER_BEATS: Final = 3
"""Beats without work before the process ends, so that the last answers are on their way."""

log = structlog.get_logger("sark.scheduler")

Checked = tuple[Record, dict[str, Any]]
"""A record, and what lists show of it."""
Aside = Callable[[Callable[[], Checked]], Awaitable[Checked]]


async def run_scheduler(
    *,
    network: Network,
    index: DeviceFinder,
    identity: Identity,
    store: Store,
    spool: Path,
    rng: random.Random | None = None,
    wall: Callable[[], float] = time.time,
    credentials: Callable[[], Sequence[Credential]] = tuple,
    manifests: Callable[[], Sequence[ManifestMessage]] = tuple,
    stop_when_idle: bool = True,
    aside: Aside = trio.to_thread.run_sync,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run until no campaign is left, or for ever if not `stop_when_idle`. `spool`: the models, named by their hash. `credentials`:
    the tokens to show to workers now; `manifests`: those of our pools. `aside`: reads a record while everything else goes on; one may
    hold millions of numbers, which take seconds.

    Raises `ResourceError` when the store cannot be written; what was acknowledged is safe, and a new start carries on.
    """
    try:
        async with trio.open_nursery() as nursery:
            service = _Service(
                network,
                index,
                identity,
                store,
                spool,
                rng or random.Random(),
                wall,
                credentials,
                manifests,
                aside,
                nursery,
            )
            serve_blobs(network, service.find_model, where=service.holders.where)
            service.load()
            task_status.started()
            await service.beat(stop_when_idle)
            nursery.cancel_scope.cancel()
    except* ResourceError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[ResourceError]) -> ResourceError:
    for item in group.exceptions:
        return _first(item) if isinstance(item, BaseExceptionGroup) else item
    raise AssertionError("an exception group is never empty")


class _Service:
    def __init__(
        self,
        network: Network,
        index: DeviceFinder,
        identity: Identity,
        store: Store,
        spool: Path,
        rng: random.Random,
        wall: Callable[[], float],
        credentials: Callable[[], Sequence[Credential]],
        manifests: Callable[[], Sequence[ManifestMessage]],
        aside: Aside,
        nursery: trio.Nursery,
    ) -> None:
        self._network = network
        self._index = index
        self._identity = identity
        self._store = store
        self._spool = spool
        self._wall = wall
        self._nursery = nursery
        self._core = SchedulerCore(rng)
        self._epochs: dict[str, int] = {}
        self._claims = LeadershipClaims(identity, credentials)
        self._workers = WorkerLinks(
            network,
            nursery,
            self._core,
            answer=self._answer,
            carry_out=self._carry_out,
            epoch=self._epochs.__getitem__,
            claims=self._claims,
            reached=self._remember,
            presenting=CredentialPresenter(credentials, wall, self._epochs.keys, manifests),
        )
        self.holders = ModelSources(
            self._core, index, identity, nursery=nursery, carry_out=self._carry_out, wall=wall, rng=rng
        )
        self._manifests, self._lacking = manifests_in(spool), MissingModels(spool)
        self._manifests.tidy([row.id for row in store.campaigns.unfinished()])
        self._bodies: dict[str, bytes] = {}
        self._lives: dict[str, LiveAttempt] = {}
        self._keeper = CommandWriter(store, self._manifests, self._lives, self._epochs)
        self._moved = trio.Event()
        """Set, and replaced, whenever the core was told something."""
        self._planning: set[str] = set()
        self._known: dict[str, tuple[str, ...]] = {}
        self._lookups = trio.CapacityLimiter(LOOKUPS)
        self._aside, self._reading = aside, trio.Lock()
        self._pulls: dict[str, trio.Lock] = {}
        """By task whose result is being fetched, or was and was not taken."""

    # -- the store's side ---------------------------------------------------------------------------------------------------------------

    async def beat(self, stop_when_idle: bool) -> None:
        """The clock of the service."""
        seen, idle = -1, 0  # what was committed while we took up the first campaigns is looked at too
        while True:
            for _ in range(LOOKS):
                await trio.sleep(BEAT_S / LOOKS)
                changed = self._store.changes_by_others()
                if changed != seen:  # somebody submits or cancels: do not let them wait for the beat
                    seen = changed
                    self.load()
                    break
            self._flush()
            now = trio.current_time()
            self._workers.beat(now)
            self._carry_out(self._core.on_models(self._lacking.look(now), now))
            self._carry_out(self._core.tick(now))
            for course in self._core.forget(trio.current_time()):
                self._epochs.pop(course.limits.campaign, None)
                self._claims.forget(course.limits.campaign)
                for task in course.tasks:
                    self._bodies.pop(task, None)
                    self._pulls.pop(task, None)
            if self._core.idle and not self._planning and not self._workers.asking:
                idle += 1
                if stop_when_idle and idle >= LINGER_BEATS and not self._store.campaigns.unfinished():
                    await self._workers.close()
                    return
            else:
                idle = 0

    def load(self) -> None:
        """Take up campaigns that are not under way yet, and wishes to cancel."""
        for row in self._store.campaigns.unfinished():
            if row.id in self._core.state.campaigns or row.id in self._planning:
                continue
            if row.planned:
                self._take_up(row)
            else:
                self._planning.add(row.id)
                self._nursery.start_soon(self._plan, row)
        self._carry_out(self._core.cancel(self._store.tasks.cancel_requests(), trio.current_time()))

    def _take_up(self, row: CampaignRow) -> None:
        now = trio.current_time()
        self._epochs[row.id] = self._store.campaigns.next_epoch(row.id)
        self._claims.take_up(row.id, row.scheduler, self._epochs[row.id])
        bodies = self._store.tasks.bodies(row.id)
        try:
            entries = entries_of(self._store, row.id, bodies)
        except RemoteProtocolError as exc:  # the others go on
            log.warning("campaign.unreadable", campaign=row.id, why=exc.what)
            end_unreadable(self._store, row.id, exc.what)
            return
        self._bodies |= bodies
        for worker in self._store.workers.all():
            view = self._core.state.worker(worker.peer)
            if not view.addresses:
                view.addresses, view.device = worker.addresses, worker.device
        left = self._left_s(row)
        terms = TaskLimits(
            campaign=row.id,
            attempts=row.attempts,
            backoff_s=row.backoff_s,
            wait_s=row.wait_s,
            ends_at=None if left is None else now + left,
            priority=row.priority,
            epoch=self._epochs[row.id],
        )
        in_order = {entry.id: bodies[entry.id] for entry in entries}
        self._manifests.take_up(row, self._store.campaigns.models(row.id), in_order, self._identity)
        log.info("campaign.taken-up", campaign=row.id, tasks=len(entries), epoch=self._epochs[row.id])
        self._store.tasks.set_notes(self._lacking.mark(entries, by_devices(row.spec)))
        entries.sort(key=lambda entry: entry.model_missing)
        self._carry_out(self._core.add(terms, entries, now))
        for peer in dict.fromkeys(ticket.worker for entry in entries for ticket in entry.attempts()):
            self._workers.adopt_on(peer)

    async def _plan(self, row: CampaignRow) -> None:
        """A campaign over devices: wait until the same ones are seen twice in a row, then fix its tasks."""
        try:
            await fix_plan(self._index, self._store, row, self._left_s(row))
        finally:
            self._planning.discard(row.id)
            self.load()

    def _left_s(self, row: CampaignRow) -> float | None:
        """Seconds until the campaign's limit. A clock that was set meanwhile neither prolongs it nor makes it end before it began."""
        if row.limit_s is None:
            return None
        return min(max(row.limit_s - (self._wall() - row.created), 0.0), row.limit_s)

    def _flush(self) -> None:
        if self._lives:
            self._store.attempts.set_progress(tuple(self._lives.values()))
            self._lives.clear()
        if self._core.state.positions:
            places = tuple(self._core.state.positions.values())
            self._core.state.positions.clear()
            self._store.attempts.set_positions(places)

    def _remember(self, peer: str) -> None:
        view = self._core.state.worker(peer)
        if view.addresses and self._known.get(peer) != view.addresses:
            self._known[peer] = view.addresses
            self._store.workers.save(peer, view.device, view.addresses)

    def find_model(self, peer: str, sha256: str) -> Path | Reason:
        """A model of the spool, or a campaign manifest, for a worker that holds a task of ours which needs it."""
        manifest = self._manifests.find(sha256, self._core.campaigns_on(peer))
        return manifest or (
            self._spool / sha256 if self._core.may_fetch(peer, sha256) else Reason.NOT_ALLOWED
        )

    # -- orders -------------------------------------------------------------------------------------------------------------------------

    def _carry_out(self, orders: Sequence[Command]) -> None:
        """All of it in order: the disk now, in this very step; the network afterwards, beside each other."""
        self._keeper.carry_out(orders)
        for order in orders:
            self._send(order)
        if self._moved.statistics().tasks_waiting:
            self._moved.set()
            self._moved = trio.Event()

    def _send(self, order: Command) -> None:
        match order:
            case CommitTo():
                course = self._core.state.campaigns[order.campaign]
                message = commit_message(
                    order,
                    self._bodies[order.task],
                    self._identity,
                    epoch=self._epochs[order.campaign],
                    priority=course.limits.priority,
                    manifest=self._manifests.of(order.campaign),
                    proof=self._claims.proof(order.campaign),
                )
                self._nursery.start_soon(self._workers.commit, order, message)
            case ProbeWorker():
                self._nursery.start_soon(self._workers.probe, order.peer)
            case CancelOn() | ReleaseOn():
                self._nursery.start_soon(self._workers.stop, order)
            case Discover():
                self._nursery.start_soon(self._discover, order)
            case Explain():
                self._nursery.start_soon(self._explain, order)
            case _:
                pass

    async def _discover(self, order: Discover) -> None:
        async with self._lookups:
            adverts = await find(self._index, order.requirement, order.want)
        self._carry_out(self._core.on_adverts(order.group, adverts, trio.current_time()))

    async def _explain(self, order: Explain) -> None:
        async with self._lookups:
            adverts = await survey(self._index, order.requirement)
        need = self._core.state.groups.get(order.group)
        if need is None:
            return
        declined = [
            f"{self._core.state.worker(peer).device or peer}: {d.detail}" for peer, d in need.declined.items()
        ]
        fits = [self._core.state.worker(peer) for peer in sorted(need.fits)]
        reason, text = why_none(order.requirement, adverts, fits, declined, scheduler=self._identity.peer_id)
        tasks = [entry.task for entry in self._core.state.tasks.values() if entry.group == order.group]
        if reason is Reason.NOTHING_FITS and any(task.replica is not None and task.note for task in tasks):
            text = "\n".join(dict.fromkeys([*(task.note for task in tasks if task.note), LACKS_SIBLING]))
        self._carry_out(self._core.on_explanation(order.group, reason, text, trio.current_time()))

    # -- what workers say ---------------------------------------------------------------------------------------------------------------

    async def _answer(self, link: Link, message: Message) -> Message | None:
        match message:
            case Progress():
                live = self._core.on_progress(link.peer, message, trio.current_time())
                if live is not None:
                    self._lives[live.task] = live
                return None
            case Ready():
                return await self._ready(link.peer, message)
            case Result():
                return await self._result(link.peer, message)
            case Preempt():
                now = trio.current_time()
                orders = self._core.on_preempt(link.peer, message.lease, message.fence, message.priority, now)
                if orders:
                    log.info("task.yields", peer=link.peer, lease=message.lease, by=message.priority)
                self._carry_out(orders)
                return None
            case _:
                raise RemoteProtocolError(f"a worker does not say {type(message).__name__}")

    async def _ready(self, peer: str, message: Ready) -> Message:
        await self._workers.quiet(peer)
        with trio.move_on_after(
            RIVALS_S
        ):  # another worker may have given it a place: its answer is on its way
            while self._core.rival_asked(peer, message.lease):
                await self._moved.wait()
        now = trio.current_time()
        task, orders = self._core.on_ready(peer, message.lease, message.fence, now)
        self._carry_out(orders)
        if task is None:
            self._carry_out(self._core.on_stopped(peer, (message.lease,), now))
            return Skip()
        entry = self._core.state.tasks[task]
        self._lives.setdefault(task, LiveAttempt(task, entry.attempt, None))
        return Start()

    async def _result(self, peer: str, result: Result) -> Message:
        entry = self._core.state.tasks.get(result.task)
        ticket = entry.at(peer) if entry is not None else None
        if entry is not None and ticket is not None and ticket.fence is None:
            await self._workers.quiet(peer)
            ticket = entry.at(peer)
        early = ticket is not None and ticket.fence is None and ticket.number == result.attempt
        if entry is not None and early:  # the run was quicker than the answer to its commit
            now = trio.current_time()
            self._carry_out(
                self._core.on_grant(
                    peer, entry.id, result.attempt, result.lease, result.fence, now, queued=False
                )
            )
        if entry is None or (entry.worker, entry.attempt) != (peer, result.attempt):
            return self._old(peer, result)
        if not _current(entry, result):
            return self._old(peer, result)
        try:
            async with self._pulls.setdefault(
                entry.id, trio.Lock()
            ):  # one at a time: each may be many megabytes
                if not _current(entry, result):
                    return self._old(peer, result)
                body = await pull(self._network, peer, result)
                async with self._reading:
                    if not _current(entry, result):
                        return self._old(peer, result)
                    asked = self._bodies[entry.id]
                    record, figures = await self._aside(
                        partial(_check_and_measure, result, body, peer, entry.task, asked)
                    )
        except Unreachable as exc:  # no answer: the worker keeps the result and sends it again
            raise RemoteProtocolError(exc.what) from exc
        except RemoteProtocolError as exc:
            return self._bad(peer, result, exc)
        if not _current(entry, result):  # it ended while the record was fetched and read
            return self._old(peer, result)
        event, reason, detail = self._core.judge(record, not_as_asked(record, entry.task))
        kept = self._store.attempts.record_result(
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
            figures=figures,
        )
        if kept.stale is not None:
            return Stale(reason=kept.stale)
        if not kept.duplicate:
            self._pulls.pop(entry.id, None)
            self._lives.pop(entry.id, None)
            now = trio.current_time()
            self._carry_out(self._core.on_result(entry.id, event, reason, now, permanent=record.permanent))
            log.info(
                "attempt.settled",
                task=entry.id,
                attempt=result.attempt,
                peer=peer,
                end=str(event),
                why=detail,
            )
        return Accepted()

    def _old(self, peer: str, result: Result) -> Message:
        kept = self._store.attempts.known_result(
            task=result.task, attempt=result.attempt, worker=peer, sha256=result.sha256
        )
        return Accepted() if kept.stale is None else Stale(reason=kept.stale)

    def _bad(self, peer: str, result: Result, error: RemoteProtocolError) -> Message:
        log.warning("result.refused", peer=peer, task=result.task, why=error.what)
        self._carry_out(
            self._core.on_lost(peer, (result.lease,), Reason.BAD_REQUEST, trio.current_time(), error.what)
        )
        return Stale(reason=Reason.BAD_REQUEST)


def _check_and_measure(result: Result, body: bytes, peer: str, task: Task, asked: bytes) -> Checked:
    record = check(result, body, peer, task, asked)
    return record, figures_of(task, record)


def _current(entry: TaskEntry, result: Result) -> bool:
    """Whether the result is of the attempt that the task is at."""
    return not entry.over and (entry.attempt, entry.fence) == (result.attempt, result.fence)
