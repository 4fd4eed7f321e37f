"""The runs of this process: from the conversation's command to a record.

    begin(lease) ─▶ runner.run ─▶ examined, if the device is suspect ─▶ reported to the conversation

Nothing of another task is fetched by this worker while it times a run, however many slots it has: a download, its hashing and its
writes would disturb the figures. A model is fetched once and stays cached, so only the first task of a model pays for it. Between
workers of one host only the measuring is one at a time: another worker may fetch meanwhile. One worker for each host is the rule.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

from node.conversation.conversation import WorkerConversation
from node.device.probe import device_facts, memory_cap
from node.run import run_log, runner
from node.run.model_source import task_source
from node.run.record_builder import RecordJob
from node.serve.dependencies import DeviceParts
from node.settings.settings import WorkerSettings
from node.store.blob_sources import BlobSources
from node.store.cache import Source
from protocol.formats.phase import Phase
from protocol.words import Reason
from swarm.blobs.client import fetch_blob
from swarm.download.download import Edge
from swarm.net.addresses import PeerId
from swarm.net.network import Network

log = structlog.get_logger("sark.worker")


@dataclass(frozen=True, slots=True)
class RunSurroundings:
    """What runs need of the worker around them; only `examine` and `disk_idle` wait."""

    carry_out: Callable[[], None]
    """The conversation may have commands."""
    advert_changed: Callable[[], None]
    examine: Callable[[], Awaitable[None]]
    """See whether the device still works."""
    disk_idle: Callable[[], Awaitable[None]]
    """Wait until no result is on its way to the disk."""


class RunManager:
    """What runs here now, by lease."""

    def __init__(
        self,
        settings: WorkerSettings,
        network: Network,
        device: DeviceParts,
        conversation: WorkerConversation,
        sharing: BlobSources,
        around: RunSurroundings,
        *,
        tell: Callable[[str], object],
        web: Edge,
    ) -> None:
        self._network = network
        self._tell = tell
        self._web = web
        self._conversation = conversation
        self._ledger = conversation.ledger
        self._sharing = sharing
        self._around = around
        self._bench = runner.RunBench(
            worker=network.peer_id,
            facts=lambda: device_facts(device.profile, device.version),
            cache=sharing.cache,
            source=self._source,
            lock=device.lock,
            launch=device.launch,
            memory_cap=memory_cap(device.profile, settings.memory_share),
            wait_idle=self._wait_idle,
            exclusive=sharing.exclusive,
            fetch_manifest=self._fetch_manifest,
            warmup_floor=device.warmup_floor,
        )
        self._stops: dict[str, runner.StopRun] = {}
        self._rng = random.Random()

    def begin(self, lease: str, nursery: trio.Nursery) -> None:
        """Run it in `nursery`. Never waits."""
        self._stops[lease] = stop = runner.StopRun()
        nursery.start_soon(self._run, lease, stop)

    def stop(self, lease: str, reason: Reason) -> None:
        """End this run. Never waits."""
        if lease in self._stops:
            self._stops[lease].now(reason)

    def stop_all(self, reason: Reason) -> None:
        """End all of them. Never waits."""
        for stop in self._stops.values():
            stop.now(reason)

    async def _run(self, lease: str, stop: runner.StopRun) -> None:
        allocation, conversation = self._ledger.allocation(lease), self._conversation
        assert allocation is not None, "the conversation began a run of a lease that the ledger does not hold"
        request, began = allocation.request, trio.current_time()
        job = RecordJob(
            lease,
            allocation.fence,
            request.commit.attempt,
            request.task,
            request.task_sha256,
            began - allocation.committed_at,
            stranger=request.permission.stranger,
        )
        self._around.advert_changed()
        self._tell(run_log.began(job.task))
        log.info("run.began", task=job.task.task, attempt=job.attempt, lease=lease, fence=job.fence.key())

        def report(phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
            conversation.report_progress(lease, phase, done, total, median_ms)
            self._around.carry_out()

        def timing(on: bool) -> None:
            conversation.set_timing(lease, on)
            self._around.carry_out()

        record = await runner.run(job, self._bench, stop, report, timing)
        conversation.processes_ended(lease, record)
        self._around.carry_out()
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
        self._tell(run_log.ended(record, trio.current_time() - began))
        if self._ledger.condition.suspect:  # before another run begins
            await self._around.examine()
        del self._stops[lease]
        conversation.finish_run(lease, record)
        self._around.carry_out()

    async def _wait_idle(self) -> None:
        await self._around.disk_idle()
        await self._sharing.quiet()

    def _source(self, job: RecordJob) -> Source:
        def speaker() -> PeerId:
            allocation = self._ledger.allocation(job.lease)
            return allocation.peer if allocation is not None else job.task.scheduler

        allocation = self._ledger.allocation(job.lease)
        return task_source(
            self._network,
            job.task,
            speaker,
            principal=allocation.request.principal if allocation is not None else job.task.scheduler,
            owner=allocation is not None and allocation.request.owner,
            rng=self._rng,
            edge=self._web,
        )

    async def _fetch_manifest(self, job: RecordJob) -> None:
        """The campaign's manifest comes with the first model of it. That its principal has the model is seen once."""
        allocation = self._ledger.allocation(job.lease)
        if allocation is not None:
            model, peer = job.task.model, allocation.peer

            async def tail(offset: int, sink: Callable[[bytearray], object]) -> None:
                await fetch_blob(
                    self._network, peer, (), model.sha256, offset=offset, sink=sink, size=model.size
                )

            await self._sharing.prove_model(allocation.request.principal, model, tail)
        held = {allocation.request.task.campaign for allocation in self._ledger.allocations()}
        needed = held.union(self._conversation.outbox.campaigns())
        run_s = self._ledger.expect_s(job.task)
        await self._sharing.manifests.fetch(job.task.campaign, job.task.scheduler, needed, run_s)
