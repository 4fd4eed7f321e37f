"""A worker of the model: the real ledger in a shell that does what `node.serve` does around it.

Mirrored: permission on each verb; what a link has spoken under; orders carried out after each change; expiry on the ledger's own
deadline; an offer that is not answered in OFFER_S is put off; a run with its phases, its timed window and its end; results on disk before
they are sent, sent on each new link and every AGAIN_S until they are answered; a new incarnation with every start.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from node.capacity.allocations import HOLDS, Allocation, KillCommand, RunCommand, SlotOffer, WarnCommand
from node.capacity.ledger import Ledger
from node.capacity.slots import MUTE_S
from node.serve.delivery import ASIDE_S, OFFER_S
from protocol.errors import Unreachable
from protocol.formats.phase import Phase
from protocol.messages.permission import CallPermission
from protocol.messages.work import (
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Denied,
    Granted,
    ListLeases,
    LiveLease,
    Preempt,
    Probe,
    Progress,
    Queued,
    Ready,
    Release,
    Renew,
    ShapeQuote,
    Start,
    Stopped,
)
from protocol.values.lease import LeaseState
from protocol.wire.base import Message
from protocol.words import Reason, RunOutcome
from tests.simulation import adapter
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Kernel, Process
from tests.simulation.sim_results import Item, Results, Runs
from tests.simulation.wire import Air, End, Station

Tell = Callable[..., None]
COUNTED = HOLDS | {LeaseState.QUEUED}
"""What a quota counts."""
KILL_S = 0.4
"""The longest that processes take to die."""


@dataclass
class Running:
    """A run in this life."""

    stop: Flag = field(default_factory=Flag)
    gone: Flag = field(default_factory=Flag)
    why: Reason = Reason.CANCELLED


class SimWorker(Results):
    """One device. Its disk (incarnation, outbox) outlives its process."""

    def __init__(
        self,
        kernel: Kernel,
        air: Air,
        name: str,
        rng: random.Random,
        tell: Tell,
        *,
        runs: Runs,
        slots: int,
        permit: Callable[[str, str], CallPermission | None],
        owner_first: bool = False,
        make_ledger: Callable[..., Ledger] = Ledger,
        mutant: frozenset[str] = frozenset(),
    ) -> None:
        """`permit(worker, peer)`: what it may do now."""
        self.name = name
        self.slots = slots
        self.runs = runs
        self.process = Process(kernel, name, offset=rng.uniform(0, 1000), rate=rng.uniform(0.9, 1.1))
        self.station = Station(self.process, self._serve, self._opened, self._closed)
        self.incarnation = 0
        self.outbox: dict[str, Item] = {}
        self.kept: dict[str, Item] = {}
        self.manifests: set[tuple[str, str]] = set()
        self.disk_full = False
        self.ledger: Ledger
        self._air = air
        self._rng = rng
        self._told = tell
        self._permit = permit
        self._owner_first = owner_first
        self.broken: frozenset[str] = frozenset()
        """Tasks whose model fails wherever it runs."""
        self._make_ledger = make_ledger
        self._mutant = mutant
        self._shadow: dict[str, LeaseState] = {}
        air.stations[name] = self.station

    # -- its life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new life."""
        if "same-incarnation" not in self._mutant or not self.incarnation:
            self.incarnation += 1
        self.process.start()
        self.ledger = adapter.new_ledger(
            self._make_ledger, self.incarnation, self.name, self.slots, owner_first=self._owner_first
        )
        self.outbox = {sha: item for sha, item in self.outbox.items() if not item.homeless}
        self._live: dict[str, Running] = {}
        self._shadow = {}
        self._newest = 0
        self._unanswered: dict[str, float] = {}
        self._counted: dict[str, int] = {}
        self._changed = Flag()
        self._news = Flag()
        self._let_in = Flag()
        self._links: dict[End, None] = {}
        self._under_way: set[str] = set()
        self._tell(Kind.BORN, fence=(self.incarnation, 0))
        self.process.spawn(self._keep_time())

    def crash(self, *, silent: bool = False) -> None:
        """kill -9, or the power goes (`silent`)."""
        self._tell(Kind.DIED)
        self.process.kill()
        self._air.lost(self.station, silent=silent)

    def held(self) -> int:
        """Places and tickets, and runs that are not dead."""
        busy = {LeaseState.REPORTING, LeaseState.CLOSED}
        return sum(1 for place in self.ledger.places() if place.state not in busy) + len(self._live)

    def evict(self, peer: str) -> None:
        """Its permission is gone: so are its leases."""
        adapter.evict(self.ledger, peer, self.process.now())
        self._carry_out()

    def _tell(self, kind: Kind, **what: object) -> None:
        self._told(kind, worker=self.name, **what)

    # -- the desk -----------------------------------------------------------------------------------------------------------

    async def _serve(self, end: End, message: Message) -> Message | None:
        permit = self._permit(self.name, end.peer)
        if permit is None and "no-permission" in self._mutant:
            permit = CallPermission(principal=end.peer, rights=frozenset())
        if permit is None:
            return Denied(reason=Reason.NOT_ALLOWED)
        answer = await self._reply(end, message, permit)
        if not isinstance(answer, (Denied, Stopped)):
            self._done(end.peer, message)
        return answer

    def _done(self, peer: str, message: Message) -> None:
        """A verb has had its effect: now, though it may be answered later, when permission may be gone."""
        may = self._permit(self.name, peer) is not None
        self._tell(Kind.VERB, peer=peer, word=type(message).__name__.lower(), number=int(may))

    async def _reply(self, end: End, message: Message, permit: CallPermission) -> Message | None:
        now, peer, principal, ledger = self.process.now(), end.peer, permit.principal, self.ledger
        match message:
            case Probe():
                ledger.expire(now)
                self._carry_out()
                shapes = tuple(ShapeQuote(fits=True) for _ in message.shapes)
                return ledger.quote(now).model_copy(update={"shapes": shapes})
            case Commit():
                answer = ledger.commit(adapter.wanted(peer, message, permit), now)
                campaign = adapter.task_of(message).campaign
                stale = isinstance(answer, Denied) and answer.reason is Reason.STALE_EPOCH
                if stale or isinstance(answer, (Granted, Queued)):
                    end.epochs[campaign] = max(message.epoch, end.epochs.get(campaign, 0))
                if isinstance(answer, (Granted, Queued)):
                    ledger.speakers.keep_proof(principal, campaign, message.epoch, message.proof)
                    self.manifests.add((campaign, principal))
                    if answer.fence.incarnation == ledger.incarnation and answer.fence.number > self._newest:
                        self._newest = answer.fence.number
                        self._spoke(end, campaign, "commit", message.epoch)
                self._carry_out()
                return answer
            case Renew():
                renewed = adapter.renew(ledger, peer, principal, message, end.epochs, now)
                for lease in renewed.renewed:
                    self._spoke(end, self._campaign(lease), "renew")
                self._carry_out()
                return renewed
            case Cancel() | Release():
                reason = message.reason if isinstance(message, Cancel) else Reason.CANCELLED
                if denied := adapter.refused(ledger, peer, principal, message.held, end.epochs):
                    return denied
                held = message.held
                for item in held:
                    if isinstance(message, Cancel):
                        self._tell(Kind.CANCEL_TOLD, peer=peer, lease=item.lease)
                before = {
                    place.lease: (place.state, self._campaign(place.lease)) for place in ledger.places()
                }
                dying = ledger.stop(peer, held, reason, now)
                for item in held:
                    place, (state, campaign) = ledger.place(item.lease), before.get(item.lease, (None, ""))
                    if state is not None and (place is None or place.state is not state):
                        self._spoke(end, campaign, type(message).__name__.lower())
                self._carry_out()
                self._done(end.peer, message)
                for lease in dying:
                    running = self._live.get(lease)
                    if running is not None and "stopped-too-soon" not in self._mutant:
                        await running.gone.wait(self.process)
                return Stopped(leases=tuple(item.lease for item in message.held))
            case AdoptRequest():
                stale = ledger.adopt(peer, principal, message.campaign, message.epoch)
                end.epochs[message.campaign] = max(message.epoch, end.epochs.get(message.campaign, 0))
                if stale:
                    return stale
                ledger.speakers.keep_proof(principal, message.campaign, message.epoch, message.proof)
                self._spoke(end, message.campaign, "adopt", message.epoch)
                self._carry_out()
                self._hand_over(peer, principal, message)
                return self._page(principal, message.campaign)
            case ListLeases():
                return self._page(principal, message.campaign)
            case _:
                raise AssertionError(f"{type(message).__name__} is not a scheduler's to say")

    def _page(self, principal: str, campaign: str) -> AdoptReply:
        places = self.ledger.of_campaign(principal, campaign)
        held = {place.lease for place in places}
        kept = (lease for lease in self._leases(campaign, principal) if lease.lease not in held)
        return AdoptReply(
            incarnation=self.ledger.incarnation,
            leases=(*(live(place) for place in places), *kept),
            epoch=self.ledger.epoch(principal, campaign),
            manifest="d" * 64 if (campaign, principal) in self.manifests else None,
        )

    def _campaign(self, lease: str) -> str:
        place = self.ledger.place(lease)
        return place.wanted.task.campaign if place is not None else ""

    def _spoke(self, end: End, campaign: str, word: str, epoch: int | None = None) -> None:
        number = end.far.speaks.get(campaign, 0) if epoch is None else epoch
        self._tell(Kind.SPOKE, who=end.station.process.name, campaign=campaign, word=word, number=number)

    def presented(self) -> None:
        """Somebody may do something now that it perhaps could not before."""
        if self.process.alive:
            news, self._let_in = self._let_in, Flag()
            news.set()

    def _opened(self, end: End) -> None:
        self.process.spawn(self._beside(end))

    async def _beside(self, end: End) -> None:
        """Each scheduler's link: taken up once it may do anything here."""
        while self._permit(self.name, end.peer) is None:
            await self._let_in.wait(self.process)
        if end.closed.is_set:
            return
        self._links[end] = None
        self.ledger.link_up(end.peer, self.process.now())
        self._carry_out()
        await self._send_results(end)

    def _closed(self, end: End) -> None:
        if end in self._links:
            del self._links[end]
            self.ledger.link_down(end.peer, self.process.now())
            self._carry_out()

    def _link(self, peer: str, principal: str, campaign: str) -> End | None:
        """The newest link over which it has spoken of the campaign; else the newest on which it may yet.

        One over which it spoke under an older epoch belongs to another machine with the same key.
        """
        newest = self.ledger.epoch(principal, campaign)
        links = [end for end in reversed(self._links) if end.peer == peer]
        if "any-link" in self._mutant:
            return next(iter(links), None)
        fit = [end for end in links if end.epochs.get(campaign, newest) >= newest]
        return next((end for end in fit if campaign in end.epochs), next(iter(fit), None))

    def _link_of(self, place: Allocation) -> End | None:
        return self._link(place.peer, place.wanted.principal, place.wanted.task.campaign)

    # -- carrying out -----------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        for order in self.ledger.take_orders():
            match order:
                case RunCommand():
                    self._live[order.lease] = running = Running()
                    place = self.ledger.place(order.lease)
                    assert place is not None
                    self._tell(
                        Kind.BEGAN,
                        lease=order.lease,
                        fence=place.fence.key(),
                        task=place.wanted.task.task,
                        attempt=place.wanted.attempt,
                        sha256="f" * 64 if "wrong-model" in self._mutant else place.wanted.task.model.sha256,
                    )
                    self.process.spawn(self._run(place, running))
                case SlotOffer():
                    self.process.spawn(self._offer(order.lease))
                case KillCommand():
                    self._tell(Kind.STOP_ORDERED, lease=order.lease, word=str(order.reason))
                    running = self._live[order.lease]
                    running.why = order.reason
                    if "kill-forgotten" not in self._mutant:
                        running.stop.set()
                case WarnCommand():
                    end = next((end for end in reversed(self._links) if end.peer == order.peer), None)
                    if end is not None:
                        end.tell(
                            Preempt(
                                lease=order.lease,
                                fence=order.fence,
                                grace_s=order.grace_s,
                                priority=order.priority,
                            )
                        )
        self._look()
        self._changed.set()

    def _look(self) -> None:
        """Tell what has changed in the ledger, and hold it against its own limits."""
        now = {place.lease: place for place in self.ledger.places()}
        for lease, state in self._shadow.items():
            place = now.get(lease)
            if state in HOLDS and (place is None or place.state not in HOLDS):
                self._tell(Kind.LEFT, lease=lease, word=str(place.state if place else "closed"))
        counted: dict[str, int] = {}
        for lease, place in now.items():
            before = self._shadow.get(lease)
            if place.wanted.slots is not None and place.state in COUNTED:
                counted[place.wanted.principal] = counted.get(place.wanted.principal, 0) + 1
                self._count(place, counted[place.wanted.principal])
            if before is LeaseState.QUEUED and place.state is LeaseState.OFFERED:
                self._tell(Kind.TURN, lease=lease, number=self._passed_over(place, now.values()))
            if before is None or before not in HOLDS:
                if place.state in HOLDS:
                    self._tell_place(Kind.TAKEN, place)
                elif before is None and place.state is LeaseState.QUEUED:
                    self._tell_place(Kind.QUEUED, place)
        self._shadow = {lease: place.state for lease, place in now.items()}

    def _count(self, place: Allocation, number: int) -> None:
        """Of a principal with a quota: told when it is more than before."""
        principal = place.wanted.principal
        if number > self._counted.get(principal, 0):
            self._counted[principal] = number
            self._told(
                Kind.SIZE, who=self.name, word=f"places of {principal}", number=number, cap=place.wanted.slots
            )

    def _passed_over(self, place: Allocation, places: Iterable[Allocation]) -> int:
        """Tickets of the owner that should have been offered this place."""
        if not self._owner_first or place.wanted.owner:
            return 0
        since = self.process.now() - MUTE_S
        linked = {end.peer for end in self._links if self._unanswered.get(end.peer, -1e9) < since}
        return sum(
            one.state is LeaseState.QUEUED and one.wanted.owner and one.peer in linked for one in places
        )

    def _tell_place(self, kind: Kind, place: Allocation) -> None:
        self._tell(
            kind,
            lease=place.lease,
            fence=place.fence.key(),
            task=place.wanted.task.task,
            attempt=place.wanted.attempt,
            peer=place.peer,
        )

    async def _keep_time(self) -> None:
        while True:
            self._changed = Flag()
            deadline = self.ledger.next_deadline()
            now = self.process.now()
            await self._changed.wait(self.process, None if deadline is None else deadline - now)
            now = self.process.now()
            if deadline is not None and deadline <= now + 1e-6:
                self.ledger.expire(max(now, deadline))
                self._carry_out()

    async def _offer(self, lease: str) -> None:
        place = self.ledger.place(lease)
        if place is None:
            return
        end = self._link_of(place)
        asked = end is not None
        if end is None and any(end.peer == place.peer for end in self._links):
            await self.process.sleep(ASIDE_S)
            end = self._link_of(place)
        answer: Message | None = None
        if end is not None:
            try:
                answer = await end.call(Ready(lease=lease, fence=place.fence), OFFER_S)
            except Unreachable:
                end.drop()
        now = self.process.now()
        if answer is None:
            self._unanswered[place.peer] = now
            self.ledger.defer(lease, now, asked=asked)
        elif isinstance(answer, Start):
            self.ledger.start(lease, now)
        else:
            self.ledger.skip(lease, now)
        self._carry_out()

    async def _run(self, place: Allocation, running: Running) -> None:
        process, wanted, lease = self.process, place.wanted, place.lease
        place.began = process.now()
        self.ledger.condition.begin()
        low, high = self.runs.seconds
        seconds = self._rng.uniform(low, high)
        crash = self._rng.random() < self.runs.crashes
        phases = ((Phase.FETCH, 0.2), (Phase.LOAD, 0.2), (Phase.RUN, 0.5), (Phase.CHECK, 0.1))
        for seq, (phase, share) in enumerate(phases):
            end = self._link_of(place)
            if end is not None:
                end.tell(Progress(lease=lease, fence=place.fence, seq=seq, phase=phase))
            self._timing(lease, on=phase is Phase.RUN)
            if await running.stop.wait(process, seconds * share) or (crash and phase is Phase.RUN):
                break
        if running.stop.is_set:
            await process.sleep(self._rng.uniform(0.006, KILL_S))
        self._timing(lease, on=False)
        stopped = running.stop.is_set
        outcome, reason, permanent = RunOutcome.COMPLETE, None, False
        if stopped:
            outcome, reason = RunOutcome.CANCELLED, running.why
        elif wanted.task.task in self.broken:
            outcome, reason, permanent = RunOutcome.FAILED, Reason.BROKEN_MODEL, True
        elif crash:
            outcome, reason = RunOutcome.FAILED, Reason.CRASHED
        self.ledger.condition.end(outcome, reason, permanent, wanted.task.model.sha256)
        self._tell(Kind.DEAD, lease=lease)
        running.gone.set()
        self.ledger.finish(lease, process.now())
        self._live.pop(lease, None)
        self._carry_out()
        await process.sleep(self._rng.uniform(0.001, 0.02))  # the disk
        self._file(place, outcome, reason, permanent)
        self.ledger.condition.clean()
        self._carry_out()

    def _timing(self, lease: str, *, on: bool) -> None:
        place = self.ledger.place(lease)
        if place is not None and place.timed is not on:
            self._tell(Kind.TIMING, lease=lease, number=int(on))
            self.ledger.timing(lease, on, self.process.now())
            self._carry_out()


def live(place: Allocation) -> LiveLease:
    """As the desk says it."""
    return LiveLease(
        task=place.wanted.task.task,
        attempt=place.wanted.attempt,
        lease=place.lease,
        fence=place.fence,
        queued=place.state in (LeaseState.QUEUED, LeaseState.OFFERED),
        reporting=place.state in (LeaseState.REPORTING, LeaseState.STOPPING),
    )
