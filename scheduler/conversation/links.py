"""One kept link to each worker: probe and commit over it, renew every 5 s, reconnect at once when it breaks.

A link through a gate moves to a direct connection, with its leases, as soon as there is one. After a break the scheduler tries to reconnect
each second, and adopts the worker's leases again: leases known to both go on. Leases count as lost `SILENT_S` after the last answered
renewal was *sent*, so this side gives up before the worker's own clock does. Time for which this process itself stood still does not count:
results that the worker finished meanwhile wait there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from protocol.errors import ProtocolError, RemoteProtocolError, Unreachable
from protocol.messages.work import (
    AdoptReply,
    AdoptRequest,
    Commit,
    Conflict,
    Denied,
    Granted,
    Queued,
    Renew,
    Renewed,
)
from protocol.values.lease import LEASE_TTL_S, RENEW_EVERY_S
from protocol.words import Reason
from scheduler.conversation import requests
from scheduler.conversation.claims import Claims, Rival, RivalKind
from scheduler.conversation.effects import (
    Connect,
    Drop,
    Introduce,
    LinkHandle,
    SleepUntil,
    WaitClosed,
    WaitFor,
)
from scheduler.conversation.requests import shapes_of
from scheduler.core.commands import CancelOn, Command, CommitTo, RecordGrant, ReleaseOn
from scheduler.core.entries import STOP_AGAIN_S
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.words import COPIED, ELSEWHERE
from swarm.base.event_log import EventLog

CONNECT_S: Final = 3.0
GONE_S: Final = 2.0
"""Seconds of a broken link and refused connections that mean the end of the worker's process. Its fences cover an error here."""
SILENT_S: Final = LEASE_TTL_S - 1.0
"""Seconds without an answer after which a worker counts as lost; this is before the worker's own clock ends the leases."""
ADOPT_S: Final = SILENT_S
"""Seconds within which a worker must report what it holds; otherwise it counts as not answering."""
RETRY_S: Final = 1.0
"""Seconds between two attempts to reach a worker that has leases of ours."""
LATER_S: Final = 5.0
"""Seconds between two attempts to reach a worker that was given up."""
ORPHANED_S: Final = 120.0
"""Seconds for which the scheduler still tries to reach a worker that was given up: its remaining runs are not needed, and other tasks wait
for the slot.
"""
SETTLE_S: Final = 2.0
"""Seconds for which an event from a worker waits for that worker's answer to a commit."""
STOOD_STILL_S: Final = 2.0
"""A pause of this many seconds means that this process stood still, and could hear nobody."""
RESULTS_FIRST_S: Final = 0.25
"""A worker sends the results in its outbox as soon as a link is up. The scheduler accepts them before it asks what the worker still holds,
since they would be stale after that answer.
"""


class Shell(Protocol):
    """What the conversation requests of its shell without waiting."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def start(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a procedure concurrently with the others."""
        ...

    def wake(self) -> None:
        """Something happened for which a `WaitFor` may wait."""
        ...

    def peek(self, peer: str) -> LinkHandle | None:
        """The live link to a worker, if any."""
        ...

    def is_needlessly_relayed(self, link: LinkHandle) -> bool:
        """Whether a link goes through a gate although there is now a direct connection."""
        ...

    def reached(self, peer: str, /) -> None:
        """A worker answered at its known addresses."""
        ...


@dataclass(slots=True)
class WorkerLink:
    """The link to one worker. Instants are monotonic seconds."""

    heard_at: float
    """When the last answered renewal was sent, plus the time for which this process has stood still since."""
    trouble: str = "no answer"
    """Why nothing has been heard since, as far as known."""
    refused_since: float | None = None
    """Instant since which the worker's machine has refused every connection; None: the last attempt ended otherwise."""
    tried_at: float = -math.inf
    asked_at: float = -math.inf
    """Instant at which the worker was last asked to stop runs whose stop it has not confirmed."""
    adopted: LinkHandle | None = None
    """The link over which its leases were adopted."""
    orphaned_campaigns: tuple[str, ...] = ()
    """Campaigns of which the worker held something when it was given up, kept until it is linked again or `orphaned_until`."""
    orphaned_until: float = 0.0
    unadopted: bool = False
    """Whether a campaign was restored since, of which the worker holds something according to the store."""
    committing: int = 0
    """Number of commits without an answer yet."""
    keeper: object | None = None
    """Identifies the procedures that keep the link; None: this worker holds nothing of ours."""


@dataclass(eq=False)
class WorkerLinks:
    """All links to workers. Workers' messages go into the core; the commands that follow go to `carry_out`."""

    _core: SchedulerCore
    _shell: Shell
    _claims: Claims
    _log: EventLog
    _carry_out: Callable[[Sequence[Command]], None]

    def __post_init__(self) -> None:
        self._links: dict[str, WorkerLink] = {}
        self._beat_at = self._shell.now()

    def beat(self, now: float) -> None:
        """Time passed. Call it a few times each second. While this process stood still, no worker counts as silent."""
        stood_s, self._beat_at = now - self._beat_at, now
        if stood_s < STOOD_STILL_S:
            return
        self._log.warning("scheduler.stood-still", seconds=round(stood_s, 1))
        for link in self._links.values():
            link.heard_at = min(now, link.heard_at + stood_s)

    def adopt_at_worker(self, peer: str) -> None:
        """The store says that this worker holds something of a campaign that was just restored. Another machine may have led the campaign,
        so its leases are adopted before they are renewed, even over an existing link.
        """
        self._of(peer).unadopted = True
        self._keep_up(peer)

    def tell_owed(self) -> None:
        """Reach the workers that have not confirmed a stop yet, and ask them again to stop."""
        for peer in self._core.state.stops.workers():
            self._keep_up(peer)

    async def wait_for_commits(self, peer: str) -> None:
        """Wait until no answer to a commit is on its way from this worker: it may name a lease that is not known yet."""
        link = self._of(peer)
        await WaitFor(lambda: not link.committing, self._shell.now() + SETTLE_S)

    def has_pending_commit(self, peer: str) -> bool:
        """Whether an answer to a commit is on its way from this worker."""
        return self._of(peer).committing > 0

    @property
    def committing(self) -> bool:
        """Whether any answer to a commit is on its way: it may name a run that is to be stopped."""
        return any(link.committing for link in self._links.values())

    def _of(self, peer: str) -> WorkerLink:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = WorkerLink(heard_at=self._shell.now())
        return link

    def _keep_up(self, peer: str) -> None:
        """Keep this worker's link while it holds anything of ours."""
        link = self._of(peer)
        if link.keeper is None:
            link.keeper = keeper = object()
            link.heard_at = self._shell.now()
            self._shell.start(self._watch_silence(peer, link, keeper))
            self._shell.start(self._keep(peer, link))

    async def connect(self, peer: str) -> LinkHandle:
        """The link to a worker, kept from now on while the worker holds anything of ours. Fails with `Unreachable`."""
        handle = await Connect(peer)
        self._keep_up(peer)
        return handle

    # -- requests -----------------------------------------------------------------------------------------------------------------------

    async def probe(self, peer: str) -> None:
        """Request a quote for the waiting tasks that this worker fits."""
        core = self._core
        tasks = core.tasks_to_probe(peer)
        if not tasks:
            core.state.worker(peer).probing = False
            return
        campaign = tasks[0].campaign
        shapes = shapes_of(tasks, core.state.priority_of)
        try:
            handle = await self.connect(peer)
            answer = await requests.probe(handle, campaign, shapes)
        except (
            Unreachable,
            ProtocolError,
        ) as exc:  # also our own error: a requirement may be too large for any frame
            await Drop(peer)
            self._carry_out(core.workers.mark_unreachable(peer, exc.what, self._shell.now()))
            return
        self._shell.reached(peer)
        now = self._shell.now()
        if isinstance(answer, Denied):
            self._carry_out(core.workers.refuse(peer, answer, now))
        else:
            self._carry_out(core.workers.add_quote(peer, answer, now, shapes))

    async def commit(self, command: CommitTo, message: Commit) -> None:
        """Ask a worker to take an attempt. Without an answer, repeat this with the same key for a lease's time."""
        link = self._of(command.peer)
        link.committing += 1
        try:
            await self._commit(command, message, link)
        finally:
            link.committing -= 1
            self._shell.wake()

    async def _commit(self, command: CommitTo, message: Commit, link: WorkerLink) -> None:
        core, now = self._core, self._shell.now
        entry, peer = core.state.tasks[command.task], command.peer
        sent_at: float | None = None
        deadline = now() + LEASE_TTL_S
        while True:
            try:
                handle = await self.connect(peer)
                asked_at = now()
                sent_at = asked_at if sent_at is None else sent_at
                answer = await self.ask_commit(handle, message)
                break
            except (Unreachable, RemoteProtocolError) as exc:
                attempt = entry.at(peer)
                if attempt is None or attempt.number != command.attempt:
                    if sent_at is not None:  # the worker may have taken it all the same
                        self._orphan(link, (entry.form.campaign,), now())
                        self._keep_up(peer)
                        await Drop(peer)
                    return
                await Drop(peer)
                sent = sent_at is not None
                if not sent or now() >= deadline or isinstance(exc, RemoteProtocolError):
                    if sent:
                        self._orphan(link, (entry.form.campaign,), now())
                    commands = core.workers.mark_unreachable(peer, exc.what, now())
                    args = (command.task, command.attempt, exc.what, now())
                    self._carry_out(commands + core.reconciler.fail_commit(*args, sent=sent))
                    return
                await SleepUntil(now() + RETRY_S)
        if not core.holds_lease(peer):
            link.heard_at = asked_at
        campaign = entry.form.campaign
        if isinstance(answer, Granted | Queued):
            self._claims.accepted(campaign, peer, message.epoch)
        rival = self._claims.rival(campaign, peer, answer) if isinstance(answer, Denied) else None
        match answer:
            case Granted(lease=lease, fence=fence):
                grant = RecordGrant(command.task, command.attempt, lease, fence, queued=False)
                commands = core.reconciler.grant(peer, grant, now())
            case Queued(lease=lease, fence=fence, position=position, start_s=start_s):
                grant = RecordGrant(command.task, command.attempt, lease, fence, True, position, start_s)
                commands = core.reconciler.grant(peer, grant, now())
            case Conflict():
                commands = core.reconciler.conflict(command.task, command.attempt, answer, now())
            case Denied() if rival is not None:
                ended = self._meet(campaign, rival)
                args = (command.task, command.attempt, answer.detail, now())
                commands = core.reconciler.fail_commit(*args, sent=False) if ended is None else ended
            case Denied():
                commands = core.reconciler.deny(command.task, command.attempt, answer, now())
        self._carry_out(commands)

    async def ask_commit(self, handle: LinkHandle, message: Commit) -> Granted | Queued | Conflict | Denied:
        """The worker's answer; fails as `requests.ask` does."""
        answer: Granted | Queued | Conflict | Denied
        answer = await requests.ask(handle, message, Granted, Queued, Conflict, Denied)
        return answer

    async def stop(self, command: CancelOn | ReleaseOn) -> None:
        """Stop runs, or return queued leases. Without an answer this is repeated once there is a new link: by the core for leases that a
        task still has there, else as a stop of runs for which no task waits.
        """
        core, peer, now = self._core, command.peer, self._shell.now
        try:
            answer = await requests.stop(await self.connect(peer), command)
        except (Unreachable, RemoteProtocolError) as exc:
            self._log.info("stop.unanswered", peer=peer, why=exc.what)
            if isinstance(command, CancelOn):
                live = {item.lease for item in core.held_on(peer)}
                core.state.stops.add_unwaited_stops(
                    peer, (h for h in command.held if h.lease not in live), now()
                )
            await Drop(peer)
            if core.state.stops.at(peer):
                self._keep_up(peer)
            return
        if isinstance(answer, Denied):  # adopting each campaign tells who leads it now
            self._log.info("stop.denied", peer=peer, why=str(answer.reason))
            link, leases = self._of(peer), [item.lease for item in command.held]
            link.unadopted = True
            entries = (core.state.tasks.get(task) for task in core.state.stops.tasks(peer, leases))
            self._orphan(link, (entry.form.campaign for entry in entries if entry is not None), now())
            core.state.stops.disown(peer, leases)
            return
        self._carry_out(core.failures.confirm_stop(peer, answer, now()))

    # -- keeping a link -----------------------------------------------------------------------------------------------------------------

    async def _watch_silence(self, peer: str, link: WorkerLink, keeper: object) -> None:
        """Notice in time that a worker fell silent. Other procedures may hang for seconds in a call or a connection."""
        view = self._core.state.worker(peer)
        while link.keeper is keeper:
            await SleepUntil(link.heard_at + SILENT_S)
            if link.keeper is not keeper:
                return
            now = self._shell.now()
            self.beat(now)
            if not view.held:
                link.heard_at = now
            elif link.keeper is keeper and now >= link.heard_at + SILENT_S:
                silent = self._shell.peek(peer) is not None
                self.give_up(peer, link, now, f"was not heard from for {SILENT_S:g} s", silent=silent)
                await Drop(peer)  # do not wait for outstanding answers

    async def _keep(self, peer: str, link: WorkerLink) -> None:
        shell, view = self._shell, self._core.state.worker(peer)
        while True:
            now = shell.now()
            if not view.held:
                link.heard_at, link.unadopted = now, link.unadopted and bool(link.orphaned_campaigns)
            if link.orphaned_campaigns and now >= link.orphaned_until:
                link.orphaned_campaigns = ()
            handle = shell.peek(peer)
            if handle is not None and shell.is_needlessly_relayed(handle):
                handle = await self._move_to_direct(peer)
            owes = self._core.state.stops.at(peer)
            if handle is None:
                link.asked_at = -math.inf
                if not view.held and not link.orphaned_campaigns and not owes:
                    link.keeper = None
                    shell.wake()
                    return
                await self._reach(peer, link)
                continue
            if link.adopted is not handle or link.unadopted:
                if (view.held or link.orphaned_campaigns) and not await self.adopt(handle, link):
                    continue
                link.adopted = handle
            if owes and now >= link.asked_at + STOP_AGAIN_S:
                link.asked_at = now
                for command in self._core.state.stops.tell(peer):
                    shell.start(self.stop(command))
            if await WaitClosed(handle, shell.now() + RENEW_EVERY_S):
                self._carry_out(self._core.workers.close_link(peer))  # reconnect at once, and adopt again
            elif view.held and not link.unadopted:
                await self.renew(handle, link)

    async def _move_to_direct(self, peer: str) -> LinkHandle | None:
        try:
            return await self.connect(peer)
        except Unreachable:  # the existing link goes on
            return self._shell.peek(peer)

    async def _reach(self, peer: str, link: WorkerLink) -> None:
        """One attempt to reconnect. It also waits out the second between two attempts, even if a link came up and broke at once."""
        await SleepUntil(link.tried_at + RETRY_S)
        link.tried_at = self._shell.now()
        view = self._core.state.worker(peer)
        try:
            await self.connect(peer)
            link.refused_since = None
        except Unreachable as exc:
            now = self._shell.now()
            link.trouble = exc.what
            since = now if link.refused_since is None else link.refused_since
            link.refused_since = since if exc.refused else None
            self._carry_out(self._core.allocator.search_for(peer, now))
            if exc.refused and now - since >= GONE_S and view.held:
                self.give_up(peer, link, now, "its process is gone", gone=True)
            await SleepUntil(self._shell.now() + (RETRY_S if view.held else LATER_S))

    def give_up(
        self, peer: str, link: WorkerLink, now: float, what: str, *, silent: bool = False, gone: bool = False
    ) -> None:
        """Count everything that the worker holds of ours as lost."""
        core = self._core
        why = f"{core.state.device(peer)}: {what}: {link.trouble}"
        self._log.warning("worker.lost", peer=peer, why=why)
        link.heard_at, link.adopted = now, None
        self._orphan(link, core.campaigns_on(peer), now)
        # The worker needs a new quote; otherwise it would get its tasks back unasked.
        lost = core.failures.lose_all_at_worker(peer, why, now, silent=silent, gone=gone)
        self._carry_out(core.workers.close_link(peer) + lost)

    @staticmethod
    def _orphan(link: WorkerLink, campaigns: Iterable[str], now: float) -> None:
        """The worker may still run something of these `campaigns` that is not needed: keep trying to reach it, to send a stop."""
        link.orphaned_campaigns, link.orphaned_until = (
            tuple(dict.fromkeys((*link.orphaned_campaigns, *campaigns))),
            now + ORPHANED_S,
        )

    async def adopt(self, handle: LinkHandle, link: WorkerLink) -> bool:
        """Reconcile with what the worker holds, campaign by campaign. False: the link broke meanwhile."""
        core, peer = self._core, handle.peer
        deadline = self._shell.now() + ADOPT_S
        await SleepUntil(self._shell.now() + RESULTS_FIRST_S)
        link.unadopted = False
        for campaign in dict.fromkeys((*core.campaigns_on(peer), *link.orphaned_campaigns)):
            if campaign not in core.state.campaigns:  # it ended and was forgotten meanwhile
                continue
            try:
                await self.adopt_campaign(handle, campaign, deadline)
            except (Unreachable, RemoteProtocolError) as exc:
                link.trouble = exc.what
                self._log.warning("adopt.unanswered", peer=peer, why=exc.what)
                await Drop(peer)
                return False
        link.orphaned_campaigns = ()
        self._shell.reached(peer)
        return link.unadopted or await self.renew(handle, link)

    async def adopt_campaign(self, handle: LinkHandle, campaign: str, deadline: float) -> None:
        """Reconcile with what the worker holds of one campaign, or learn that another scheduler leads it. Fails like `requests.adopt`, and
        with `Unreachable` if the worker has not finished by the deadline.
        """
        core, peer = self._core, handle.peer
        expected = frozenset(held.lease for held in core.held_on(peer))
        epoch = core.state.campaigns[campaign].limits.epoch or 0
        answer = await self._ask_leases(handle, campaign, epoch, deadline)
        now = self._shell.now()
        if isinstance(answer, AdoptReply):
            self._claims.accepted(campaign, peer, epoch)
            args = (campaign, answer.incarnation, answer.leases, now)
            self._carry_out(core.reconciler.reconcile(peer, *args, expected=expected))
            return
        run, rival = core.state.campaigns.get(campaign), self._claims.rival(campaign, peer, answer)
        raised = run is not None and (run.limits.epoch or 0) > epoch  # meanwhile: the lower epoch was refused
        commands: list[Command] | None = None if raised else []
        if rival is not None:  # its proof counts, whatever was refused
            commands = self._meet(campaign, rival)
        if commands is None:
            await self.adopt_campaign(handle, campaign, deadline)
            return
        self._log.warning("adopt.denied", peer=peer, campaign=campaign, reason=str(answer.reason))
        if rival is None and answer.reason is Reason.STALE_EPOCH:
            commands += core.failures.exclude(peer, campaign, now)
        incarnation = core.state.worker(peer).incarnation or 0
        commands += core.reconciler.reconcile(peer, campaign, incarnation, (), now, expected=expected)
        self._carry_out(commands)

    def _meet(self, campaign: str, rival: Rival) -> list[Command] | None:
        """Commands that end this campaign here because a rival leads it. None: it goes on, under a higher epoch than the rival's."""
        core = self._core
        run = core.state.campaigns.get(campaign)
        if run is None or run.done or run.detail:  # it is already ending
            return []
        if rival.kind is not RivalKind.FORMER:
            copy = rival.kind is RivalKind.COPY
            self._log.warning("campaign.led-elsewhere", campaign=campaign, epoch=rival.epoch, copy=copy)
            return core.failures.end_superseded(campaign, self._shell.now(), COPIED if copy else ELSEWHERE)
        epoch = self._claims.lead_above_rival(campaign, rival)
        self._log.warning("campaign.epoch-raised", campaign=campaign, known=rival.epoch, epoch=epoch)
        for peer in core.raise_epoch(campaign, epoch):
            self.adopt_at_worker(peer)
        return None

    async def _ask_leases(
        self, handle: LinkHandle, campaign: str, epoch: int, deadline: float
    ) -> AdoptReply | Denied:
        request = AdoptRequest(campaign=campaign, epoch=epoch, proof=self._claims.proof(campaign))

        def left_s() -> float:
            return deadline - self._shell.now()

        answer = await requests.adopt(handle, request, left_s)
        if isinstance(answer, AdoptReply) and self._core.reconciler.misses_results(
            handle.peer, answer.leases
        ):
            answer = await requests.adopt(handle, request.model_copy(update={"again": True}), left_s)
        return answer

    async def renew(self, handle: LinkHandle, link: WorkerLink) -> bool:
        """Renew the worker's leases, and learn the worker's state. False: the renewal was not answered, or was denied."""
        core, peer = self._core, handle.peer
        held = core.renewable_on(peer)
        sent_at = self._shell.now()
        try:
            await Introduce(handle)
            for batch in requests.batched(held):
                answer: Renewed | Denied = await requests.ask(handle, Renew(held=batch), Renewed, Denied)
                now = self._shell.now()
                if isinstance(answer, Denied):  # adopting each campaign tells why
                    link.trouble, link.adopted = f"renewals are denied: {answer.reason}", None
                    self._log.info("renew.denied", peer=peer, why=str(answer.reason))
                    return False
                self._carry_out(core.workers.update_status(peer, answer, now))
                stale = {lost.lease for lost in answer.lost if lost.reason is Reason.STALE_EPOCH}
                for campaign in core.campaigns_on(peer, stale):  # adopting tells who leads it now
                    await self.adopt_campaign(handle, campaign, now + ADOPT_S)
                for lost in answer.lost:
                    if lost.lease not in stale:
                        self._carry_out(core.failures.lose_leases(peer, (lost.lease,), lost.reason, now))
        except (Unreachable, RemoteProtocolError) as exc:
            link.trouble = exc.what
            self._log.info("renew.unanswered", peer=peer, why=exc.what)
            await Drop(peer)
            return False
        link.heard_at = sent_at
        return True
