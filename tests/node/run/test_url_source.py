"""A model from the URL in its task: tried after the scheduler, put into the cache, and accepted only if its hash matches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.run.model_source import with_url
from node.run.url_source import url_pieces, url_source
from node.store.cache import ModelCache, Progress, Source
from protocol.errors import Refused, RunError, Unreachable
from protocol.values.task import Model
from protocol.words import Reason
from tests.node.conftest import get_model
from tests.swarm.web_parts import PUBLIC, Asked, Net, Web, papers, reply, web

DATA = bytes(range(256)) * 10_000
MODEL = Model(name="m.onnx", sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))


class Half:
    """A sink that keeps what has arrived."""

    def __init__(self) -> None:
        self.data = bytearray()

    @property
    def offset(self) -> int:
        return len(self.data)

    def __call__(self, data: bytearray) -> None:
        self.data += data


def nothing(done: int, total: int) -> None:
    """Ignore progress."""


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def failing(*errors: Exception) -> Source:
    """A source that raises each error in turn, then the last one on every call."""
    left = list(errors)

    async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        raise left.pop(0) if len(left) > 1 else left[0]

    return fetch


def holding(data: bytes) -> Source:
    async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        await trio.to_thread.run_sync(sink, bytearray(data[offset:]))

    return fetch


NONE = Refused("it has none", reason=Reason.UNKNOWN)
GONE = Unreachable("nobody there")


async def test_the_owners_url_may_lead_to_its_own_network_and_fills_the_cache(cache: ModelCache) -> None:
    async with web() as site:
        site.file("/m", DATA)
        source = url_source(f"http://127.0.0.1:{site.port}/m", MODEL, owner=True)
        path = await get_model(cache, MODEL, source)
        assert path.read_bytes() == DATA


async def test_the_url_of_others_may_not(cache: ModelCache) -> None:
    async with web() as site:
        site.file("/m", DATA)
        for url in (f"http://127.0.0.1:{site.port}/m", "https://127.0.0.1/m", "https://localhost/m"):
            with pytest.raises(RunError, match=r"https|this machine|this network") as caught:
                await get_model(cache, MODEL, url_source(url, MODEL, owner=False))
            assert caught.value.reason is Reason.FETCH_FAILED
        assert site.asked == []


async def test_others_are_served_from_the_public_internet(cache: ModelCache, tmp_path: Path) -> None:
    made = papers(tmp_path, "models.example.org")
    async with web(made.server) as site:
        site.file("/m", DATA)
        net = Net({"models.example.org": [PUBLIC]}, site, made.client)
        source = url_source("https://models.example.org/m", MODEL, owner=False, edge=net.edge())
        assert (await get_model(cache, MODEL, source)).read_bytes() == DATA


@pytest.mark.parametrize("data", [DATA[::-1], DATA[:-1], DATA + b"x", b""])
async def test_a_url_with_changed_content_is_reported_as_changed(cache: ModelCache, data: bytes) -> None:
    async with web() as site:
        site.file("/m", data)
        source = url_source(f"http://127.0.0.1:{site.port}/m", MODEL, owner=True)
        with pytest.raises(RunError, match="the URL does not hold the campaign's file") as caught:
            await get_model(cache, MODEL, source)
        assert caught.value.reason is Reason.WRONG_HASH
        assert not cache.has(MODEL.sha256)
        site.file("/m", DATA)
        assert (await get_model(cache, MODEL, source)).read_bytes() == DATA, "once it is back all is well"


async def test_a_cut_is_carried_on_and_never_with_another_version(
    cache: ModelCache, autojump_clock: MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.2
    async with web() as site:
        good = Web()
        good.file("/m", DATA)
        pages = [reply(body=DATA[:1_500_000], length=len(DATA), etag='"one"'), good.pages["/m"]]

        async def answer(asked: Asked, stream: trio.abc.Stream) -> None:
            page = pages.pop(0)
            if isinstance(page, bytes):
                await stream.send_all(page)
            else:
                await page(asked, stream)

        site.pages["/m"] = answer
        url = f"http://127.0.0.1:{site.port}/m"
        assert (await get_model(cache, MODEL, url_source(url, MODEL, owner=True))).read_bytes() == DATA
        assert site.asked[1].headers["if-range"] == '"one"'
        assert int(site.asked[1].headers["range"][6:-1]) > 1_000_000


async def test_the_scheduler_is_asked_first_and_the_url_only_where_it_has_none(cache: ModelCache) -> None:
    async with web() as site:
        site.file("/m", DATA)
        url = url_source(f"http://127.0.0.1:{site.port}/m", MODEL, owner=True)
        got = Half()
        await with_url(holding(DATA), url)(0, got, nothing)
        assert got.data == DATA
        assert site.asked == []
        got = Half()
        await with_url(failing(NONE), url)(0, got, nothing)
        assert got.data == DATA


async def test_what_one_source_began_the_other_ends() -> None:
    async def half(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        await trio.to_thread.run_sync(sink, bytearray(DATA[offset : offset + 1000]))
        raise GONE

    async with web() as site:
        site.file("/m", DATA)
        got = Half()
        url = url_source(f"http://127.0.0.1:{site.port}/m", MODEL, owner=True)
        await with_url(half, url)(0, got, nothing)
        assert got.data == DATA
        assert site.asked[0].headers["range"] == "bytes=1000-"


async def test_both_are_tried_in_turn_until_one_has_it(autojump_clock: MockClock) -> None:
    got = Half()
    calls: list[str] = []

    def named(name: str, inner: Source) -> Source:
        async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
            calls.append(name)
            await inner(offset, sink, progress)

        return fetch

    async def third_time(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        if calls.count("scheduler") < 3:
            raise GONE
        await trio.to_thread.run_sync(sink, bytearray(DATA))

    await with_url(named("scheduler", third_time), named("url", failing(GONE, NONE)))(0, got, nothing)
    assert got.data == DATA
    assert calls == ["scheduler", "url", "scheduler", "url", "scheduler"]


async def test_where_both_have_none_the_last_refusal_is_reported() -> None:
    last = Refused("404", reason=Reason.UNKNOWN)
    with pytest.raises(Refused, match="404"):
        await with_url(failing(NONE), failing(last))(0, Half(), nothing)


async def test_in_pieces_it_comes_from_one_version_alone() -> None:
    async with web() as site:
        site.file("/m", DATA)
        place = url_pieces(f"http://127.0.0.1:{site.port}/m", MODEL, owner=True)
        assert await place.fetch(0, 1000) == DATA[:1000]
        assert await place.fetch(2_000_000, 560_000) == DATA[2_000_000:]
        assert site.asked[1].headers["if-range"] == '"one"'
        site.file("/m", DATA[::-1], tag='"two"')
        with pytest.raises(Refused):
            await place.fetch(1000, 1000)


async def test_in_pieces_others_reach_no_more_than_whole() -> None:
    async with web() as site:
        site.file("/m", DATA)
        with pytest.raises(Refused):
            await url_pieces(f"http://127.0.0.1:{site.port}/m", MODEL, owner=False).fetch(0, 1000)
        assert site.asked == []
