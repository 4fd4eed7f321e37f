"""The worker's logic between its links, ledger, disk and runs. Pure: the trio service and the seeded simulation are shells around it.

    received, connected, disconnected        links        SendReply, SendCall, SendNote, DropLink
    commands.answered                        calls        the flows that yielded them go on
    commands.disk_done                       disk         WriteRecord, WriteHead, ReadRecord, SettleRecords
    report_progress, set_timing,             runs         RunCommand, KillCommand
    processes_ended, finish_run
    run_timers                               time         next_deadline

After every input the shell takes the commands and carries them out. Promises to a scheduler:

* A result is sent only once it is on disk (or in memory, if the disk does not take it), and again until the scheduler answers.
* `Stopped` is sent only once the processes of the runs are dead.
* `AdoptReply` is sent only once the campaign's results are redirected to the adopter on disk too.
* A restart is a new incarnation: leases of an earlier incarnation are lost, their results are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from node.capacity.allocations import (
    Allocation,
    CampaignKey,
    KillCommand,
    OfferCommand,
    RunCommand,
    WarnCommand,
)
from node.capacity.ledger import Ledger
from node.conversation.commands import (
    Commands,
    ControlDevice,
    DropLink,
    Flow,
    ForgetFiles,
    RevealRun,
    SchedulerLink,
    SendCall,
    SendNote,
    SendReply,
    SettleRecords,
    WriteHead,
    WriteRecord,
)
from node.conversation.delivery import ResultDelivery
from node.conversation.forgetting import why_not_forgotten
from node.conversation.links import LinkTable
from node.conversation.outbox import Outbox, OutboxItem
from node.conversation.requests import RequestHandlers, WorkerContext
from protocol.errors import RemoteProtocolError
from protocol.formats.phase import Phase
from protocol.messages.forget import Forget
from protocol.messages.permission import CallPermission
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import (
    AdoptRequest,
    Cancel,
    Commit,
    Control,
    Denied,
    LaunchEnded,
    ListLeases,
    Preempt,
    Probe,
    Progress,
    Ready,
    Release,
    Renew,
    Reveal,
    RevealRequest,
    ShowCredentials,
    Skip,
    Start,
    StatusRequest,
    Stopped,
)
from protocol.values.reading import DeviceReading
from protocol.values.record import Record, record_body, record_message
from protocol.wire.base import Message
from protocol.words import Reason

REQUESTS: Final = (
    Probe,
    Commit,
    Renew,
    Cancel,
    Release,
    AdoptRequest,
    ListLeases,
    Control,
    StatusRequest,
    Forget,
)
"""Requests answered for permitted callers. `ShowCredentials` and `ManifestMessage`, which prove permission, are accepted from anybody."""
OFFER_S: Final = 5.0
"""Seconds within which a scheduler must answer an offer with Start or Skip; after that it counts as gone."""
REVEAL_S: Final = 5.0
"""Seconds to wait for the answer to one request for a reveal, before the worker asks again."""
LINK_WAIT_S: Final = 1.0
"""Seconds that an offer waits for a new link if none of the existing links may carry it."""


@dataclass(slots=True, eq=False)
class _Run:
    """A run of this process that is not reported yet."""

    allocation: Allocation
    progress: Progress | None = None
    """The latest progress."""
    seq: int = 0
    alive: bool = True
    """Whether its processes may be alive."""
    revealed: Literal[True] | None = None
    """Whether its inputs were revealed."""
    holds: bool = True
    """Whether it holds the device, as far as is known: it does not in a gap between its launches."""

    @property
    def phase(self) -> Phase:
        return Phase.QUEUED if self.progress is None else self.progress.phase


@dataclass(slots=True, eq=False)
class _Stop:
    """A request that is answered once the runs in `dying` are dead."""

    request: object
    message: Cancel | Release
    dying: set[str]


class WorkerConversation:
    """Decides what this worker answers, sends, stores and runs."""

    def __init__(self, ledger: Ledger, outbox: Outbox, context: WorkerContext) -> None:
        self.ledger = ledger
        self.outbox = outbox
        self.commands = Commands()
        self.links = LinkTable(ledger.epoch)
        self.requests = RequestHandlers(context, ledger, self.links, outbox, self.phase)
        self.delivery = ResultDelivery(
            self.commands,
            self.links,
            outbox,
            context.now,
            settled=lambda item: ledger.acknowledge(item.lease),
            unreachable=self.disconnected,
            log=context.log,
        )
        self._context = context
        self._now = context.now
        self._runs: dict[str, _Run] = {}
        self._storing = 0
        self._stops: list[_Stop] = []

    # -- links -----------------------------------------------------------------------------------------------------------

    def connected(self, link: SchedulerLink) -> None:
        """A permitted scheduler opened a link: deliver the results that wait for it."""
        self.links.add(link)
        self.ledger.link_up(link.peer, self._now())
        self.carry_out()
        self.delivery.start(link)

    def disconnected(self, link: SchedulerLink) -> None:
        """A link is gone, or no longer of use. A repeated call changes nothing."""
        if self.links.remove(link):
            self.delivery.stop(link)
            self.ledger.link_down(link.peer, self._now())
            self.carry_out()

    def received(self, link: SchedulerLink, message: Message, request: object) -> None:
        """Answer a scheduler. `SendReply` carries the token `request`. Raises `RemoteProtocolError` for a message no scheduler may send."""
        reply = self._reply(link, message, request)
        self.carry_out()
        if reply is not None:
            self.commands.emit(SendReply(request, reply))

    def _reply(self, link: SchedulerLink, message: Message, request: object) -> Message | None:
        """The reply; None: the reply is sent later."""
        if isinstance(message, (ShowCredentials, ManifestMessage)):
            return self._context.authenticate(link.peer, message)
        if not isinstance(message, REQUESTS):
            raise RemoteProtocolError(f"a scheduler does not send {type(message).__name__}")
        permission = self.requests.permit(link.peer, message)
        if isinstance(permission, Denied):
            return permission
        match message:
            case Probe():
                self.ledger.expire(self._now())
                self.carry_out()
                return self.requests.quote(permission, message)
            case Commit():
                return self.requests.commit(link, message)
            case Renew():
                return self.requests.renew(link, permission, message)
            case Cancel() | Release():
                return self._stop(link, permission, message, request)
            case AdoptRequest():
                return self._adopt(link, permission, message, request)
            case ListLeases():
                return self.requests.page(permission.principal, message)
            case Control():
                self.commands.emit(ControlDevice(request, message))
                return None
            case StatusRequest():
                return self.requests.status(permission)
            case Forget():
                return self._forget(link, permission, message, request)

    def _stop(
        self, link: SchedulerLink, permission: CallPermission, message: Cancel | Release, request: object
    ) -> Message | None:
        for lease, why in self.requests.refusals(link, permission, message.held, to_end=True).items():
            return Denied(reason=why, detail=f"lease {lease} is not yours to end; nothing was ended")
        reason = message.reason if isinstance(message, Cancel) else Reason.CANCELLED
        stopping = self.ledger.stop(link.peer, message.held, reason, self._now())
        dying = {lease for lease in stopping if lease in self._runs and self._runs[lease].alive}
        if dying:
            self._stops.append(_Stop(request, message, dying))
            return None
        return _stopped(message)

    def _adopt(
        self, link: SchedulerLink, permission: CallPermission, message: AdoptRequest, request: object
    ) -> Message | None:
        """Redirect the campaign's results to the adopter for as long as it speaks for the campaign, then answer it."""
        if stale := self.requests.adopt(link, permission, message):
            return stale
        principal = permission.principal
        records = self.outbox.of(message.campaign, principal) if message.cursor == 0 else []
        to_adopter = {"peer": link.peer, "owner": principal}
        fresh = [(item.model_copy(update=to_adopter), item, settled) for item, settled in records]
        items = [  # a record that already waits for this adopter costs no write
            new for new, old, settled in fresh if (message.again and settled) or (not settled and new != old)
        ]
        self.delivery.outbox_changed()
        self.commands.start(self._hand_over(items, principal, message, request))
        return None

    def _hand_over(
        self, items: Sequence[OutboxItem], principal: str, message: AdoptRequest, request: object
    ) -> Flow[None]:
        for item in items:
            if self.ledger.epoch(principal, message.campaign) != message.epoch:
                break
            if error := (yield from self._redirect(item)):  # the adopter will ask again
                self._context.log.warning("results.not_handed_over", campaign=message.campaign, why=error)
                break
        self.commands.emit(SendReply(request, self.requests.page(principal, message)))

    def _redirect(self, item: OutboxItem) -> Flow[str]:
        """Make a stored record wait for `item.peer` from now on. Returns the error, empty: none."""
        error = ""
        if self.outbox.in_memory(item.sha256) is None:
            _, error = yield WriteHead(item)
        if not error:
            self._put(item)
        return error

    def _forget(
        self, link: SchedulerLink, permission: CallPermission, message: Forget, request: object
    ) -> Message | None:
        """Remove all records and files of the campaign, then answer the request."""
        key = (permission.principal, message.campaign)
        if refused := why_not_forgotten(self.ledger, self.outbox, link.peer, permission.principal, message):
            return refused
        dropped, on_disk = self.outbox.drop(message.campaign, permission.principal)
        for item in dropped:
            self.ledger.acknowledge(item.lease)
        self._context.log.info("campaign.forgotten", campaign=message.campaign, records=len(dropped))
        self.commands.start(self._remove_files(request, *key, records=len(dropped), on_disk=on_disk))
        return None

    def _remove_files(
        self, request: object, principal: str, campaign: str, *, records: int, on_disk: tuple[str, ...]
    ) -> Flow[None]:
        if on_disk:
            yield SettleRecords(removed=on_disk)
        self.commands.emit(ForgetFiles(request, principal, campaign, records))

    def _put(self, item: OutboxItem) -> None:
        self.outbox.put(item)
        self.delivery.outbox_changed()

    # -- carrying out ----------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Carry out the ledger's commands. Call this after each change of the ledger."""
        if not self.ledger.condition.serves_queue:
            self.ledger.close_queue()
        while orders := self.ledger.take_commands():
            for order in orders:
                match order:
                    case RunCommand():
                        self._begin_run(order)
                    case OfferCommand():
                        self.commands.start(self._offer(order.lease))
                    case KillCommand():
                        self.commands.emit(order)
                    case WarnCommand(peer, campaign_key, note):
                        self._send_note(peer, campaign_key, note)

    def _offer(self, lease: str) -> Flow[None]:
        """Ask the scheduler of a queued lease whether the lease should start."""
        allocation = self.ledger.allocation(lease)
        if allocation is None:
            return
        peer, about = allocation.peer, allocation.request.campaign_key
        link = self.links.best(peer, about)
        may_go_unanswered = link is not None
        if link is None and self.links.of(
            peer
        ):  # the links are another machine's: wait a little, or the offer would be repeated at once
            yield self._now() + LINK_WAIT_S
            link = self.links.best(allocation.peer, about)
        reply: Message | None = None
        if link is not None:
            reply = yield SendCall(link, Ready(lease=lease, fence=allocation.fence), OFFER_S)
            if not isinstance(reply, (Start, Skip)):
                self._context.log.info("offer.unanswered", peer=link.peer, lease=lease)
                self.disconnected(link)
                self.commands.emit(DropLink(link))
        match reply:
            case Start():
                self.ledger.start(lease, self._now())
            case Skip():
                self.ledger.skip(lease, self._now())
            case _:
                self.ledger.defer(lease, self._now(), unanswered=may_go_unanswered)
        self.carry_out()

    def _send_note(self, peer: str, about: CampaignKey, note: Progress | LaunchEnded | Preempt) -> None:
        link = self.links.best(peer, about)
        if link is not None:
            self.commands.emit(SendNote(link, note))

    # -- time ------------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `run_timers` next has work to do."""
        times = (self.ledger.next_deadline(), self.commands.next_timer())
        return min((time for time in times if time is not None), default=None)

    def run_timers(self) -> None:
        """Let leases lapse that were not renewed, and continue flows whose time has come."""
        now = self._now()
        deadline = self.ledger.next_deadline()
        if deadline is not None and deadline <= now:
            self.ledger.expire(now)
            self.carry_out()
        self.commands.run_timers(now)

    # -- runs ------------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a task runs, or a result is not on disk yet."""
        return bool(self._runs) or self._storing > 0

    def phase(self, lease: str) -> Phase | None:
        """The phase of a lease's run; None: it does not run here."""
        run = self._runs.get(lease)
        return run.phase if run is not None else None

    def _begin_run(self, order: RunCommand) -> None:
        allocation = self.ledger.allocation(order.lease)
        assert allocation is not None, "the ledger ordered a run of a lease it does not hold"
        allocation.began_at = self._now()
        self._runs[order.lease] = _Run(allocation)
        self.ledger.condition.begin()
        self.commands.emit(order)

    def report_progress(
        self,
        lease: str,
        phase: Phase,
        done: int = 0,
        total: int | None = None,
        median_ms: float | None = None,
    ) -> None:
        """A run reached a phase, or progressed within it. Raises `ValidationError` for values that no message can hold."""
        run = self._runs[lease]
        run.seq += 1
        note = Progress(
            lease=lease,
            fence=run.allocation.fence,
            seq=run.seq,
            phase=phase,
            done=done,
            total=total,
            median_ms=median_ms,
        )
        run.progress = note
        self._send_note(run.allocation.peer, run.allocation.request.campaign_key, note)

    def report_reading(self, reading: DeviceReading) -> None:
        """Send `reading` to the schedulers of running tasks, but not to strangers, and not while other programs may have the device."""
        for run in self._runs.values():
            request = run.allocation.request
            if run.progress is None or run.phase is Phase.QUEUED or not (run.alive and run.holds):
                continue
            if request.permission.stranger:
                continue
            run.seq += 1
            note = run.progress.model_copy(update={"seq": run.seq, "reading": reading})
            self._send_note(run.allocation.peer, request.campaign_key, note)

    def ask_reveal(self, lease: str) -> None:
        """A witnessed run waits only for its inputs: `RevealRun` follows, unless the run ends first."""
        self.commands.start(self._ask_reveal(self._runs[lease]))

    def _ask_reveal(self, run: _Run) -> Flow[None]:
        allocation = run.allocation
        while self._runs.get(allocation.lease) is run:
            link = self.links.best(allocation.peer, allocation.request.campaign_key)
            if link is not None:
                request = RevealRequest(lease=allocation.lease, fence=allocation.fence, again=run.revealed)
                reply = yield SendCall(link, request, REVEAL_S)
                later = isinstance(reply, Denied) and reply.retry_s is not None
                if isinstance(reply, Reveal):
                    run.revealed = True
                if isinstance(reply, (Reveal, Denied)) and not later:
                    self.commands.emit(RevealRun(allocation.lease, reply))
                    return
            yield self._now() + LINK_WAIT_S

    def report_launch(self, lease: str, launch: int, digest: str) -> None:
        """A launch of a witnessed run has finished its inferences."""
        run = self._runs[lease]
        note = LaunchEnded(lease=lease, fence=run.allocation.fence, launch=launch, digest=digest)
        self._send_note(run.allocation.peer, run.allocation.request.campaign_key, note)

    def set_timing(self, lease: str, timed: bool) -> None:
        self.ledger.timing(lease, timed, self._now())
        self.carry_out()

    def set_holding(self, lease: str, held: bool) -> None:
        """Note whether a run holds the device, or other programs may have it."""
        self._runs[lease].holds = held

    def yield_between_launches(self, lease: str) -> None:
        """A launch of a run is over, and the next has not begun. `KillCommand` follows if a higher priority waits for the run's slot."""
        self.ledger.between_launches(lease, self._now())
        self.carry_out()

    def processes_ended(self, lease: str, record: Record) -> None:
        """The processes of a run are dead. `finish_run` must follow before another run begins on the device."""
        self._runs[lease].alive = False
        self.ledger.condition.end(record.outcome, record.reason, record.permanent, record.model_sha256)
        for stop in tuple(self._stops):
            stop.dying.discard(lease)
            if not stop.dying:
                self._stops.remove(stop)
                self.commands.emit(SendReply(stop.request, _stopped(stop.message)))

    def finish_run(self, lease: str, record: Record) -> None:
        """The device is free again: store the run's result on disk, then send it to the scheduler."""
        run = self._runs.pop(lease)
        self.ledger.finish(lease, self._now())
        self._store(run.allocation, record)
        self.carry_out()

    def _store(self, allocation: Allocation, record: Record) -> None:
        body = record_body(record)
        item = OutboxItem(
            peer=allocation.peer,
            owner=allocation.request.principal,
            campaign=record.campaign,
            task=record.task,
            attempt=record.attempt,
            lease=allocation.lease,
            fence=record.fence,
            sha256=hashlib.sha256(body).hexdigest(),
            size=len(body),
            signature=self._context.sign(record_message(body)),
            stored=self._context.wall(),
        )
        for old in self.outbox.make_room(item):
            self._context.log.warning(
                "result.given_up", task=old.task, attempt=old.attempt, scheduler=old.peer
            )
            settled, removed = self.outbox.settle(old.sha256)
            self.commands.to_disk(SettleRecords(settled, removed))
            self.ledger.acknowledge(old.lease)
        self._storing += 1
        self.commands.start(self._stored(allocation, item, body))

    def _stored(self, allocation: Allocation, item: OutboxItem, body: bytes) -> Flow[None]:
        """Store a record on disk, or in memory if the disk fails. It then waits for the scheduler that leads the campaign by now."""
        log = self._context.log
        _, error = yield WriteRecord(item, body)
        if error:
            self.commands.to_disk(SettleRecords(removed=(item.sha256,)))
        if error and not self.outbox.put_in_memory(item, body):
            log.warning("result.lost", task=item.task, attempt=item.attempt, why=error)
            self.ledger.acknowledge(item.lease)
        else:
            if error:
                log.warning("result.in_memory", task=item.task, why=error)
            while allocation.peer != item.peer:  # the campaign was adopted meanwhile
                fresh = item.model_copy(update={"peer": allocation.peer})
                if error := (yield from self._redirect(fresh)):
                    log.warning("results.not_handed_over", campaign=item.campaign, why=error)
                    break
                item = fresh
            self._put(item)
        self._storing -= 1
        self.ledger.condition.clean()
        self.carry_out()


def _stopped(message: Cancel | Release) -> Stopped:
    return Stopped(leases=tuple(item.lease for item in message.held))
