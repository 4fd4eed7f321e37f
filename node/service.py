"""The worker: one nursery, to be read from top to bottom as the list of what it does.

    ledger (pure)  ◀── desk ◀── links of schedulers          what they ask changes the ledger
        └─ orders ─▶ Run, Offer, Warn, Kill                   what the ledger orders is carried out here

Nothing of another task is fetched by this worker while it times a run, however many slots it has: a download, its hashing and its
writes would disturb the figures. A model is fetched once and stays cached, so only the first task of a model pays for it. Between
workers of one host only the measuring is one at a time: another worker may fetch meanwhile. One worker for each host is the rule.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from node import runner, told
from node.cache import Source
from node.control import OwnersHand
from node.deeds import Deeds
from node.delivery import Delivery, Links
from node.desk import Desk
from node.door import Door
from node.estate import Estate
from node.fetching import task_source
from node.ledger import Ledger
from node.observed import Job
from node.outbox import Item
from node.parts import AdvertIndex, Parts
from node.permits import Permits
from node.places import Kill, Offer, Place, Run, Warn
from node.probe import build_advert, device_facts, memory_cap
from node.settings import WorkerSettings
from node.sharing import Sharing
from protocol.advert import Advert
from protocol.base import Message
from protocol.errors import RemoteProtocolError, ResourceError
from protocol.health_messages import HEALTH, Ping, Pong
from protocol.keys import MAX_CAMPAIGNS
from protocol.messages import WORK, Control, Denied, Preempt, Ready, Standing, Start
from protocol.messages import Progress as ProgressNote
from protocol.pool_messages import PoolManifest
from protocol.record import Record, record_body, record_message
from protocol.words import Family, Phase, Reason, WorkerState
from swarm.blobs import fetch_blob
from swarm.link import Link, serve_links
from swarm.network import Network, PeerId
from swarm.tokens import prove

ADVERT_SPACING_S: Final = 5.0
ADVERT_CHECK_S: Final = 60.0
LEAVE_S: Final = 3.0

log = structlog.get_logger("sark.worker")


async def run_worker(
    settings: WorkerSettings,
    network: Network,
    index: AdvertIndex,
    parts: Parts,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `parts.leave` is set. Started means that it can be asked. Cancelling kills what runs and returns when it is dead."""
    worker = Worker(settings, network, parts)
    async with trio.open_nursery() as nursery:
        worker.nursery = nursery
        serve_links(network, Family.WORK, WORK, worker.desk.answer, opened=worker.opened)
        serve_links(network, Family.HEALTH, HEALTH, worker.health)
        worker.sharing.serve(network)
        nursery.start_soon(worker.keep_time)
        nursery.start_soon(worker.keep_well)
        nursery.start_soon(worker.hand.keep)
        nursery.start_soon(worker.hand.keep_draining)
        nursery.start_soon(worker.door.keep)
        nursery.start_soon(worker.publish, index)
        nursery.start_soon(worker.sharing.keep, worker.moved)
        task_status.started(worker)
        await parts.leave.wait()
        with trio.move_on_after(LEAVE_S):
            await worker.wind_up()
            await index.withdraw()
        nursery.cancel_scope.cancel()


@dataclass(slots=True)
class _Running:
    """A run in this process."""

    stop: runner.Stop = field(default_factory=runner.Stop)
    gone: trio.Event = field(default_factory=trio.Event)
    """Its processes are."""
    filed: trio.Event = field(default_factory=trio.Event)
    """Its result is on disk."""
    phase: Phase = Phase.QUEUED
    seq: int = 0


class Worker:
    """The shell around the ledger."""

    nursery: trio.Nursery

    def __init__(self, settings: WorkerSettings, network: Network, parts: Parts) -> None:
        self._settings = settings
        self._network = network
        self._parts = parts
        self.permits = Permits(
            owners=parts.owners,
            allow=settings.allow,
            anyone=settings.accept_anyone,
            teams=settings.teams,
            pools=parts.pools,
            prove=prove,
            wall=parts.wall,
        )
        for manifest in parts.manifests:
            self.permits.manifest(manifest)
        self.ledger = Ledger(
            parts.incarnation,
            name=network.peer_id[-8:],
            slots=settings.slots,
            owner_first=settings.owner_first,
        )
        self.door = Door(self.permits, self.ledger, self.carry_out, parts.wall)
        self.hand = OwnersHand(
            ledger=self.ledger,
            rules=settings.rules,
            pause=parts.pause,
            senses=parts.senses,
            leave=parts.leave,
            carry_out=self.carry_out,
            stop_runs=self._stop_runs,
            examine=self._examine,
            unsettled=lambda: len(parts.outbox),
            tell=parts.tell,
        )
        self.links = Links(self._link_up, self._link_down, lambda link, about: self.desk.speaks(link, *about))
        self.delivery = Delivery(self.links, parts.outbox, self._settled)
        deeds = Deeds(parts.outbox.folder.with_name("deeds"), self._take)
        self.estate = Estate(parts.outbox, deeds, parts.cache, parts.cache.whose)
        self.sharing = Sharing(self.estate, self.permits, self.ledger.places, parts.wall)
        self.desk = Desk(
            ledger=self.ledger,
            advert=self.advert,
            permit=self.permits.check,
            present=self.door.present,
            presented=self.door.presented,
            control=self._control,
            has_model=parts.cache.has,
            estate=self.estate,
            phase=self._phase,
            carry_out=self.carry_out,
            dead=self._dead,
            now=trio.current_time,
            longest_s=settings.longest_s,
            reach=parts.reach,
        )
        self._bench = runner.Bench(
            worker=network.peer_id,
            facts=lambda: device_facts(parts.profile, parts.version),
            cache=parts.cache,
            source=self._source,
            lock=parts.lock,
            launch=parts.launch,
            memory_cap=memory_cap(parts.profile, settings.memory_share),
            quiet=self._quiet,
            still=self.sharing.still,
            beside=self._beside,
            warmup_floor=parts.warmup_floor,
        )
        self._runs: dict[str, _Running] = {}
        self._rng = random.Random()
        self._disk = trio.Lock()
        self._broke = trio.Event()
        self._changed = trio.Event()
        self._advert_old = trio.Event()

    # -- what others see -------------------------------------------------------------------------------------------------

    def heard(self, manifest: PoolManifest) -> None:
        """A verified manifest of a joined pool."""
        self.door.heard(manifest)

    def advert(self) -> Advert:
        """This worker's advert, as of now."""
        return build_advert(
            self._parts.profile,
            self._network.peer_id,
            addresses=self._parts.addresses() or self._network.addresses,
            labels=self._settings.labels,
            models=self._parts.cache.recent(4),
            version=self._parts.version,
            pools=sorted(set(self._parts.pools.values())),
        )

    def moved(self) -> None:
        """Others reach this node elsewhere now, or it has other models: its advert is made anew."""
        self._advert_old.set()

    async def publish(self, index: AdvertIndex) -> None:
        """Keep the advert in the index as it should be."""
        last: tuple[Advert, tuple[str, ...]] | None = None
        while True:
            live = sorted({p.wanted.task.campaign for p in self.ledger.places()})
            campaigns = tuple(dict.fromkeys([*live, *self._parts.outbox.campaigns()]))[:MAX_CAMPAIGNS]
            current = (self.advert(), campaigns)
            if current != last:
                holders = await index.publish(current[0], campaigns)
                log.debug("advert.published", holders=holders, models=len(current[0].models))
                last = current
            with trio.move_on_after(ADVERT_CHECK_S):
                await self._advert_old.wait()
            self._advert_old = trio.Event()
            await trio.sleep(ADVERT_SPACING_S)

    async def health(self, link: Link, message: Message) -> Message:
        """Answers `Ping`."""
        if not isinstance(message, Ping):
            raise RemoteProtocolError(f"{type(message).__name__} is not for us to answer")
        ledger = self.ledger
        return Pong(
            role="worker",
            incarnation=ledger.incarnation,
            state=ledger.condition.state,
            why=ledger.condition.why,
            running=ledger.running,
            queue=ledger.queue,
        )

    async def opened(self, link: Link) -> None:
        """Beside each scheduler's link: what waits for it goes out."""
        await self.door.let_in(link.peer)
        self.links.add(link)
        try:
            await self.delivery.run(link)
            await link.closed.wait()
        finally:
            self.links.remove(link)

    # -- carrying out ----------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Do what the ledger orders. Never waits."""
        if not self.ledger.condition.gives_turns:
            self.ledger.close_queue()
        for order in self.ledger.take_orders():
            match order:
                case Run():
                    self._runs[order.lease] = running = _Running()
                    self.nursery.start_soon(self._run, order.lease, running)
                case Offer():
                    self.nursery.start_soon(self._offer, order.lease)
                case Warn():
                    log.info("run.warned", lease=order.lease, grace_s=order.grace_s, priority=order.priority)
                    self.delivery.tell(
                        order.peer,
                        order.about,
                        Preempt(
                            lease=order.lease,
                            fence=order.fence,
                            grace_s=order.grace_s,
                            priority=order.priority,
                        ),
                    )
                case Kill():
                    log.info("run.stopping", lease=order.lease, reason=order.reason)
                    self._runs[order.lease].stop.now(order.reason)
        self._changed.set()
        self.hand.moved()

    async def keep_time(self) -> None:
        """Leases that are not renewed lapse on time."""
        while True:
            self._changed = trio.Event()
            deadline = self.ledger.next_deadline()
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._changed.wait()
            now = trio.current_time()
            if deadline is not None and deadline <= now:
                self.ledger.expire(now)
                self.carry_out()

    async def keep_well(self) -> None:
        """A device that did not work is examined again and again, and serves as soon as it works."""
        while True:
            await self._broke.wait()
            self._broke = trio.Event()
            while self.ledger.condition.state is WorkerState.FAULTY:
                await trio.sleep(self._parts.examine_again_s)
                await self._examine()
                self.carry_out()

    async def _examine(self) -> None:
        """Run what is known to work, while nothing is measured on this device."""
        try:
            async with self._parts.lock.hold():
                trouble = await trio.to_thread.run_sync(self._parts.examine, abandon_on_cancel=True)
        except ResourceError as exc:
            trouble = exc.what
        condition = self.ledger.condition
        was = condition.state
        condition.examined(trouble)
        log.warning("device.examined", trouble=trouble or "none", was=was, now=condition.state)
        if condition.state is WorkerState.FAULTY:
            self._broke.set()

    async def _offer(self, lease: str) -> None:
        place = self.ledger.place(lease)
        if place is None:
            return
        asked = self.links.best(place.peer, place.wanted.about) is not None
        answer = await self.delivery.offer(
            place.peer, place.wanted.about, Ready(lease=lease, fence=place.fence)
        )
        now = trio.current_time()
        if answer is None:
            self.ledger.defer(lease, now, asked=asked)
        elif isinstance(answer, Start):
            self.ledger.start(lease, now)
        else:
            self.ledger.skip(lease, now)
        self.carry_out()

    async def _run(self, lease: str, running: _Running) -> None:
        place = self.ledger.place(lease)
        assert place is not None, "the ledger ordered a run of a lease it does not hold"
        place.began = began = trio.current_time()
        wanted, condition = place.wanted, self.ledger.condition
        job = Job(
            lease,
            place.fence,
            wanted.attempt,
            wanted.task,
            wanted.task_sha256,
            began - place.since,
            stranger=wanted.stranger,
        )
        condition.begin()
        self._advert_old.set()
        self._parts.tell(told.began(job.task))
        log.info("run.began", task=job.task.task, attempt=job.attempt, lease=lease, fence=job.fence.key())

        def report(phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
            running.seq += 1
            running.phase = phase
            note = ProgressNote(
                lease=lease,
                fence=job.fence,
                seq=running.seq,
                phase=phase,
                done=done,
                total=total,
                median_ms=median_ms,
            )
            self.delivery.tell(place.peer, wanted.about, note)

        def timing(on: bool) -> None:
            self.ledger.timing(lease, on, trio.current_time())
            self.carry_out()

        record = await runner.run(job, self._bench, running.stop, report, timing)
        condition.end(record.outcome, record.reason, record.permanent, record.model_sha256)
        running.gone.set()
        log.info(
            "run.ended",
            task=job.task.task,
            attempt=job.attempt,
            lease=lease,
            outcome=record.outcome,
            reason=record.reason,
            detail=record.detail,
            seconds=round(trio.current_time() - began, 3),
        )
        self._parts.tell(told.ended(record, trio.current_time() - began))
        if condition.suspect:  # before another run begins
            await self._examine()
        self.ledger.finish(lease, trio.current_time())
        del self._runs[lease]
        async with self._disk:  # the next run is offered meanwhile, and measures nothing before this is done
            self.carry_out()
            await self._file(place, record)
        running.filed.set()
        condition.clean()
        self.carry_out()

    async def _file(self, place: Place, record: Record) -> None:
        """Sign the record and put it where a crash does not reach it."""
        body = record_body(record)
        item = Item(
            peer=place.peer,
            owner=place.wanted.principal,
            campaign=record.campaign,
            task=record.task,
            attempt=record.attempt,
            lease=place.lease,
            fence=record.fence,
            sha256=hashlib.sha256(body).hexdigest(),
            size=len(body),
            signature=self._network.sign(record_message(body)),
            stored=self._parts.wall(),
        )
        try:
            for old in await self._parts.outbox.store(item, body):
                self.ledger.acknowledge(old.lease)
            while place.peer != item.peer:  # adopted while it went to disk
                item = item.model_copy(update={"peer": place.peer})
                await self._parts.outbox.redirect(item)
        except ResourceError as exc:
            log.warning("result.lost", task=record.task, attempt=record.attempt, why=exc.what, hint=exc.hint)
            self.ledger.acknowledge(place.lease)

    async def _quiet(self) -> None:
        async with self._disk:
            pass
        await self.sharing.quiet()

    def _source(self, job: Job) -> Source:
        def speaker() -> PeerId:
            place = self.ledger.place(job.lease)
            return place.peer if place is not None else job.task.scheduler

        place = self.ledger.place(job.lease)
        return task_source(
            self._network,
            job.task,
            speaker,
            principal=place.wanted.principal if place is not None else job.task.scheduler,
            owner=place is not None and place.wanted.owner,
            rng=self._rng,
            edge=self._parts.web,
        )

    async def _take(self, peer: PeerId, sha256: str, size: int, sink: Callable[[bytearray], object]) -> None:
        await fetch_blob(self._network, peer, (), sha256, sink=sink, size=size)

    async def _beside(self, job: Job) -> None:
        """The campaign's deed comes with the first model of it. That its principal has the model is seen once."""
        place = self.ledger.place(job.lease)
        if place is not None:
            model, peer = job.task.model, place.peer

            async def tail(offset: int, sink: Callable[[bytearray], object]) -> None:
                await fetch_blob(
                    self._network, peer, (), model.sha256, offset=offset, sink=sink, size=model.size
                )

            await self.estate.ask_for_model(place.wanted.principal, model, tail)
        here = {place.wanted.task.campaign for place in self.ledger.places()}
        needed = here.union(self._parts.outbox.campaigns())
        run_s = self.ledger.expect_s(job.task)
        await self.estate.deeds.fetch(job.task.campaign, job.task.scheduler, needed, run_s)

    def _settled(self, item: Item) -> None:
        self.ledger.acknowledge(item.lease)
        self.hand.moved()

    def _stop_runs(self, reason: Reason) -> None:
        for running in self._runs.values():
            running.stop.now(reason)

    async def _control(self, message: Control) -> Standing | Denied:
        return await self.hand.do(message) or self.desk.standing()

    async def wind_up(self) -> None:
        """Take nothing new, end what runs, and give the results a moment to be taken."""
        self.ledger.condition.drain("leaving")
        self.carry_out()
        ending = tuple(self._runs.values())
        self._stop_runs(Reason.NOT_SERVING)
        for running in ending:
            await running.filed.wait()
        async with self._disk:
            pass

    # -- small questions -------------------------------------------------------------------------------------------------

    def _link_up(self, peer: PeerId) -> None:
        self.ledger.link_up(peer, trio.current_time())
        self.carry_out()

    def _link_down(self, peer: PeerId) -> None:
        self.ledger.link_down(peer, trio.current_time())
        self.carry_out()

    def _phase(self, lease: str) -> Phase | None:
        running = self._runs.get(lease)
        return running.phase if running is not None else None

    async def _dead(self, lease: str) -> None:
        running = self._runs.get(lease)
        if running is not None:
            await running.gone.wait()
