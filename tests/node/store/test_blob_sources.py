"""Who gets a model from a worker by a transfer grant: only peers that a scheduler names and to whom the worker would give the model."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from node.access.authorization import Authorization
from node.conversation.outbox import Outbox
from node.run.model_source import model_source
from node.store.blob_sources import BlobSources
from node.store.cache import ModelCache
from node.store.manifests import ManifestStore
from node.store.partial import PartialFile
from protocol.errors import RunError
from protocol.messages.blobs import PIECE_SIZE, HolderInfo, Holders, TransferGrant, grant_message
from protocol.values.task import Model
from protocol.words import Reason
from swarm.base.threads import DISK
from swarm.blobs.pieces import hashes_of
from swarm.blobs.server import Content, serve_blobs
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.pools.tokens import LEEWAY_S, prove
from tests.node.conftest import get_model

CONTENT = random.Random(9).randbytes(2 * PIECE_SIZE + 50)
SHA = hashlib.sha256(CONTENT).hexdigest()
MODEL = Model(name="m.onnx", sha256=SHA, size=len(CONTENT))
ANN, EVE, TAKER, OTHER = (Identity.from_seed(name) for name in ("ann", "eve", "taker", "other"))
NOW = 1_000_000.0


def grant(
    giver: Identity = ANN, taker: Identity = TAKER, sha256: str = SHA, until: int = int(NOW) + 60
) -> TransferGrant:
    signature = giver.sign(grant_message(giver.peer_id, taker.peer_id, sha256, until))
    return TransferGrant(
        giver=giver.peer_id, taker=taker.peer_id, sha256=sha256, until=until, signature=signature
    )


def permits() -> Authorization:
    """Permissions that let Ann and Eve in."""
    return Authorization(owners={ANN.peer_id}, allow={EVE.peer_id}, prove=prove, wall=lambda: NOW)


async def never(*_: object) -> None:
    raise AssertionError("nothing is fetched here")


def sources(folder: Path) -> BlobSources:
    cache = ModelCache(folder / "cache", 10**9, free=lambda path: 10**12)
    manifests = ManifestStore(folder / "manifests", never)
    return BlobSources(
        manifests, cache, Outbox(lambda: NOW, lambda: NOW), folder, permits(), tuple, lambda: NOW
    )


async def having(folder: Path, principal: Identity | None = ANN) -> BlobSources:
    """A worker that has the model, and knows that `principal` has it too."""

    async def bring(offset: int, target: PartialFile, progress: object) -> None:
        await DISK.run(target, bytearray(CONTENT[offset:]))

    made = sources(folder)
    await get_model(made.cache, MODEL, bring)
    if principal is not None:
        made.cache.access.note(SHA, principal.peer_id)
    return made


def gives(holder: BlobSources, shown: TransferGrant, taker: Identity = TAKER, now: float = NOW) -> bool:
    return replace(holder, wall=lambda: now).share(taker.peer_id, SHA, shown) is not Reason.UNKNOWN


async def test_whom_the_scheduler_that_has_the_model_names_may_have_it(tmp_path: Path) -> None:
    holder = await having(tmp_path)
    assert gives(holder, grant())
    assert gives(holder, grant(), now=NOW + 60 + LEEWAY_S)


async def test_everybody_else_may_not(tmp_path: Path) -> None:
    holder = await having(tmp_path)
    assert not gives(holder, grant(), taker=OTHER), "a transfer grant that was taken from somebody"
    assert not gives(holder, grant(sha256="a" * 64)), "a transfer grant for another model"
    assert not gives(holder, grant(), now=NOW + 61 + LEEWAY_S), "an old transfer grant"
    assert not gives(holder, grant(giver=EVE)), "one who may work here, and knows the hash alone"
    assert not gives(holder, grant(giver=TAKER)), "one's own word"
    assert not gives(holder, grant().model_copy(update={"signature": b"s" * 64})), "a forged one"
    longer = grant().model_copy(update={"until": int(NOW) + 10**6})
    assert not gives(holder, longer), "one that was made to last longer"
    assert not gives(holder, grant(giver=EVE).model_copy(update={"giver": ANN.peer_id})), "in anothers name"


async def test_of_whom_nobody_knows_that_he_has_it_there_is_no_grant(tmp_path: Path) -> None:
    assert not gives(await having(tmp_path, None), grant())


async def test_a_scheduler_that_is_not_served_any_more_lets_nobody_have_it(tmp_path: Path) -> None:
    holder = await having(tmp_path)
    nobody = Authorization(owners=(), prove=prove, wall=lambda: NOW)
    assert not gives(replace(holder, permits=nobody), grant())


async def test_what_is_coming_is_given_in_the_name_of_whom_it_was_brought_for_alone(tmp_path: Path) -> None:
    holder = sources(tmp_path)
    observed: dict[str, Content | Reason] = {}

    async def bring(offset: int, target: PartialFile, progress: object) -> None:
        target.begin(ANN.peer_id)
        target.know(hashes_of(CONTENT))
        second = bytearray(CONTENT[PIECE_SIZE : 2 * PIECE_SIZE])
        await DISK.run(partial(target.put, 1, second, trusted=False))
        for who in (ANN, EVE):
            observed[who.peer_id] = holder.share(TAKER.peer_id, SHA, grant(giver=who))
        for index in (0, 2):
            piece = bytearray(CONTENT[index * PIECE_SIZE : (index + 1) * PIECE_SIZE])
            await DISK.run(partial(target.put, index, piece, trusted=False))

    await get_model(holder.cache, MODEL, bring)
    assert observed[EVE.peer_id] is Reason.UNKNOWN
    assert isinstance(observed[ANN.peer_id], PartialFile)
    assert observed[ANN.peer_id].held() <= {0, 1, 2}
    assert gives(holder, grant()), "and when it is whole"
    assert not gives(holder, grant(giver=EVE))


async def test_nothing_is_shared_while_something_is_measured_but_while_something_is_fetched(
    tmp_path: Path,
) -> None:
    sharing = await having(tmp_path)
    assert not sharing.resting()
    async with sharing.exclusive:
        assert sharing.resting()
        await sharing.quiet()

        async def bring(offset: int, target: PartialFile, progress: object) -> None:
            assert not sharing.resting(), "a crowd that fetches serves itself"
            await DISK.run(target, bytearray(b"another"))

        another = Model(name="a", sha256=hashlib.sha256(b"another").hexdigest(), size=7)
        await get_model(sharing.cache, another, bring)
        assert sharing.resting()


async def test_by_a_grant_a_worker_gives_what_its_permissions_say(tmp_path: Path) -> None:
    sharing = await having(tmp_path)
    assert isinstance(sharing.share(TAKER.peer_id, SHA, grant()), Path)
    assert sharing.share(TAKER.peer_id, SHA, grant(giver=EVE)) is Reason.UNKNOWN
    assert sharing.find(TAKER.peer_id, SHA) is Reason.NOT_ALLOWED, "without a transfer grant it is a stranger"


async def test_a_scheduler_that_knows_only_the_hash_gets_no_model_through_its_own_worker(
    tmp_path: Path,
) -> None:
    """Eve commits a task with Ann's model to a worker that fetches from the holders Eve names, with Eve's transfer grant."""
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:
        eve, holder, worker = (swarm.node(each) for each in (EVE, OTHER, TAKER))
        honest = await having(tmp_path / "holder")
        serve_blobs(
            holder,
            lambda *_: None,
            shared=honest.share,
        )

        async def where(peer: str, sha256: str) -> Holders:
            return Holders(
                grant=grant(giver=EVE), others=(HolderInfo(peer=holder.peer_id, addresses=holder.addresses),)
            )

        serve_blobs(eve, lambda *_: bytes(len(CONTENT)), where=where)
        await worker.connect(eve.peer_id, eve.addresses)
        source = model_source(
            worker,
            MODEL,
            lambda: eve.peer_id,
            principal=eve.peer_id,
            rng=random.Random(1),
            retry_leader=False,
        )
        cache = ModelCache(tmp_path / "cache", 10**9, free=lambda path: 10**12)
        with pytest.raises(RunError):
            await get_model(cache, MODEL, source)
        assert not cache.has(SHA)
