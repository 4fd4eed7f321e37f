"""A campaign moves from home to home: its scheduler dies, a second one adopts it by token, and a third one by the owner's key.

Each adoption does what `sark-node adopt` does. Whatever entitles a home to lead has to be on its disk before the campaign is in its store.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from protocol.messages.work import WORK
from protocol.values.trust import OWN
from protocol.words import ProtocolId
from scheduler.adoption.adopt import adopt_campaign
from scheduler.adoption.recovery import RecoveryScan
from scheduler.adoption.token import HandoverToken, passed_on
from scheduler.run.credentials import CredentialPresenter
from scheduler.store.store import Store, open_store
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.net.links import Links
from swarm.pools.membership import Credential, credentials, store_tokens
from tests.durability.campaign_run import SPEED, Leader, Swarm
from tests.durability.patient_clock import PatientClock
from tests.durability.promises import Promises

BOB: Final = "bob"
BEN: Final = "ben"
LASTS_S: Final = 3_600.0


class Adoptions(Swarm):
    """Ann's campaign moves to Bob, then to Ann's other home."""

    async def serve(self, tasks: int) -> None:
        async with self.up():
            campaign = self.ann.submit(1, tasks)
            await self.lead(self.ann, tasks // 4)
            bob = Leader(self, BOB, lambda: credentials(Home.at(self.root / BOB), now=time.time()))
            await self.by_token(bob, campaign)
            await self.lead(bob, tasks // 2)
            await self.by_key(campaign)
            self.nursery.start_soon(self.ann.schedule)  # it hears that others lead the campaign
            await self.until(self.ann, self.ann.done)

    async def lead(self, leader: Leader, results: int) -> None:
        """Run `leader` until this many results are in its store, then kill it."""
        self.nursery.start_soon(leader.schedule)
        await self.until(leader, lambda: leader.recorded() >= results)
        leader.kill()
        await trio.sleep(0.5)

    async def by_token(self, bob: Leader, campaign: str) -> None:
        key = self.ann.identity
        tokens = self.handed(key, (), bob.identity.peer_id, campaign)
        held = [self.credential(each, campaign) for each in tokens]

        def keep() -> None:
            store_tokens(bob.home, held)

        rest = self.elsewhere / "rest"  # a worker has the first model
        shutil.copytree(self.elsewhere / "campaign-1", rest, ignore=shutil.ignore_patterns("m1.json"))
        speaks = ("credential", key.peer_id, None)
        await self.adopt(bob.home, bob.identity, held, campaign, keep, rest, speaks)
        bob.campaigns.append(campaign)
        bob.promise(campaign)

    async def by_key(self, campaign: str) -> None:
        home, key = Home.at(self.root / BEN), self.ann.identity

        def keep() -> None:
            write_durably(home.key("scheduler"), self.ann.home.key("scheduler").read_bytes())

        speaks = ("identity", "scheduler", key.peer_id)
        await self.adopt(home, key, (), campaign, keep, self.elsewhere / "campaign-1", speaks)
        ben = Leader(self, BEN)
        ben.campaigns.append(campaign)
        ben.promise(campaign)
        self.promises.end(
            BEN, "led", _manifest_of(campaign)
        )  # the manifest is removed when the campaign has ended
        self.nursery.start_soon(ben.schedule)
        await self.until(ben, ben.done)
        ben.kill()
        await trio.sleep(0.5)

    async def adopt(
        self,
        home: Home,
        key: Identity,
        held: Sequence[Credential],
        campaign: str,
        keep: Callable[[], None],
        models: Path,
        speaks: tuple[str, str, str | None],
    ) -> None:
        """`speaks`: kind, key and value of the promise that this home may speak for the campaign."""
        with open_store(home) as store:
            _watch(store, home, self.promises, campaign, speaks)
            async with self.visitor(key, held, campaign) as scan:
                await adopt_campaign(
                    scan,
                    campaign=campaign,
                    owner=self.ann.identity.peer_id,
                    store=store,
                    spool=home.spool,
                    models=models,
                    wall=time.time,
                    trust_of=lambda peer: OWN,
                    keep=keep,
                )

    @asynccontextmanager
    async def visitor(
        self, key: Identity, held: Sequence[Credential], campaign: str
    ) -> AsyncIterator[RecoveryScan]:
        visitor = Identity.fresh()
        network: Any = self.swarm.node(visitor)
        tokens = [
            self.credential(each, campaign) for each in self.handed(key, held, visitor.peer_id, campaign)
        ]
        presenter = CredentialPresenter(lambda: tokens, time.time)
        async with trio.open_nursery() as nursery:
            links = Links(network, ProtocolId.WORK, WORK, nursery)
            yield RecoveryScan(network, self, links, presenter.introduce, campaign)  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()
        self.swarm.kill(visitor.peer_id)

    def handed(
        self, key: Identity, held: Sequence[Credential], to: str, campaign: str
    ) -> Sequence[HandoverToken]:
        own = key is self.ann.identity
        return passed_on(key, held, to, campaign, own=own, lasts_s=LASTS_S, now=time.time())

    @staticmethod
    def credential(handed: HandoverToken, campaign: str) -> Credential:
        expires = time.time() + LASTS_S
        return Credential(issuer=handed.issuer, token=handed.token, expires=expires, campaign=campaign)


def _watch(
    store: Store, home: Home, promises: Promises, campaign: str, speaks: tuple[str, str, str | None]
) -> None:
    """Promise that this home leads the campaign once it is in the store: its models, its manifest and its right to speak are on disk by
    then.
    """
    take_over: Any = store.campaigns.take_over

    def seen(new: Any, models: Sequence[Any], *rest: Any, **more: Any) -> None:
        promises.make(home.data.parent.name, *speaks)
        for model in models:
            if (home.spool / model.sha256).exists():  # otherwise the campaign's tasks wait for the model
                promises.make(home.data.parent.name, "spooled", model.sha256)
        name = _manifest_of(campaign)
        manifest = (home.spool / "manifests" / name).read_bytes()
        promises.make(home.data.parent.name, "led", name, hashlib.sha256(manifest).hexdigest())
        take_over(new, models, *rest, **more)

    store.campaigns.take_over = seen  # type: ignore[method-assign]


def _manifest_of(campaign: str) -> str:
    """The name of the manifest's file."""
    return hashlib.sha256(campaign.encode()).hexdigest()[:32]


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    run = Adoptions(root, elsewhere, promises, seed)
    trio.run(run.serve, tasks, clock=PatientClock(SPEED))
    assert load_or_create(Home.at(root / BEN).key("scheduler")).peer_id == run.ann.identity.peer_id
