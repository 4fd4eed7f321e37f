"""Doubles for the scheduler: scripted workers that speak the protocol, and a world of them over the in-memory swarm."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.errors import Unreachable
from protocol.formats.phase import Phase
from protocol.messages.work import (
    WORK,
    Accepted,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Denied,
    Granted,
    HeldLease,
    LeaseLost,
    LiveLease,
    Preempt,
    Probe,
    Progress,
    Queued,
    QueuedLease,
    Quote,
    Ready,
    Release,
    Renew,
    Renewed,
    Result,
    ShapeQuote,
    Stale,
    Start,
    Stopped,
)
from protocol.values.advert import Advert, SignedAdvert, UnitOffer
from protocol.values.attempt import TaskState
from protocol.values.features import FORGET
from protocol.values.lease import Fence
from protocol.values.match import compile_requirement
from protocol.values.reading import DeviceReading
from protocol.values.record import (
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts, read_task, task_body, task_message
from protocol.wire.base import MAX_INLINE, Message
from protocol.words import (
    ProtocolId,
    Reason,
    RunOutcome,
    WorkerState,
)
from scheduler.conversation.effects import CheckedRecord
from scheduler.run.service import SchedulerService
from scheduler.store.database import Location as StorePlace
from scheduler.store.database import ServerLocation, server_url
from scheduler.store.rows import NewCampaign, TaskRow
from scheduler.store.store import Store
from swarm.blobs.client import fetch_blob
from swarm.blobs.server import serve_blobs
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity, verify
from swarm.net.link import Link
from swarm.net.links import serve_links
from tests.scheduler.trusting import OwnWorkers

SCHEDULER = Identity.from_seed("scheduler")
UNIT = "CPU (ONNX)"
STALLED_S = 2.0
"""In no test of the service may a turn of the loop compute for this long, twenty times the limit."""
MODEL = b"a model"
SHA = hashlib.sha256(MODEL).hexdigest()


@dataclass
class Place:
    """A granted or queued lease of a scripted worker."""

    task: Task
    body: bytes
    attempt: int
    fence: Fence
    state: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class FakeWorker:
    """A worker with slots, a queue, and a script for the tasks it starts."""

    def __init__(self, swarm: MemorySwarm, name: str, *, seconds: float = 0.05) -> None:
        self.name = name
        self.identity = Identity.from_seed(name)
        self.peer = self.identity.peer_id
        self.swarm = swarm
        self.seconds = seconds
        self.slots = 1
        self.incarnation = 1
        self.ran: list[tuple[str, int]] = []
        self.answers: list[str] = []
        self.cancelled: list[str] = []
        self.commits: list[Commit] = []
        self.deny: Denied | None = None
        self.outcome: Callable[[Task], dict[str, object]] = lambda task: {}
        self.fetch = False
        self.mute: tuple[type[Message], ...] = ()
        """Types of messages that it never answers."""
        self.stale: Denied | None = None
        """Its answer to every message about a campaign that was adopted elsewhere."""
        self.lost_to: Denied | None = None
        """Like `stale`, except that renewals only report the leases lost for that reason."""
        self.page_s: float | None = None
        """The delay of each page of the endless list of what it holds; None: a complete answer at once."""
        self.commit_s = 0.0
        """The delay of its answer to a commit; the granted run begins before the answer."""
        self.deliveries = 1
        self.at_once = False
        """Whether the `deliveries` of a result go out at the same time, or one after the other."""
        self.reading: DeviceReading | None = None
        """The reading that it reports while it loads."""
        self.served = 0
        """How often a record was fetched from it."""
        self.sign = self.identity.sign
        self.advert = Advert(
            features=(FORGET,),
            peer=self.peer,
            seq=1,
            device=f"d-{name}",
            name=name,
            units=(UnitOffer(unit=UNIT, runtime="fake 1"),),
            ram=8 * 1024**3,
        )
        self.start()

    def start(self) -> None:
        """Start the worker with nothing held; also after `die`."""
        self.places: dict[str, Place] = {}
        self.number = 0
        self.preempted: set[str] = set()
        self.link: Link | None = None
        self.work = trio.Event()
        self.network: MemoryNetwork = self.swarm.node(self.identity)
        self.advert = self.advert.model_copy(update={"addresses": self.network.addresses})
        serve_links(self.network, ProtocolId.WORK, WORK, self.answer, opened=self.opened)

    def die(self) -> None:
        self.swarm.kill(self.peer)

    def restart(self) -> None:
        self.incarnation += 1
        self.start()
        self.advert = self.advert.model_copy(update={"seq": self.advert.seq + 1})

    def quote(self, shapes: int = 0) -> Quote:
        running = sum(1 for place in self.places.values() if place.state == "running")
        return Quote(
            incarnation=self.incarnation,
            ledger=1,
            state=WorkerState.BUSY if running else WorkerState.ACTIVE,
            free=max(0, self.slots - running),
            queue=len(self.places) - running,
            shapes=tuple(ShapeQuote(fits=True) for _ in range(shapes)),
        )

    async def opened(self, link: Link) -> None:
        self.link = link
        async with trio.open_nursery() as nursery:
            for lease, place in self.places.items():  # a worker does not stop for a broken link
                if place.state == "reporting":
                    nursery.start_soon(self.report, lease, place)
            nursery.start_soon(self.turns)

    async def turns(self) -> None:
        while True:
            self.work = trio.Event()
            queued = [(lease, place) for lease, place in self.places.items() if place.state == "queued"]
            running = sum(place.state == "running" for place in self.places.values())
            if not queued or running >= self.slots:
                await self.work.wait()
                continue
            lease, place = queued[0]
            assert self.link is not None
            answer = await self.link.call(Ready(lease=lease, fence=place.fence))
            if isinstance(answer, Start) and lease in self.places:
                self.begin(lease, place)
            else:
                self.places.pop(lease, None)

    async def run(self, lease: str, place: Place) -> None:
        incarnation = self.incarnation
        with place.scope:
            for seq, phase in enumerate((Phase.FETCH, Phase.LOAD, Phase.RUN)):
                assert self.link is not None
                shown = self.reading if phase is Phase.LOAD else None
                await self.link.tell(
                    Progress(
                        lease=lease, fence=place.fence, seq=seq, phase=phase, done=1, total=10, reading=shown
                    )
                )
            if self.fetch:
                got = bytearray()
                await fetch_blob(
                    self.network, SCHEDULER.peer_id, (), place.task.model.sha256, sink=got.extend
                )
                assert bytes(got) == MODEL
            await trio.sleep(self.seconds)
            place.state = "reporting"
        if self.incarnation != incarnation:
            return
        if place.scope.cancelled_caught:
            self.places.pop(lease, None)
            self.work.set()
            return
        await self.report(lease, place)

    def record(self, place: Place, **changes: object) -> Record:
        values: dict[str, object] = {
            "campaign": place.task.campaign,
            "task": place.task.task,
            "attempt": place.attempt,
            "fence": place.fence,
            "worker": self.peer,
            "task_sha256": hashlib.sha256(place.body).hexdigest(),
            "model_sha256": place.task.model.sha256,
            "outcome": RunOutcome.COMPLETE,
            "device": DeviceFacts(device=self.advert.device, name=self.name),
            "ran": RunFacts(unit=UNIT, driver="fake", runtime="fake 1"),
            "loads": (LoadSample(ns=1000),) * place.task.measure.loads,
            "timings": (
                Timing(
                    samples=pack_samples([1000] * place.task.measure.runs),
                    warmup=pack_samples([]),
                    cpu_s=0.1,
                    wall_s=0.1,
                ),
            ),
        }
        return Record.model_validate({**values, **self.outcome(place.task), **changes})

    async def report(self, lease: str, place: Place) -> None:
        body = record_body(self.record(place))
        sha = hashlib.sha256(body).hexdigest()
        serve = len(body) > MAX_INLINE
        if serve:

            def find(peer: str, wanted: str) -> bytes | None:
                self.served += 1
                return body if wanted == sha and peer == SCHEDULER.peer_id else None

            serve_blobs(self.network, find)
        message = Result(
            campaign=place.task.campaign,
            task=place.task.task,
            attempt=place.attempt,
            lease=lease,
            fence=place.fence,
            sha256=sha,
            size=len(body),
            signature=self.sign(record_message(body)),
            body=None if serve else body,
        )
        if self.at_once:
            async with trio.open_nursery() as nursery:
                for _ in range(self.deliveries):
                    nursery.start_soon(self.deliver, message)
        else:
            for _ in range(self.deliveries):
                await self.deliver(message)
        self.places.pop(lease, None)
        self.work.set()

    async def deliver(self, message: Result) -> None:
        assert self.link is not None
        answer = await self.link.call(message)
        assert isinstance(answer, (Accepted, Stale))
        self.answers.append("accepted" if isinstance(answer, Accepted) else str(answer.reason))

    async def answer(self, link: Link, message: Message) -> Message | None:
        if isinstance(message, self.mute):
            await trio.sleep_forever()
        match message:
            case Probe():
                return self.deny or self.quote(len(message.shapes))
            case Commit():
                answer = self.deny or self.stale or self.take(link, message)
                await trio.sleep(self.commit_s)
                return answer
            case Renew() | AdoptRequest() if self.stale is not None:
                return self.stale
            case AdoptRequest() if self.lost_to is not None:
                return self.lost_to
            case Renew() if self.lost_to is not None:
                lost = tuple(LeaseLost(lease=h.lease, reason=Reason.STALE_EPOCH) for h in message.held)
                return Renewed(incarnation=self.incarnation, state=self.quote().state, lost=lost)
            case Renew():
                known = tuple(held.lease for held in message.held if held.lease in self.places)
                lost = tuple(
                    LeaseLost(
                        lease=h.lease,
                        reason=Reason.PREEMPTED if h.lease in self.preempted else Reason.UNKNOWN,
                    )
                    for h in message.held
                    if h.lease not in known
                )
                queue = [lease for lease, place in self.places.items() if place.state == "queued"]
                return Renewed(
                    incarnation=self.incarnation,
                    state=self.quote().state,
                    renewed=known,
                    lost=lost,
                    waiting=tuple(
                        QueuedLease(lease=lease, position=n, start_s=n * self.seconds)
                        for n, lease in enumerate(queue, start=1)
                        if lease in known
                    ),
                )
            case AdoptRequest() if self.page_s is not None:
                await trio.sleep(self.page_s)
                return AdoptReply(incarnation=self.incarnation, cursor=message.cursor + 1)
            case AdoptRequest():
                leases = tuple(
                    LiveLease(
                        task=p.task.task,
                        attempt=p.attempt,
                        lease=lease,
                        fence=p.fence,
                        queued=p.state == "queued",
                        reporting=p.state == "reporting",
                    )
                    for lease, p in self.places.items()
                    if p.task.campaign == message.campaign
                )
                return AdoptReply(incarnation=self.incarnation, leases=leases)
            case Cancel() | Release():
                for held in message.held:
                    self.stop(held, cancel=isinstance(message, Cancel))
                return Stopped(leases=tuple(held.lease for held in message.held))
            case _:
                raise AssertionError(message)

    def occupy(self, seconds: float) -> None:
        """Occupy a slot with another scheduler's task."""
        assert self.nursery is not None
        fence = Fence(incarnation=self.incarnation, number=0)
        task = read_task(task_body(somebody_elses()))
        self.places["other"] = Place(task, b"", 1, fence, "running")
        self.nursery.start_soon(self._leave, seconds)

    async def _leave(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.places.pop("other", None)
        self.work.set()

    async def preempt(self, priority: int) -> None:
        """Preempt a run: its scheduler gets a warning, and its next renewal an answer without the lease."""
        lease = next(lease for lease, place in self.places.items() if place.state == "running")
        place = self.places.pop(lease)
        assert self.link is not None
        await self.link.tell(Preempt(lease=lease, fence=place.fence, grace_s=1.0, priority=priority))
        self.preempted.add(lease)
        place.scope.cancel()
        self.work.set()

    def stop(self, held: HeldLease, *, cancel: bool) -> None:
        place = self.places.pop(held.lease, None)
        if place is not None and cancel:
            self.cancelled.append(place.task.task)
            place.scope.cancel()

    def take(self, link: Link, commit: Commit) -> Message:
        self.commits.append(commit)
        task = read_task(commit.task)
        assert verify(link.peer, task_message(commit.task), commit.signature)
        self.number += 1
        fence = Fence(incarnation=self.incarnation, number=self.number)
        lease = f"{self.name}.{self.incarnation}.{self.number}"
        self.places[lease] = Place(task, commit.task, commit.attempt, fence, "queued")
        self.work.set()
        if len(self.places) <= self.slots:
            self.begin(lease, self.places[lease])
            return Granted(lease=lease, fence=fence, ttl_s=15, renew_s=5)
        position = sum(1 for place in self.places.values() if place.state == "queued")
        start_s = position * self.seconds
        return Queued(lease=lease, fence=fence, position=position, start_s=start_s, ttl_s=15, renew_s=5)

    def begin(self, lease: str, place: Place) -> None:
        """Begin a run, which continues whatever happens to the link."""
        place.state = "running"
        self.ran.append((place.task.task, place.attempt))
        assert self.nursery is not None
        self.nursery.start_soon(self.guarded, lease, place)

    async def guarded(self, lease: str, place: Place) -> None:
        try:
            await self.run(lease, place)
        except Unreachable:
            place.state = "reporting"

    nursery: trio.Nursery | None = None


def somebody_elses() -> Task:
    """A task of another scheduler."""
    return Task(
        campaign="c-theirs",
        task="c-theirs/1",
        scheduler=Identity.from_seed("another scheduler").peer_id,
        model=Model(name="tiny.onnx", sha256=SHA, size=len(MODEL)),
        unit=UNIT,
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


class FakeIndex:
    """A stand-in for the index that finds all its devices."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.workers = list(workers)
        self.partial = 0
        """How many of the next answers name only the first device, and say that there are others."""
        self.asked: Callable[[], None] = lambda: None

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        await trio.lowlevel.checkpoint()
        self.asked()
        if self.partial:
            self.partial -= 1
            return replace(self._result([w.advert for w in self.workers[:1]]), complete=False)
        fits = compile_requirement(requirement)
        return self._result([w.advert for w in self.workers if fits(w.advert)][:want])

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        await trio.lowlevel.checkpoint()
        return self._result([w.advert for w in self.workers])

    @staticmethod
    def _result(adverts: list[Advert]) -> QueryResult:
        signed = SignedAdvert(body=b"", signature=b"s" * 64)
        results = tuple(Sighting(advert, signed, 0.0) for advert in adverts)
        return QueryResult(results, (), len(results), True, {})


@dataclass
class World:
    """A swarm with some workers, a store with one campaign, and a scheduler that can be started and killed."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    store_path: StorePlace
    spool: Path
    index: FakeIndex
    network: MemoryNetwork
    store: Store
    wall: Callable[[], float] = time.time
    sha256: str = SHA
    strangers: set[str] = field(default_factory=set)
    """Workers that this scheduler does not trust; it trusts all others."""
    awaited: set[str] = field(default_factory=set)
    """Workers that it trusts before they exist."""
    signed: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    """Device id → pool → the workers that the pool lists with the device."""
    stalls: list[tuple[float, str]] = field(default_factory=list)
    """(processor seconds, name) of the turns that blocked the loop."""
    read_aside: int = 0
    """Number of records that were read in the background."""

    def worker(self, name: str, *, seconds: float = 0.05) -> FakeWorker:
        worker = FakeWorker(self.swarm, name, seconds=seconds)
        worker.nursery = self.nursery
        self.index.workers.append(worker)
        return worker

    def submit(
        self,
        tasks: int = 1,
        *clauses: str,
        campaign: str = "c-one",
        wait_s: float = 60.0,
        attempts: int = 3,
        runs: int = 1,
        spec: str = "{}",
        **terms: Any,
    ) -> None:
        need = Requirement(clauses=tuple(parse_clause(text) for text in (f"units has {UNIT}", *clauses)))
        with Store(self.store_path) as other:
            other.campaigns.create(
                NewCampaign(
                    campaign, "one", SCHEDULER.peer_id, spec, attempts=attempts, wait_s=wait_s, **terms
                ),
                [],
                [
                    Task(
                        campaign=campaign,
                        task=f"{campaign}/{n}",
                        scheduler=SCHEDULER.peer_id,
                        model=Model(name="tiny.onnx", sha256=SHA, size=len(MODEL)),
                        unit=UNIT,
                        requirement=need,
                        measure=Measure(runs=runs, loads=1),
                        timeouts=Timeouts(),
                    )
                    for n in range(1, tasks + 1)
                ],
            )

    async def run(self) -> None:
        await self.service().run()

    def service(self, **more: Any) -> SchedulerService:
        return SchedulerService(
            network=self.network,
            index=self.index,
            identity=SCHEDULER,
            trust=OwnWorkers(
                lambda: {worker.peer for worker in self.index.workers} - self.strangers | self.awaited,
                self.signed,
            ),
            store=self.store,
            spool=self.spool,
            rng=random.Random(3),
            wall=self.wall,
            aside=self.aside,
            stalled=lambda seconds, task: self.stalls.append((seconds, task)),
            **more,
        )

    async def aside(self, check: Callable[[], CheckedRecord]) -> CheckedRecord:
        """Run the check in place, because nothing may run in a thread while the clock jumps."""
        self.read_aside += 1
        return check()

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[trio.CancelScope]:
        """Run a scheduler in the background. Leaving the context kills it like -9: it sends and writes nothing more."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            yield nursery.cancel_scope
            nursery.cancel_scope.cancel()

    def new_process(self) -> None:
        """Replace the scheduler's dead process by a new one, which opens the store and joins the network."""
        self.swarm.kill(SCHEDULER.peer_id)
        self.store.close()
        self.store = Store(self.store_path)
        self.network = self.swarm.node(SCHEDULER)

    def task(self, n: int = 1, campaign: str = "c-one") -> TaskRow:
        row = self.store.tasks.get(f"{campaign}/{n}")
        assert row is not None
        return row

    def states(self, campaign: str = "c-one") -> set[TaskState]:
        return {task.state for task in self.store.tasks.all(campaign)}

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        with trio.fail_after(seconds):
            while not condition():
                await trio.sleep(0.01)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """A place for a store: a file, then a new schema on a server."""
    if request.param == "sqlite":
        return tmp_path / "store.db"
    return on_server(request.getfixturevalue("postgres"))


@pytest.fixture
def second_place(place: StorePlace) -> StorePlace:
    """Another place of the same kind."""
    if isinstance(place, Path):
        return place.with_name("second.db")
    return replace(place, schema=place.schema + "_2")


def on_server(url: str) -> ServerLocation:
    """A fresh place on that server."""
    return ServerLocation(server_url(url), f"sark_{secrets.token_hex(16)}")


@pytest.fixture
def world_place(tmp_path: Path) -> StorePlace:
    """The place of the world's store. A module that wants another place overrides this fixture."""
    return tmp_path / "store.db"


@pytest.fixture
async def world(tmp_path: Path, world_place: StorePlace) -> AsyncIterator[World]:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / SHA).write_bytes(MODEL)
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm, trio.open_nursery() as nursery:
        store = Store(world_place)
        made = World(swarm, nursery, world_place, spool, FakeIndex(), swarm.node(SCHEDULER), store)
        yield made
        made.store.close()
        nursery.cancel_scope.cancel()
    assert not [stall for stall in made.stalls if stall[0] > STALLED_S], made.stalls
