"""Showing a worker what this scheduler may have done there: before anything else, no more than it needs, and again when it forgot."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Unreachable
from protocol.messages.work import WORK, Commit, CredentialsReply, Denied, ShowCredentials
from protocol.values.attempt import TaskState
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right
from scheduler.run.credentials import AGAIN_S, MAX_SHOWN, CredentialPresenter
from scheduler.run.service import run_scheduler
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link, Links, serve_links
from swarm.pools.membership import Credential
from tests.scheduler.conftest import SCHEDULER, FakeWorker, World

POOL = Identity.from_seed("pool").peer_id


def credential(pool_name: str, expires: float = 1000.0) -> Credential:
    return Credential(POOL, f"token of {pool_name or 'nobody'}".encode(), pool_name, expires)


class Worker:
    """Takes what its `takes` names, and remembers what it was shown."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.takes: set[bytes] = set()
        self.shown: list[str] = []
        self.odd = False
        serve_links(network, ProtocolId.WORK, WORK, self._answer)

    async def _answer(self, link: Link, message: Message) -> Message:
        assert isinstance(message, ShowCredentials)
        self.shown.append(message.token.decode().removeprefix("token of "))
        if self.odd:
            return message
        if message.token in self.takes:
            return CredentialsReply(principal=link.peer, rights=(Right.SUBMIT,), priority=100, left_s=10.0)
        return Denied(reason=Reason.NOT_ALLOWED)


class Stage:
    def __init__(self, worker: Worker, links: Links) -> None:
        self.worker, self.links = worker, links
        self.have: list[Credential] = []
        self.presenting = CredentialPresenter(lambda: self.have, trio.current_time)

    async def link(self) -> Link:
        return await self.links.get(self.worker.network.peer_id, self.worker.network.addresses)

    def takes(self, *names: str) -> None:
        self.worker.takes = {credential(name).token for name in names}


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        worker = Worker(swarm.node(Identity.from_seed("worker")))
        me = swarm.node(Identity.from_seed("me"), holder=False)
        yield Stage(worker, Links(me, ProtocolId.WORK, WORK, nursery))
        nursery.cancel_scope.cancel()


async def test_a_worker_is_shown_what_is_for_its_pools_and_what_was_handed_over(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        stage.have = [credential("lab"), credential("other"), credential("")]
        await stage.presenting.introduce(await stage.link(), ("lab", "third"))
        assert stage.worker.shown == ["lab", "nobody"]


async def test_what_is_for_the_campaigns_at_hand_is_shown_though_much_else_was_handed_over(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        others = [Credential(POOL, f"token of {n}".encode(), "", 1000.0, f"c-{n}") for n in range(MAX_SHOWN)]
        mine = Credential(POOL, b"token of mine", "", 1000.0, "c-mine")
        stage.have = [*others, mine, credential("lab")]
        stage.presenting = CredentialPresenter(lambda: stage.have, trio.current_time, lambda: ("c-mine",))
        await stage.presenting.introduce(await stage.link(), ("lab",))
        assert stage.worker.shown[:2] == ["mine", "lab"]
        assert len(stage.worker.shown) == MAX_SHOWN


async def test_a_worker_that_is_not_known_yet_is_shown_everything(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.have = [credential("lab"), credential("other")]
        await stage.presenting.introduce(await stage.link(), None)
        assert stage.worker.shown == ["lab", "other"]


async def test_one_link_is_introduced_once_and_all_who_use_it_wait_for_that(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        stage.have = [credential("lab")]
        stage.takes("lab")
        link = await stage.link()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stage.presenting.introduce, link, ("lab",))
        await stage.presenting.introduce(link, ("lab",))
        assert stage.worker.shown == ["lab"]
        await stage.links.drop(link.peer)
        await stage.presenting.introduce(await stage.link(), ("lab",))
        assert stage.worker.shown == ["lab", "lab"]


async def test_nothing_is_said_where_there_is_nothing_to_show(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        link = await stage.link()
        before = trio.current_time()
        await stage.presenting.introduce(link, ("lab",))
        assert trio.current_time() == before
        assert stage.worker.shown == []


async def test_who_is_denied_shows_all_it_has_once_and_learns_whether_that_helped(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        stage.have = [credential("lab")]
        stage.takes("new")
        link = await stage.link()
        await stage.presenting.introduce(link, ())
        assert stage.worker.shown == []
        stage.have = [credential("lab"), credential("new")]  # enrolled a moment ago
        assert await stage.presenting.again(link)
        assert stage.worker.shown == ["lab", "new"]
        assert not await stage.presenting.again(link)
        await trio.sleep(AGAIN_S)
        stage.takes()
        assert not await stage.presenting.again(link)
        assert len(stage.worker.shown) == 4


async def test_what_nears_its_end_is_shown_anew_with_what_was_renewed(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.have = [credential("lab", expires=trio.current_time() + 100)]
        stage.takes("lab")
        link = await stage.link()
        await stage.presenting.introduce(link, ("lab",))
        await trio.sleep(40)
        await stage.presenting.introduce(link, ("lab",))
        assert stage.worker.shown == ["lab"]
        stage.have = [credential("lab", expires=trio.current_time() + 1000)]
        await trio.sleep(15)
        await stage.presenting.introduce(link, ("lab",))
        assert stage.worker.shown == ["lab", "lab"]


# -- with the whole scheduler ---------------------------------------------------------------------------------------------


class Guarded(FakeWorker):
    """Serves who has shown its pool's token; forgets it when it restarts, or when told to."""

    def start(self) -> None:
        self.let_in = False
        self.said: list[str] = []
        self.forgets_after: int | None = None
        """Runs after which it forgets once, when the next commit comes."""
        super().start()

    async def answer(self, link: Link, message: Message) -> Message | None:
        self.said.append(type(message).__name__)
        if isinstance(message, ShowCredentials):
            self.let_in = message.token == credential("lab").token
            if self.let_in:
                return CredentialsReply(
                    principal=link.peer, rights=(Right.SUBMIT,), priority=100, left_s=10.0
                )
            return Denied(reason=Reason.NOT_ALLOWED)
        if isinstance(message, Commit) and self.forgets_after == len(self.ran):
            self.let_in, self.forgets_after = False, None
        return await super().answer(link, message) if self.let_in else Denied(reason=Reason.NOT_ALLOWED)


def guarded(world: World, *, pools: tuple[str, ...]) -> Guarded:
    worker = Guarded(world.swarm, "mini", seconds=0.05)
    worker.nursery = world.nursery
    worker.advert = worker.advert.model_copy(update={"pools": pools})
    world.index.workers.append(worker)
    return worker


async def carry_out(world: World) -> None:
    await run_scheduler(
        network=world.network,
        index=world.index,
        identity=SCHEDULER,
        store=world.store,
        spool=world.spool,
        rng=random.Random(3),
        wall=world.wall,
        credentials=lambda: (credential("lab", expires=world.wall() + 1e6),),
        aside=world.aside,
    )


async def test_a_worker_of_the_pool_is_shown_the_credential_before_the_first_probe(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world, pools=("lab",))
    world.submit(3)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.said[:2] == ["ShowCredentials", "Probe"]
    assert worker.said.count("ShowCredentials") == 1


async def test_a_worker_whose_advert_does_not_name_the_pool_yet_is_shown_it_when_it_denies(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world, pools=())
    world.submit(1)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.said[:3] == ["Probe", "ShowCredentials", "Probe"]


async def test_a_worker_that_forgot_is_shown_it_again_before_the_commit_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world, pools=("lab",))
    worker.forgets_after = 1
    world.submit(3)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.said.count("ShowCredentials") == 2
    assert len(worker.ran) == 3


async def test_a_worker_that_answers_nonsense_is_left(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.have, stage.worker.odd = [credential("lab")], True
        link = await stage.link()
        with pytest.raises(Unreachable, match="answered Present with Present"):
            await stage.presenting.introduce(link, ("lab",))
        assert link.closed.is_set()
