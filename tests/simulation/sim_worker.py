"""A worker of the model: the real ledger in a shell that does what `node.service`, `node.desk` and `node.delivery` do around it.

Mirrored: permission on each verb; what a link has spoken under; orders carried out after each change; expiry on the ledger's own
deadline; an offer that is not answered in OFFER_S is put off; a run with its phases, its timed window and its end; results on disk before
they are sent, sent on each new link and every AGAIN_S until they are answered; a new incarnation with every start.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node.delivery import AGAIN_S, OFFER_S, RESULT_S
from node.ledger import Ledger
from node.places import HOLDS, Kill, Offer, Place, Run, Warn
from protocol.base import Message
from protocol.errors import Unreachable
from protocol.lease import LeaseState
from protocol.messages import (
    Accepted,
    Adopt,
    Adopted,
    Cancel,
    Commit,
    Denied,
    Granted,
    LiveLease,
    Preempt,
    Probe,
    Progress,
    Queued,
    Ready,
    Release,
    Renew,
    Result,
    ShapeQuote,
    Stale,
    Start,
    Stopped,
)
from protocol.record import Record
from protocol.words import Outcome, Phase, Reason
from tests.simulation import adapter
from tests.simulation.history import Kind
from tests.simulation.kernel import Flag, Kernel, Process
from tests.simulation.wire import Air, End, Station

Tell = Callable[..., None]
KILL_S = 0.4
"""The longest that processes take to die."""


@dataclass
class Runs:
    """How runs go on this worker."""

    seconds: tuple[float, float] = (0.2, 6.0)
    crashes: float = 0.0
    """Share of runs that crash."""
    lies: bool = False
    """It sends results that are not its own, twice, and late."""


@dataclass
class Running:
    """A run in this life."""

    stop: Flag = field(default_factory=Flag)
    gone: Flag = field(default_factory=Flag)
    why: Reason = Reason.CANCELLED


@dataclass
class Item:
    """A result that waits for its scheduler."""

    peer: str
    result: Result
    homeless: bool
    """The disk did not take it: it is gone with the process."""


class SimWorker:
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
        may: Callable[[str, str], bool],
        make_ledger: Callable[..., Ledger] = Ledger,
        mutant: frozenset[str] = frozenset(),
    ) -> None:
        """`may(worker, peer)`: permission now."""
        self.name = name
        self.slots = slots
        self.runs = runs
        self.process = Process(kernel, name, offset=rng.uniform(0, 1000), rate=rng.uniform(0.9, 1.1))
        self.station = Station(self.process, self._serve, self._opened, self._closed)
        self.incarnation = 0
        self.outbox: dict[str, Item] = {}
        self.disk_full = False
        self.ledger: Ledger
        self._air = air
        self._rng = rng
        self._told = tell
        self._may = may
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
        self.ledger = adapter.new_ledger(self._make_ledger, self.incarnation, self.name, self.slots)
        self.outbox = {sha: item for sha, item in self.outbox.items() if not item.homeless}
        self._live: dict[str, Running] = {}
        self._shadow = {}
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
        if not self._may(self.name, end.peer) and "no-permission" not in self._mutant:
            return Denied(reason=Reason.NOT_ALLOWED)
        told = self._tell_later(end.peer, message)
        answer = await self._reply(end, message)
        if not isinstance(answer, Denied):
            told()
        return answer

    def _tell_later(self, peer: str, message: Message) -> Callable[[], None]:
        """The verb counts as said now, though it may be answered later."""
        may = self._may(self.name, peer)
        word = type(message).__name__.lower()
        return lambda: self._tell(Kind.VERB, peer=peer, word=word, number=int(may))

    async def _reply(self, end: End, message: Message) -> Message | None:
        now, peer, ledger = self.process.now(), end.peer, self.ledger
        match message:
            case Probe():
                ledger.expire(now)
                self._carry_out()
                shapes = tuple(ShapeQuote(fits=True) for _ in message.shapes)
                return ledger.quote(now).model_copy(update={"shapes": shapes})
            case Commit():
                answer = ledger.commit(adapter.wanted(peer, message), now)
                if isinstance(answer, (Granted, Queued)):
                    campaign = adapter.task_of(message).campaign
                    end.epochs[campaign] = max(message.epoch, end.epochs.get(campaign, 0))
                self._carry_out()
                return answer
            case Renew():
                renewed = adapter.renew(ledger, peer, message, end.epochs, now)
                self._carry_out()
                return renewed
            case Cancel() | Release():
                reason = message.reason if isinstance(message, Cancel) else Reason.CANCELLED
                if denied := adapter.refused(ledger, peer, message.held, end.epochs):
                    return denied
                held = message.held
                for item in held:
                    if isinstance(message, Cancel):
                        self._tell(Kind.CANCEL_TOLD, peer=peer, lease=item.lease)
                dying = ledger.stop(peer, held, reason, now)
                self._carry_out()
                for lease in dying:
                    running = self._live.get(lease)
                    if running is not None and "stopped-too-soon" not in self._mutant:
                        await running.gone.wait(self.process)
                return Stopped(leases=tuple(item.lease for item in message.held))
            case Adopt():
                if stale := ledger.adopt(peer, peer, message.campaign, message.epoch):
                    return stale
                end.epochs[message.campaign] = message.epoch
                return Adopted(
                    incarnation=ledger.incarnation,
                    leases=tuple(live(place) for place in ledger.of_campaign(peer, message.campaign)),
                )
            case _:
                raise AssertionError(f"{type(message).__name__} is not a scheduler's to say")

    def presented(self) -> None:
        """Somebody may do something now that it perhaps could not before."""
        if self.process.alive:
            news, self._let_in = self._let_in, Flag()
            news.set()

    def _opened(self, end: End) -> None:
        self.process.spawn(self._beside(end))

    async def _beside(self, end: End) -> None:
        """Each scheduler's link: taken up once it may do anything here."""
        while not self._may(self.name, end.peer):
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

    def _link(self, peer: str) -> End | None:
        return next((end for end in reversed(self._links) if end.peer == peer), None)

    # -- carrying out -----------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        for order in self.ledger.take_orders():
            match order:
                case Run():
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
                case Offer():
                    self.process.spawn(self._offer(order.lease))
                case Kill():
                    self._tell(Kind.STOP_ORDERED, lease=order.lease, word=str(order.reason))
                    running = self._live[order.lease]
                    running.why = order.reason
                    if "kill-forgotten" not in self._mutant:
                        running.stop.set()
                case Warn():
                    end = self._link(order.peer)
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
        for lease, place in now.items():
            before = self._shadow.get(lease)
            if before is None or before not in HOLDS:
                if place.state in HOLDS:
                    self._tell_place(Kind.TAKEN, place)
                elif before is None and place.state is LeaseState.QUEUED:
                    self._tell_place(Kind.QUEUED, place)
        self._shadow = {lease: place.state for lease, place in now.items()}

    def _tell_place(self, kind: Kind, place: Place) -> None:
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
        end = self._link(place.peer)
        answer: Message | None = None
        if end is not None:
            try:
                answer = await end.call(Ready(lease=lease, fence=place.fence), OFFER_S)
            except Unreachable:
                end.drop()
        now = self.process.now()
        if answer is None:
            self.ledger.defer(lease, now)
        elif isinstance(answer, Start):
            self.ledger.start(lease, now)
        else:
            self.ledger.skip(lease, now)
        self._carry_out()

    async def _run(self, place: Place, running: Running) -> None:
        process, wanted, lease = self.process, place.wanted, place.lease
        place.began = process.now()
        self.ledger.condition.begin()
        low, high = self.runs.seconds
        seconds = self._rng.uniform(low, high)
        crash = self._rng.random() < self.runs.crashes
        phases = ((Phase.FETCH, 0.2), (Phase.LOAD, 0.2), (Phase.RUN, 0.5), (Phase.CHECK, 0.1))
        for seq, (phase, share) in enumerate(phases):
            end = self._link(place.peer)
            if end is not None:
                end.tell(Progress(lease=lease, fence=place.fence, seq=seq, phase=phase))
            self._timing(lease, on=phase is Phase.RUN)
            if await running.stop.wait(process, seconds * share) or (crash and phase is Phase.RUN):
                break
        if running.stop.is_set:
            await process.sleep(self._rng.uniform(0.006, KILL_S))
        self._timing(lease, on=False)
        stopped = running.stop.is_set
        outcome, reason, permanent = Outcome.COMPLETE, None, False
        if stopped:
            outcome, reason = Outcome.CANCELLED, running.why
        elif wanted.task.task in self.broken:
            outcome, reason, permanent = Outcome.FAILED, Reason.BROKEN_MODEL, True
        elif crash:
            outcome, reason = Outcome.FAILED, Reason.CRASHED
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

    # -- results ------------------------------------------------------------------------------------------------------------------

    def _file(self, place: Place, outcome: Outcome, reason: Reason | None, permanent: bool) -> None:
        task = place.wanted.task
        words = f"{self.name} {task.task} {place.wanted.attempt} {place.fence.key()} {outcome}"
        sha = hashlib.sha256(words.encode()).hexdigest()
        record = Record.model_construct(
            campaign=task.campaign,
            task=task.task,
            attempt=place.wanted.attempt,
            fence=place.fence,
            worker=self.name,
            model_sha256=task.model.sha256,
            outcome=outcome,
            reason=reason,
            permanent=permanent,
            detail="",
        )
        result = Result.model_construct(
            campaign=task.campaign,
            task=task.task,
            attempt=place.wanted.attempt,
            lease=place.lease,
            fence=place.fence,
            sha256=sha,
            size=100,
            signature=b"",
            body=record,
        )
        self.outbox[sha] = Item(place.peer, result, homeless=self.disk_full)
        news, self._news = self._news, Flag()
        news.set()

    async def _send_results(self, end: End) -> None:
        while not end.closed.is_set:
            news = self._news
            for sha, item in tuple(self.outbox.items()):
                if item.peer != end.peer or sha in self._under_way:
                    continue
                if not await self._send(end, sha, item):
                    return
            await news.wait(self.process, AGAIN_S)

    async def _send(self, end: End, sha: str, item: Item) -> bool:
        self._under_way.add(sha)
        try:
            answer: Any = await end.call(item.result, RESULT_S)
        except Unreachable:
            end.drop()
            return False
        finally:
            self._under_way.discard(sha)
        assert isinstance(answer, (Accepted, Stale))
        if not self.runs.lies:
            self.outbox.pop(sha, None)
        elif self._rng.random() < 0.5:  # a liar sends on, under what it has now
            self.outbox.pop(sha, None)
            self._invent(item)
        self.ledger.acknowledge(item.result.lease)
        self._carry_out()
        return True

    def _invent(self, item: Item) -> None:
        """Something that is not so."""
        changes: list[dict[str, Any]] = [
            {"attempt": item.result.attempt + 1},
            {"fence": item.result.fence.model_copy(update={"number": item.result.fence.number + 1})},
            {"task": item.result.task[:-1] + "1"},
            {"lease": item.result.lease + "0"},
        ]
        change = self._rng.choice(changes)
        record = item.result.body.model_copy(update=change)  # type: ignore[union-attr]
        sha = hashlib.sha256(repr((item.result.sha256, change)).encode()).hexdigest()
        if len(self.outbox) < 20 and self._rng.random() < 0.7:
            result = item.result.model_copy(update={**change, "sha256": sha, "body": record})
            self.outbox[sha] = Item(item.peer, result, homeless=True)


def live(place: Place) -> LiveLease:
    """As the desk says it."""
    return LiveLease(
        task=place.wanted.task.task,
        attempt=place.wanted.attempt,
        lease=place.lease,
        fence=place.fence,
        queued=place.state in (LeaseState.QUEUED, LeaseState.OFFERED),
        reporting=place.state in (LeaseState.REPORTING, LeaseState.STOPPING),
    )
