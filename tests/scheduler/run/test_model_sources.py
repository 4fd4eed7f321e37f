"""Which workers a scheduler names as sources to a worker that is about to fetch a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio

from protocol.messages.blobs import MAX_OTHERS
from protocol.words import Reason
from scheduler.core.ranking import WorkerView
from scheduler.core.state import State
from scheduler.run.models import GRANT_TTL_S, ModelSources
from swarm.index.query import QueryResult
from swarm.net.identity import Identity, verify

SHA = "ab" * 32
ME = Identity.from_seed("scheduler")
PEERS = [Identity.from_seed(n).peer_id for n in range(40)]
AT = ("/ip4/192.0.2.7/tcp/4102",)


@dataclass
class Core:
    """The part of the core that is used."""

    state: State = field(default_factory=lambda: State(random.Random(1)))
    fetching: set[str] = field(default_factory=set)
    strangers: set[str] = field(default_factory=set)
    searches: int = 0

    @property
    def workers(self) -> Core:
        return self

    def may_fetch(self, peer: str, sha256: str) -> bool:
        return sha256 == SHA and peer in self.fetching

    def may_share(self, peer: str, taker: str, sha256: str) -> bool:
        return self.may_fetch(taker, sha256) and peer not in self.strangers

    def add_adverts(self, group: str, adverts: object, now: float) -> list[object]:
        self.searches += 1
        return []

    def has(self, peer: str, **more: object) -> WorkerView:
        view = self.state.workers[peer] = WorkerView(peer, AT, warm={SHA}, **more)  # type: ignore[arg-type]
        return view


class Index:
    asked = 0

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        self.asked += 1
        return QueryResult((), (), 0, True, {})


@pytest.fixture
def core() -> Core:
    made = Core(fetching={PEERS[0]})
    made.state.workers[PEERS[0]] = WorkerView(PEERS[0], AT)
    return made


def holders(core: Core, nursery: trio.Nursery, index: Index | None = None) -> ModelSources:
    return ModelSources(
        core,  # type: ignore[arg-type]
        index or Index(),  # type: ignore[arg-type]
        ME,
        nursery=nursery,
        carry_out=lambda orders: None,
        wall=lambda: 1000.0,
        rng=random.Random(1),
    )


async def named(core: Core, peer: str = PEERS[0]) -> set[str] | None:
    async with trio.open_nursery() as nursery:
        result = await holders(core, nursery).where(peer, SHA)
    return None if result is None else {each.peer for each in result.others}


async def test_a_worker_without_a_task_that_needs_the_model_gets_no_sources(core: Core) -> None:
    core.has(PEERS[1])
    assert await named(core, PEERS[1]) is None


async def test_those_that_have_it_and_those_that_are_fetching_it_are_named(core: Core) -> None:
    core.has(PEERS[1])
    core.state.workers[PEERS[2]] = WorkerView(PEERS[2], AT)
    core.fetching.add(PEERS[2])
    core.state.workers[PEERS[3]] = WorkerView(PEERS[3], AT)
    assert await named(core) == {PEERS[1], PEERS[2]}


async def test_a_stranger_that_has_it_is_not_told_who_fetches_it(core: Core) -> None:
    core.has(PEERS[1])
    core.has(PEERS[2])
    core.strangers.add(PEERS[2])
    assert await named(core) == {PEERS[1]}


async def test_those_that_cannot_be_reached_or_do_not_serve_us_are_not(core: Core) -> None:
    core.has(PEERS[1], unreachable=1)
    core.has(PEERS[2], refused=Reason.NOT_ALLOWED)
    core.has(PEERS[3]).addresses = ()
    assert await named(core) == set()


async def test_of_many_some_are_named_with_a_grant_for_the_asker_alone(core: Core) -> None:
    for peer in PEERS[1:]:
        core.has(peer)
    async with trio.open_nursery() as nursery:
        result = await holders(core, nursery).where(PEERS[0], SHA)
    assert result is not None
    assert len(result.others) == MAX_OTHERS
    assert result.grant is not None
    assert (result.grant.taker, result.grant.sha256, result.grant.until) == (
        PEERS[0],
        SHA,
        1000 + GRANT_TTL_S,
    )
    assert verify(ME.peer_id, result.grant.message, result.grant.signature)


async def test_where_few_are_known_the_index_is_asked_once_in_a_while(core: Core) -> None:
    index = Index()
    async with trio.open_nursery() as nursery:
        made = holders(core, nursery, index)
        for _ in range(3):
            await made.where(PEERS[0], SHA)
    assert (index.asked, core.searches) == (1, 1)
