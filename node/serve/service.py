"""The worker: one nursery, to be read from top to bottom as the list of what it does.

ledger (pure)  ◀── desk ◀── links of schedulers          what they ask changes the ledger
    └─ orders ─▶ Run, Offer, Warn, Kill                   what the ledger orders is carried out here; a run in `node.serve.run_manager`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.access.authorization import Authorization
from node.access.revocation import Revocation
from node.capacity.allocations import KillCommand, RunCommand, SlotOffer, WarnCommand
from node.capacity.ledger import Ledger
from node.device.probe import build_advert
from node.run.self_test import Examiner
from node.serve.announcing import Announcer
from node.serve.delivery import Delivery, DeliveryLinks
from node.serve.dependencies import AdvertIndex, WorkerParts
from node.serve.handlers import WorkHandlers
from node.serve.owner_control import OwnerControl
from node.serve.run_manager import RunManager, RunSurroundings
from node.settings.settings import WorkerSettings
from node.store.blob_sources import BlobSources
from node.store.campaigns import CampaignStore
from node.store.manifests import ManifestStore
from node.store.outbox import OutboxItem
from protocol.errors import RemoteProtocolError
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.pool import PoolManifest
from protocol.messages.work import WORK, Control, Denied, Preempt, Ready, Start, WorkerStatus
from protocol.values.advert import Advert
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.blobs.client import fetch_blob
from swarm.net.addresses import PeerId
from swarm.net.link import Link, serve_links
from swarm.net.network import Network
from swarm.pools.tokens import prove

LEAVE_S: Final = 3.0
"""The longest that leaving waits for runs to be dead and their results on disk."""
WITHDRAW_S: Final = 2.0
"""And then for the swarm to be told."""

log = structlog.get_logger("sark.worker")


async def run_worker(
    settings: WorkerSettings,
    network: Network,
    index: AdvertIndex,
    parts: WorkerParts,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `parts.leave` is set. Started means that it can be asked. Cancelling kills what runs and returns when it is dead."""
    worker = Worker(settings, network, parts)
    async with trio.open_nursery() as nursery:
        worker.nursery = nursery
        serve_links(network, ProtocolId.WORK, WORK, worker.desk.answer, opened=worker.opened)
        serve_links(network, ProtocolId.HEALTH, HEALTH, worker.health)
        worker.sharing.serve(network)
        nursery.start_soon(worker.keep_time)
        nursery.start_soon(worker.examiner.keep)
        nursery.start_soon(worker.hand.keep)
        nursery.start_soon(worker.hand.keep_draining)
        nursery.start_soon(worker.door.keep)
        announcing, announced = trio.CancelScope(), trio.Event()
        nursery.start_soon(worker.announce, index, announcing, announced)
        nursery.start_soon(worker.sharing.keep, worker.announcer.moved)
        task_status.started(worker)
        await parts.leave.wait()
        with trio.move_on_after(LEAVE_S):
            await worker.wind_up()
        announcing.cancel()
        await announced.wait()  # nothing is to be published after it was withdrawn
        with trio.move_on_after(WITHDRAW_S):
            await index.withdraw()
        nursery.cancel_scope.cancel()


class Worker:
    """The shell around the ledger."""

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
            self.permits.manifest(manifest)
        self.ledger = Ledger(
            parts.incarnation,
            name=network.peer_id[-8:],
            slots=settings.slots,
            owner_first=settings.owner_first,
        )
        self.door = Revocation(self.permits, self.ledger, self.carry_out, parts.wall)
        self.examiner = Examiner(
            self.ledger.condition, parts.lock, parts.examine, self.carry_out, parts.examine_again_s
        )
        self.announcer = Announcer(self.advert, self._campaigns)
        self.hand = OwnerControl(
            ledger=self.ledger,
            rules=settings.rules,
            pause=parts.pause,
            senses=parts.senses,
            leave=parts.leave,
            carry_out=self.carry_out,
            stop_runs=lambda reason: self.runs.stop_all(reason),
            examine=self.examiner.examine,
            unsettled=lambda: len(parts.outbox),
            tell=parts.tell,
        )
        self.links = DeliveryLinks(
            self._link_up, self._link_down, lambda link, about: self.desk.speaks(link, *about)
        )
        self.delivery = Delivery(self.links, parts.outbox, self._settled)
        campaign_manifests = ManifestStore(parts.outbox.folder.with_name("manifests"), self._take)
        self.estate = CampaignStore(parts.outbox, campaign_manifests, parts.cache, parts.cache.whose)
        self.sharing = BlobSources(self.estate, self.permits, self.ledger.places, parts.wall)
        self.desk = WorkHandlers(
            ledger=self.ledger,
            advert=self.advert,
            permit=self.permits.check,
            present=self.door.present,
            presented=self.door.presented,
            control=self._control,
            has_model=parts.cache.has,
            estate=self.estate,
            phase=lambda lease: self.runs.phase(lease),
            carry_out=self.carry_out,
            dead=lambda lease: self.runs.dead(lease),
            now=trio.current_time,
            longest_s=settings.longest_s,
            reach=parts.reach,
        )
        around = RunSurroundings(
            self.carry_out, self.announcer.moved, self.delivery.tell, self.examiner.examine
        )
        self.runs = RunManager(settings, network, parts, self.ledger, self.estate, self.sharing, around)
        self._changed = trio.Event()

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

    async def announce(self, index: AdvertIndex, scope: trio.CancelScope, ended: trio.Event) -> None:
        """Keep the advert in the index as it should be, until `scope` is cancelled; `ended` is set when nothing of it is under way."""
        with scope:
            await self.announcer.keep(index)
        ended.set()

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
                case RunCommand():
                    self.runs.begin(order.lease, self.nursery)
                case SlotOffer():
                    self.nursery.start_soon(self._offer, order.lease)
                case WarnCommand():
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
                case KillCommand():
                    log.info("run.stopping", lease=order.lease, reason=order.reason)
                    self.runs.stop(order.lease, order.reason)
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

    def _settled(self, item: OutboxItem) -> None:
        self.ledger.acknowledge(item.lease)
        self.hand.moved()

    async def _take(self, peer: PeerId, sha256: str, size: int, sink: Callable[[bytearray], object]) -> None:
        await fetch_blob(self._network, peer, (), sha256, sink=sink, size=size)

    async def _control(self, message: Control) -> WorkerStatus | Denied:
        return await self.hand.do(message) or self.desk.standing()

    async def wind_up(self) -> None:
        """Take nothing new, end what runs, and put the results on disk; they go out as long as the links last."""
        self.ledger.condition.drain("leaving")
        self.carry_out()
        await self.runs.end_all(Reason.NOT_SERVING)

    # -- small questions -------------------------------------------------------------------------------------------------

    def _campaigns(self) -> list[str]:
        """Those that it works for, and those whose results lie here."""
        live = {place.wanted.task.campaign for place in self.ledger.places()}
        return [*sorted(live), *self._parts.outbox.campaigns()]

    def _link_up(self, peer: PeerId) -> None:
        self.ledger.link_up(peer, trio.current_time())
        self.carry_out()

    def _link_down(self, peer: PeerId) -> None:
        self.ledger.link_down(peer, trio.current_time())
        self.carry_out()
