"""Requests from schedulers: checks the permission, the signature and the fit to this device; then the ledger decides. Pure.

Every request is checked for permission on its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from node.capacity.allocations import Allocation, SlotRequest
from node.capacity.ledger import Ledger
from node.conversation.commands import SchedulerLink
from node.conversation.links import LinkTable
from node.conversation.outbox import Outbox, OutboxItem
from protocol.errors import RemoteProtocolError
from protocol.formats.model_files import may_run_code
from protocol.formats.phase import Phase
from protocol.messages import work
from protocol.messages.permission import CallPermission
from protocol.messages.pool import ManifestMessage
from protocol.values.advert import Advert
from protocol.values.lease import Fence, LeaseState
from protocol.values.match import match
from protocol.values.reading import DeviceReading
from protocol.values.requirement import Requirement
from protocol.values.task import Task, read_task, task_message
from protocol.wire.base import Message, brief
from protocol.words import Reason, Right
from results.row.rounds import timed_launches
from swarm.base.event_log import EventLog
from swarm.base.text import ascii_line, shorten
from swarm.base.units import show_duration

MAX_UNMET: Final = 8
"""Unmet clauses listed in the quote for one shape."""
MAX_UNMET_LINES: Final = 32
"""Unmet clauses and other reasons listed in a refusal."""
NO_PROGRAMS: Final = (
    "TorchScript and torch.export models contain programs, which run only for this device's owner and for people"
    " whom the owner admitted; send ONNX, or weights as safetensors"
)
RESULT_CURSOR: Final = 2**52
"""Cursors from here on go through the outbox in the order of the fences. No fence's number comes near this value."""


class ManifestEntry(Protocol):
    """A campaign manifest stored on this worker."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


class ManifestIndex(Protocol):
    """The campaign manifests on this worker, and those that schedulers have named."""

    def of(self, campaign: str, owner: str) -> ManifestEntry | None: ...
    def note(self, campaign: str, owner: str, peer: str, sha256: str, size: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Functions and values that the worker provides to the conversation. None of the functions waits."""

    now: Callable[[], float]
    """Monotonic seconds."""
    wall: Callable[[], float]
    """Seconds since the epoch, for retention over restarts."""
    permit: Callable[[str, Message, str | None], CallPermission | work.Denied]
    """The permission of a peer, if it covers the request (and the campaign, if the request names one); else the refusal."""
    authenticate: Callable[[str, work.ShowCredentials | ManifestMessage], work.CredentialsReply | work.Denied]
    advert: Callable[[], Advert]
    """This worker's own advert, as other nodes see it."""
    has_model: Callable[[str], bool]
    manifests: ManifestIndex
    sign: Callable[[bytes], bytes]
    verify: Callable[[str, bytes, bytes], bool]
    """Whether (peer, message, signature) belong together."""
    log: EventLog
    max_duration_s: float = math.inf
    """The longest that a task of anyone but the owner may take by its own limits, and may wait in the queue."""
    reach: Callable[[], str] = str
    """How other nodes reach this node, in words."""
    read_task: Callable[[bytes], Task] = read_task
    reading: Callable[[], DeviceReading | None] = lambda: None
    """The latest reading of the device's sensors, while a task runs."""


@dataclass(frozen=True)
class RequestHandlers:
    """The replies that depend only on the state of this worker."""

    context: WorkerContext
    ledger: Ledger
    links: LinkTable
    outbox: Outbox
    phase: Callable[[str], Phase | None]
    """The phase of a lease's run; None: it does not run here."""

    def permit(
        self, peer: str, message: Message, campaign: str | None = None
    ) -> CallPermission | work.Denied:
        """The peer's permission for the request, or the refusal."""
        permission = self.context.permit(peer, message, campaign)
        if isinstance(permission, work.Denied):
            self.context.log.info(
                "request.refused", request=type(message).__name__, peer=peer, why=permission.detail
            )
        return permission

    def refusals(
        self,
        link: SchedulerLink,
        permission: CallPermission,
        held: Sequence[work.HeldLease],
        *,
        to_end: bool = False,
    ) -> dict[str, Reason]:
        """The leases that the peer may not speak for over this link, with the reasons."""
        return self.ledger.refusals(
            link.peer,
            permission.principal,
            held,
            self.links.epochs(link),
            lambda campaign: permission.speaks_of(campaign) is None,
            to_end=to_end,
        )

    # -- quotes ----------------------------------------------------------------------------------------------------------

    def unmet(self, requirement: Requirement, *units: str) -> tuple[str, ...]:
        """Why this device does not fit, clause by clause; empty: it fits. `units`: all units that the task needs."""
        advert = self.context.advert()
        working = [offer.unit for offer in advert.units]
        has = ", ".join(working) or "no working unit"
        lines = [
            brief(f"unit {unit}: this device has {has}")
            for unit in dict.fromkeys(units)
            if unit not in working
        ]
        lines += [str(item) for item in match(requirement, advert).missing]
        return tuple(lines[:MAX_UNMET_LINES])

    def quote(self, permission: CallPermission, request: work.Probe) -> work.Quote:
        now = self.context.now()
        outlooks = {
            priority: self.ledger.estimate_wait(
                permission.principal,
                min(priority, permission.priority),
                permission.owner,
                now,
                sees_all=_sees_all(permission),
            )
            for priority in {shape.priority for shape in request.shapes}
        }
        shapes = tuple(self._shape(shape, *outlooks[shape.priority]) for shape in request.shapes)
        return self.ledger.quote(now).model_copy(update={"shapes": shapes})

    def _shape(self, shape: work.Shape, ahead: int, start_s: float | None, preempts: str) -> work.ShapeQuote:
        unmet = self.unmet(shape.requirement, shape.unit)
        warm = self.context.has_model(shape.model)
        return work.ShapeQuote(
            fits=not unmet,
            unmet=unmet[:MAX_UNMET],
            warm=warm,
            fetch=0 if warm else shape.size,
            ahead=ahead,
            start_s=start_s,
            preempts=preempts,
        )

    # -- commit and renew ------------------------------------------------------------------------------------------------

    def commit(self, link: SchedulerLink, request: work.Commit) -> Message:
        """Accept an attempt of a task if the task is the peer's, signed, permitted, and fits this device."""
        peer = link.peer
        try:
            task = self.context.read_task(request.task)
        except RemoteProtocolError as exc:
            return work.Denied(reason=Reason.BAD_REQUEST, detail=shorten(exc.what))
        permission = self.permit(peer, request, task.campaign)
        if isinstance(permission, work.Denied):
            return permission
        if task.scheduler not in (peer, permission.principal):
            return work.Denied(reason=Reason.NOT_ALLOWED, detail=f"the task is {task.scheduler}'s, not yours")
        if not self.context.verify(peer, task_message(request.task), request.signature):
            return work.Denied(
                reason=Reason.BAD_REQUEST, detail="the task is not signed by the peer that committed it"
            )
        placed = zip(task.models(), task.units(), strict=True)
        programs = [model.name for model, unit in placed if may_run_code(unit, model.name)]
        if permission.stranger and programs:
            why = shorten(f"{ascii_line(programs[0])}: {NO_PROGRAMS}")
            # an unmet clause says that this task alone is refused, not all tasks of the scheduler
            return work.Denied(
                reason=Reason.NOT_ALLOWED, detail=why, unmet=("a model that carries no program",)
            )
        unmet = self.unmet(task.requirement, *task.units())
        max_s = math.inf if permission.owner else self.context.max_duration_s
        if (task_s := max_seconds(task)) > max_s:
            limit = f"this device's owner lets others use it for {show_duration(max_s)} at a time"
            line = brief(f"the task's limits (fetch, loads, run) add up to {show_duration(task_s)}; {limit}")
            unmet = (*unmet[: MAX_UNMET_LINES - 1], line)
        if unmet:
            return work.Denied(reason=Reason.DOES_NOT_FIT, detail=shorten("; ".join(unmet)), unmet=unmet)
        task_sha256 = hashlib.sha256(request.task).hexdigest()
        slot_request = SlotRequest(peer, permission, request, task, task_sha256, max_s)
        reply = self.ledger.commit(slot_request, self.context.now())
        if isinstance(reply, (work.Granted, work.Queued)):
            self.links.set_epoch(link, task.campaign, request.epoch)
            self.ledger.leaders.set_proof(permission.principal, task.campaign, request.epoch, request.proof)
            if request.manifest is not None:
                self.context.manifests.note(
                    task.campaign, task.scheduler, peer, request.manifest, request.manifest_size
                )
        elif isinstance(reply, work.Denied) and reply.reason is Reason.STALE_EPOCH:
            self.links.set_epoch(link, task.campaign, request.epoch)
        return reply

    def renew(self, link: SchedulerLink, permission: CallPermission, request: work.Renew) -> work.Renewed:
        """Renew leases. The peer loses those that it may no longer speak for; the other leases of the same message are renewed."""
        refused = self.refusals(link, permission, request.held)
        rest = [item for item in request.held if item.lease not in refused]
        renewed = self.ledger.renew(link.peer, rest, self.context.now())
        lost = tuple(work.LeaseLost(lease=lease, reason=reason) for lease, reason in refused.items())
        return renewed.model_copy(update={"lost": renewed.lost + lost})

    # -- adoption --------------------------------------------------------------------------------------------------------

    def adopt(
        self, link: SchedulerLink, permission: CallPermission, request: work.AdoptRequest
    ) -> work.Denied | None:
        """Let the peer alone speak for the campaign from now on, and refuse lower epochs. Returns the refusal if the peer may not adopt."""
        now = self.context.now()
        stale = self.ledger.adopt(
            link.peer,
            permission.principal,
            request.campaign,
            request.epoch,
            now,
            backing_token=permission.backing_token,
        )
        self.links.set_epoch(link, request.campaign, request.epoch)
        if stale is None:
            self.ledger.leaders.set_proof(
                permission.principal, request.campaign, request.epoch, request.proof
            )
        return stale

    def page(self, principal: str, request: work.AdoptRequest | work.ListLeases) -> work.AdoptReply:
        """The leases of a campaign from the cursor on, then the results of ended leases.

        Both follow the order of the fences, which never changes: a run that begins or ends between two pages is listed once.
        """
        campaign, cursor = request.campaign, request.cursor
        allocations = self.ledger.of_campaign(principal, campaign)
        entries = [
            (at, self._live(allocation))
            for allocation in allocations
            if (at := allocation.fence.number) > cursor
        ]
        held = {allocation.lease for allocation in allocations}
        results = [
            (at, _ended_lease(item, settled))
            for item, settled in self.outbox.of(campaign, principal)
            if item.lease not in held and (at := _result_cursor(item.fence)) > cursor
        ]
        entries += sorted(results, key=lambda entry: entry[0])
        page = entries[: work.MAX_BATCH]
        manifest = self.context.manifests.of(campaign, principal)
        return work.AdoptReply(
            incarnation=self.ledger.incarnation,
            leases=tuple(lease for _, lease in page),
            epoch=self.ledger.epoch(principal, campaign),
            proof=self.ledger.leaders.proof(principal, campaign),
            manifest=manifest.sha256 if manifest is not None else None,
            manifest_size=manifest.size if manifest is not None else 0,
            cursor=page[-1][0] if len(entries) > len(page) else None,
        )

    def _live(self, allocation: Allocation) -> work.LiveLease:
        return work.LiveLease(
            task=allocation.request.task.task,
            attempt=allocation.request.commit.attempt,
            lease=allocation.lease,
            fence=allocation.fence,
            queued=allocation.state in (LeaseState.QUEUED, LeaseState.OFFERED),
            reporting=allocation.state in (LeaseState.REPORTING, LeaseState.STOPPING),
            phase=self.phase(allocation.lease),
        )

    # -- status ----------------------------------------------------------------------------------------------------------

    def status(self, permission: CallPermission | None = None) -> work.WorkerStatus:
        """The worker's status, runs before queued leases. The owner (None) sees everything. All others, including a peer that acts for the
        owner in some campaigns only, see their own work and the totals."""
        ledger, now = self.ledger, self.context.now()
        position = {lease: index for index, lease in enumerate(ledger.queue_order(now))}
        shown = [
            allocation
            for allocation in ledger.allocations()
            if allocation.state is not LeaseState.REPORTING
            and (permission is None or _sees_all(permission) or _is_of(allocation, permission))
        ]
        shown.sort(key=lambda one: (position.get(one.lease, -1), one.fence.number))
        return work.WorkerStatus(
            incarnation=ledger.incarnation,
            state=ledger.condition.state,
            why=ledger.condition.why,
            jobs=tuple(self._job(allocation, now) for allocation in shown[: work.MAX_BATCH]),
            running=ledger.running,
            queue=ledger.queue,
            reach=ascii_line(self.context.reach()) or None,
            reading=self.context.reading() if permission is None or _sees_all(permission) else None,
        )

    def _job(self, allocation: Allocation, now: float) -> work.RunningJob:
        request = allocation.request
        return work.RunningJob(
            task=request.task.task,
            model=ascii_line(request.task.model.name),
            principal=request.principal,
            team=ascii_line(request.permission.team),
            priority=request.base_priority,
            state=str(allocation.state),
            phase=self.phase(allocation.lease),
            since_s=max(0.0, now - allocation.committed_at),
        )


def max_seconds(task: Task) -> float:
    """How long a task may hold its slot by its own limits."""
    limits = task.timeouts
    return limits.fetch_s + timed_launches(task) * limits.load_s + limits.run_s


def _ended_lease(item: OutboxItem, settled: bool) -> work.LiveLease:
    return work.LiveLease(
        task=item.task,
        attempt=item.attempt,
        lease=item.lease,
        fence=item.fence,
        reporting=not settled,
        settled=settled,
    )


def _result_cursor(fence: Fence) -> int:
    """A result's position in the pages. Fences are never reused, so results that come or go meanwhile move no other."""
    return RESULT_CURSOR + (min(fence.incarnation, 2**22 - 1) << 30) + min(fence.number, 2**30 - 1)


def _sees_all(permission: CallPermission) -> bool:
    return permission.owner and (permission.campaigns is None or Right.CONTROL in permission.rights)


def _is_of(allocation: Allocation, permission: CallPermission) -> bool:
    request = allocation.request
    return request.principal == permission.principal and permission.speaks_of(request.task.campaign) is None
