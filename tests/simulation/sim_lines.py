"""The simulated scheduler's links to workers: asking, committing, stopping, renewing, adopting. See `sim_scheduler`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.work import AdoptReply, Commit, Conflict, Denied, Granted, Queued
from protocol.values.lease import LEASE_TTL_S, RENEW_EVERY_S
from protocol.words import Reason
from scheduler.core.commands import CancelOn, Command, CommitTo, ReleaseOn
from scheduler.core.scheduler import SchedulerCore
from scheduler.run.calls import adopt, commit, probe, renew, shapes_of, stop
from scheduler.run.epochs import FIRST
from scheduler.run.links import ADRIFT_S, AGAIN_S, CONNECT_S, GONE_S, LATER_S, RESULTS_FIRST_S, SILENT_S
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Process
from tests.simulation.wire import Air, End, Station

Tell = Callable[..., None]


@dataclass(slots=True)
class Line:
    """What the shell keeps of one worker."""

    heard_at: float
    refused_since: float | None = None
    link: End | None = None
    committing: int = 0
    quiet: Flag = field(default_factory=Flag)
    unadopted: bool = False
    adrift: tuple[str, ...] = ()
    adrift_until: float = 0.0


class Lines:
    """Part of `sim_scheduler.SimScheduler`."""

    name: str
    process: Process
    station: Station
    core: SchedulerCore
    _air: Air
    _rng: random.Random
    _tell: Tell
    _mutant: frozenset[str]
    _epochs: dict[str, int]
    _lines: dict[str, Line]
    _kept: set[str]
    _opening: dict[str, Flag]

    def now(self) -> float:
        """Seconds on its own clock."""
        return self.process.now()

    def _carry_out(self, orders: Sequence[Command]) -> None:
        raise NotImplementedError

    # -- asking -------------------------------------------------------------------------------------------------------------

    def _line(self, peer: str) -> Line:
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = Line(heard_at=self.now())
            line.quiet.set()
        return line

    def _adopt_on(self, peer: str) -> None:
        self._line(peer).unadopted = "renews-unadopted" not in self._mutant
        self._care(peer)

    def _care(self, peer: str) -> None:
        line = self._line(peer)
        if peer not in self._kept:
            self._kept.add(peer)
            line.heard_at = self.now()
            self.process.spawn(self._keep(peer))

    @staticmethod
    def _speak(end: End) -> Any:
        """As `scheduler.run.calls` knows a link."""
        return end

    def _peek(self, peer: str) -> End | None:
        return next((end for end in self.station.ends if end.peer == peer), None)

    async def _link(self, peer: str) -> End:
        """The link there is, or a new one: one for all who ask at once."""
        while peer in self._opening:
            await self._opening[peer].wait(self.process)
        found = self._peek(peer)
        if found is None:
            opening = self._opening[peer] = Flag()
            try:
                found = await self._air.open(self.station, peer, CONNECT_S)
            finally:
                if self._opening.pop(peer, None) is not None:
                    opening.set()
        self._care(peer)
        return found

    def _drop(self, peer: str) -> None:
        end = self._peek(peer)
        if end is not None:
            end.drop()

    def _closed(self, end: End) -> None:
        """Its keeper sees to it."""

    async def _probe(self, peer: str) -> None:
        core = self.core
        tasks = core.tasks_to_probe(peer)
        if not tasks:
            core.state.worker(peer).probing = False
            return
        campaign = tasks[0].campaign
        shapes = shapes_of(tasks, core.state.campaigns[campaign].limits.priority)
        try:
            answer = await probe(self._speak(await self._link(peer)), campaign, shapes)
        except (Unreachable, RemoteProtocolError) as exc:
            self._drop(peer)
            self._carry_out(core.on_unreachable(peer, exc.what, self.now()))
            return
        if isinstance(answer, Denied):
            self._carry_out(core.on_refusal(peer, answer, self.now()))
        else:
            self._carry_out(core.on_quote(peer, answer, self.now(), shapes))

    async def _commit(self, order: CommitTo, message: Commit) -> None:
        line = self._line(order.peer)
        line.committing += 1
        if line.committing == 1:
            line.quiet = Flag()
        await self._commit_once(order, message, line)
        line.committing -= 1
        if not line.committing:
            line.quiet.set()

    async def _commit_once(self, order: CommitTo, message: Commit, line: Line) -> None:
        core, entry = self.core, self.core.state.tasks[order.task]
        sent_at: float | None = None
        deadline = self.now() + LEASE_TTL_S
        while True:
            try:
                link = await self._link(order.peer)
                asked_at = self.now()
                sent_at = sent_at if sent_at is not None else asked_at
                answer = await commit(self._speak(link), message)
                break
            except (Unreachable, RemoteProtocolError) as exc:
                now = self.now()
                ticket = entry.at(order.peer)
                if ticket is None or ticket.number != order.attempt:
                    return
                self._drop(order.peer)
                if sent_at is None or now >= deadline or isinstance(exc, RemoteProtocolError):
                    sent = sent_at is not None
                    self._carry_out(
                        core.on_unreachable(order.peer, exc.what, now)
                        + core.on_commit_failure(order.task, order.attempt, exc.what, now, sent=sent)
                    )
                    return
                await self.process.sleep(AGAIN_S)
        now = self.now()
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
            case Denied() if self._lost(entry.task.campaign, answer):
                orders = core.on_superseded(entry.task.campaign, now)
            case Denied():
                orders = core.on_denial(order.task, order.attempt, answer, now)
        self._carry_out(orders)

    async def _stop(self, order: CancelOn | ReleaseOn) -> None:
        try:
            leases = await stop(self._speak(await self._link(order.peer)), order)
        except (Unreachable, RemoteProtocolError):
            self._drop(order.peer)
            return
        for lease in leases:
            self._tell(Kind.CANCEL_CONFIRMED, who=self.name, worker=order.peer, lease=lease)
        self._carry_out(self.core.on_stopped(order.peer, leases, self.now()))

    # -- keeping ------------------------------------------------------------------------------------------------------------

    async def _keep(self, peer: str) -> None:
        ended = Flag()
        self.process.spawn(self._listen(peer, ended))
        await self._keep_link(peer)
        ended.set()

    async def _listen(self, peer: str, ended: Flag) -> None:
        line, view = self._line(peer), self.core.state.worker(peer)
        while not await ended.wait(self.process, max(0.01, line.heard_at + SILENT_S - self.now())):
            now = self.now()
            if not view.held:
                line.heard_at = now
            elif now - line.heard_at >= SILENT_S and "never-gives-up" not in self._mutant:
                self._give_up(peer, line, now, "silence", silent=self._peek(peer) is not None)

    async def _keep_link(self, peer: str) -> None:
        line, view = self._line(peer), self.core.state.worker(peer)
        while True:
            if not view.held:
                line.heard_at, line.unadopted = self.now(), False
            link = self._peek(peer)
            if line.adrift and self.now() >= line.adrift_until:
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
            await link.closed.wait(self.process, RENEW_EVERY_S)
            if line.unadopted and not link.closed.is_set:
                continue
            if link.closed.is_set:
                self._carry_out(self.core.on_link_closed(peer, self.now()))
            elif view.held and "no-renewal" not in self._mutant:
                await self._renew(link, line)

    async def _reach(self, peer: str, line: Line) -> None:
        try:
            await self._link(peer)
            line.refused_since = None
        except Unreachable as exc:
            now = self.now()
            since = line.refused_since if line.refused_since is not None else now
            line.refused_since = since if exc.refused else None
            self._carry_out(self.core.on_link_failed(peer, now))
            if (
                line.refused_since is not None
                and now - line.refused_since >= GONE_S
                and self.core.state.worker(peer).held
            ):
                self._give_up(peer, line, now, "its process is gone")
            await self.process.sleep(AGAIN_S if self.core.state.worker(peer).held else LATER_S)

    def _give_up(self, peer: str, line: Line, now: float, why: str, *, silent: bool = False) -> None:
        line.heard_at, line.link = now, None
        line.adrift, line.adrift_until = self.core.campaigns_on(peer), now + ADRIFT_S
        orders = self.core.on_link_closed(peer, now)
        self._carry_out(orders + self.core.on_silence(peer, why, now, silent=silent))

    async def _adopt(self, link: End, line: Line) -> bool:
        core, peer = self.core, link.peer
        await self.process.sleep(RESULTS_FIRST_S)
        line.unadopted = False
        for campaign in dict.fromkeys((*core.campaigns_on(peer), *line.adrift)):
            if campaign not in core.state.campaigns:
                continue
            try:
                await self._adopt_one(link, campaign)
            except (Unreachable, RemoteProtocolError):
                self._drop(peer)
                return False
        line.adrift = ()
        return line.unadopted or await self._renew(link, line)

    async def _adopt_one(self, link: End, campaign: str) -> None:
        core, peer = self.core, link.peer
        asked = frozenset(held.lease for held in core.held_on(peer))
        answer = await self._adopted(link, campaign)
        now = self.now()
        if isinstance(answer, AdoptReply):
            orders = core.on_leases(peer, campaign, answer.incarnation, answer.leases, now, asked=asked)
            self._carry_out(orders)
            return
        orders = []
        if self._lost(campaign, answer):
            orders += core.on_superseded(campaign, now)
        elif answer.reason is Reason.STALE_EPOCH:
            orders += core.on_disowned(peer, campaign, now)
        incarnation = core.state.worker(peer).incarnation or 0
        orders += core.on_leases(peer, campaign, incarnation, (), now, asked=asked)
        self._carry_out(orders)

    async def _adopted(self, link: End, campaign: str) -> AdoptReply | Denied:
        epoch, proof = self._epochs[campaign], self._proof(campaign)
        answer = await adopt(self._speak(link), campaign, epoch, proof=proof)
        if isinstance(answer, AdoptReply) and self.core.misses_results(link.peer, answer.leases):
            answer = await adopt(self._speak(link), campaign, epoch, again=True, proof=proof)
        return answer

    def _proof(self, campaign: str) -> bytes | None:
        """What stands for a signature in the model: all of its schedulers that adopt may do so."""
        epoch = self._epochs[campaign]
        return str(epoch).encode() if epoch > FIRST else None

    def _lost(self, campaign: str, denied: Denied) -> bool:
        """As `scheduler.believing.Claims.lost`."""
        if denied.reason is not Reason.STALE_EPOCH or denied.proof is None:
            return False
        return int(denied.proof) > self._epochs.get(campaign, 0)

    async def _renew(self, link: End, line: Line) -> bool:
        core, peer = self.core, link.peer
        held = core.renewable_on(peer)
        sent_at = self.now()
        if held:  # fewer than a message takes
            try:
                answer = await renew(self._speak(link), held)
            except (Unreachable, RemoteProtocolError):
                self._drop(peer)
                return False
            if isinstance(answer, Denied):
                line.link = None
                return False
            now = self.now()
            orders = core.on_status(
                peer, answer.incarnation, answer.state, now, why=answer.why, waiting=answer.waiting
            )
            self._carry_out(orders)
            stale = {lost.lease for lost in answer.lost if lost.reason is Reason.STALE_EPOCH}
            try:
                for campaign in core.campaigns_on(peer, stale):
                    await self._adopt_one(link, campaign)
            except (Unreachable, RemoteProtocolError):
                self._drop(peer)
                return False
            for lost in answer.lost:
                if lost.lease not in stale:
                    self._carry_out(core.on_lost(peer, (lost.lease,), lost.reason, now))
        line.heard_at = sent_at
        return True
