"""The answers that clients of the HTTP API get: campaigns under idempotency keys, uploads, cancels, runs of an experiment."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from protocol.errors import SarkError
from scheduler.experiments.service import save
from scheduler.store.store import open_store
from swarm.base.home import Home
from tests.durability.campaign_run import UNIT, campaign_file
from tests.durability.facts import SCHEDULER
from tests.durability.promises import Promises
from web.app import make_open_app
from web.http.context import ApiContext
from web.http.idempotency import IdempotencyStore
from web.http.middleware import own_token
from web.http.problems import HttpProblem

API: Final = "/api/v1"
OPENED_EVERY: Final = 5
"""After this many campaigns another process serves."""


@dataclass(slots=True)
class Watched(IdempotencyStore):
    """Records which campaign a key stands for when the store may write it, and the answer before it goes out."""

    promises: Promises | None = None
    claimed: set[str] = field(default_factory=set)

    async def run(
        self, key: str | None, request: bytes, make: Callable[[str], Awaitable[dict[str, Any]]]
    ) -> tuple[dict[str, Any], str, bool]:
        assert key is not None
        assert self.promises is not None
        promises, name = self.promises, hashlib.sha256(key.encode()).hexdigest()

        async def seen(campaign: str) -> dict[str, Any]:
            promises.make(SCHEDULER, "claim", name, campaign)
            try:
                return await make(campaign)
            except (SarkError, HttpProblem):
                promises.end(SCHEDULER, "claim", name)
                raise

        if name not in self.claimed:
            promises.end(SCHEDULER, "claim", name)
            self.claimed.add(name)
        try:
            answer, campaign, replayed = await IdempotencyStore.run(self, key, request, seen)
        except (SarkError, HttpProblem):
            self.claimed.discard(name)
            promises.make(SCHEDULER, "claim", name, None)
            raise
        promises.make(SCHEDULER, "answer", name, json.loads(json.dumps(answer)))
        return answer, campaign, replayed


class Server:
    """The server of one home, called without sockets."""

    def __init__(self, home: Home, promises: Promises) -> None:
        self.home, self.promises = home, promises
        self._context: ApiContext | None = None

    def __enter__(self) -> httpx.AsyncClient:
        self._context = context = ApiContext(self.home, gates=tuple, start_scheduler=lambda: None)
        context.idempotency = Watched(context.idempotency.folder, promises=self.promises)
        self.promises.make(SCHEDULER, "token", "", own_token(self.home.folder("scheduler") / "api-token"))
        transport = httpx.ASGITransport(make_open_app(context))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000")

    def __exit__(self, *_: object) -> None:
        assert self._context is not None
        self._context.close()


class Client:
    """A program that repeats requests when it is not sure of their outcome."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server, self.rng = server, rng
        self.promises = server.promises

    async def campaign(self, asking: httpx.AsyncClient, n: int) -> None:
        sha = await self.upload(asking, n)
        content = {"campaign": f"number {n}", "models": [f"sha256:{sha}"], "units": [UNIT], "replicas": 3}
        wrong = {**content, "models": [f"sha256:{'0' * 64}"]}
        headers = {"Idempotency-Key": f"key-{n}"}
        refused = await asking.post(f"{API}/campaigns", json=wrong, headers=headers)
        assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, refused.text
        first, again = [
            await asking.post(f"{API}/campaigns", json=content, headers=headers) for _ in range(2)
        ]
        assert first.status_code == HTTPStatus.CREATED, first.text
        assert first.json() == again.json()
        campaign = first.json()["campaign_id"]
        self.promises.make(SCHEDULER, "campaign", campaign, [sha])
        self.promises.make(SCHEDULER, "spooled", sha)
        if self.rng.random() < 0.5:
            answer = await asking.post(f"{API}/campaigns/{campaign}/cancel")
            assert answer.status_code == HTTPStatus.ACCEPTED
            self.promises.make(SCHEDULER, "cancel", campaign)
        if self.rng.random() < 0.5:
            self.promises.end(SCHEDULER, "upload", sha)
            assert (await asking.delete(f"{API}/models/{sha}")).status_code == HTTPStatus.NO_CONTENT
            self.promises.make(SCHEDULER, "upload", sha, False)
        headers = {"Idempotency-Key": f"run-{n}"}
        answer = await asking.post(f"{API}/experiments/nightly/run", headers=headers)
        assert answer.status_code == HTTPStatus.CREATED, answer.text
        run = answer.json()
        self.promises.make(SCHEDULER, "run", run["campaign"], f"nightly@{run['version']}")

    async def upload(self, asking: httpx.AsyncClient, n: int) -> str:
        answer = await asking.post(
            f"{API}/models", params={"name": f"{n}.onnx"}, content=self.rng.randbytes(3_000)
        )
        assert answer.status_code == HTTPStatus.CREATED, answer.text
        sha = str(answer.json()["sha256"])
        self.promises.make(SCHEDULER, "upload", sha, True)
        return sha


async def _serve(root: Path, elsewhere: Path, promises: Promises, campaigns: int, seed: int) -> None:
    home = Home.at(root / SCHEDULER)
    with open_store(home) as store:
        version, _ = save(store, campaign_file(elsewhere / "nightly", "nightly", 1))
    promises.make(SCHEDULER, "version", version.title, version.digest)
    server, rng, n = Server(home, promises), random.Random(seed), 0
    while n < campaigns:
        with server as asking:
            async with asking:
                client = Client(server, rng)
                for _ in range(min(OPENED_EVERY, campaigns - n)):
                    n += 1
                    await client.campaign(asking, n)


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    trio.run(_serve, root, elsewhere, promises, tasks, seed)
