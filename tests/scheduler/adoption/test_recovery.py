"""What workers report about a campaign, when some of them lie, refuse or are slow."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.errors import CampaignError, ResourceError
from protocol.messages.blobs import BLOB, PieceFollows
from protocol.messages.work import AdoptReply, Denied, LiveLease
from protocol.values.advert import Advert, SignedAdvert
from protocol.values.campaign_manifest import CampaignManifest, ManifestModel, make_manifest
from protocol.values.lease import Fence
from protocol.values.task import Model, Task, task_body
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId, Reason
from scheduler.adoption.recovery import Recovery, RecoveryScan, WorkerReport
from scheduler.run.restore import entries_of
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.blobs.server import serve_blobs
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.network import Stream
from tests.scheduler.core_parts import a_task

ANN = Identity.from_seed("ann")
CAMPAIGN = "c-abcdefgh"
CONTENT = random.Random(7).randbytes(5_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
MODEL = Model(name="m.onnx", sha256=SHA, size=len(CONTENT))
Says = Callable[[Message], Message]


def peer(name: str) -> str:
    return Identity.from_seed(name).peer_id


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def task(n: int) -> Task:
    return a_task(n, campaign=CAMPAIGN).model_copy(update={"scheduler": ANN.peer_id, "model": MODEL})


def a_manifest(signer: Identity = ANN) -> bytes:
    made = make_manifest(
        CampaignManifest(
            campaign=CAMPAIGN,
            name="one",
            owner=ANN.peer_id,
            spec="{}",
            attempts=3,
            backoff_s=5.0,
            wait_s=60.0,
            models=(ManifestModel(name="m", sha256=SHA, size=len(CONTENT)),),
            tasks=(task_body(task(1)),),
        ),
        signer.sign,
    )
    assert made is not None
    return made


MANIFEST = a_manifest()


def lease(n: int, attempt: int = 1, *, queued: bool = False) -> LiveLease:
    fence = Fence(incarnation=1, number=n)
    return LiveLease(
        task=f"{CAMPAIGN}/{n}", attempt=attempt, lease=f"w-{n}.{attempt}", fence=fence, queued=queued
    )


class Listing:
    """An index that lists `ours` under the campaign, and everybody when asked for everybody."""

    def __init__(self, adverts: Mapping[str, Advert], ours: Sequence[str]) -> None:
        self._adverts, self._ours = adverts, ours

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        return self._found(self._ours)

    async def everybody(self, limit: int = 256) -> QueryResult:
        return self._found(list(self._adverts))

    def _found(self, names: Sequence[str]) -> QueryResult:
        signed = SignedAdvert(body=b"", signature=b"s" * 64)
        results = tuple(Sighting(self._adverts[name], signed, 0.0) for name in names)
        return QueryResult(results, (), len(results), True, {})


class Speaking:
    """Links to workers with scripted answers."""

    def __init__(self, says: Mapping[str, Says]) -> None:
        self._says = says

    async def get(self, to: str, addresses: Sequence[str], max_wait_s: float = 5.0) -> Any:
        says = self._says[to]

        class Link:
            async def call(self, message: Message, max_wait_s: float = 5.0) -> Message:
                return says(message)

        return Link()

    async def drop(self, to: str) -> None:
        pass


class Place:
    """A swarm in which each worker has an address, and one of our nodes asks."""

    def __init__(self, swarm: MemorySwarm) -> None:
        self.swarm = swarm
        self.me = swarm.node(Identity.from_seed("me"))
        self.adverts: dict[str, Advert] = {}
        self.says: dict[str, Says] = {}

    def worker(self, name: str, says: Says | None = None) -> Any:
        node = self.swarm.node(Identity.from_seed(name))
        addresses = tuple(node.addresses)
        self.adverts[name] = Advert(
            peer=node.peer_id, seq=1, device=f"d-{name}", name=name, addresses=addresses
        )
        self.says[node.peer_id] = says or (lambda _: AdoptReply(incarnation=1))
        return node

    def scan(self, *ours: str, next_s: float = 0.01, pace_s: float = 0.2) -> RecoveryScan:
        async def introduce(link: object) -> None:
            pass

        links: Any = Speaking(self.says)
        index = Listing(self.adverts, ours or list(self.adverts))
        return RecoveryScan(
            self.me, index, links, introduce, CAMPAIGN, round_s=0.01, next_s=next_s, pace_s=pace_s
        )

    def report(self, name: str, manifest: str, size: int = len(MANIFEST)) -> dict[str, WorkerReport]:
        return {peer(name): WorkerReport(self.adverts[name], manifest=manifest, manifest_size=size)}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with MemorySwarm(random.Random(1)) as swarm:
        yield Place(swarm)


async def silent(stream: Stream) -> None:
    await trio.sleep_forever()


async def dripping(stream: Stream) -> None:
    """Begins normally, and then sends a single byte now and then."""
    await stream.receive_some(65536)
    await stream.send_all(
        BLOB.encode(Frame(FrameKind.ANSWER, 1, PieceFollows(size=len(CONTENT), length=len(CONTENT))))
    )
    while True:
        await stream.send_all(b"x")
        await trio.sleep(0.05)


async def test_holders_of_a_manifest_that_send_nothing_do_not_hold_up_the_one_that_does(place: Place) -> None:
    recovery = Recovery()
    for name in ("liar-1", "liar-2", "liar-3"):
        place.worker(name).handle(ProtocolId.BLOB, silent)
        recovery.reports |= place.report(name, hashlib.sha256(name.encode()).hexdigest())
    serve_blobs(place.worker("good"), lambda to, sha256: MANIFEST)
    recovery.reports |= place.report("good", hashlib.sha256(MANIFEST).hexdigest())
    with trio.fail_after(5):
        data, opened = await place.scan().manifest(recovery, ANN.peer_id)
    assert data == MANIFEST
    assert opened.tasks == (task(1),)


async def test_a_manifest_that_its_owner_did_not_sign_is_of_no_use(place: Place) -> None:
    forged = a_manifest(Identity.from_seed("eve"))
    serve_blobs(place.worker("liar"), lambda to, sha256: forged)
    recovery = Recovery()
    recovery.reports |= place.report("liar", hashlib.sha256(forged).hexdigest(), len(forged))
    with pytest.raises(CampaignError, match="its signature is not the owner's"):
        await place.scan().manifest(recovery, ANN.peer_id)


async def test_a_manifest_that_is_not_what_its_name_says_is_of_no_use(place: Place) -> None:
    serve_blobs(place.worker("liar"), lambda to, sha256: MANIFEST)
    recovery = Recovery()
    recovery.reports |= place.report("liar", hashlib.sha256(b"another").hexdigest())
    with pytest.raises(CampaignError, match="its content does not match its hash"):
        await place.scan().manifest(recovery, ANN.peer_id)


async def test_a_model_that_comes_by_drops_is_taken_from_another_holder(place: Place, tmp_path: Path) -> None:
    place.worker("slow").handle(ProtocolId.BLOB, dripping)
    serve_blobs(place.worker("good"), lambda to, sha256: CONTENT)
    scan = place.scan()
    await scan.find()
    target = tmp_path / SHA
    with trio.fail_after(5):
        assert await scan.model(MODEL, tmp_path, [peer("slow")])
    assert target.read_bytes() == CONTENT
    assert names(tmp_path) == [SHA], "no part of it is left behind"


async def test_a_model_that_cannot_be_written_is_a_one_line_error(place: Place, tmp_path: Path) -> None:
    serve_blobs(place.worker("good"), lambda to, sha256: CONTENT)
    scan = place.scan()
    await scan.find()
    with pytest.raises(ResourceError, match="cannot write a model to"):
        await scan.model(MODEL, tmp_path / "no-such-folder", [])


async def test_strangers_are_not_reported_as_silent_and_refusals_are_distinguished_from_silence(
    place: Place,
) -> None:
    def refuses(_: Message) -> Message:
        return Denied(reason=Reason.NOT_ALLOWED, detail="this device serves its owner only")

    place.worker("ours")
    place.worker("refuses", refuses)
    place.worker("stranger", refuses)
    place.worker("other-stranger", refuses)
    scan = place.scan("ours", "refuses")
    recovery = await scan.gather()
    await scan.widen(recovery)
    assert list(recovery.reports) == [peer("ours")]
    assert recovery.silent == {peer("refuses"): "refuses refuses (this device serves its owner only)"}


async def test_two_devices_of_one_name_are_distinguished(place: Place) -> None:
    def refuses(_: Message) -> Message:
        return Denied(reason=Reason.NOT_ALLOWED)

    for name in ("one", "two"):
        place.worker(name, refuses)
        place.adverts[name] = place.adverts[name].model_copy(update={"name": "mini"})
    recovery = await place.scan().gather()
    assert set(recovery.silent) == {peer("one"), peer("two")}
    assert set(recovery.silent.values()) == {"mini refuses (not-allowed)"}


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_runs_of_one_attempt_the_later_is_taken(order: int) -> None:
    earlier = lease(1, 3)
    later = earlier.model_copy(update={"lease": "later", "fence": Fence(incarnation=1, number=99)})
    advert = Advert(peer=peer("one"), seq=1, device="d-one", name="one")
    recovery = Recovery()
    recovery.reports[peer("one")] = WorkerReport(advert, (earlier, later)[::order])
    assert recovery.places()[f"{CAMPAIGN}/1"].lease == "later"


def test_no_attempt_that_any_worker_reported_is_ever_used_again(tmp_path: Path) -> None:
    recovery = Recovery()
    for name, outcome in (("one", lease(1)), ("two", lease(1, 5, queued=True))):
        advert = Advert(peer=peer(name), seq=1, device=f"d-{name}", name=name)
        recovery.reports[peer(name)] = WorkerReport(advert, (outcome,))
    result = recovery.places()
    assert (result[f"{CAMPAIGN}/1"].attempt, result[f"{CAMPAIGN}/1"].highest) == (1, 5)
    new = NewCampaign(CAMPAIGN, "one", ANN.peer_id, "{}")
    both = [(one, task_body(one)) for one in (task(1), task(2))]
    with Store(tmp_path / "store.db") as store:
        store.campaigns.take_over(new, [], both, result, epoch=1, created=0.0)
        running, to_do = entries_of(store, CAMPAIGN, store.tasks.bodies(CAMPAIGN))
    assert (running.attempt, running.worker, running.last) == (1, peer("one"), 5)
    assert to_do.last == 5
