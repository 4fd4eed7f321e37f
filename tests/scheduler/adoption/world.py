"""Real workers and real schedulers over an in-memory network: tests decide when a run on the workers' devices ends."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from drivers.contract.base import (
    Event,
    Limits,
    WorkOrder,
)
from node.serve.service import WorkerParts as Parts
from node.serve.service import run_worker
from node.settings.settings import WorkerSettings
from node.store.cache import ModelCache
from node.store.outbox_files import open_outbox
from protocol.errors import CampaignError
from protocol.messages.work import WORK
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.values.trust import OWN, STRANGER
from protocol.words import ProtocolId
from scheduler.adoption.adopt import Adoption, adopt_campaign
from scheduler.adoption.recovery import RecoveryScan
from scheduler.adoption.token import HandoverToken, passed_on
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.service import SchedulerService
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.pools.membership import Credential
from tests.scheduler.trusting import OwnWorkers
from tests.scripted import launch_events, scripted_device

UNIT = "CPU (ONNX)"
CAMPAIGN = "c-abcdefgh"
CONTENT = random.Random(7).randbytes(5_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
ANN, BOB = Identity.from_seed("ann"), Identity.from_seed("bob")


@dataclass
class Run:
    """One launch, which runs until `go` is set or it is killed."""

    go: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    runs: int = 10

    def events(self) -> Iterator[Event]:
        return launch_events(UNIT, self.runs, self._killed_first)

    def _killed_first(self) -> bool:
        while not self.go.wait(0.002):
            if self.killed.is_set():
                return True
        return False

    def kill(self) -> None:
        self.killed.set()


@dataclass
class Worker:
    """A worker with one slot, and all its launches so far."""

    identity: Identity
    folder: Path
    runs: list[Run] = field(default_factory=list)
    free: bool = False
    """Whether all launches from now on end by themselves."""
    incarnation: int = 0
    unsent: Callable[[], int] = lambda: 0
    """The number of results that no scheduler has taken."""
    epoch: Callable[[], int | None] = lambda: None
    """The epoch under which Ann's campaign is led at this worker."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def launch(self, order: WorkOrder, limits: Limits) -> Run:
        run = Run(runs=order.runs)
        if self.free:
            run.go.set()
        self.runs.append(run)
        return run

    def let_go(self) -> None:
        """Let present and later launches end by themselves."""
        self.free = True
        for run in self.runs:
            run.go.set()


class Board:
    """An index in which everybody finds everybody."""

    def __init__(self) -> None:
        self.adverts: dict[str, Advert] = {}
        self.seq = 0

    def of(self, network: Any) -> Any:
        board = self

        class Mine:
            async def publish(self, advert: Advert, campaigns: Any = ()) -> int:
                board.seq += 1
                board.adverts[network.peer_id] = advert.model_copy(
                    update={"seq": board.seq, "addresses": network.addresses}
                )
                return 1

            async def withdraw(self) -> int:
                return 0

        return Mine()

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        await trio.lowlevel.checkpoint()
        return self._result([a for a in self.adverts.values() if match(requirement, a).fits])

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        return await self.everybody()

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        return await self.everybody()

    async def everybody(self, limit: int = 256) -> QueryResult:
        await trio.lowlevel.checkpoint()
        return self._result(list(self.adverts.values()))

    @staticmethod
    def _result(adverts: Sequence[Advert]) -> QueryResult:
        signed = SignedAdvert(body=b"", signature=b"s" * 64)
        return QueryResult(tuple(Sighting(a, signed, 0.0) for a in adverts), (), len(adverts), True, {})


@dataclass
class World:
    """The swarm, and the folder of the homes."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    folder: Path
    board: Board = field(default_factory=Board)
    workers: dict[str, Worker] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)

    def trusted(self) -> set[str]:
        """All advertised workers that are not strangers."""
        return self.board.adverts.keys() - self.strangers

    # -- workers -----------------------------------------------------------------------------------------------------------

    async def worker(self, name: str) -> Worker:
        worker = self.workers[name] = Worker(Identity.from_seed(name), self.folder / name)
        await self.start(name)
        return worker

    async def start(self, name: str) -> None:
        """Start the worker, or its next life."""
        worker = self.workers[name]
        worker.incarnation += 1
        network = self.swarm.node(worker.identity)
        parts = Parts(
            device=scripted_device(name, UNIT, worker.folder, worker.launch),
            incarnation=worker.incarnation,
            owners={ANN.peer_id},
            cache=ModelCache(worker.folder / "cache", 10**9, free=lambda path: 10**12),
            outbox=open_outbox(worker.folder / "outbox"),
            wall=time.time,
        )
        worker.scope = trio.CancelScope()

        async def run(task_status: Any) -> None:
            with worker.scope:
                index = self.board.of(network)
                await run_worker(WorkerSettings(), network, index, parts, task_status=task_status)

        started = await self.nursery.start(run)
        worker.unsent = started.conversation.outbox.__len__
        worker.epoch = lambda: started.conversation.ledger.epoch(ANN.peer_id, CAMPAIGN)

    def kill(self, name: str) -> None:
        worker = self.workers[name]
        self.swarm.kill(worker.identity.peer_id)
        worker.scope.cancel()

    @property
    def launched(self) -> int:
        """Number of runs begun on any worker."""
        return sum(len(worker.runs) for worker in self.workers.values())

    # -- schedulers ----------------------------------------------------------------------------------------------------------

    def store(self, home: str) -> Store:
        return Store(self.folder / home / "store.db")

    def submit(self, home: str, tasks: int) -> None:
        """Submit a campaign of Ann's, with its model."""
        spool = self.folder / home / "spool"
        spool.mkdir(parents=True)
        (spool / SHA).write_bytes(CONTENT)
        need = Requirement(clauses=(parse_clause(f"units has {UNIT}"),))
        model = Model(name="tiny.onnx", sha256=SHA, size=len(CONTENT))
        with self.store(home) as store:
            store.campaigns.create(
                NewCampaign(CAMPAIGN, "one", ANN.peer_id, json.dumps({}), backoff_s=0.2),
                [NewModel("tiny", SHA, len(CONTENT), "tiny.onnx")],
                [
                    Task(
                        campaign=CAMPAIGN,
                        task=f"{CAMPAIGN}/{n}",
                        scheduler=ANN.peer_id,
                        model=model,
                        unit=UNIT,
                        requirement=need,
                        measure=Measure(runs=10, loads=1),
                        timeouts=Timeouts(),
                    )
                    for n in range(1, tasks + 1)
                ],
            )

    @asynccontextmanager
    async def scheduler(
        self, home: str, identity: Identity = ANN, credentials: Sequence[Credential] = ()
    ) -> AsyncIterator[Store]:
        """Run the scheduler of a home, and kill it when the block ends. Yields its store for inspection."""
        network = self.swarm.node(identity)
        with self.store(home) as mine, self.store(home) as looking:
            async with trio.open_nursery() as nursery:
                service = SchedulerService(
                    network=network,
                    index=self.board,
                    identity=identity,
                    trust=OwnWorkers(self.trusted),
                    store=mine,
                    spool=self.folder / home / "spool",
                    rng=random.Random(3),
                    credentials=lambda: credentials,
                )
                nursery.start_soon(service.run)
                yield looking
                self.swarm.kill(identity.peer_id)
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def visitor(self, handed: Callable[[str], Sequence[HandoverToken]]) -> AsyncIterator[RecoveryScan]:
        """A visitor with the tokens that `handed` gives to its peer id."""
        visitor = Identity.fresh()
        network = self.swarm.node(visitor)
        tokens = [
            Credential(issuer=each.issuer, token=each.token, expires=time.time() + 60, campaign=CAMPAIGN)
            for each in handed(visitor.peer_id)
        ]
        presenter = CredentialPresenter(lambda: tokens, time.time)
        async with trio.open_nursery() as nursery:
            links = Links(network, ProtocolId.WORK, WORK, nursery)
            yield RecoveryScan(network, self.board, links, presenter.introduce, CAMPAIGN, round_s=0.1)
            nursery.cancel_scope.cancel()
        self.swarm.kill(visitor.peer_id)

    async def adopt(
        self,
        home: str,
        key: Identity = ANN,
        held: Sequence[Credential] = (),
        *,
        models: Path | None = None,
        wall: Callable[[], float] = time.time,
        keep: Callable[[], None] = lambda: None,
    ) -> Adoption:
        """Do what `sark-node adopt` does before it starts the scheduler."""

        def handed(to: str) -> Sequence[HandoverToken]:
            own = key is ANN
            return passed_on(key, held, to, CAMPAIGN, own=own, lasts_s=60.0, now=time.time())

        async with self.visitor(handed) as scan:
            with self.store(home) as store:
                try:
                    return await adopt_campaign(
                        scan,
                        campaign=CAMPAIGN,
                        owner=ANN.peer_id,
                        store=store,
                        spool=self.folder / home / "spool",
                        models=models,
                        wall=wall,
                        trust_of=lambda peer: OWN if peer in self.trusted() else STRANGER,
                        keep=keep,
                    )
                except CampaignError as exc:
                    failure = exc
        raise failure


async def until(condition: Callable[[], Any], what: str, within: float = 20.0) -> None:
    """Wait for a condition that becomes true by itself."""
    with trio.move_on_after(within):
        while not condition():
            await trio.sleep(0.01)
        return
    raise AssertionError(f"not within {within} s: {what}")
