"""The runs of this process: from the ledger's order to a result on disk, where a crash does not reach it.

    begin(lease) ─▶ runner.run ─▶ examined, if the device is suspect ─▶ ledger.finish ─▶ signed and stored ─▶ sent (`node.serve.delivery`)

Nothing of another task is fetched by this worker while it times a run, however many slots it has: a download, its hashing and its
writes would disturb the figures. A model is fetched once and stays cached, so only the first task of a model pays for it. Between
workers of one host only the measuring is one at a time: another worker may fetch meanwhile. One worker for each host is the rule.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
import trio

from node.capacity.allocations import Allocation
from node.capacity.ledger import Ledger
from node.device.probe import device_facts, memory_cap
from node.run import run_log, runner
from node.run.model_source import task_source
from node.run.record_builder import RecordJob
from node.serve.dependencies import WorkerParts
from node.settings.settings import WorkerSettings
from node.store.blob_sources import BlobSources
from node.store.cache import Source
from node.store.campaigns import CampaignStore
from node.store.outbox import OutboxItem
from protocol.errors import ResourceError
from protocol.formats.phase import Phase
from protocol.messages.work import Progress
from protocol.values.record import Record, record_body, record_message
from protocol.words import Reason
from swarm.blobs.client import fetch_blob
from swarm.net.addresses import PeerId
from swarm.net.network import Network

log = structlog.get_logger("sark.worker")


@dataclass(slots=True)
class _Running:
    """A run in this process."""

    stop: runner.StopRun = field(default_factory=runner.StopRun)
    gone: trio.Event = field(default_factory=trio.Event)
    """Its processes are."""
    filed: trio.Event = field(default_factory=trio.Event)
    """Its result is on disk."""
    phase: Phase = Phase.QUEUED
    seq: int = 0


@dataclass(frozen=True, slots=True)
class RunSurroundings:
    """What runs need of the worker around them; none of these waits, but `examine`."""

    carry_out: Callable[[], None]
    """The ledger may have orders."""
    moved: Callable[[], None]
    """The advert may say something else."""
    send: Callable[[PeerId, tuple[str, str], Progress], None]
    """To the link of a peer that is about (campaign, principal), if there is one."""
    examine: Callable[[], Awaitable[None]]
    """See whether the device still works."""


class RunManager:
    """What runs here now, by lease."""

    def __init__(
        self,
        settings: WorkerSettings,
        network: Network,
        parts: WorkerParts,
        ledger: Ledger,
        estate: CampaignStore,
        sharing: BlobSources,
        around: RunSurroundings,
    ) -> None:
        self._network = network
        self._parts = parts
        self._ledger = ledger
        self._estate = estate
        self._sharing = sharing
        self._around = around
        self._bench = runner.RunBench(
            worker=network.peer_id,
            facts=lambda: device_facts(parts.profile, parts.version),
            cache=parts.cache,
            source=self._source,
            lock=parts.lock,
            launch=parts.launch,
            memory_cap=memory_cap(parts.profile, settings.memory_share),
            quiet=self._quiet,
            still=sharing.still,
            beside=self._beside,
            warmup_floor=parts.warmup_floor,
        )
        self._running: dict[str, _Running] = {}
        self._rng = random.Random()
        self._disk = trio.Lock()

    def begin(self, lease: str, nursery: trio.Nursery) -> None:
        """Run it in `nursery`. Never waits."""
        self._running[lease] = running = _Running()
        nursery.start_soon(self._run, lease, running)

    def stop(self, lease: str, reason: Reason) -> None:
        """End this run. Never waits."""
        self._running[lease].stop.now(reason)

    def stop_all(self, reason: Reason) -> None:
        """End all of them. Never waits."""
        for running in self._running.values():
            running.stop.now(reason)

    async def end_all(self, reason: Reason) -> None:
        """End all of them, and wait until their results are on disk."""
        ending = tuple(self._running.values())
        self.stop_all(reason)
        for running in ending:
            await running.filed.wait()
        async with self._disk:
            pass

    def phase(self, lease: str) -> Phase | None:
        """How far a run is; None: it does not run here."""
        running = self._running.get(lease)
        return running.phase if running is not None else None

    async def dead(self, lease: str) -> None:
        """Wait until a run's processes are gone."""
        running = self._running.get(lease)
        if running is not None:
            await running.gone.wait()

    async def _run(self, lease: str, running: _Running) -> None:
        place = self._ledger.place(lease)
        assert place is not None, "the ledger ordered a run of a lease it does not hold"
        place.began = began = trio.current_time()
        wanted, condition = place.wanted, self._ledger.condition
        job = RecordJob(
            lease,
            place.fence,
            wanted.attempt,
            wanted.task,
            wanted.task_sha256,
            began - place.since,
            stranger=wanted.stranger,
        )
        condition.begin()
        self._around.moved()
        self._parts.tell(run_log.began(job.task))
        log.info("run.began", task=job.task.task, attempt=job.attempt, lease=lease, fence=job.fence.key())

        def report(phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
            running.seq += 1
            running.phase = phase
            note = Progress(
                lease=lease,
                fence=job.fence,
                seq=running.seq,
                phase=phase,
                done=done,
                total=total,
                median_ms=median_ms,
            )
            self._around.send(place.peer, wanted.about, note)

        def timing(on: bool) -> None:
            self._ledger.timing(lease, on, trio.current_time())
            self._around.carry_out()

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
        self._parts.tell(run_log.ended(record, trio.current_time() - began))
        if condition.suspect:  # before another run begins
            await self._around.examine()
        self._ledger.finish(lease, trio.current_time())
        del self._running[lease]
        async with self._disk:  # the next run is offered meanwhile, and measures nothing before this is done
            self._around.carry_out()
            await self._file(place, record)
        running.filed.set()
        condition.clean()
        self._around.carry_out()

    async def _file(self, place: Allocation, record: Record) -> None:
        """Sign the record and put it where a crash does not reach it."""
        body = record_body(record)
        item = OutboxItem(
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
                self._ledger.acknowledge(old.lease)
            while place.peer != item.peer:  # adopted while it went to disk
                item = item.model_copy(update={"peer": place.peer})
                await self._parts.outbox.redirect(item)
        except ResourceError as exc:
            log.warning("result.lost", task=record.task, attempt=record.attempt, why=exc.what, hint=exc.hint)
            self._ledger.acknowledge(place.lease)

    async def _quiet(self) -> None:
        async with self._disk:
            pass
        await self._sharing.quiet()

    def _source(self, job: RecordJob) -> Source:
        def speaker() -> PeerId:
            place = self._ledger.place(job.lease)
            return place.peer if place is not None else job.task.scheduler

        place = self._ledger.place(job.lease)
        return task_source(
            self._network,
            job.task,
            speaker,
            principal=place.wanted.principal if place is not None else job.task.scheduler,
            owner=place is not None and place.wanted.owner,
            rng=self._rng,
            edge=self._parts.web,
        )

    async def _beside(self, job: RecordJob) -> None:
        """The campaign manifest comes with the first model of it. That its principal has the model is seen once."""
        place = self._ledger.place(job.lease)
        if place is not None:
            model, peer = job.task.model, place.peer

            async def tail(offset: int, sink: Callable[[bytearray], object]) -> None:
                await fetch_blob(
                    self._network, peer, (), model.sha256, offset=offset, sink=sink, size=model.size
                )

            await self._estate.ask_for_model(place.wanted.principal, model, tail)
        here = {place.wanted.task.campaign for place in self._ledger.places()}
        needed = here.union(self._parts.outbox.campaigns())
        run_s = self._ledger.expect_s(job.task)
        await self._estate.manifests.fetch(job.task.campaign, job.task.scheduler, needed, run_s)
