"""Presenting this scheduler's credentials to a worker: before anything else, no more than needed, and again when the worker forgot them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Unreachable
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import WORK, Commit, CredentialsReply, Denied, ShowCredentials
from protocol.values.attempt import TaskState
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right
from scheduler.run.credentials import MAX_SHOWN, RETRY_S, CredentialPresenter
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.pools.membership import Credential
from tests.scheduler.conftest import FakeWorker, World

OWNER = Identity.from_seed("owner").peer_id
MANIFEST = ManifestMessage(body=b"manifest", signature=bytes(64))


def credential(name: str, expires: float = 1000.0, campaign: str = "") -> Credential:
    return Credential(issuer=OWNER, token=f"token of {name}".encode(), expires=expires, campaign=campaign)


class Worker:
    """Accepts the credentials named in `takes`, and remembers those it was shown."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.takes: set[bytes] = set()
        self.shown: list[str] = []
        self.odd = False
        serve_links(network, ProtocolId.WORK, WORK, self._answer)

    async def _answer(self, link: Link, message: Message) -> Message:
        assert isinstance(message, (ShowCredentials, ManifestMessage))
        shown = message.token if isinstance(message, ShowCredentials) else message.body
        self.shown.append(shown.decode().removeprefix("token of "))
        if self.odd:
            return message
        if shown in self.takes:
            return CredentialsReply(principal=link.peer, rights=(Right.SUBMIT,), priority=100, left_s=10.0)
        return Denied(reason=Reason.NOT_ALLOWED)


class Stage:
    def __init__(self, worker: Worker, links: Links) -> None:
        self.worker, self.links = worker, links
        self.have: list[Credential] = []
        self.manifests: list[ManifestMessage] = []
        self.presenter = CredentialPresenter(
            lambda: self.have, trio.current_time, manifests=lambda: self.manifests
        )

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


async def test_of_many_tokens_those_for_the_campaigns_at_hand_are_shown(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        others = [credential(str(n), campaign=f"c-{n}") for n in range(MAX_SHOWN)]
        stage.have = [*others, credential("mine", campaign="c-mine"), credential("any")]
        stage.presenter = CredentialPresenter(lambda: stage.have, trio.current_time, lambda: ("c-mine",))
        await stage.presenter.introduce(await stage.link())
        assert stage.worker.shown[:2] == ["mine", "any"]
        assert len(stage.worker.shown) == MAX_SHOWN


async def test_one_link_is_introduced_once_and_all_who_use_it_wait_for_that(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        stage.have = [credential("lab")]
        stage.takes("lab")
        link = await stage.link()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stage.presenter.introduce, link)
        await stage.presenter.introduce(link)
        assert stage.worker.shown == ["lab"]
        await stage.links.drop(link.peer)
        await stage.presenter.introduce(await stage.link())
        assert stage.worker.shown == ["lab", "lab"]


async def test_nothing_is_sent_where_there_is_nothing_to_show(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        link = await stage.link()
        before = trio.current_time()
        await stage.presenter.introduce(link)
        assert trio.current_time() == before
        assert stage.worker.shown == []


async def test_a_worker_that_denies_is_shown_everything_once_and_says_whether_that_helped(
    autojump_clock: MockClock,
) -> None:
    async with staged() as stage:
        link = await stage.link()
        stage.manifests = [MANIFEST]
        await stage.presenter.introduce(link)
        assert stage.worker.shown == [], "a worker has its pools' manifests already"
        stage.have = [credential("new")]  # delegated just now
        stage.worker.takes = {b"manifest"}
        assert await stage.presenter.retry(link)
        assert stage.worker.shown == ["manifest", "new"]
        assert not await stage.presenter.retry(link)
        await trio.sleep(RETRY_S)
        stage.takes()
        assert not await stage.presenter.retry(link)
        assert len(stage.worker.shown) == 4


async def test_what_nears_its_end_is_shown_anew_with_what_was_renewed(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.have = [credential("lab", expires=trio.current_time() + 100)]
        stage.takes("lab")
        link = await stage.link()
        await stage.presenter.introduce(link)
        await trio.sleep(40)
        await stage.presenter.introduce(link)
        assert stage.worker.shown == ["lab"]
        stage.have = [credential("lab", expires=trio.current_time() + 1000)]
        await trio.sleep(15)
        await stage.presenter.introduce(link)
        assert stage.worker.shown == ["lab", "lab"]


# -- with the whole scheduler ---------------------------------------------------------------------------------------------


class Guarded(FakeWorker):
    """Serves a scheduler only after it has presented the required credentials; forgets them when it restarts, or on request."""

    def start(self) -> None:
        self.admitted = False
        self.asks_for: type[Message] = ShowCredentials
        self.log: list[str] = []
        self.forgets_after: int | None = None
        """The number of runs after which it forgets once, at the next commit."""
        super().start()

    async def answer(self, link: Link, message: Message) -> Message | None:
        self.log.append(type(message).__name__)
        if isinstance(message, (ShowCredentials, ManifestMessage)):
            self.admitted |= isinstance(message, self.asks_for)
            if self.admitted:
                return CredentialsReply(
                    principal=link.peer, rights=(Right.SUBMIT,), priority=100, left_s=10.0
                )
            return Denied(reason=Reason.NOT_ALLOWED)
        if isinstance(message, Commit) and self.forgets_after == len(self.ran):
            self.admitted, self.forgets_after = False, None
        return await super().answer(link, message) if self.admitted else Denied(reason=Reason.NOT_ALLOWED)


def guarded(world: World) -> Guarded:
    worker = Guarded(world.swarm, "mini", seconds=0.05)
    worker.nursery = world.nursery
    world.index.workers.append(worker)
    return worker


async def carry_out(world: World) -> None:
    shown = (credential("lab", expires=world.wall() + 1e6),)
    await world.service(credentials=lambda: shown, manifests=lambda: (MANIFEST,)).run()


async def test_a_worker_is_shown_the_token_before_the_first_probe(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world)
    world.submit(3)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.log[:2] == ["ShowCredentials", "Probe"]
    assert worker.log.count("ShowCredentials") == 1
    assert "ManifestMessage" not in worker.log


async def test_a_worker_whose_manifest_is_older_is_shown_ours_when_it_denies(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world)
    worker.asks_for = ManifestMessage
    world.submit(1)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.log[:5] == ["ShowCredentials", "Probe", "ManifestMessage", "ShowCredentials", "Probe"]


async def test_a_worker_that_forgot_is_shown_everything_before_the_commit_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    worker = guarded(world)
    worker.forgets_after = 1
    world.submit(3)
    await carry_out(world)
    assert world.states() == {TaskState.SUCCEEDED}
    assert worker.log.count("ShowCredentials") == 2
    assert len(worker.ran) == 3


async def test_a_worker_that_answers_nonsense_is_left(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.have, stage.worker.odd = [credential("lab")], True
        link = await stage.link()
        with pytest.raises(Unreachable, match="answered ShowCredentials with ShowCredentials"):
            await stage.presenter.introduce(link)
        assert link.closed.is_set()
