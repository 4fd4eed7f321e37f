"""A file by URL, from a real server on loopback that a made-up internet leads to: hops, pins, parts, and hostile servers."""

from __future__ import annotations

import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.download.download import EDGE, Edge, download, proxy_for
from swarm.download.response import FileChanged, ResponseHead
from swarm.download.urls import OTHERS_URL_REACH, OWNER_URL_REACH, UrlReach, read_url
from tests.swarm.web_parts import PUBLIC, Asked, Net, Papers, Web, papers, reply, web

DATA = bytes(range(256)) * 12_000
"""3 MB, which is several blocks."""
URL = "https://models.example.org/m.onnx"
OTHER = "93.184.216.35"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("tls"), "models.example.org", "cdn.example.org", PUBLIC)


@pytest.fixture
def patient() -> MockClock:
    """A clock that jumps when nothing has moved for a moment."""
    return MockClock(autojump_threshold=0.2)


@asynccontextmanager
async def internet(papers: Papers) -> AsyncIterator[Net]:
    """A made-up internet of names with public, internal, mixed, malformed and no addresses."""
    names = {
        "models.example.org": [PUBLIC],
        "cdn.example.org": [OTHER, PUBLIC],
        "inside.example.org": ["127.0.0.1"],
        "metadata.example.org": ["169.254.169.254"],
        "both.example.org": [PUBLIC, "10.0.0.7"],
        "mapped.example.org": ["::ffff:10.0.0.7"],
        "six.example.org": ["fe80::1%eth0"],
        "odd.example.org": ["not an address"],
        "none.example.org": [],
    }
    async with web(papers.server) as site:
        yield Net(names, site, papers.client)


async def fetched(net: Net, url: str = URL, reach: UrlReach = OTHERS_URL_REACH, **how: object) -> bytes:
    got = bytearray()
    await download(url, reach, sink=got.extend, edge=net.edge(), **how)  # type: ignore[arg-type]
    return bytes(got)


async def test_a_file_comes_whole_from_the_address_that_was_checked_under_its_own_name(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA)
        observed: list[tuple[int, int]] = []
        heads: list[ResponseHead] = []
        got = await fetched(
            net, size=len(DATA), progress=lambda *at: observed.append(at), on_head=heads.append
        )
        assert got == DATA
        assert net.looked_up == ["models.example.org"], "once: what is connected to is what was checked"
        assert net.connected == [(PUBLIC, 443, "models.example.org")]
        assert observed[-1] == (len(DATA), len(DATA))
        assert [done for done, _ in observed] == sorted(done for done, _ in observed)
        assert heads[0].tag == '"one"'
        assert heads[0].total == len(DATA)


async def test_nothing_of_this_machine_goes_along(good: Papers, tmp_path: Path) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = reply(
            302, location="https://cdn.example.org/x", set_cookie="a=b; Domain=example.org"
        )
        net.site.file("/x", DATA)
        await fetched(net)
        for request in net.site.asked:
            assert set(request.headers) == {"host", "user-agent", "accept", "accept-encoding", "connection"}
            assert request.headers["accept-encoding"] == "identity"
        assert [request.headers["host"] for request in net.site.asked] == [
            "models.example.org",
            "cdn.example.org",
        ]


async def test_the_next_address_of_a_host_is_tried_when_the_first_is_dead(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m", DATA)
        net.dead = frozenset({OTHER})
        assert await fetched(net, "https://cdn.example.org/m") == DATA
        assert [address for address, *_ in net.connected] == [OTHER, PUBLIC]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://inside.example.org/m", "this machine itself"),
        ("https://metadata.example.org/latest/meta-data", "metadata"),
        ("https://both.example.org/m", "a private network"),
        ("https://mapped.example.org/m", "IPv4 address in IPv6"),
        ("https://six.example.org/m", "link-local"),
        ("https://odd.example.org/m", "cannot be read"),
        ("https://127.0.0.1/m", "this machine itself"),
    ],
)
async def test_a_name_that_leads_inside_is_not_connected_to(good: Papers, url: str, why: str) -> None:
    async with internet(good) as net:
        with pytest.raises(Refused, match=why):
            await fetched(net, url)
        assert net.connected == []
        assert net.site.asked == []


@pytest.mark.parametrize(
    "location",
    [
        "https://inside.example.org/m",
        "https://both.example.org/m",
        "https://127.0.0.1/m",
        "https://[::1]/m",
        "http://models.example.org/m",
        "//169.254.169.254/latest",
        "file:///etc/passwd",
        "https://models.example.org:8443/m",
        "https://root@models.example.org/m",
        "",
    ],
)
@pytest.mark.parametrize("hops", [0, 2])
async def test_a_redirect_that_leads_inside_is_not_followed_however_late(
    good: Papers, location: str, hops: int
) -> None:
    async with internet(good) as net:
        for hop in range(hops):
            net.site.pages[f"/{hop}"] = reply(302, location=f"/{hop + 1}")
        net.site.pages[f"/{hops}"] = reply(302, location=location)
        with pytest.raises(Refused):
            await fetched(net, "https://models.example.org/0")
        assert len(net.site.asked) == hops + 1
        assert {address for address, *_ in net.connected} == {PUBLIC}


async def test_a_name_that_changes_its_address_between_two_hops_is_checked_again(good: Papers) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = reply(302, location="/again")

        async def rebound(host: str, port: int) -> list[str]:
            return [PUBLIC] if not net.site.asked else ["192.168.1.1"]

        edge = Edge(rebound, net.edge().transport, lambda place: None)
        with pytest.raises(Refused, match="a private network"):
            await download(URL, OTHERS_URL_REACH, sink=lambda data: None, edge=edge)
        assert len(net.connected) == 1


async def test_redirects_without_end_are_given_up(good: Papers) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = reply(307, location="/m.onnx")
        with pytest.raises(Refused, match="more than 5 redirects"):
            await fetched(net)
        assert len(net.site.asked) == 6


async def test_the_owner_reaches_its_own_network_but_is_not_led_there_from_the_internet() -> None:
    async with web() as site:
        site.file("/m", DATA)
        got = bytearray()
        await download(f"http://127.0.0.1:{site.port}/m", OWNER_URL_REACH, sink=got.extend)
        assert got == DATA
        net = Net({"models.example.org": [PUBLIC], "nas.lan": ["192.168.1.5"]}, site)
        site.pages["/out"] = reply(302, location=f"http://nas.lan:{site.port}/m")
        with pytest.raises(Refused, match="is a name of this machine"):
            await fetched(net, "http://models.example.org/out", OWNER_URL_REACH)
        assert await fetched(net, f"http://nas.lan:{site.port}/out", OWNER_URL_REACH) == DATA


async def test_the_owner_goes_through_the_proxy_that_the_environment_names_and_nobody_else_does() -> None:
    async with web() as site:
        site.file("http://models.example.org/m", DATA)
        proxy = f"http://127.0.0.1:{site.port}"
        edge = Edge(EDGE.resolve, EDGE.transport, lambda place: proxy)
        got = bytearray()
        await download("http://models.example.org/m", OWNER_URL_REACH, sink=got.extend, edge=edge)
        assert got == DATA
        plain = UrlReach(frozenset({"http"}), None, inside=False, proxies=False)
        net = Net({"models.example.org": ["10.0.0.1"]}, site)
        with pytest.raises(Refused, match="a private network"):
            await download(
                "http://models.example.org/m",
                plain,
                sink=got.extend,
                edge=Edge(net.edge().resolve, net.edge().transport, lambda place: proxy),
            )
        assert len(site.asked) == 1


@pytest.mark.parametrize(
    ("named", "proxy"),
    [
        ({"http": "http://proxy:3128"}, "http://proxy:3128"),
        ({"http": "proxy:3128"}, "http://proxy:3128"),
        ({"https": "http://proxy:3128"}, None),
        ({"http": "socks5://proxy:1080"}, None),
        ({}, None),
    ],
)
def test_only_a_proxy_that_speaks_http_is_one(named: dict[str, str], proxy: str | None) -> None:
    place = read_url("http://models.example.org/m", OWNER_URL_REACH)
    assert proxy_for(place, lambda: named, lambda host: False) == proxy
    assert proxy_for(place, lambda: named, lambda host: True) is None


# -- certificates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["another name", "run out", "nobody knows it"])
async def test_a_certificate_that_is_not_good_is_refused_before_anything_is_asked(
    case: str, good: Papers, tmp_path: Path
) -> None:
    made = {
        "another name": lambda: papers(tmp_path, "evil.example.org"),
        "run out": lambda: papers(tmp_path, "models.example.org", days=-1),
        "nobody knows it": lambda: Papers(papers(tmp_path, "models.example.org").server, good.client),
    }[case]()
    async with internet(made) as net:
        net.site.file("/m.onnx", DATA)
        with pytest.raises(Refused, match="an invalid certificate"):
            await fetched(net)
        assert net.site.asked == []


async def test_a_server_without_tls_is_unreachable(good: Papers, patient: MockClock) -> None:
    async with web() as site:
        net = Net({"models.example.org": [PUBLIC]}, site, good.client)
        with pytest.raises(Unreachable):
            await fetched(net)
        assert site.asked == []


async def test_a_public_address_needs_a_certificate_for_it(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m", DATA)
        assert await fetched(net, f"https://{PUBLIC}/m") == DATA
        with pytest.raises(Refused, match="certificate"):
            await fetched(net, f"https://{OTHER}/m")


# -- parts ---------------------------------------------------------------------------------------------------------------


async def test_a_download_goes_on_where_it_was(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA)
        assert await fetched(net, offset=2_000_000, tag='"one"', size=len(DATA)) == DATA[2_000_000:]
        headers = net.site.asked[0].headers
        assert (headers["range"], headers["if-range"]) == ("bytes=2000000-", '"one"')


@pytest.mark.parametrize(("offset", "end"), [(0, 1000), (1000, 2_000_000), (2_000_000, len(DATA))])
async def test_a_part_of_a_file_comes_alone(good: Papers, offset: int, end: int) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA)
        assert await fetched(net, offset=offset, end=end, size=len(DATA)) == DATA[offset:end]
        assert net.site.asked[0].headers["range"] == f"bytes={offset}-{end - 1}"


@pytest.mark.parametrize(
    "answer",
    [
        reply(body=DATA),
        reply(206, DATA[1000:3000], content_range=f"bytes 1000-2999/{len(DATA)}"),
        reply(206, DATA[1000:1500], content_range=f"bytes 1000-1499/{len(DATA)}"),
        reply(206, DATA[:1000], content_range=f"bytes 0-999/{len(DATA)}"),
        reply(206, DATA[1000:2000], content_range="bytes 1000-1999/2000"),
    ],
)
async def test_another_part_than_the_one_asked_for_is_refused(good: Papers, answer: bytes) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = answer
        with pytest.raises(Refused):
            await fetched(net, offset=1000, end=2000, size=len(DATA))


async def test_a_server_without_ranges_sends_all_and_the_first_part_is_left_out(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA, ranges=False)
        assert await fetched(net, offset=2_000_000, size=len(DATA)) == DATA[2_000_000:]


async def test_a_file_that_changed_is_never_put_together_with_its_older_part(good: Papers) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA[::-1], tag='"two"')
        got = bytearray()
        with pytest.raises(FileChanged, match="has changed since its first part"):
            await download(URL, OTHERS_URL_REACH, sink=got.extend, offset=1000, tag='"one"', edge=net.edge())
        assert not got


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
async def test_a_file_of_another_size_is_refused_before_a_byte_is_stored(good: Papers, size: int) -> None:
    async with internet(good) as net:
        net.site.file("/m.onnx", DATA)
        got = bytearray()
        with pytest.raises(FileChanged, match=f"holds {len(DATA):,} bytes now, not the {size:,}") as caught:
            await download(URL, OTHERS_URL_REACH, sink=got.extend, size=size, edge=net.edge())
        assert caught.value.reason is Reason.WRONG_HASH
        assert not got


async def test_what_came_before_a_cut_is_kept_and_the_rest_follows(good: Papers) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = reply(body=DATA[:2_500_001], length=len(DATA))
        got = bytearray()
        with pytest.raises(Unreachable):
            await download(URL, OTHERS_URL_REACH, sink=got.extend, size=len(DATA), edge=net.edge())
        assert DATA.startswith(got)
        assert len(got) > 2_000_000
        net.site.file("/m.onnx", DATA)
        await download(
            URL, OTHERS_URL_REACH, sink=got.extend, offset=len(got), size=len(DATA), edge=net.edge()
        )
        assert got == DATA


# -- hostile servers -----------------------------------------------------------------------------------------------------


async def _chunked(asked: Asked, stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await stream.send_all(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


async def _endless_head(asked: Asked, stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"X-More: " + b"x" * 1000 + b"\r\n")


BOMB = gzip.compress(b"\0" * 50_000_000)


@pytest.mark.parametrize(
    ("page", "error", "why"),
    [
        (reply(body=BOMB, content_encoding="gzip"), Refused, "compressed"),
        (reply(body=BOMB, content_encoding="br, gzip"), Refused, "compressed"),
        (reply(body=BOMB, content_encoding="identity, deflate"), Refused, "compressed"),
        (_chunked, Refused, "more than 1,000,000 bytes"),
        (_endless_head, Unreachable, "too"),
        (reply(body=b"x", length=10**12), Refused, "at most 1,000,000 are fetched"),
        (reply(body=b"x", length=10**30), Unreachable, "bad Content-Length"),
        (reply(body=b"abc", length=-1, content_length="3, 4"), Unreachable, "Content-Length"),
        (reply(body=b"abc", length=-1), Refused, "does not say how long"),
        (reply(body=b"abc", length=5), Unreachable, "complete"),
        (reply(206, b"abc", content_range="bytes 0-2/3"), Refused, "another part"),
        (reply(206, b"abc"), Refused, "another part"),
        (reply(300, b"", location="/x"), Refused, "answers 300"),
        (reply(304), Refused, "answers 304"),
        (reply(204), Refused, "answers 204"),
        (reply(401), Refused, "not public"),
        (reply(403), Refused, "403"),
        (reply(404), Refused, "no such file"),
        (reply(410), Refused, "no longer has"),
        (reply(429), Unreachable, "429"),
        (reply(500), Unreachable, "500"),
        (reply(503), Unreachable, "503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Unreachable, "models.example.org"),
        (b"", Unreachable, "disconnected"),
    ],
)
async def test_an_answer_that_is_no_plain_file_is_refused_and_small(
    good: Papers, page: bytes | Callable[..., object], error: type[Exception], why: str
) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = page  # type: ignore[assignment]
        got = bytearray()
        with pytest.raises(error, match=why):
            await download(URL, OTHERS_URL_REACH, sink=got.extend, limit=1_000_000, edge=net.edge())
        assert len(got) <= 1_000_000


@pytest.mark.parametrize(
    "answer",
    [
        reply(206, b"abcde", content_range="bytes 4-8/10"),
        reply(206, b"abcde", content_range="bytes 5-9/*0"),
        reply(206, b"abcde", content_range="bytes 5-8/9"),
        reply(206, b"abcd", content_range="bytes 5-8/10"),
        reply(206, b"abcde", content_type="multipart/byteranges; boundary=x"),
    ],
)
async def test_a_part_that_is_not_the_one_asked_for_is_refused(good: Papers, answer: bytes) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = answer
        got = bytearray()
        with pytest.raises(Refused):
            await download(URL, OTHERS_URL_REACH, sink=got.extend, offset=5, edge=net.edge())
        assert not got


async def test_a_body_longer_than_the_model_is_cut_off(good: Papers) -> None:
    async def answer(asked: Asked, stream: trio.abc.Stream) -> None:
        await _chunked(asked, stream)

    async with internet(good) as net:
        net.site.pages["/m.onnx"] = answer
        got = bytearray()
        with pytest.raises(FileChanged, match="sends more than 100,000 bytes"):
            await download(URL, OTHERS_URL_REACH, sink=got.extend, size=100_000, edge=net.edge())
        assert len(got) <= 100_000


async def _silent(asked: Asked, stream: trio.abc.Stream) -> None:
    await stream.send_all(reply(length=1000, body=b"x"))
    await trio.sleep_forever()


async def _no_head(asked: Asked, stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def _dripping_head(asked: Asked, stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await trio.sleep(12)
        await stream.send_all(b"X: y\r\n")


async def _dripping_body(asked: Asked, stream: trio.abc.Stream) -> None:
    await stream.send_all(reply(length=1000))
    while True:
        await trio.sleep(15)
        await stream.send_all(b"x")


@pytest.mark.parametrize("page", [_silent, _no_head, _dripping_head, _dripping_body])
async def test_a_server_that_keeps_us_waiting_is_given_up_within_two_minutes(
    good: Papers, patient: MockClock, page: Callable[..., object]
) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = page  # type: ignore[assignment]
        with trio.fail_after(120), pytest.raises(Unreachable):
            await fetched(net)


@pytest.mark.parametrize("host", ["nowhere.example.org", "none.example.org"])
async def test_a_name_without_an_address_is_unreachable(good: Papers, host: str) -> None:
    async with internet(good) as net:
        with pytest.raises(Unreachable, match=host):
            await fetched(net, f"https://{host}/m")


async def test_what_the_sink_raises_comes_out_and_ends_it(good: Papers) -> None:
    def full(data: bytearray) -> None:
        raise OSError(28, "No space left on device")

    async with internet(good) as net:
        net.site.file("/m.onnx", DATA)
        with pytest.raises(OSError, match="No space left"):
            await download(URL, OTHERS_URL_REACH, sink=full, edge=net.edge())


async def test_a_download_that_is_cancelled_stops_at_once(good: Papers) -> None:
    async with internet(good) as net:
        net.site.pages["/m.onnx"] = _silent
        with trio.fail_after(30), trio.move_on_after(0.5) as scope:
            await fetched(net)
        assert scope.cancelled_caught


async def test_the_system_looks_names_up() -> None:
    assert "127.0.0.1" in await EDGE.resolve("127.0.0.1", 443)
    with pytest.raises(OSError, match=r"\w"):
        await EDGE.resolve("nowhere.invalid", 443)


async def test_the_message_of_the_system_is_reported_and_nothing_around_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for url, result in (
        (f"http://127.0.0.1:{port}/m", f"http://127.0.0.1:{port}/m: Connection refused"),
        ("http://nowhere.invalid/m", "nowhere.invalid cannot be resolved: "),
    ):
        with pytest.raises(Unreachable) as caught:
            await download(url, OWNER_URL_REACH, sink=bytearray().extend)
        assert result in caught.value.what
        assert "Errno" not in caught.value.what


async def test_the_real_transport_trusts_no_certificate_made_at_home(good: Papers) -> None:
    async with web(good.server) as site:
        with pytest.raises(Refused, match="certificate"):
            await download(f"https://127.0.0.1:{site.port}/m", OWNER_URL_REACH, sink=bytearray().extend)
        assert isinstance(site, Web)
        assert ssl.HAS_TLSv1_3
