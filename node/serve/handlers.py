"""The worker's side of the conversation on `/sark/work/1`: may it ask, is it signed, does it fit; then the ledger decides.

Every verb is checked for permission by itself. An answer never waits for a run to end, but for a cancelled one to be dead.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from node.capacity.allocations import Allocation, SlotRequest
from node.capacity.ledger import Ledger
from node.store.campaigns import CampaignStore
from protocol.errors import RemoteProtocolError
from protocol.formats.model_files import may_run_code
from protocol.formats.phase import Phase
from protocol.messages.permission import CallPermission
from protocol.messages.work import (
    MAX_BATCH,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Control,
    CredentialsReply,
    Denied,
    Granted,
    HeldLease,
    LeaseLost,
    ListLeases,
    LiveLease,
    Probe,
    Queued,
    Quote,
    Release,
    Renew,
    Renewed,
    RunningJob,
    Shape,
    ShapeQuote,
    ShowCredentials,
    StatusRequest,
    Stopped,
    WorkerStatus,
)
from protocol.values.advert import Advert
from protocol.values.lease import LeaseState
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.values.task import Task, read_task, task_message
from protocol.wire.base import Message, brief
from protocol.words import Reason, Right
from swarm.base.text import ascii_line, shorten
from swarm.base.units import show_duration
from swarm.net.addresses import PeerId
from swarm.net.identity import verify
from swarm.net.link import Link

MAX_TOLD: Final = 8
"""Clauses that are not met, in the quote for one shape."""
FOR_FRIENDS: Final = (
    "TorchScript and torch.export models carry programs, which are run only for this device's owner and for people"
    " whom the owner let in; send ONNX, or weights as safetensors"
)
MAX_SPOKEN: Final = 1_024
"""Campaigns of one link whose epochs are remembered."""
VERBS: Final = (Probe, Commit, Renew, Cancel, Release, AdoptRequest, ListLeases, Control, StatusRequest)
"""What is answered, if the caller may say it. `ShowCredentials`, which says why it may, is taken from anybody."""

log = structlog.get_logger("sark.desk")


@dataclass(frozen=True)
class WorkHandlers:
    """Answers schedulers."""

    ledger: Ledger
    advert: Callable[[], Advert]
    """This worker's own, as others see it."""
    permit: Callable[[PeerId, Message, str | None], CallPermission | Denied]
    """What a peer may do, if that covers the verb (about the campaign, where it is one); else the refusal."""
    present: Callable[[PeerId, ShowCredentials], CredentialsReply | Denied]
    """A token is shown."""
    presented: Callable[[PeerId], None]
    """It was good: the peer may do something now that it perhaps could not before."""
    control: Callable[[Control], Awaitable[WorkerStatus | Denied]]
    """Does what the owner says."""
    has_model: Callable[[str], bool]
    estate: CampaignStore
    """What a campaign leaves here beside its leases."""
    phase: Callable[[str], Phase | None]
    """Where the run of a lease stands."""
    carry_out: Callable[[], None]
    """To be called after each change of the ledger."""
    dead: Callable[[str], Awaitable[None]]
    """Waits until a stopped run's processes are gone."""
    now: Callable[[], float]
    longest_s: float = math.inf
    """The most that a task of others than the owner may take by its own limits, and may wait in the queue."""
    reach: Callable[[], str] = str
    """How others reach this node, in words."""
    _epochs: WeakKeyDictionary[Link, dict[str, int]] = field(default_factory=WeakKeyDictionary)
    """Campaign → the highest epoch that a link has spoken under, for verbs that name leases without one."""

    async def answer(self, link: Link, message: Message) -> Message | None:
        """For `swarm.link.serve_links`."""
        return await self.reply(link.peer, message, self._epochs.setdefault(link, {}))

    async def reply(self, peer: PeerId, message: Message, epochs: dict[str, int]) -> Message:
        """The answer to one call. Raises `RemoteProtocolError` for what is not a scheduler's to say.

        `epochs`: what the link has spoken under so far, by campaign; kept up to date here.
        """
        if isinstance(message, ShowCredentials):
            return self._present(peer, message)
        if not isinstance(message, VERBS):
            raise RemoteProtocolError(f"{type(message).__name__} is not a scheduler's to say")
        permit = self._permit(peer, message)
        if isinstance(permit, Denied):
            return permit
        match message:
            case Probe():
                return self._quote(peer, permit, message)
            case Commit():
                return self._commit(peer, message, epochs)
            case Renew():
                return self._renew(peer, permit, message, epochs)
            case Cancel():
                return await self._stop(peer, permit, message, message.reason, epochs)
            case Release():
                return await self._stop(peer, permit, message, Reason.CANCELLED, epochs)
            case AdoptRequest():
                return await self._adopt(peer, permit, message, epochs)
            case ListLeases():
                return self._page(permit.principal, message)
            case Control():
                return await self.control(message)
            case StatusRequest():
                return self.standing(permit)

    def speaks(self, link: Link, principal: str, campaign: str) -> bool | None:
        """Whether a link has spoken of a campaign under the newest epoch that is known of it; False: under an older one; None: not yet."""
        spoken = self._epochs.get(link, {}).get(campaign)
        return None if spoken is None else spoken >= self.ledger.epoch(principal, campaign)

    # -- may it? ---------------------------------------------------------------------------------------------------------

    def _permit(self, peer: PeerId, message: Message, campaign: str | None = None) -> CallPermission | Denied:
        permit = self.permit(peer, message, campaign)
        if isinstance(permit, Denied):
            log.info("verb.refused", verb=type(message).__name__, peer=peer, why=permit.detail)
        return permit

    def _present(self, peer: PeerId, message: ShowCredentials) -> CredentialsReply | Denied:
        answer = self.present(peer, message)
        if isinstance(answer, Denied):
            log.info("token.refused", peer=peer, issuer=message.issuer, why=answer.detail)
        else:
            self.presented(peer)
        return answer

    def _refusals(
        self, peer: PeerId, permit: CallPermission, held: Sequence[HeldLease], epochs: dict[str, int]
    ) -> dict[str, Reason]:
        return self.ledger.refusals(
            peer, permit.principal, held, epochs, lambda campaign: permit.speaks_of(campaign) is None
        )

    # -- could you? ------------------------------------------------------------------------------------------------------

    def unmet(self, unit: str, requirement: Requirement) -> tuple[str, ...]:
        """Why this device does not fit, clause by clause; empty when it does."""
        advert = self.advert()
        units = [offer.unit for offer in advert.units]
        lines = (
            []
            if unit in units
            else [brief(f"unit {unit}: this device has {', '.join(units) or 'none that works'}")]
        )
        lines += [str(item) for item in match(requirement, advert).missing]
        return tuple(lines[:32])

    def _quote(self, peer: PeerId, permit: CallPermission, ask: Probe) -> Quote:
        now = self.now()
        self.ledger.expire(now)
        self.carry_out()
        outlooks = {
            priority: self.ledger.outlook(
                permit.principal,
                min(priority, permit.priority),
                permit.owner,
                now,
                sees_all=_sees_all(permit),
            )
            for priority in {shape.priority for shape in ask.shapes}
        }
        shapes = tuple(self._shape(shape, *outlooks[shape.priority]) for shape in ask.shapes)
        return self.ledger.quote(now).model_copy(update={"shapes": shapes})

    def _shape(self, shape: Shape, ahead: int, start_s: float | None, preempts: str) -> ShapeQuote:
        unmet = self.unmet(shape.unit, shape.requirement)
        warm = self.has_model(shape.model)
        return ShapeQuote(
            fits=not unmet,
            unmet=unmet[:MAX_TOLD],
            warm=warm,
            fetch=0 if warm else shape.size,
            ahead=ahead,
            start_s=start_s,
            preempts=preempts,
        )

    # -- take it, keep it ------------------------------------------------------------------------------------------------

    def _commit(self, peer: PeerId, ask: Commit, epochs: dict[str, int]) -> Message:
        try:
            task = read_task(ask.task)
        except RemoteProtocolError as exc:
            return Denied(reason=Reason.BAD_REQUEST, detail=shorten(exc.what))
        permit = self._permit(peer, ask, task.campaign)
        if isinstance(permit, Denied):
            return permit
        if task.scheduler not in (peer, permit.principal):
            return Denied(reason=Reason.NOT_ALLOWED, detail=f"the task is {task.scheduler}'s, not yours")
        if not verify(peer, task_message(ask.task), ask.signature):
            return Denied(reason=Reason.BAD_REQUEST, detail="the task's signature is not its scheduler's")
        if permit.stranger and may_run_code(task.unit, task.model.name):
            told = shorten(f"{ascii_line(task.model.name)}: {FOR_FRIENDS}")
            # with a clause: it is this task that is refused, not all that this scheduler has
            return Denied(reason=Reason.NOT_ALLOWED, detail=told, unmet=("a model that carries no program",))
        unmet = self.unmet(task.unit, task.requirement)
        longest_s = math.inf if permit.owner else self.longest_s
        if (most_s := most_seconds(task)) > longest_s:
            unmet += (brief(too_long(most_s, longest_s)),)
        if unmet:
            return Denied(reason=Reason.DOES_NOT_FIT, detail=shorten("; ".join(unmet)), unmet=unmet)
        answer = self.ledger.commit(_wanted(peer, permit, ask, task, longest_s), self.now())
        if isinstance(answer, (Granted, Queued)):
            _spoke(epochs, task.campaign, ask.epoch)
            self.ledger.speakers.keep_proof(permit.principal, task.campaign, ask.epoch, ask.proof)
            self.estate.note(task, peer, ask)
        elif isinstance(answer, Denied) and answer.reason is Reason.STALE_EPOCH:
            _spoke(epochs, task.campaign, ask.epoch)
        self.carry_out()
        return answer

    def _renew(self, peer: PeerId, permit: CallPermission, ask: Renew, epochs: dict[str, int]) -> Renewed:
        """Leases that the peer may not speak of any more are lost to it; the others of the same message are kept."""
        refused = self._refusals(peer, permit, ask.held, epochs)
        kept = [item for item in ask.held if item.lease not in refused]
        renewed = self.ledger.renew(peer, kept, self.now())
        self.carry_out()
        lost = tuple(LeaseLost(lease=lease, reason=reason) for lease, reason in refused.items())
        return renewed.model_copy(update={"lost": renewed.lost + lost})

    async def _stop(
        self,
        peer: PeerId,
        permit: CallPermission,
        ask: Cancel | Release,
        reason: Reason,
        epochs: dict[str, int],
    ) -> Stopped | Denied:
        refused = self._refusals(peer, permit, ask.held, epochs)
        if refused:
            lease, why = next(iter(refused.items()))
            return Denied(reason=why, detail=f"lease {lease} is not yours to end; nothing was ended")
        dying = self.ledger.stop(peer, ask.held, reason, self.now())
        self.carry_out()
        for lease in dying:
            await self.dead(lease)
        return Stopped(leases=tuple(item.lease for item in ask.held))

    # -- carry on --------------------------------------------------------------------------------------------------------

    async def _adopt(
        self, peer: PeerId, permit: CallPermission, ask: AdoptRequest, epochs: dict[str, int]
    ) -> AdoptReply | Denied:
        stale = self.ledger.adopt(peer, permit.principal, ask.campaign, ask.epoch, rests=permit.rests)
        _spoke(epochs, ask.campaign, ask.epoch)
        if stale is not None:
            return stale
        self.ledger.speakers.keep_proof(permit.principal, ask.campaign, ask.epoch, ask.proof)
        self.carry_out()
        if ask.cursor == 0:
            await self.estate.hand_over(
                peer,
                permit.principal,
                ask,
                lambda: self.ledger.epoch(permit.principal, ask.campaign) == ask.epoch,
            )
        return self._page(permit.principal, ask)

    def _page(self, principal: str, ask: AdoptRequest | ListLeases) -> AdoptReply:
        """What there is of a campaign from the cursor on. In the order of the fences, which nothing changes: what begins to run or ends
        between two pages is neither told twice nor left out."""
        places = self.ledger.of_campaign(principal, ask.campaign)
        rest = [place for place in places if place.fence.number > ask.cursor]
        page = rest[:MAX_BATCH]
        answer = AdoptReply(
            incarnation=self.ledger.incarnation,
            leases=tuple(self._live(place) for place in page),
            epoch=self.ledger.epoch(principal, ask.campaign),
            proof=self.ledger.speakers.proof(principal, ask.campaign),
            cursor=page[-1].fence.number if len(rest) > len(page) else None,
        )
        return self.estate.page(answer, principal, ask, places)

    def _live(self, place: Allocation) -> LiveLease:
        return LiveLease(
            task=place.wanted.task.task,
            attempt=place.wanted.attempt,
            lease=place.lease,
            fence=place.fence,
            queued=place.state in (LeaseState.QUEUED, LeaseState.OFFERED),
            reporting=place.state in (LeaseState.REPORTING, LeaseState.STOPPING),
            phase=self.phase(place.lease),
        )

    # -- how it stands ---------------------------------------------------------------------------------------------------

    def standing(self, permit: CallPermission | None = None) -> WorkerStatus:
        """How the worker stands, runs before tickets. Others than the owner (None) see their own work, and how much there is in all;
        so does who acts for the owner in some campaigns only."""
        now = self.now()
        turn = {lease: index for index, lease in enumerate(self.ledger.line(now))}
        shown = [
            place
            for place in self.ledger.places()
            if place.state is not LeaseState.REPORTING
            and (permit is None or _sees_all(permit) or _is_of(place, permit))
        ]
        shown.sort(key=lambda place: (turn.get(place.lease, -1), place.fence.number))
        return WorkerStatus(
            incarnation=self.ledger.incarnation,
            state=self.ledger.condition.state,
            why=self.ledger.condition.why,
            jobs=tuple(self._job(place, now) for place in shown[:MAX_BATCH]),
            running=self.ledger.running,
            queue=self.ledger.queue,
            reach=ascii_line(self.reach()) or None,
        )

    def _job(self, place: Allocation, now: float) -> RunningJob:
        wanted = place.wanted
        return RunningJob(
            task=wanted.task.task,
            model=ascii_line(wanted.task.model.name),
            principal=wanted.principal,
            team=ascii_line(wanted.team),
            priority=wanted.own,
            state=str(place.state),
            phase=self.phase(place.lease),
            since_s=max(0.0, now - place.since),
        )


def most_seconds(task: Task) -> float:
    """How long it may hold its place by its own limits."""
    limits = task.timeouts
    return limits.fetch_s + task.measure.loads * limits.load_s + limits.run_s


def too_long(most_s: float, longest_s: float) -> str:
    """Why it is not taken."""
    return (
        f"the task's limits (fetch, loads, run) come to {show_duration(most_s)};"
        f" this device's owner lets others have it for {show_duration(longest_s)} at a time"
    )


def _spoke(epochs: dict[str, int], campaign: str, epoch: int) -> None:
    epochs[campaign] = max(epoch, epochs.pop(campaign, 0))
    while len(epochs) > MAX_SPOKEN:
        del epochs[next(iter(epochs))]


def _sees_all(permit: CallPermission) -> bool:
    return permit.owner and (permit.campaigns is None or Right.CONTROL in permit.rights)


def _is_of(place: Allocation, permit: CallPermission) -> bool:
    return place.wanted.principal == permit.principal and permit.speaks_of(place.wanted.task.campaign) is None


def _wanted(peer: PeerId, permit: CallPermission, ask: Commit, task: Task, longest_s: float) -> SlotRequest:
    return SlotRequest(
        peer=peer,
        principal=permit.principal,
        key=ask.key,
        task=task,
        task_sha256=hashlib.sha256(ask.task).hexdigest(),
        attempt=ask.attempt,
        epoch=ask.epoch,
        priority=ask.priority,
        cap=permit.priority,
        owner=permit.owner,
        stranger=permit.stranger,
        slots=permit.slots,
        team=permit.team,
        preempted=ask.preempted,
        left_s=ask.left_s,
        queue=ask.queue,
        ledger=ask.ledger,
        longest_s=longest_s,
        rests=permit.rests,
    )
