"""A server over a store of its own, asked without sockets; and one on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import trio

from scheduler.api.app import make_app, open_app
from scheduler.api.desk import Desk
from scheduler.api.guard import Rules
from scheduler.api.serving import bind, serve
from swarm.home import Home


class Woken:
    """Counts how often the scheduler process was asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def desk(tmp_path: Path, woken: Woken) -> Iterator[Desk]:
    made = Desk(Home.at(tmp_path / "home"), gates=tuple, keep_alive=woken)
    yield made
    made.close()


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[httpx.AsyncClient]:
    """Asks the endpoints themselves."""
    transport = httpx.ASGITransport(open_app(desk))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as asking:
        yield asking


@pytest.fixture
async def served(desk: Desk) -> AsyncIterator[httpx.AsyncClient]:
    """Asks over a real socket, through the guard."""
    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, make_app(desk, Rules()), sockets)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as asking:
            yield asking
        nursery.cancel_scope.cancel()
