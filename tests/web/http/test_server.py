"""The server on real sockets: clients that are slow, stop reading, come in numbers, or break the protocol; and a prompt shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from web.app import make_app
from web.http.context import ApiContext
from web.http.middleware import AccessRules
from web.http.server import ServerLimits, bind, serve

TIMEOUT_S = 20.0
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /api/v1/version HTTP/1.1\r\n" + HOST


@asynccontextmanager
async def serving(
    context: ApiContext, rules: AccessRules | None = None, *, gone: trio.Event | None = None, **limits: float
) -> AsyncIterator[int]:
    """A server with its own limits. Yields its port. Sets `gone` when the server is done with the large response."""
    sockets = bind(["127.0.0.1"], 0)
    port = sockets[0].getsockname()[1]
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            app = make_app(
                context,
                rules or AccessRules(large=("/take",)),
                [_odd(trio.Event() if gone is None else gone)],
            )
            await nursery.start(
                lambda task_status: serve(
                    app, sockets, limits=ServerLimits(**limits), task_status=task_status
                )
            )  # type: ignore[arg-type]
            yield port
            nursery.cancel_scope.cancel()


class _Much(Response):
    """A response larger than the buffers of a connection."""

    def __init__(self, gone: trio.Event) -> None:
        super().__init__(b"x" * 50_000_000)
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gone.set()


def _odd(gone: trio.Event) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/much")
    async def much() -> Response:
        return _Much(gone)

    @router.get("/broken")
    async def broken() -> Response:
        return _Broken()

    @router.post("/take")
    async def take(request: Request) -> int:
        return len(await request.body())

    return router


async def say(port: int, *parts: bytes) -> bytes:
    """The whole answer, until the server closes or the content length is reached."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for part in parts:
            await stream.send_all(part)
        received = b""
        async for piece in stream:
            received += piece
            head, result, body = received.partition(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if result and length and len(body) >= int(length[0].split(b":")[1]):
                break
        return received


async def ended(stream: trio.SocketStream) -> bytes:
    """All data until the server closes the stream."""
    received = b""
    try:
        async for piece in stream:
            received += piece
    except trio.BrokenResourceError:
        pass
    return received


async def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for(context: ApiContext) -> None:
    async with serving(context, idle_s=0.3) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(GET + b"X-Slow: ")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drip, stream)
            assert await ended(stream) == b""
            nursery.cancel_scope.cancel()


async def _drip(stream: trio.SocketStream) -> None:
    try:
        while True:
            await stream.send_all(b"a")
            await trio.sleep(0.05)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


@pytest.mark.parametrize(("path", "limit"), [("/api/v1/campaigns", "body_s"), ("/take", "stall_s")])
async def test_a_body_that_does_not_come_is_not_waited_for(
    context: ApiContext, path: str, limit: str
) -> None:
    rules = AccessRules(large=("/take",), **{limit: 0.3})  # type: ignore[arg-type]
    async with serving(context, rules) as port:
        head = f"POST {path} HTTP/1.1\r\nContent-Type: text/yaml\r\nContent-Length: 100\r\n".encode() + HOST
        answer = await say(port, head + b"\r\nabc")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive in time" in answer


async def test_a_reader_that_stops_reading_is_dropped(context: ApiContext, writer: Any) -> None:
    gone = trio.Event()
    async with (
        serving(context, gone=gone, send_s=0.3) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        await stream.send_all(b"GET /much HTTP/1.1\r\n" + HOST + b"\r\n")
        await stream.receive_some(10)
        await gone.wait()
        assert len(await ended(stream)) < 50_000_000


async def test_a_server_ends_at_once_though_a_reader_has_stopped_and_another_follows(
    context: ApiContext, writer: Any
) -> None:
    writer.campaign("c-one")
    with trio.fail_after(TIMEOUT_S):
        async with serving(context, send_s=1000.0) as port:
            stopped = await trio.open_tcp_stream("127.0.0.1", port)
            await stopped.send_all(b"GET /much HTTP/1.1\r\n" + HOST + b"\r\n")
            await stopped.receive_some(10)
            follows = await trio.open_tcp_stream("127.0.0.1", port)
            await follows.send_all(
                b"GET /api/v1/campaigns/c-one/events HTTP/1.1\r\nAccept: text/event-stream\r\n"
                + HOST
                + b"\r\n"
            )
            await follows.receive_some(10)
            assert context.feeds.followers == 1
        await ended(stopped)
        await ended(follows)
    assert not context.feeds.followers
    await stopped.aclose()
    await follows.aclose()


async def test_more_connections_than_there_is_room_for_are_closed_and_room_comes_back(
    context: ApiContext,
) -> None:
    async with serving(context, total=2) as port:
        one = await trio.open_tcp_stream("127.0.0.1", port)
        two = await trio.open_tcp_stream("127.0.0.1", port)
        for stream in (one, two):
            await stream.send_all(GET + b"\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        async with await trio.open_tcp_stream("127.0.0.1", port) as three:
            assert await ended(three) == b""
        await one.aclose()
        while not await _answers(port):
            await trio.sleep(0.01)
        await two.aclose()


async def _answers(port: int) -> bool:
    try:
        return (await say(port, GET + b"\r\n")).startswith(b"HTTP/1.1 200")
    except trio.BrokenResourceError:
        return False


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n", 200),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 421),
        (GET + b"Host: evil.example\r\n\r\n", 400),
        (b"GET /api/v1/version HTTP/1.0\r\n\r\n", 421),
        (b"GET http://evil.example/api/v1/version HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /api/v1/version HTTP/1.1\r\nHost: 127.0.0.1@evil.example\r\n\r\n", 421),
        (b"POST /take HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n" + HOST + b"\r\nabcd", 400),
        (b"POST /take HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n0\r\n\r\n", 400),
        (b"POST /take HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n" + HOST + b"\r\n0\r\n\r\n", 501),
        (b"POST /take HTTP/1.1\r\nContent-Length : 3\r\n" + HOST + b"\r\nabc", 400),
        (b"GET /api/v1/version HTTP/1.1\r\nX: a\r\n b\r\n" + HOST + b"\r\n", 200),
        (b"GET /api/v1/version HTTP/1.1\r\n" + b"X: " + b"a" * 70_000 + b"\r\n" + HOST + b"\r\n", 431),
    ],
    ids=[
        "h2c", "http2", "two-hosts", "no-host", "absolute-form", "userinfo-host", "two-lengths", "length-and-chunked",
        "odd-encoding", "space-before-colon", "folded-header", "huge-head",
    ],
)  # fmt: skip
async def test_what_another_could_read_in_another_way_is_refused(
    context: ApiContext, request_: bytes, status: int
) -> None:
    async with serving(context) as port:
        answer = await say(port, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_nothing_here_speaks_websocket(context: ApiContext) -> None:
    async with serving(context) as port:
        answer = await say(
            port,
            GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_a_request_sent_behind_a_refused_one_is_not_answered_as_its_own(context: ApiContext) -> None:
    hidden = GET + b"\r\n"
    async with serving(context) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(
            b"POST /take HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
            + HOST
            + b"\r\n"
            + hidden
        )
        received = await ended(stream)
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "odd",
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\nmore",
        b"POST /take HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/9\r\n\r\n",
        b"GET /nothing HTTP/1.0\r\n" + HOST + b"\r\n\r\n\r\nx",
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello",
    ],
    ids=["more after the last", "a second one that is none", "as of old", "no websocket"],
)
async def test_whatever_a_client_sends_ends_its_own_connection_alone(context: ApiContext, odd: bytes) -> None:
    async with serving(context, idle_s=0.5) as port:
        for cut in range(len(odd) // 2, len(odd), 3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(odd[:cut])
                await stream.send_all(odd[cut:])
                await stream.send_eof()
                await ended(stream)
        assert (await say(port, GET + b"\r\n")).startswith(b"HTTP/1.1 200 ")


class _Broken(Response):
    """A response whose length header is wrong, which causes an error inside the connection's own code."""

    def __init__(self) -> None:
        super().__init__(b"four")
        self.headers["content-length"] = "2"


async def test_an_error_within_a_connection_ends_no_other(context: ApiContext) -> None:
    async with serving(context) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /broken HTTP/1.1\r\n" + HOST + b"\r\n")
            await ended(stream)
        assert (await say(port, GET + b"\r\n")).startswith(b"HTTP/1.1 200 ")
