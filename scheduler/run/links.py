"""One kept link to each worker: probing and committing over it, renewing every 5 s, coming back at once when it breaks.

Where a direct connection has come about beside a gate's, the link moves to it, and the leases with it: a gate that ends then is not
even noticed. After a break the link is tried again each second, and the worker's leases of this scheduler are adopted anew: what both
know goes on. They count as lost `SILENT_S` after the last renewal that was answered was *sent*: so we give up before the worker's own
clock does. The time in which this process itself stood still does not count: what the worker finished meanwhile waits for us there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import ProtocolError, RemoteProtocolError, Unreachable
from protocol.messages.work import MAX_BATCH, WORK, AdoptReply, Commit, Conflict, Denied, Granted, Queued
from protocol.values.lease import LEASE_TTL_S, RENEW_EVERY_S
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from scheduler.core.commands import CancelOn, Command, CommitTo, ReleaseOn
from scheduler.core.scheduler import SchedulerCore
from scheduler.run.calls import adopt, commit, probe, renew, shapes_of, stop
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.epochs import LeadershipClaims
from swarm.net.link import Answer, Link, Links
from swarm.net.network import Network

CONNECT_S: Final = 3.0
GONE_S: Final = 2.0
"""A broken link and refused connections for so long mean that the worker's process has ended. Its fences cover an error in this."""
SILENT_S: Final = LEASE_TTL_S - 1.0
"""After so long without an answer it counts as lost: before its own clock ends the leases, and so that its tasks run elsewhere in time."""
ADOPT_S: Final = SILENT_S
"""A worker that has not said within this time what it has of ours is taken for one that does not answer."""
AGAIN_S: Final = 1.0
"""Between two attempts to reach a worker that has leases of ours."""
LATER_S: Final = 5.0
"""The same for one that was given up."""
ADRIFT_S: Final = 120.0
"""One that was given up is tried for so long: what it runs of ours by then, it runs in vain, and others wait for the place."""
SETTLE_S: Final = 2.0
STOOD_S: Final = 2.0
"""What is to happen a few times each second and did not for so long: this process stood still, and could hear nobody."""
RESULTS_FIRST_S: Final = 0.25
"""A worker sends what waits in its outbox as soon as a link is up. What it finished before a restart of its own is taken before we ask
what it still has, for after the answer it would be stale."""

log = structlog.get_logger("sark.workers")


@dataclass(slots=True)
class WorkerLink:
    """What the shell keeps of one worker, beside the book's view of it."""

    heard_at: float
    """When the last renewal was sent that was answered; later by the time that we stood still since."""
    trouble: str = "no answer"
    """Why nothing has been heard since, as far as known."""
    refused_since: float | None = None
    """Since when its machine has answered at every try that nobody listens there; None: it did not, or the last try said otherwise."""
    tried_at: float = -math.inf
    """When it was last tried to have a link again."""
    link: Link | None = None
    """The link over which its leases were adopted."""
    adrift: tuple[str, ...] = ()
    """Campaigns of which it had something when it was given up, until it is linked again or `adrift_until`."""
    adrift_until: float = 0.0
    unadopted: bool = False
    """A campaign was taken up since of which the store says that this worker has something."""
    committing: int = 0
    quiet: trio.Event = field(default_factory=trio.Event)
    """Set when no commit is on its way."""


class WorkerLinks:
    """All links of the scheduler to workers. What it learns goes into the book; the orders that follow go to `carry_out`."""

    def __init__(
        self,
        network: Network,
        nursery: trio.Nursery,
        core: SchedulerCore,
        *,
        answer: Answer,
        carry_out: Callable[[Sequence[Command]], None],
        epoch: Callable[[str], int],
        claims: LeadershipClaims,
        reached: Callable[[str], None],
        presenting: CredentialPresenter,
    ) -> None:
        self._presenting = presenting
        self._links = Links(network, ProtocolId.WORK, WORK, nursery, answer)
        self._nursery = nursery
        self._core = core
        self._carry_out = carry_out
        self._epoch = epoch
        self._claims = claims
        self._reached = reached
        self._lines: dict[str, WorkerLink] = {}
        self._kept: set[str] = set()
        self._beat_at = trio.current_time()

    def beat(self, now: float) -> None:
        """Time passed; to be called a few times each second. While we stood still ourselves nobody was silent."""
        stood, self._beat_at = now - self._beat_at, now
        if stood < STOOD_S:
            return
        log.warning("scheduler.stood-still", seconds=round(stood, 1))
        for line in self._lines.values():
            line.heard_at = min(now, line.heard_at + stood)

    def care(self, peer: str) -> None:
        """See to it that this worker's link is kept while it holds anything of ours."""
        line = self._line(peer)
        if peer not in self._kept:
            self._kept.add(peer)
            line.heard_at = trio.current_time()
            self._nursery.start_soon(self._keep, peer)

    def adopt_on(self, peer: str) -> None:
        """The store says that this worker has something of a campaign that was just taken up.

        Another machine may have begun it: so it is adopted before it is renewed, also on a link that was there before.
        """
        self._line(peer).unadopted = True
        self.care(peer)

    def _line(self, peer: str) -> WorkerLink:
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = WorkerLink(heard_at=trio.current_time())
            line.quiet.set()
        return line

    async def quiet(self, peer: str) -> None:
        """Wait until no answer to a commit is on its way from this worker: it may speak of a lease that we do not know yet."""
        with trio.move_on_after(SETTLE_S):
            await self._line(peer).quiet.wait()

    async def _link(self, peer: str) -> Link:
        link = await self._links.get(peer, self._core.state.worker(peer).addresses, max_wait_s=CONNECT_S)
        await self._introduce(link)
        self.care(peer)
        return link

    async def _introduce(self, link: Link) -> None:
        """Show what we may have done there, before anything else is said."""
        await self._presenting.introduce(link)

    async def _allowed_now(self, link: Link, answer: Message) -> bool:
        """Whether it denied for want of permission, and took what we showed it thereupon."""
        denied = isinstance(answer, Denied) and answer.reason is Reason.NOT_ALLOWED
        return denied and await self._presenting.retry(link)

    @property
    def asking(self) -> bool:
        """Whether an answer to a commit is on its way: it may speak of a run that is to be stopped."""
        return any(line.committing for line in self._lines.values())

    async def close(self) -> None:
        """End all links in good order, so that the last answers arrive."""
        for peer in tuple(self._lines):
            link = self._links.peek(peer)
            if link is not None:
                await link.aclose()

    # -- asking -------------------------------------------------------------------------------------------------------------------------

    async def probe(self, peer: str) -> None:
        """Ask how it stands, and about the tasks that wait for somebody like it."""
        core = self._core
        tasks = core.tasks_to_probe(peer)
        if not tasks:
            core.state.worker(peer).probing = False
            return
        campaign = tasks[0].campaign
        shapes = shapes_of(tasks, core.state.campaigns[campaign].limits.priority)
        try:
            link = await self._link(peer)
            answer = await probe(link, campaign, shapes)
            if await self._allowed_now(link, answer):
                answer = await probe(link, campaign, shapes)
        except (
            Unreachable,
            ProtocolError,
        ) as exc:  # ours too: one requirement may be too large for any frame
            await self._links.drop(peer)
            self._carry_out(core.on_unreachable(peer, exc.what, trio.current_time()))
            return
        self._reached(peer)
        if isinstance(answer, Denied):
            self._carry_out(core.on_refusal(peer, answer, trio.current_time()))
        else:
            self._carry_out(core.on_quote(peer, answer, trio.current_time(), shapes))

    async def commit(self, order: CommitTo, message: Commit) -> None:
        """Ask it to take an attempt; with the same key again, for a lease's time, while no answer comes."""
        line = self._line(order.peer)
        line.committing += 1
        if line.committing == 1:
            line.quiet = trio.Event()
        try:
            await self._commit(order, message, line)
        finally:
            line.committing -= 1
            if not line.committing:
                line.quiet.set()

    async def _commit(self, order: CommitTo, message: Commit, line: WorkerLink) -> None:
        core, entry = self._core, self._core.state.tasks[order.task]
        sent_at: float | None = None
        deadline = trio.current_time() + LEASE_TTL_S
        while True:
            try:
                link = await self._link(order.peer)
                asked_at = trio.current_time()
                sent_at = sent_at if sent_at is not None else asked_at
                answer = await commit(link, message)
                if await self._allowed_now(link, answer):
                    answer = await commit(link, message)
                break
            except (Unreachable, RemoteProtocolError) as exc:
                now = trio.current_time()
                ticket = entry.at(order.peer)
                if ticket is None or ticket.number != order.attempt:
                    return
                await self._links.drop(order.peer)
                if sent_at is None or now >= deadline or isinstance(exc, RemoteProtocolError):
                    sent = sent_at is not None
                    self._carry_out(
                        core.on_unreachable(order.peer, exc.what, now)
                        + core.on_commit_failure(order.task, order.attempt, exc.what, now, sent=sent)
                    )
                    return
                await trio.sleep(AGAIN_S)
        now = trio.current_time()
        if not core.held_on(order.peer):
            line.heard_at = asked_at
        match answer:
            case Granted() | Queued():
                orders = core.on_grant(
                    order.peer,
                    order.task,
                    order.attempt,
                    answer.lease,
                    answer.fence,
                    now,
                    queued=isinstance(answer, Queued),
                    position=answer.position if isinstance(answer, Queued) else None,
                    start_s=answer.start_s if isinstance(answer, Queued) else None,
                )
            case Conflict():
                orders = core.on_conflict(order.task, order.attempt, answer, now)
            case Denied() if self._claims.lost(entry.task.campaign, answer):
                orders = core.on_superseded(entry.task.campaign, now)
            case Denied():
                orders = core.on_denial(order.task, order.attempt, answer, now)
        self._carry_out(orders)

    async def stop(self, order: CancelOn | ReleaseOn) -> None:
        """Have runs stopped or tickets taken back. A broken link is mended by its keeper, who says it again."""
        try:
            link = await self._link(order.peer)
            leases = await stop(link, order)
        except (Unreachable, RemoteProtocolError) as exc:
            log.info("stop.unanswered", peer=order.peer, why=exc.what)
            await self._links.drop(order.peer)
            return
        self._carry_out(self._core.on_stopped(order.peer, leases, trio.current_time()))

    # -- keeping ------------------------------------------------------------------------------------------------------------------------

    async def _keep(self, peer: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, peer)
            await self._keep_link(peer)
            nursery.cancel_scope.cancel()

    async def _listen(self, peer: str) -> None:
        """Notice on time that it fell silent, whatever is being tried meanwhile: a call or a dial may hang for seconds."""
        line, view = self._line(peer), self._core.state.worker(peer)
        while True:
            await trio.sleep_until(line.heard_at + SILENT_S)
            now = trio.current_time()
            self.beat(now)
            if not view.held:
                line.heard_at = now
            elif now - line.heard_at >= SILENT_S:
                self._fell_silent(peer, line, now)
                await self._links.drop(peer)  # whatever is still being asked of it is not waited for

    async def _keep_link(self, peer: str) -> None:
        line, view = self._line(peer), self._core.state.worker(peer)
        while True:
            if not view.held:
                line.heard_at, line.unadopted = trio.current_time(), False
            link = self._links.peek(peer)
            if link is not None and self._links.detours(link):
                with contextlib.suppress(Unreachable):  # what there is goes on
                    await self._link(peer)
                link = self._links.peek(peer)
            if line.adrift and trio.current_time() >= line.adrift_until:
                line.adrift = ()
            if link is None:
                if not view.held and not line.adrift:
                    self._kept.discard(peer)
                    return
                await self._reach(peer, line)
                continue
            if line.link is not link or line.unadopted:
                if (view.held or line.adrift) and not await self._adopt(link, line):
                    continue
                line.link = link
            with trio.move_on_after(RENEW_EVERY_S):
                await link.closed.wait()
            if line.unadopted and not link.closed.is_set():
                continue
            if link.closed.is_set():
                self._carry_out(self._core.on_link_closed(peer, trio.current_time()))
            elif view.held:
                await self._renew(link, line)

    async def _reach(self, peer: str, line: WorkerLink) -> None:
        """One attempt to have a link again; the second before the next one is waited here, also when a link was had and broke at once."""
        await trio.sleep_until(line.tried_at + AGAIN_S)
        line.tried_at = trio.current_time()
        try:
            await self._link(peer)
            line.refused_since = None
        except Unreachable as exc:
            now = trio.current_time()
            line.trouble = exc.what
            since = line.refused_since if line.refused_since is not None else now
            line.refused_since = since if exc.refused else None
            self._carry_out(self._core.on_link_failed(peer, now))
            if (
                line.refused_since is not None
                and now - line.refused_since >= GONE_S
                and self._core.state.worker(peer).held
            ):
                self._give_up(peer, line, now, "its process is gone")
            await trio.sleep(AGAIN_S if self._core.state.worker(peer).held else LATER_S)

    def _fell_silent(self, peer: str, line: WorkerLink, now: float) -> None:
        """No renewal was answered for a lease's time, be there a link or none: what it has of ours is lost."""
        silent = self._links.peek(peer) is not None
        self._give_up(peer, line, now, f"was not heard of for {SILENT_S:g} s", silent=silent)

    def _give_up(self, peer: str, line: WorkerLink, now: float, what: str, *, silent: bool = False) -> None:
        core = self._core
        why = f"{core.state.worker(peer).device or peer}: {what}: {line.trouble}"
        log.warning("worker.lost", peer=peer, why=why)
        line.heard_at, line.link = now, None
        line.adrift, line.adrift_until = core.campaigns_on(peer), now + ADRIFT_S
        # first that it is to be probed again, then that its tasks wait: else it would get them back unasked
        self._carry_out(core.on_link_closed(peer, now) + core.on_silence(peer, why, now, silent=silent))

    async def _adopt(self, link: Link, line: WorkerLink) -> bool:
        """Carry on what it holds of ours, campaign by campaign. False when the link broke on the way."""
        core, peer = self._core, link.peer
        deadline = trio.current_time() + ADOPT_S
        await trio.sleep(RESULTS_FIRST_S)
        line.unadopted = False
        for campaign in dict.fromkeys((*core.campaigns_on(peer), *line.adrift)):
            if (
                campaign not in core.state.campaigns
            ):  # it ended, and was forgotten, while others were asked about
                continue
            try:
                await self._adopt_one(link, campaign, deadline)
            except (Unreachable, RemoteProtocolError) as exc:
                line.trouble = exc.what
                log.warning("adopt.unanswered", peer=peer, why=exc.what)
                await self._links.drop(peer)
                return False
        line.adrift = ()
        self._reached(peer)
        return line.unadopted or await self._renew(link, line)

    async def _adopt_one(self, link: Link, campaign: str, deadline: float) -> None:
        """Carry on what it holds of one campaign, or learn that it is not ours any more. Raises as `_adopted`."""
        core, peer = self._core, link.peer
        asked = frozenset(held.lease for held in core.held_on(peer))
        answer = await self._adopted(link, campaign, self._epoch(campaign), deadline)
        now = trio.current_time()
        if isinstance(answer, AdoptReply):
            orders = core.on_leases(peer, campaign, answer.incarnation, answer.leases, now, asked=asked)
            self._carry_out(orders)
            return
        log.warning("adopt.denied", peer=peer, campaign=campaign, reason=str(answer.reason))
        orders = []
        if self._claims.lost(campaign, answer):
            orders += core.on_superseded(campaign, now)
        elif answer.reason is Reason.STALE_EPOCH:
            orders += core.on_disowned(peer, campaign, now)
        incarnation = core.state.worker(peer).incarnation or 0
        orders += core.on_leases(peer, campaign, incarnation, (), now, asked=asked)
        self._carry_out(orders)

    async def _adopted(self, link: Link, campaign: str, epoch: int, deadline: float) -> AdoptReply | Denied:
        """What it has of one campaign. Raises `Unreachable` (also when it has not come to an end of it in time), `RemoteProtocolError`."""
        with trio.move_on_at(deadline):
            proof = self._claims.proof(campaign)
            answer = await adopt(link, campaign, epoch, proof=proof)
            if await self._allowed_now(link, answer):
                answer = await adopt(link, campaign, epoch, proof=proof)
            if isinstance(answer, AdoptReply) and self._core.misses_results(link.peer, answer.leases):
                answer = await adopt(link, campaign, epoch, again=True, proof=proof)
            return answer
        raise Unreachable(f"{link.peer} did not say within {ADOPT_S:g} s what it has of ours")

    async def _renew(self, link: Link, line: WorkerLink) -> bool:
        core, peer = self._core, link.peer
        held = core.renewable_on(peer)
        sent_at = trio.current_time()
        try:
            await self._introduce(link)
            for first in range(0, len(held), MAX_BATCH):
                answer = await renew(link, held[first : first + MAX_BATCH])
                now = trio.current_time()
                if isinstance(answer, Denied):  # it says of each campaign why when that is asked for
                    line.trouble, line.link = f"renewals are denied: {answer.reason}", None
                    log.info("renew.denied", peer=peer, why=str(answer.reason))
                    return False
                self._carry_out(
                    core.on_status(
                        peer,
                        answer.incarnation,
                        answer.state,
                        now,
                        why=answer.why,
                        waiting=answer.waiting,
                    )
                )
                stale = {lost.lease for lost in answer.lost if lost.reason is Reason.STALE_EPOCH}
                for campaign in core.campaigns_on(peer, stale):  # asked for it, it says whose it is now
                    await self._adopt_one(link, campaign, now + ADOPT_S)
                for lost in answer.lost:
                    if lost.lease not in stale:
                        self._carry_out(core.on_lost(peer, (lost.lease,), lost.reason, now))
        except (Unreachable, RemoteProtocolError) as exc:
            line.trouble = exc.what
            log.info("renew.unanswered", peer=peer, why=exc.what)
            await self._links.drop(peer)
            return False
        line.heard_at = sent_at
        return True
