"""A model from three hosts over libp2p on loopback."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import trio

from protocol.messages.blobs import HolderInfo, Holders
from swarm.blobs.server import serve_blobs
from swarm.blobs.swarm_download import DownloadRequest, pull
from swarm.join.host import open_host
from swarm.net.identity import Identity
from tests.swarm.blobs.test_swarm_download import CONTENT, SHA, MemoryPieces, grant


async def test_a_model_comes_from_the_scheduler_and_two_workers_one_of_which_lies() -> None:
    async with AsyncExitStack() as stack:
        leader, good, liar, taker = [
            await stack.enter_async_context(open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"]))
            for _ in range(4)
        ]

        async def where(peer: str, sha256: str) -> Holders:
            others = tuple(HolderInfo(peer=each.peer_id, addresses=each.addresses) for each in (good, liar))
            return Holders(grant=grant(leader.peer_id, peer), others=others)

        requests: list[str] = []

        def gives(name: str, content: bytes) -> object:
            def shared(*_: object) -> bytes:
                requests.append(name)
                return content

            return shared

        serve_blobs(leader, lambda *_: CONTENT, where=where)
        serve_blobs(good, lambda *_: None, shared=gives("good", CONTENT))
        serve_blobs(liar, lambda *_: None, shared=gives("liar", bytes(len(CONTENT))))
        await taker.connect(leader.peer_id, leader.addresses)
        store = MemoryPieces()
        download_request = DownloadRequest(SHA, len(CONTENT), lambda: leader.peer_id)
        with trio.fail_after(60):
            await pull(taker, store, download_request, rng=random.Random(1))
        assert store.whole() == CONTENT
        assert "good" in requests
