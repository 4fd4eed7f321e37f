"""The runs of this process: from the conversation's command to a record.

    begin(lease) ─▶ runner.run ─▶ examined, if the device is suspect ─▶ reported to the conversation

While the worker times a run it fetches nothing for other tasks, however many slots it has: a download, its hashing and its writes would
distort the figures. A model is fetched once and stays cached, so only the first task of a model pays for the download. Several workers on
one host take turns only at measuring: one may fetch while another measures. Normally a host has one worker.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from node.capacity.worker_state import WorkerCondition
from node.conversation.commands import RevealRun
from node.conversation.conversation import WorkerConversation
from node.device.calibration_rounds import Calibrator
from node.device.lock import DeviceLock
from node.device.probe import Profile, device_facts, memory_cap
from node.run import runner
from node.run.model_source import task_source
from node.run.record_builder import RecordJob
from node.serve.live_readings import ReadableSensors
from node.settings.settings import WorkerSettings
from node.store.blob_sources import BlobSources
from node.store.cache import Progress, Source
from protocol.errors import ResourceError, RunError
from protocol.formats.phase import Phase
from protocol.messages.work import Denied, Reveal
from protocol.values.record import Record
from protocol.values.task import Model, Task
from protocol.words import Reason, RunOutcome, WorkerState
from swarm.base.text import escape_text
from swarm.base.threads import DISK, WAITING
from swarm.blobs.client import fetch_blob
from swarm.net.addresses import PeerId
from swarm.net.network import Network

if TYPE_CHECKING:
    from swarm.download.download import Edge

log = structlog.get_logger("sark.worker")


@dataclass(frozen=True)
class DeviceParts:
    """The device, with the functions that run models on it and examine it."""

    profile: Profile
    lock: DeviceLock
    launch: Callable[..., runner.RunLauncher]
    examine: Callable[[], str]
    """Runs a model that is known to work on this device, and says what is wrong; empty: nothing. Blocks."""
    version: str = ""
    """The version of this program."""
    retry_s: float = 60.0
    """Seconds until a faulty device is examined again."""
    calibrator: Calibrator | None = None
    """Provides the device's calibration and improves it; None: the device is not calibrated."""
    open_sensors: Callable[[], ReadableSensors] | None = None
    """Opens the sensors to read while tasks run (blocks); None: no sensors are shown."""


@dataclass(eq=False)
class _Witness:
    """The scheduler of one witnessed run. See `runner.RunWitness`."""

    lease: str
    conversation: WorkerConversation
    carry_out: Callable[[], None]
    answer: Reveal | Denied | None = None
    _answered: trio.Event = field(default_factory=trio.Event)

    async def reveal(self) -> tuple[bytes, bytes]:
        self.conversation.ask_reveal(self.lease)
        self.carry_out()
        await self._answered.wait()
        if not isinstance(self.answer, Reveal):
            why = self.answer.reason if self.answer is not None else Reason.UNKNOWN
            raise RunError(
                "the scheduler does not reveal the inputs of this run", reason=why, permanent=False
            )
        return self.answer.opening, self.answer.reveal

    def launch_ended(self, launch: int, digest: str) -> None:
        self.conversation.report_launch(self.lease, launch, digest)
        self.carry_out()

    def receive(self, answer: Reveal | Denied) -> None:
        self.answer = answer
        self._answered.set()


@dataclass
class RunManager:
    """The current runs, by lease. Of the callables only `examine` and `disk_idle` wait."""

    settings: WorkerSettings
    network: Network
    device: DeviceParts
    conversation: WorkerConversation
    sharing: BlobSources
    web: Edge | None
    carry_out: Callable[[], None]
    """Called when the conversation may have commands."""
    advert_changed: Callable[[], None]
    examine: Callable[[], Awaitable[None]]
    """Tests whether the device still works."""
    disk_idle: Callable[[], Awaitable[None]]
    """Waits until no result is being written to disk."""
    tell: Callable[[str], object]
    """Called with a line about each run, for the device's owner."""
    name_of: Callable[[str], str]
    """The name of a scheduler, for people."""
    _stops: dict[str, runner.StopRun] = field(default_factory=dict)
    _witnesses: dict[str, _Witness] = field(default_factory=dict)
    """The schedulers of witnessed runs, by lease."""
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._ledger = self.conversation.ledger
        device, sharing = self.device, self.sharing
        known = device.calibrator
        learned: dict[str, Any] = (
            {} if known is None else {"warmup_floor": known.floor, "first_look": known.first_look}
        )
        self._bench = runner.RunBench(
            worker=self.network.peer_id,
            facts=lambda: device_facts(device.profile, device.version),
            model=self._model,
            lock=device.lock,
            launch=device.launch,
            memory_cap=memory_cap(device.profile, self.settings.memory_share),
            wait_idle=self._wait_idle,
            exclusive=sharing.exclusive,
            fetch_manifest=self._fetch_manifest,
            **learned,
        )

    def begin(self, lease: str, nursery: trio.Nursery) -> None:
        """Begin the run of a lease in `nursery`. Never waits."""
        self._stops[lease] = stop = runner.StopRun()
        nursery.start_soon(self._run, lease, stop)

    def stop(self, lease: str, reason: Reason) -> None:
        """End this run. Never waits."""
        if lease in self._stops:
            self._stops[lease].now(reason)

    def reveal(self, command: RevealRun) -> None:
        """The scheduler of a witnessed run has answered. Never waits."""
        if command.lease in self._witnesses:
            self._witnesses[command.lease].receive(command.message)

    def stop_all(self, reason: Reason) -> None:
        """End all runs. Never waits."""
        for stop in self._stops.values():
            stop.now(reason)

    async def _run(self, lease: str, stop: runner.StopRun) -> None:
        allocation, conversation = self._ledger.allocation(lease), self.conversation
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
            witnessed=bool(request.commit.witnessed),
        )
        witness = _Witness(lease, conversation, self.carry_out) if job.witnessed else None
        if witness is not None:
            self._witnesses[lease] = witness
        self.advert_changed()
        self.tell(began_line(job.task, self.name_of(job.task.scheduler)))
        log.info("run.began", task=job.task.task, attempt=job.attempt, lease=lease, fence=job.fence.key())

        def report(phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
            conversation.report_progress(lease, phase, done, total, median_ms)
            self.carry_out()

        def timing(on: bool) -> None:
            conversation.set_timing(lease, on)
            self.carry_out()

        def between() -> None:
            conversation.yield_between_launches(lease)
            self.carry_out()

        holding = partial(conversation.set_holding, lease)
        record = await runner.run(job, self._bench, stop, report, timing, witness, between, holding)
        self._witnesses.pop(lease, None)
        conversation.processes_ended(lease, record)
        self.carry_out()
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
        self.tell(ended_line(record, trio.current_time() - began))
        if self._ledger.condition.suspect:  # before another run begins
            await self.examine()
        del self._stops[lease]
        conversation.finish_run(lease, record)
        self.carry_out()

    @contextlib.asynccontextmanager
    async def _model(self, job: RecordJob, model: Model, progress: Progress) -> AsyncIterator[Path]:
        cache, principal = self.sharing.cache, self._principal(job)
        await DISK.run(cache.uses.note, model.sha256, principal, job.task.campaign)
        async with cache.using(model, self._source(job, model), progress) as path:
            yield path

    def _principal(self, job: RecordJob) -> str:
        allocation = self._ledger.allocation(job.lease)
        return allocation.request.principal if allocation is not None else job.task.scheduler

    async def _wait_idle(self) -> None:
        await self.disk_idle()
        await self.sharing.quiet()

    def _source(self, job: RecordJob, model: Model) -> Source:
        def speaker() -> PeerId:
            allocation = self._ledger.allocation(job.lease)
            return allocation.peer if allocation is not None else job.task.scheduler

        allocation = self._ledger.allocation(job.lease)
        return task_source(
            self.network,
            model,
            job.task.url_of(model),
            speaker,
            principal=self._principal(job),
            owner=allocation is not None and allocation.request.owner,
            rng=self._rng,
            edge=self.web,
        )

    async def _fetch_manifest(self, job: RecordJob) -> None:
        """Fetch the campaign's manifest, along with its first model. Verify once that the principal has the models."""
        allocation = self._ledger.allocation(job.lease)
        if allocation is not None:
            for model in job.task.files():
                tail = partial(self._tail, allocation.peer, model)
                await self.sharing.prove_model(allocation.request.principal, model, tail)
        held = {allocation.request.task.campaign for allocation in self._ledger.allocations()}
        needed = held.union(self.conversation.outbox.campaigns())
        run_s = self._ledger.expect_s(job.task)
        await self.sharing.manifests.fetch(job.task.campaign, job.task.scheduler, needed, run_s)

    async def _tail(
        self, peer: PeerId, model: Model, offset: int, sink: Callable[[bytearray], object]
    ) -> None:
        await fetch_blob(self.network, peer, (), model.sha256, offset=offset, sink=sink, size=model.size)


def began_line(task: Task, who: str) -> str:
    """`c-1a2b/3 m.onnx on CPU (ONNX) for alice: running`."""
    beside = "".join(f" beside {model.name}" for model in task.beside or ())
    what = f"{task.task} {task.model.name}{beside} on {task.unit} for {who}"
    return f"{escape_text(what)}: running"


def ended_line(record: Record, seconds: float) -> str:
    """`c-1a2b/3: done in 3.2 s`, or how else the run ended and why. `seconds`: since it began."""
    if record.outcome is RunOutcome.COMPLETE:
        return f"{escape_text(record.task)}: done in {seconds:.1f} s"
    why = f"{record.outcome}: {record.reason}"
    if record.detail not in ("", f"stopped: {record.reason}", str(record.reason)):
        why += f" ({record.detail})"
    return escape_text(f"{record.task}: {why}")


RETRY_S: Final = 60.0


class Examiner:
    """Runs a model that is known to work, while nothing is measured on this device."""

    def __init__(
        self,
        condition: WorkerCondition,
        lock: DeviceLock,
        examine: Callable[[], str],
        changed: Callable[[], None],
        retry_s: float = RETRY_S,
    ) -> None:
        """`examine` says what is wrong (empty: nothing) and blocks; `changed` is called when the condition may have changed; `retry_s`: the
        pause before a faulty device is examined again.
        """
        self._condition = condition
        self._lock = lock
        self._examine = examine
        self._on_change = changed
        self._retry_s = retry_s
        self._faulty = trio.Event()

    async def examine(self) -> None:
        """Examine the device once, now. Waits for a measurement on this device to end. The condition has the outcome."""
        try:
            async with self._lock.hold():
                trouble = await WAITING.run(self._examine, abandon_on_cancel=True)
        except ResourceError as exc:
            trouble = exc.what
        was = self._condition.state
        self._condition.record_examination(trouble)
        log.warning("device.examined", trouble=trouble or "none", was=was, now=self._condition.state)
        if self._condition.state is WorkerState.FAULTY:
            self._faulty.set()

    async def keep(self) -> None:
        """Examine a faulty device repeatedly, until cancelled. It serves again as soon as it works."""
        while True:
            await self._faulty.wait()
            self._faulty = trio.Event()
            while self._condition.state is WorkerState.FAULTY:
                await trio.sleep(self._retry_s)
                await self.examine()
                self._on_change()
