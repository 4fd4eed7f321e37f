"""The client of an OpenAI-compatible server: connections that are kept, requests in parallel, each piece stamped as it arrives.

One thread and one loop. What arrives is stamped and put aside (`_Inbox`), and read only when everything that was ready has been
stamped, so that 64 streams at a time do not make each other look slow (`benchmarks/api_bias.py`).
Sending begins on a connection that stands already: connecting is never part of a time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from drivers.contract.base import Unfit
from drivers.openai.sse import AnswerParser, ChatAnswer

CONNECT_S: Final = 10.0
DOCUMENT_S: Final = 10.0
MAX_KEY: Final = 4096

Clock = Callable[[], int]
"""Monotonic nanoseconds."""


class ServerUnreachable(Exception):
    """No connection to the server; one sentence that names neither its address nor the key."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is, as its owner said, and the key for it. Neither stands in what is printed of this."""

    tls: bool = field(repr=False)
    host: str = field(repr=False)
    port: int = field(repr=False)
    path: str = field(repr=False)
    """Of the API, such as `/v1`."""
    key: str = field(repr=False, default="")

    def clean(self, text: str) -> str:
        """`text` of the server without the key, which some servers repeat in what they say of a wrong one."""
        return text.replace(self.key, "…") if self.key else text


def server_of(url: str, key: str = "") -> Server:
    """The owner's URL and key, checked. Raises `Unfit` with a line that shows neither."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Unfit("the URL of the endpoint cannot be read: write it as http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Unfit("the URL of the endpoint must look like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise Unfit("the URL of the endpoint must not hold a key or password: set SARK_API_KEY instead")
    if len(key) > MAX_KEY or any(not "!" <= letter <= "~" for letter in key):
        raise Unfit("SARK_API_KEY holds what no key can: spaces, line ends or letters beyond ASCII")
    if any(not "!" <= letter <= "~" for letter in parts.path + parts.hostname):
        raise Unfit("the URL of the endpoint must be ASCII without spaces")
    tls = parts.scheme == "https"
    return Server(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), key)


class _Inbox:
    """What has arrived and is stamped but not read. One piece is read in each turn of the loop, which stamps what is new before."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._waiting: deque[tuple[_Line, int, bytes]] = deque()

    def put(self, line: _Line, data: bytes) -> None:
        """Stamp it; empty for the end of a connection."""
        self._waiting.append((line, self.clock(), data))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._read_one)

    def _read_one(self) -> None:
        line, stamp, data = self._waiting[0]
        line.read(stamp, data)
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._read_one)


class _Line(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self, inbox: _Inbox) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.answer: AnswerParser | None = None
        self.over: asyncio.Future[None] | None = None
        self._inbox = inbox

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._inbox.put(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.put(self, b"")

    def read(self, stamp: int, data: bytes) -> None:
        """What came at `stamp`; nothing: the connection has ended."""
        self.lost = self.lost or not data
        if self.answer is None:
            self.close()  # nobody asked: whatever it is, it must not be taken for the next answer
            return
        if data:
            self.answer.feed(stamp, data)
        else:
            self.answer.end()
        if self.answer.done:
            self._finish()

    def _finish(self) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def expire(self, why: str) -> None:
        """The request has taken too long."""
        if self.answer is not None and not self.answer.done:
            self.answer.fail(why)
            self._finish()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self.lost = True


class Client:
    """Asks one server. Use within one event loop."""

    def __init__(self, server: Server, clock: Clock = time.perf_counter_ns) -> None:
        self._server = server
        self._clock = clock
        self._inbox = _Inbox(clock)
        self._tls = ssl.create_default_context() if server.tls else None
        self._idle: list[_Line] = []
        self.addresses = addresses_of(server)

    def close(self) -> None:
        """End the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def warm(self, count: int) -> None:
        """Have at least `count` idle connections. Raises `ServerUnreachable`."""
        self._idle = [line for line in self._idle if not line.lost]
        while len(self._idle) < count:
            self._idle.append(await self._connect())

    async def get(self, path: str) -> AnswerParser:
        """A small document: `http.status`, `http.headers`, `body`. Raises `ServerUnreachable`."""
        answer = AnswerParser(generates=False)
        await self._exchange(answer, self._request("GET", path, b""), DOCUMENT_S)
        return answer

    async def ask(
        self, path: str, body: bytes, answer: AnswerParser, timeout_s: float, *, keep: bool, keep_text: bool
    ) -> ChatAnswer:
        """One request for text. A failure of any kind is told in what it returns."""
        try:
            await self._exchange(answer, self._request("POST", path, body), timeout_s)
        except ServerUnreachable as why:
            answer.fail(str(why))
        answered = answer.result(keep=keep, keep_text=keep_text)
        return replace(answered, why=self._server.clean(answered.why)) if answered.why else answered

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        server = self._server
        host = f"[{server.host}]" if ":" in server.host else server.host
        usual = server.port == (443 if server.tls else 80)
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host}" if usual else f"Host: {host}:{server.port}",
            "User-Agent: sark-node",
            "Accept: text/event-stream, application/json, text/plain",
        ]
        if server.key:
            lines.append(f"Authorization: Bearer {server.key}")
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    async def _exchange(self, answer: AnswerParser, request: bytes, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            kept = self._take()
            line = kept or await self._connect()
            line.answer, line.over = answer, loop.create_future()
            assert line.transport is not None
            timer = loop.call_later(timeout_s, line.expire, f"no whole answer within {timeout_s:g} s")
            try:
                answer.sent_ns = self._clock()
                line.transport.write(request)
                await line.over
            finally:
                timer.cancel()
                gone = line.lost
                line.answer = None
                if answer.done and answer.http.keep and not answer.why and not line.lost:
                    self._idle.append(line)
                else:
                    line.close()
            if kept is None or answer.http.begun or not answer.why or not gone:
                return
            answer.why, answer.http.keep = "", True  # it had been closed for being idle: once more

    def _take(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if not line.lost and line.transport is not None and not line.transport.is_closing():
                return line
        return None

    async def _connect(self) -> _Line:
        loop = asyncio.get_running_loop()
        why = "no address"
        for address in self.addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, line = await loop.create_connection(
                        lambda: _Line(self._inbox),
                        address,
                        self._server.port,
                        ssl=self._tls,
                        server_hostname=self._server.host if self._tls else None,
                    )
            except TimeoutError:
                why = f"no connection within {CONNECT_S:g} s"
            except ssl.SSLError as exc:
                why = f"TLS: {exc.reason or 'no agreement'}"
            except OSError as exc:
                why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else "no connection"
            else:
                self.addresses = (address,)
                return line
        raise ServerUnreachable(f"the endpoint does not answer: {why}")


def addresses_of(server: Server) -> tuple[str, ...]:
    """The server's addresses, in the system's order. Raises `ServerUnreachable`."""
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ServerUnreachable("the endpoint does not answer: its name is not known here") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
