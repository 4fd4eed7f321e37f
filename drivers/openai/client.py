"""The client of an OpenAI-compatible server: persistent connections, requests in parallel, each piece stamped as it arrives.

It uses one thread and one event loop, stepped from blocking code (`ServerSession`). Bytes are stamped on arrival and queued (`_Inbox`).
They are parsed only after everything that was ready has been stamped, so that 64 parallel streams do not make each other look slow
(`benchmarks/measuring/api_bias.py`). httpx would stamp a piece only after it has passed through four layers. Requests are sent on
connections that are already open: connecting is never part of a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import urlsplit

from drivers.contract.base import Crashed, DriverError, Unfit
from drivers.openai.load import Ask, Clock
from drivers.openai.sse import RequestResult, ResponseParser, error_text
from drivers.openai.workload import MAX_NAME, Endpoint, Workload

CONNECT_S: Final = 10.0
DOCUMENT_S: Final = 10.0
MAX_KEY: Final = 4096
MAX_MODELS: Final = 1000
MAX_RUNTIME: Final = 60
PATHS: Final = {Endpoint.CHAT: "/chat/completions", Endpoint.COMPLETIONS: "/completions"}


class ServerUnreachable(Exception):
    """No connection to the server. The message is one sentence that contains neither the address nor the key."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server's address and key, as the device's owner gave them. Its `repr` shows neither."""

    tls: bool = field(repr=False)
    host: str = field(repr=False)
    port: int = field(repr=False)
    path: str = field(repr=False)
    """Path of the API, such as `/v1`."""
    key: str = field(repr=False, default="")

    def redact(self, text: str) -> str:
        """Text of the server without the key, which some servers repeat in their error messages."""
        return text.replace(self.key, "…") if self.key else text


def read_server(url: str, key: str = "") -> Server:
    """The owner's URL and key, checked. Raises `Unfit` with a message that shows neither."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Unfit("the URL of the endpoint cannot be read: write it as http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Unfit("the URL of the endpoint must look like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise Unfit("the URL of the endpoint must not contain a key or password: set SARK_API_KEY instead")
    if len(key) > MAX_KEY or any(not "!" <= letter <= "~" for letter in key):
        raise Unfit(
            "SARK_API_KEY contains spaces, line ends or letters beyond ASCII, which no key can contain"
        )
    if any(not "!" <= letter <= "~" for letter in parts.path + parts.hostname):
        raise Unfit("the URL of the endpoint must be ASCII without spaces")
    tls = parts.scheme == "https"
    return Server(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), key)


class _Inbox:
    """Bytes that are stamped but not parsed. Each turn of the loop parses one piece, after stamping whatever is new."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[_Connection, int, bytes]] = deque()

    def put(self, connection: _Connection, data: bytes) -> None:
        """Stamp the data and queue it; empty data means the end of a connection."""
        self._waiting.append((connection, self._clock(), data))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._parse_one)

    def _parse_one(self) -> None:
        connection, stamp, data = self._waiting[0]
        connection.parse(stamp, data)
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._parse_one)


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    transport: asyncio.Transport

    def __init__(self, inbox: _Inbox) -> None:
        self.lost = False
        self.response: ResponseParser | None = None
        self.finished: asyncio.Future[None] | None = None
        self._inbox = inbox

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._inbox.put(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbox.put(self, b"")

    def parse(self, stamp: int, data: bytes) -> None:
        """Parse bytes that arrived at `stamp`; empty: the connection has ended."""
        self.lost = self.lost or not data
        if self.response is None:
            self.close()  # no request is pending: this must not be taken for the next response
            return
        self.response.feed(stamp, data)
        self._finish()

    def expire(self, error: str) -> None:
        """Fail the request, which has taken too long."""
        if self.response is not None and not self.response.done:
            self.response.fail(error)
            self._finish()

    def _finish(self) -> None:
        if self.response is not None and self.response.done and self.finished and not self.finished.done():
            self.finished.set_result(None)

    def close(self) -> None:
        self.transport.abort()
        self.lost = True


class Client:
    """Sends requests to one server. Use within one event loop."""

    def __init__(self, server: Server, clock: Clock = time.perf_counter_ns) -> None:
        self._server = server
        self._clock = clock
        self._inbox = _Inbox(clock)
        self._tls = ssl.create_default_context() if server.tls else None
        self._idle: list[_Connection] = []
        self.addresses: tuple[str, ...] = ()
        """Addresses of the server's host; once there are connections, the address that they use."""

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def warm(self, count: int) -> None:
        """Make sure that there are at least `count` idle connections. Raises `ServerUnreachable`."""
        self._idle = [connection for connection in self._idle if not connection.lost]
        while len(self._idle) < count:
            self._idle.append(await self._connect())

    async def get(self, path: str) -> ResponseParser:
        """Get a small document: `status`, `headers`, `body`, `error`. Raises `ServerUnreachable`."""
        response = ResponseParser(generates=False)
        await self._exchange(response, "GET", path, b"", DOCUMENT_S)
        return response

    async def ask(
        self,
        path: str,
        body: bytes,
        response: ResponseParser,
        timeout_s: float,
        *,
        keep: bool,
        keep_text: bool,
    ) -> RequestResult:
        """Send one request for text. The result reports any failure."""
        try:
            await self._exchange(response, "POST", path, body, timeout_s)
        except ServerUnreachable as why:
            response.fail(str(why))
        result = response.result(keep=keep, keep_text=keep_text)
        return replace(result, error=self._server.redact(result.error)) if result.error else result

    def _headers(self, body: bytes) -> list[tuple[str, str]]:
        server = self._server
        host = f"[{server.host}]" if ":" in server.host else server.host
        default = server.port == (443 if server.tls else 80)
        return [
            ("Host", host if default else f"{host}:{server.port}"),
            ("User-Agent", "sark-node"),
            ("Accept", "text/event-stream, application/json, text/plain"),
            *([("Authorization", f"Bearer {server.key}")] if server.key else []),
            *([("Content-Type", "application/json"), ("Content-Length", str(len(body)))] if body else []),
        ]

    async def _exchange(
        self, response: ResponseParser, method: str, path: str, body: bytes, timeout_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        headers = self._headers(body)
        while True:
            idle = self._take()
            connection = idle or await self._connect()
            request = response.request(method, path, headers, body)
            connection.response, connection.finished = response, loop.create_future()
            timer = loop.call_later(timeout_s, connection.expire, f"no whole response within {timeout_s:g} s")
            try:
                response.sent_ns = self._clock()
                connection.transport.write(request)
                await connection.finished
            finally:
                timer.cancel()
                lost = connection.lost
                connection.response = None
                if response.keeps_connection and not lost:
                    self._idle.append(connection)
                else:
                    connection.close()
            if idle is None or response.begun or not (lost and response.error):
                return
            response.retry()  # the server had closed an idle connection

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> _Connection:
        why = "its host name cannot be resolved on this device"
        if not self.addresses:
            with contextlib.suppress(OSError, UnicodeError):
                entries = socket.getaddrinfo(self._server.host, self._server.port, type=socket.SOCK_STREAM)
                self.addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        for address in self.addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, connection = await asyncio.get_running_loop().create_connection(
                        lambda: _Connection(self._inbox),
                        address,
                        self._server.port,
                        ssl=self._tls,
                        server_hostname=self._server.host if self._tls else None,
                    )
            except TimeoutError:
                why = f"no connection within {CONNECT_S:g} s"
            except ssl.SSLError as exc:
                why = f"TLS: {exc.reason or 'the handshake failed'}"
            except OSError as exc:
                why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else "no connection"
            else:
                self.addresses = (address,)
                return connection
        raise ServerUnreachable(f"the endpoint does not answer: {why}")


class ServerSession:
    """One run's client in an event loop that is stepped from blocking code. Use as a context manager: its exit ends the loop and
    connections."""

    def __init__(
        self, server: Server, name: str = "", clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """`name`: the owner's name for the server. `models` shows whether the server answers."""
        self.server = server
        self.clock = clock
        self.client = Client(server, clock)
        self._name = name
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self._runner.close()

    def models(self, error: type[DriverError]) -> tuple[tuple[str, ...], str]:
        """Names of the served models, and the server's software. Raises `error` with a one-line message if the answer is not as
        expected."""
        try:
            response = self._runner.run(self.client.get(f"{self.server.path}/models"))
        except ServerUnreachable as why:
            raise error(str(why)) from None
        broken = response.error
        if response.status in (401, 403):
            raise error(
                f"the endpoint refuses the key (HTTP {response.status}): set SARK_API_KEY where the worker is started"
            )
        if not broken and response.status != 200:
            broken = f"HTTP {response.status}: {error_text(bytes(response.body))}"
        if broken:
            raise error(f"the endpoint gives no list of its models: {self.server.redact(broken)}")
        software = response.headers.get(b"server", b"").decode("ascii", "replace")
        runtime = self._name or (f"OpenAI API ({software})" if software else "OpenAI API")
        try:
            document = json.loads(bytes(response.body))
        except (ValueError, RecursionError):
            document = None
        data = document.get("data") if isinstance(document, dict) else None
        if not isinstance(data, list):
            raise error(
                "the endpoint's list of models is not that of an OpenAI API: is the URL right, with /v1?"
            )
        listed = [one.get("id") for one in data[:MAX_MODELS] if isinstance(one, dict)]
        names = [name for name in listed if isinstance(name, str) and 0 < len(name) <= MAX_NAME]
        return tuple(dict.fromkeys(map(self.server.redact, names))), self.server.redact(runtime)[:MAX_RUNTIME]

    def connect(self, count: int) -> None:
        """Open `count` connections before a level begins. Raises `Crashed`."""
        try:
            self._runner.run(self.client.warm(count))
        except ServerUnreachable as why:
            raise Crashed(str(why)) from None

    def requests(
        self,
        workload: Workload,
        body: Callable[[int], bytes],
        base: int,
        count: int = 0,
        *,
        keep: bool = False,
        keep_text: bool = False,
    ) -> Ask:
        """A function that sends a level's requests; `body` makes the request with a given number. The requests with the `count` numbers
        from `base` on are made now."""
        path = self.server.path + PATHS[workload.endpoint]
        ready = {number: body(number) for number in range(base, base + count)}

        async def ask(number: int) -> RequestResult:
            content = ready.pop(number) if number in ready else body(number)
            response = ResponseParser(max_tokens=workload.max_tokens, stream=workload.stream)
            return await self.client.ask(
                path, content, response, workload.timeout_s, keep=keep, keep_text=keep_text
            )

        return ask

    def document(self, path: str) -> bytes:
        """A document of the server, empty if it has none; `path` is from the server's root."""
        try:
            response = self._runner.run(self.client.get(path))
        except ServerUnreachable:
            return b""
        return bytes(response.body) if response.status == 200 and not response.error else b""

    def steps(self, work: Coroutine[object, object, None], step_s: float) -> Iterator[None]:
        """Do the work, yielding every `step_s` until it is done. Closing the iterator cancels it. Raises what the work raises."""

        async def begin() -> asyncio.Task[None]:
            return asyncio.ensure_future(work)

        task = self._runner.run(begin())
        while not task.done():
            self._runner.run(asyncio.wait({task}, timeout=step_s))
            yield
        task.result()
