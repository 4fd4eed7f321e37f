"""The scheduler service: runs every unfinished campaign of its store, from finding devices to the last recorded result.

Every 0.2 s it reads what the command line wrote, stores progress, and passes the time to the conversation. Killed at any point it
carries on from the store.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.pool import ManifestMessage
from protocol.wire.base import Message
from protocol.words import Reason
from scheduler.conversation.conversation import SchedulerConversation
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.state import TaskLimits
from scheduler.models.describe import by_devices
from scheduler.planning.devices import DeviceFinder, fix_plan
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.epochs import LeadershipClaims
from scheduler.run.manifests import manifests_in
from scheduler.run.missing_models import MissingModels
from scheduler.run.model_sources import ModelSources
from scheduler.run.restore import end_unreadable, entries_of
from scheduler.run.shell import Aside, TrioShell
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from swarm.blobs.server import serve_blobs
from swarm.net.identity import Identity
from swarm.net.network import Network
from swarm.pools.membership import Credential

BEAT_S: Final = 0.2
LOOKS: Final = 8
"""In each beat, how often to see whether another process wrote to the store."""
LINGER_BEATS: Final = 3
"""Beats without work before the process ends, so that the last answers are on their way."""

log = structlog.get_logger("sark.scheduler")


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
        self._index = index
        self._identity = identity
        self._store = store
        self._spool = spool
        self._wall = wall
        self._nursery = nursery
        self._core = SchedulerCore(rng)
        self._claims = LeadershipClaims(identity, credentials)
        self._manifests, self._missing_models = manifests_in(spool), MissingModels(spool)
        self._manifests.tidy([row.id for row in store.campaigns.unfinished()])
        self._shell = TrioShell(
            network,
            index,
            nursery,
            self._core,
            CredentialPresenter(credentials, wall, self._core.state.campaigns.keys, manifests),
            received=self._received,
            reached=self._remember,
            aside=aside,
        )
        self._conversation = SchedulerConversation(
            self._core,
            self._shell,
            store,
            self._claims,
            log,
            peer=identity.peer_id,
            sign=identity.sign,
            manifest=self._manifest,
            ended=self._manifests.forget,
        )
        self.holders = ModelSources(
            self._core,
            index,
            identity,
            nursery=nursery,
            carry_out=self._conversation.carry_out,
            wall=wall,
            rng=rng,
        )
        self._planning: set[str] = set()
        self._addresses: dict[str, tuple[str, ...]] = {}

    async def beat(self, stop_when_idle: bool) -> None:
        """The clock of the service."""
        changes, idle = -1, 0  # what was committed while the first campaigns were taken up is looked at too
        while True:
            for _ in range(LOOKS):
                await trio.sleep(BEAT_S / LOOKS)
                changed = self._store.changes_by_others()
                if changed != changes:  # somebody submits or cancels: do not let them wait for the beat
                    changes = changed
                    self.load()
                    break
            self._flush()
            now = trio.current_time()
            self._core.add_models(self._missing_models.look(now))
            for campaign in self._conversation.tick():
                self._claims.forget(campaign.limits.campaign)
            if self._core.idle and not self._planning and not self._conversation.links.committing:
                idle += 1
                if stop_when_idle and idle >= LINGER_BEATS and not self._store.campaigns.unfinished():
                    await self._shell.aclose()
                    return
            else:
                idle = 0

    def load(self) -> None:
        """Take up campaigns that are not under way yet, and requests to cancel."""
        for row in self._store.campaigns.unfinished():
            if row.id in self._core.state.campaigns or row.id in self._planning:
                continue
            if row.planned:
                self._take_up(row)
            else:
                self._planning.add(row.id)
                self._nursery.start_soon(self._plan, row)
        self._conversation.cancel(self._store.tasks.cancel_requests())

    def _take_up(self, row: CampaignRow) -> None:
        now = trio.current_time()
        epoch = self._store.campaigns.next_epoch(row.id)
        self._claims.take_up(row.id, row.scheduler, epoch)
        bodies = self._store.tasks.bodies(row.id)
        try:
            entries = entries_of(self._store, row.id, bodies)
        except RemoteProtocolError as exc:  # the others go on
            log.warning("campaign.unreadable", campaign=row.id, why=exc.what)
            end_unreadable(self._store, row.id, exc.what)
            return
        self._conversation.bodies |= bodies
        for worker in self._store.workers.all():
            view = self._core.state.worker(worker.peer)
            if not view.addresses:
                view.addresses, view.device = worker.addresses, worker.device
        left = self._left_s(row)
        limits = TaskLimits(
            campaign=row.id,
            attempts=row.attempts,
            backoff_s=row.backoff_s,
            wait_s=row.wait_s,
            ends_at=None if left is None else now + left,
            priority=row.priority,
            epoch=epoch,
        )
        in_order = {entry.id: bodies[entry.id] for entry in entries}
        self._manifests.take_up(row, self._store.campaigns.models(row.id), in_order, self._identity)
        log.info("campaign.taken-up", campaign=row.id, tasks=len(entries), epoch=epoch)
        self._store.tasks.set_notes(self._missing_models.mark(entries, by_devices(row.spec)))
        entries.sort(key=lambda entry: entry.model_missing)
        self._conversation.take_up(limits, entries)

    async def _plan(self, row: CampaignRow) -> None:
        """A campaign over devices: wait until the same ones are found twice in a row, then fix its tasks."""
        try:
            await fix_plan(self._index, self._store, row, self._left_s(row))
        finally:
            self._planning.discard(row.id)
            self.load()

    def _left_s(self, row: CampaignRow) -> float | None:
        """Seconds until the campaign's limit. A clock that was set meanwhile neither prolongs it nor ends it before it began."""
        if row.limit_s is None:
            return None
        return min(max(row.limit_s - (self._wall() - row.created), 0.0), row.limit_s)

    def _flush(self) -> None:
        """Store progress and queue positions."""
        progress, positions = self._conversation.progress, self._core.state.positions
        if progress:
            self._store.attempts.set_progress(tuple(progress.values()))
            progress.clear()
        if positions:
            self._store.attempts.set_positions(tuple(positions.values()))
            positions.clear()

    def _received(self, peer: str, message: Message) -> Coroutine[Any, Any, Message | None]:
        return self._conversation.received(peer, message)

    def _remember(self, peer: str) -> None:
        view = self._core.state.worker(peer)
        if view.addresses and self._addresses.get(peer) != view.addresses:
            self._addresses[peer] = view.addresses
            self._store.workers.save(peer, view.device, view.addresses)

    def _manifest(self, campaign: str) -> tuple[str, int] | None:
        manifest = self._manifests.of(campaign)
        return None if manifest is None else (manifest.sha256, manifest.size)

    def find_model(self, peer: str, sha256: str) -> Path | Reason:
        """A model of the spool, or a campaign manifest, for a worker that holds a task which needs it."""
        manifest = self._manifests.find(sha256, self._core.campaigns_on(peer))
        return manifest or (
            self._spool / sha256 if self._core.may_fetch(peer, sha256) else Reason.NOT_ALLOWED
        )
