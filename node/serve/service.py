"""The worker: one nursery, whose tasks from top to bottom list what the worker does.

links of schedulers ─▶ conversation (pure) ─▶ commands ─▶ shell: links, disk; runs in `node.serve.run_manager`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from node.access.authorization import Authorization
from node.access.revocation import Revocation
from node.capacity.ledger import Ledger
from node.conversation.commands import ControlDevice, ForgetFiles, SendReply
from node.conversation.conversation import WorkerConversation
from node.conversation.outbox import Outbox
from node.conversation.requests import WorkerContext
from node.device.probe import build_advert
from node.serve.costs import cost_us
from node.serve.live_readings import LiveReadings
from node.serve.owner_control import OwnerControl, OwnerSenses, Pause
from node.serve.recheck import Recheck
from node.serve.run_manager import DeviceParts, Examiner, RunManager
from node.serve.shell import ConversationShell
from node.settings.settings import WorkerSettings
from node.store.blob_sources import BlobSources
from node.store.cache import ModelCache
from node.store.manifests import ManifestStore
from node.store.outbox_files import OutboxFiles
from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.forget import Forgotten
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.pool import PoolManifest
from protocol.messages.work import WORK, Denied
from protocol.values.advert import Advert
from protocol.values.index_keys import MAX_CAMPAIGNS
from protocol.values.reading import DeviceReading
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, WorkerState
from swarm.base.text import shorten
from swarm.blobs.client import fetch_blob
from swarm.net.addresses import PeerId
from swarm.net.identity import verify
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.net.network import Network
from swarm.pools.tokens import prove

if TYPE_CHECKING:
    from swarm.download.download import Edge

LEAVE_S: Final = 3.0
"""The longest that a leaving worker waits for its runs to die, and for their results to reach the disk and the linked schedulers."""
WITHDRAW_S: Final = 2.0
"""The longest that withdrawing the advert takes."""
SPACING_S: Final = 5.0
"""Least seconds between two adverts, however much changes."""
CHECK_S: Final = 60.0
FORGET_S: Final = 60.0
"""Seconds after which a request that failed now should be repeated."""

log = structlog.get_logger("sark.worker")


class AdvertIndex(Protocol):
    """The part of `swarm.index.index.Index` that the worker needs."""

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int: ...

    async def withdraw(self) -> int: ...


@dataclass(frozen=True)
class WorkerParts:
    """The parts of a worker. The program assembles them; tests use doubles."""

    device: DeviceParts
    incarnation: int
    owners: Collection[PeerId]
    """This user's own schedulers."""
    cache: ModelCache
    outbox: OutboxFiles
    wall: Callable[[], float]
    """Seconds since the epoch, for retention over restarts."""
    tell: Callable[[str], object] = lambda line: None
    """Called with a line about each run, for the device's owner."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Id → name of the pools for which it works."""
    manifests: Collection[PoolManifest] = ()
    """The newest manifests of these pools on disk."""
    pause: Pause = field(default_factory=Pause)
    senses: OwnerSenses = field(default_factory=OwnerSenses)
    web: Edge | None = None
    """The source of models that tasks name by URL; None: the internet."""
    addresses: Callable[[], Sequence[str]] = tuple
    """Where other nodes reach this node now, best first; empty: where it listens."""
    reach: Callable[[], str] = str
    """How other nodes reach this node, in words; empty: unknown."""
    leave: trio.Event = field(default_factory=trio.Event)
    """Set it to make the worker leave in an orderly way: it ends and reports its runs, and withdraws its advert."""


async def run_worker(
    settings: WorkerSettings,
    network: Network,
    index: AdvertIndex,
    parts: WorkerParts,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `parts.leave` is set. Once started, it answers requests. Cancelling kills the runs, and returns once they are dead."""
    worker = Worker(settings, network, parts)
    async with trio.open_nursery() as nursery:
        worker.nursery = worker.shell.nursery = nursery
        network.governor.class_of = worker.permits.class_of
        serve_links(network, ProtocolId.WORK, WORK, worker.shell.answer, cost=cost_us, opened=worker.opened)
        serve_links(network, ProtocolId.HEALTH, HEALTH, worker.health)
        worker.sharing.serve(network)
        nursery.start_soon(worker.shell.keep_time)
        nursery.start_soon(worker.shell.keep_disk)
        nursery.start_soon(worker.examiner.keep)
        nursery.start_soon(worker.live.keep)
        if worker.recheck is not None:
            nursery.start_soon(worker.recheck.keep)
        nursery.start_soon(worker.owner_control.keep)
        nursery.start_soon(worker.owner_control.keep_draining)
        nursery.start_soon(worker.revocation.keep)
        nursery.start_soon(worker.sharing.keep, worker.announcer.changed)
        async with trio.open_nursery() as announcing:  # publish no advert after its withdrawal
            announcing.start_soon(worker.announcer.keep, index)
            task_status.started(worker)
            await parts.leave.wait()
            with trio.move_on_after(LEAVE_S):
                await worker.wind_up()
            announcing.cancel_scope.cancel()
        with trio.move_on_after(WITHDRAW_S):
            await index.withdraw()
        nursery.cancel_scope.cancel()


class Worker:
    """Connects the conversation with the network, the disk and the runs."""

    nursery: trio.Nursery

    def __init__(self, settings: WorkerSettings, network: Network, parts: WorkerParts) -> None:
        self._settings = settings
        self._network = network
        self._parts = parts
        self.permits = Authorization(
            owners=parts.owners,
            allow=settings.allow,
            anyone=settings.accept_anyone,
            teams=settings.teams,
            pools=parts.pools,
            prove=prove,
            wall=parts.wall,
        )
        for manifest in parts.manifests:
            self.permits.update(manifest)
        self.ledger = Ledger(
            parts.incarnation,
            name=network.peer_id[-8:],
            slots=settings.slots,
            owner_first=settings.owner_first,
        )
        self.revocation = Revocation(self.permits, self.ledger, self.carry_out, parts.wall)
        self.examiner = Examiner(
            self.ledger.condition,
            parts.device.lock,
            parts.device.examine,
            self.carry_out,
            parts.device.retry_s,
        )
        calibrator = parts.device.calibrator
        self.recheck = Recheck(calibrator, self._idle, parts.tell, parts.wall) if calibrator else None
        self.announcer = Announcer(self.advert, self._campaigns)
        self.owner_control = OwnerControl(
            ledger=self.ledger,
            rules=settings.rules,
            pause=parts.pause,
            senses=parts.senses,
            leave=parts.leave,
            carry_out=self.carry_out,
            stop_runs=lambda reason: self.runs.stop_all(reason),
            examine=self.examiner.examine,
            unsettled=lambda: len(self.conversation.outbox),
            tell=parts.tell,
        )
        self._manifests = manifests = ManifestStore(parts.outbox.folder.with_name("manifests"), self._take)
        outbox = Outbox(parts.wall, trio.current_time, parts.outbox.waiting, parts.outbox.settled)
        self.sharing = BlobSources(
            manifests,
            parts.cache,
            outbox,
            parts.outbox.folder,
            self.permits,
            self.ledger.allocations,
            parts.wall,
        )
        context = WorkerContext(
            now=trio.current_time,
            wall=parts.wall,
            permit=self.permits.check,
            authenticate=self.revocation.authenticate,
            advert=self.advert,
            has_model=parts.cache.has,
            manifests=manifests,
            sign=network.sign,
            verify=verify,
            log=log,
            max_duration_s=settings.max_duration_s,
            reach=parts.reach,
            reading=lambda: self.live.latest(),
        )
        self.conversation = WorkerConversation(self.ledger, outbox, context)
        self.shell = ConversationShell(
            self.conversation,
            parts.outbox,
            begin_run=lambda command: self._begin(command.lease),
            stop_run=lambda command: self.runs.stop(command.lease, command.reason),
            reveal=lambda command: self.runs.reveal(command),
            control=lambda command: self.nursery.start_soon(self._control, command),
            forget=lambda command: self.nursery.start_soon(self._forget, command),
            changed=self.owner_control.changed,
        )
        self.runs = RunManager(
            settings,
            network,
            parts.device,
            self.conversation,
            self.sharing,
            parts.web,
            carry_out=self.carry_out,
            advert_changed=self.announcer.changed,
            examine=self.examiner.examine,
            disk_idle=lambda: self.shell.wait_for(lambda: self.conversation.commands.disk_idle),
            tell=parts.tell,
            name_of=self.permits.name_of,
        )

        self.live = LiveReadings(parts.device.open_sensors, lambda: self.conversation.busy, self._show)

    def advert(self) -> Advert:
        return build_advert(
            self._parts.device.profile,
            self._network.peer_id,
            addresses=self._parts.addresses() or self._network.addresses,
            labels=self._settings.labels,
            models=self._parts.cache.recent(4),
            version=self._parts.device.version,
            pools=sorted(set(self._parts.pools.values())),
        )

    def _begin(self, lease: str) -> None:
        if self.recheck is not None:
            self.recheck.give_way()
        self.runs.begin(lease, self.nursery)
        self.live.begin()

    def _show(self, reading: DeviceReading) -> None:
        self.conversation.report_reading(reading)
        self.carry_out()

    def _idle(self) -> bool:
        return (
            self.ledger.condition.state is WorkerState.ACTIVE
            and not self.ledger.running
            and not self.ledger.queue
        )

    async def health(self, link: Link, message: Message) -> Message:
        if not isinstance(message, Ping):
            raise RemoteProtocolError(f"{type(message).__name__} is not a call that a worker answers")
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
        """Called for each scheduler's link: deliver the waiting results once the scheduler has any permission here."""
        await self.revocation.admitted(link.peer)
        await self.shell.use(link)

    def carry_out(self) -> None:
        """Call this after each change of the ledger. Never waits."""
        self.shell.carry_out()

    async def _control(self, command: ControlDevice) -> None:
        reply = await self.owner_control.do(command.message) or self.conversation.requests.status()
        self.conversation.commands.emit(SendReply(command.request, reply))
        self.carry_out()

    async def _forget(self, command: ForgetFiles) -> None:
        reply: Forgotten | Denied
        try:
            # removing gigabytes would distort the figures, and a run needs its model for its next launch
            if self.sharing.exclusive.locked() or self.sharing.cache.in_use:
                raise ResourceError("a measurement or a fetch is running here now")
            async with self.sharing.exclusive:
                await self._manifests.forget(command.campaign, command.principal)
                models, size = await self._parts.cache.forget(command.principal, command.campaign)
            reply = Forgotten(records=command.records, models=models, size=size)
        except ResourceError as exc:
            log.info("campaign.not_forgotten", campaign=command.campaign, why=exc.what)
            reply = Denied(reason=Reason.BUSY, detail=shorten(exc.what), retry_s=FORGET_S)
        self.conversation.commands.emit(SendReply(command.request, reply))
        self.announcer.changed()
        self.carry_out()

    async def _take(self, peer: PeerId, sha256: str, size: int, sink: Callable[[bytearray], object]) -> None:
        await fetch_blob(self._network, peer, (), sha256, sink=sink, size=size)

    async def wind_up(self) -> None:
        """Take no new work, end the runs, and store their results; the results are delivered as long as the links last."""
        self.ledger.condition.drain("leaving")
        self.runs.stop_all(Reason.NOT_SERVING)
        self.carry_out()
        await self.shell.wait_for(lambda: not self.conversation.busy and self.conversation.delivery.idle)

    def _campaigns(self) -> list[str]:
        """The campaigns for which this worker works, and those whose results are stored here."""
        live = {allocation.request.task.campaign for allocation in self.ledger.allocations()}
        return [*sorted(live), *self.conversation.outbox.campaigns()]


class Announcer:
    """Keeps this worker's advert in the index up to date."""

    def __init__(self, advert: Callable[[], Advert], campaigns: Callable[[], Iterable[str]]) -> None:
        """`advert`: returns the current advert. `campaigns`: those for which it works, then those whose results are here."""
        self.advert = advert
        self._campaigns = campaigns
        self._changed = trio.Event()

    def changed(self) -> None:
        """The advert may have changed. Never waits."""
        self._changed.set()

    async def keep(self, index: AdvertIndex) -> None:
        """Publish changes at once, but at most every `SPACING_S` seconds."""
        last: tuple[Advert, tuple[str, ...]] | None = None
        while True:
            current = (self.advert(), tuple(dict.fromkeys(self._campaigns()))[:MAX_CAMPAIGNS])
            if current != last:
                holders = await index.publish(*current)
                log.debug("advert.published", holders=holders, models=len(current[0].models))
                last = current
            with trio.move_on_after(CHECK_S):
                await self._changed.wait()
            self._changed = trio.Event()
            await trio.sleep(SPACING_S)
