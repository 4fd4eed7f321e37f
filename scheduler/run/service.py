"""The scheduler service: runs every unfinished campaign of its store, from finding devices to the last recorded result.

Every 0.2 s it reads what the command line wrote, and passes the time to the conversation. Killed at any point, it continues from the store.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, ResourceError, SarkError, first_error
from protocol.messages.pool import ManifestMessage
from protocol.values.advert import Advert, advert_body, read_advert
from protocol.values.reading import DeviceReading
from protocol.values.task import TaskBodies, TaskReader, read_task
from protocol.values.trust import Trust
from protocol.words import Reason
from scheduler.campaign.text import unfit_jobs_of_spec
from scheduler.campaign.trust import trust_of_spec
from scheduler.conversation.conversation import RestoredCampaign, SchedulerConversation
from scheduler.conversation.effects import SleepUntil
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.stops import OwedStop
from scheduler.models.describe import by_devices
from scheduler.planning.devices import DeviceFinder, fix_plan
from scheduler.run.canaries import AnswerModel, Canaries, no_answers
from scheduler.run.checks import RecordChecks, RunInThread
from scheduler.run.commits import GroupCommit
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.epochs import MAX_EPOCH_STEP, LeadershipClaims
from scheduler.run.forgetting import Forgetting
from scheduler.run.manifests import CampaignManifests
from scheduler.run.models import MissingModels, ModelSources
from scheduler.run.restore import PORTION, end_unreadable, owed_stops, restore_some
from scheduler.run.scoring import Scorings
from scheduler.run.seats import Seat, SeatTokens, seat_peers
from scheduler.run.sending import Send, Sendings
from scheduler.run.shell import TrioShell
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from scheduler.trust.book import TrustSource
from scheduler.trust.identities import DeviceClaims
from swarm.base.stalls import StallWatch
from swarm.base.threads import COMPUTING
from swarm.blobs.server import serve_blobs
from swarm.net.identity import Identity
from swarm.net.network import Network
from swarm.pools.membership import Credential, host_name

BEAT_S: Final = 0.2
LOOKS: Final = 8
"""Number of checks in each beat for writes of other processes to the store."""
LINGER_BEATS: Final = 3
"""Beats without work before the process ends, so that the last answers can be sent."""
RECALL_S: Final = 86_400.0
"""Seconds for which a worker that was reached counts as only away, even after a restart of the scheduler."""

log = structlog.get_logger("sark.scheduler")


@dataclass(kw_only=True)
class SchedulerService:
    """Runs until no campaign is left, or forever if not `stop_when_idle`."""

    network: Network
    index: DeviceFinder
    identity: Identity
    """The identity of this process: the home's key, or that of its seat."""
    home: Identity | None = None
    """The home's key, if it differs from `identity`."""
    trust: TrustSource
    store: Store
    spool: Path
    """The folder of the models, named by their hash."""
    rng: random.Random = field(default_factory=random.Random)
    chance: random.Random = field(default_factory=random.SystemRandom)
    """The system's random source: a copy of this process, as in a snapshot of a machine, draws other numbers."""
    wall: Callable[[], float] = time.time
    credentials: Callable[[], Sequence[Credential]] = tuple
    """The tokens to show to workers now."""
    manifests: Callable[[], Sequence[ManifestMessage]] = tuple
    """The manifests of this home's pools."""
    pin: Callable[[Mapping[str, str]], None] = lambda used: None
    """Stores which key was used as which device, by device id."""
    hearsay: Callable[[str], bool] = lambda peer: False
    """Whether only nodes that the owner did not choose report a worker."""
    stop_when_idle: bool = True
    aside: RunInThread = COMPUTING.run
    learn: Callable[[str, bool, str], None] = lambda peer, right, why: None
    """Stores what was learned about a stranger's key."""
    stalled: Callable[[float, str], None] = lambda seconds, task: log.warning(
        "loop.stalled", cpu_s=round(seconds, 3), task=task
    )
    """Called when the loop computed for a long time in one turn; see `swarm.base.stalls`."""
    answer: AnswerModel = no_answers
    """Runs a model on this machine, to check strangers' results."""
    show: Callable[[Mapping[str, DeviceReading]], None] = lambda readings: None
    """Receives sensor readings of workers as they arrive."""

    send: Send | None = None
    """Writes results to the URLs that campaigns name; None: this process does not."""

    async def run(self) -> None:
        """Raises `ResourceError` when the store cannot be written. What was acknowledged is safe, and a new start continues from it."""
        watch = StallWatch(self.stalled)
        trio.lowlevel.add_instrument(watch)
        try:
            async with trio.open_nursery() as nursery:
                self._open(nursery)
                self._load()
                await self._beat()
                nursery.cancel_scope.cancel()
        except* ResourceError as group:
            raise first_error(group) from None
        finally:
            trio.lowlevel.remove_instrument(watch)
            self.store.write_through()  # what is not committed was not acknowledged

    def _open(self, nursery: trio.Nursery) -> None:
        self._nursery, self._home = nursery, self.home or self.identity
        self._seat = Seat(self.store, self.spool, trio.current_time)
        self.store.wait_while_busy(lambda seconds: log.warning("store.busy", waited_s=round(seconds, 1)))
        self._book = self.trust.book()
        self._core = core = SchedulerCore(self.rng, self._trust_of)
        core.state.hearsay = self.hearsay
        self._claims_of_devices = DeviceClaims(lambda: self._book)
        core.state.clash = lambda device, peer: str(self._claims_of_devices.clash(device, peer) or "")
        core.state.device_key = self._claims_of_devices.key_of
        self._used: dict[str, str] = {}
        tokens = SeatTokens(
            self._home, self.identity.peer_id, lambda: self._seat.own, self.credentials, self.wall
        )
        self._claims = LeadershipClaims(
            self.identity,
            tokens,
            lambda campaign, above: self._conversation.next_epoch(campaign, above),
            seat_peers(self._home),
        )
        self._manifests = CampaignManifests(self.spool)
        self._manifests.tidy([row.id for row in self.store.campaigns.unfinished()])
        self._missing_models = MissingModels(self.spool, host_name() if self.store.seats.shared else "")
        self._planning: set[str] = set()
        self._waited: set[str] = set()
        """Campaigns that already waited for a device, without success, before they were planned."""
        self._saved: dict[str, tuple[tuple[str, ...], Advert | None]] = {}
        """What the store holds of each worker that this process reached."""
        self._timed: set[str] = set()
        """Models for which earlier runs' times were read."""
        presenter = CredentialPresenter(tokens, self.wall, core.state.campaigns.keys, self.manifests)
        self._shell = TrioShell(
            self.network,
            self.index,
            nursery,
            core,
            presenter,
            received=lambda peer, message: self._conversation.received(peer, message),
            reached=self._reached,
            checks=RecordChecks(self.aside),
            book=lambda: self._book,
            canaries=Canaries(self.answer, self.spool),
            stored=GroupCommit(self.store, nursery).wait_until_stored,
            scorings=Scorings(self.store.scores.record, self.store.campaigns.evaluations),
        )
        self._forgetting = Forgetting(
            self.store,
            self._shell.start,
            self._recall_workers,
            lambda worker: core.state.worker(worker).advert,
            trio.current_time,
        )
        self._sendings = (
            None if self.send is None else Sendings(self.store, self._home.peer_id, nursery, self.send)
        )
        self._conversation = SchedulerConversation(
            core,
            self._shell,
            self.store,
            self,
            self._claims,
            log,
            peer=self._home.peer_id,
            sign=self.identity.sign,
            manifest=self._manifests.of,
            ended=self._ended,
            learned=self._learn,
            stride=lambda: 1 + self.chance.randrange(MAX_EPOCH_STEP),
        )
        sources = ModelSources(
            core,
            self.index,
            self.identity,
            nursery=nursery,
            carry_out=self._conversation.carry_out,
            wall=self.wall,
            rng=self.rng,
        )
        serve_blobs(self.network, self._find_blob, where=sources.where)

    async def _beat(self) -> None:
        """The clock of the service."""
        changes, idle = -1, 0  # -1: also look at commits made during the first restore
        while True:
            for _ in range(LOOKS):
                await trio.sleep(BEAT_S / LOOKS)
                if self._seat.renew() or self._left_free:
                    self._load()  # time alone frees a campaign
                changed = self.store.changes_by_others()
                if changed != changes:  # a submit or a cancel should not wait for the beat
                    changes = changed
                    self._load()
                    break
            self._review_trust()
            if arrived := self._missing_models.look(trio.current_time()):
                self.store.tasks.set_notes([(entry.id, "") for entry in arrived])
                self._core.add_models(arrived)
            self._conversation.beat()
            if self._conversation.readings:
                self.show(self._conversation.readings)
                self._conversation.readings.clear()
            if self._seat.first:
                self._forgetting.beat()
                if self._sendings is not None:
                    self._sendings.beat(trio.current_time())
            at_rest = not self._planning and not self._conversation.links.committing
            if (
                self._core.idle
                and at_rest
                and not self._forgetting.busy
                and not (self._sendings and self._sendings.busy)
            ):
                idle += 1
                if self.stop_when_idle and idle >= LINGER_BEATS and not self.store.campaigns.unfinished_ids():
                    await self._shell.aclose()
                    return
            else:
                idle = 0

    # -- campaigns ----------------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._left_free = self._seat.look()
        for campaign in self._seat.own_ids(planned=False):
            row = self.store.campaigns.get(campaign) if campaign not in self._planning else None
            if row is not None:
                self._planning.add(campaign)
                self._nursery.start_soon(self._plan, row)
        self._conversation.load()
        if self._seat.first:
            self._forgetting.load()
            if self._sendings is not None:
                self._sendings.load()

    async def _plan(self, row: CampaignRow) -> None:
        """Plan a campaign whose tasks are not made yet; see `fix_plan`."""
        try:
            if await fix_plan(
                self.index, self.store, row, self._left_s(row), lambda: self._book, self._found
            ):
                self._waited.add(row.id)
        finally:
            self._planning.discard(row.id)
        self._load()  # not when the service ends: that would restart the plan forever

    def _found(self, adverts: Sequence[Advert]) -> None:
        """The devices on which a campaign is planned: its tasks need not search for them again."""
        self._core.workers.add_adverts("", adverts, trio.current_time())

    def _ended(self, campaign: str) -> None:
        if self._sendings is not None:
            self._sendings.load()
        self._manifests.forget(campaign)
        self._waited.discard(campaign)

    def unfinished(self) -> tuple[str, ...]:
        """See `CampaignSource`."""
        return self._seat.own_ids(planned=True)

    def owed_stops(self) -> list[OwedStop]:
        """See `CampaignSource`. Their workers are reached at their last known addresses."""
        stops = owed_stops(self.store, trio.current_time(), self.wall(), self._seat.answers_for)
        if stops:
            self._recall_workers()
        return stops

    async def restore(self, campaign: str, epoch: int) -> RestoredCampaign | None:
        """See `CampaignSource`. Long work is done in portions."""
        store, row = self.store, self.store.campaigns.get(campaign)
        assert row is not None, "it is unfinished"
        self._claims.take_up(row.id, row.scheduler, epoch)
        bodies = TaskBodies()
        entries: list[TaskEntry] = []
        try:
            reader = TaskReader()
            while part := restore_some(store, row.id, len(entries), reader):
                bodies.update(part.bodies)
                entries += part.entries
                if len(part.entries) < PORTION:
                    break
                await SleepUntil(trio.current_time())
        except RemoteProtocolError as exc:  # the other campaigns go on
            log.warning("campaign.unreadable", campaign=row.id, why=exc.what)
            end_unreadable(store, row.id, exc.what)
            return None
        self._recall_workers()
        if store.seats.shared:  # another process may have led it
            self._core.state.stops.restore(
                stop for stop in self.owed_stops() if stop.task.startswith(f"{campaign}/")
            )
            self._conversation.links.tell_owed()
        fresh = {entry.form.model.sha256 for entry in entries} - self._timed
        self._timed |= fresh
        for body, seconds in reversed(store.tasks.run_times(fresh) if fresh else ()):
            with contextlib.suppress(RemoteProtocolError):  # from another version
                self._core.state.run_times.add(read_task(body), "", seconds)
        models = store.campaigns.models(row.id)
        self._manifests.take_up(row, models, bodies, self._home)
        log.info("campaign.taken-up", campaign=row.id, tasks=len(entries), epoch=epoch)
        await SleepUntil(trio.current_time())
        if notes := self._missing_models.mark(entries, by_devices(row.spec)):
            store.tasks.set_notes(notes)
        entries.sort(key=lambda entry: entry.model_missing)
        left = self._left_s(row)
        limits = TaskLimits(
            campaign=row.id,
            attempts=row.attempts,
            backoff_s=row.backoff_s,
            wait_s=0.0 if row.id in self._waited else row.wait_s,
            ends_at=None if left is None else trio.current_time() + left,
            priority=row.priority,
            epoch=epoch,
            trust=trust_of_spec(row.spec),
        )
        unscored = store.scores.waiting(row.id) if any(model.evaluation for model in models) else {}
        return RestoredCampaign(limits, entries, bodies, unfit_jobs_of_spec(row.spec), unscored)

    def _left_s(self, row: CampaignRow) -> float | None:
        """Seconds until the campaign's limit. Setting the clock meanwhile neither extends it nor ends it before it began."""
        if row.limit_s is None:
            return None
        return min(max(row.limit_s - (self.wall() - row.created), 0.0), row.limit_s)

    # -- trust --------------------------------------------------------------------------------------------------------------------------

    def _trust_of(self, peer: str) -> Trust:
        """How far a worker is trusted. A stranger's root is the network in which it is seen, or, while it is not connected, the one that
        its addresses name.
        """
        trust = self._book.trust_of(peer)
        if not trust.stranger:
            return trust
        seen, view = self.network.remote_address(peer), self._core.state.workers.get(peer)
        if seen is not None:
            return self._book.trust_of(peer, (seen,))
        return self._book.trust_of(peer, () if view is None else view.addresses)

    def _learn(self, peer: str, right: bool, why: str) -> None:
        """Apply what was learned of a stranger. A refuted key gets nothing more from the next beat on, and its results in campaigns under
        way are doubted.
        """
        log.info("stranger.judged", peer=peer, right=right, why=why)
        if not right:
            self.store.attempts.doubt_results(peer)
        try:
            self.learn(peer, right, why)
        except ResourceError as exc:
            log.warning("reputation.not_kept", peer=peer, why=exc.what)

    def _review_trust(self) -> None:
        """A revocation, or a newly listed key, takes effect at the next beat."""
        if self._used:
            used, self._used = self._used, {}
            try:
                self.pin(used)
            except SarkError as exc:
                log.warning("device.unpinned", devices=sorted(used), why=exc.what)
        book = self.trust.book()
        if book is not self._book:
            self._book = book
            log.info("trust.changed", own=len(book.own), pools=len(book.pools), listed=len(book.listed))
            self._conversation.carry_out(self._core.review_trust(trio.current_time()))

    # -- workers ------------------------------------------------------------------------------------------------------------------------

    def _reached(self, peer: str) -> None:
        self._save_addresses(peer)
        self._forgetting.reached(peer)

    def _save_addresses(self, peer: str) -> None:
        view = self._core.state.worker(peer)
        device = "" if view.advert is None else view.advert.device
        key = self._claims_of_devices.key_of(device, peer)
        if (
            device
            and key not in self._book.pinned.get(device, ())
            and key == self._claims_of_devices.holder(device)
        ):
            self._used[device] = key
        advert = None if view.advert is None else view.advert.model_copy(update={"seq": 0, "models": ()})
        if view.addresses and self._saved.get(peer) != (view.addresses, advert):
            self._saved[peer] = view.addresses, advert
            body = b"" if view.advert is None else advert_body(view.advert)
            self.store.workers.save(peer, view.device, view.addresses, body)

    def _recall_workers(self) -> None:
        """Restore workers that were reached before this process began, so that tasks also wait for those that are away now."""
        now = self.wall()
        for worker in self.store.workers.all():
            view = self._core.state.worker(worker.peer)
            if not view.addresses:
                view.addresses, view.device = worker.addresses, worker.device
            if view.advert is None and worker.advert and now - worker.seen < RECALL_S:
                with contextlib.suppress(RemoteProtocolError):  # from another version
                    adverts = [read_advert(worker.advert)]
                    self._core.workers.add_adverts("", adverts, trio.current_time())

    def _find_blob(self, peer: str, sha256: str) -> Path | Reason:
        """A model of the spool, or a campaign manifest, for a worker that holds a task that needs it."""
        manifest = self._manifests.find(sha256, self._core.entrusted_to(peer))
        return manifest or (self.spool / sha256 if self._core.may_fetch(peer, sha256) else Reason.NOT_ALLOWED)
