"""Serves an ASGI application on bound sockets, in this trio loop, with Hypercorn's HTTP/1.1.

sockets ──▶ ConnectionLimiter ──▶ SlowReaderGuard ──▶ Hypercorn's HTTP/1.1 ──▶ the application

Hypercorn's public `serve` limits neither connections nor slow readers, and offers HTTP/2. So `HttpConnection` builds on its parts instead.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app
from starlette.types import ASGIApp

from protocol.errors import ResourceError

BACKLOG: Final = 100
CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits for clients."""

    total: int = 500
    """Connections in total."""
    per_address: int = 60
    """Connections from one address other than loopback."""
    idle_s: float = 20.0
    """Seconds for a complete request head, and between requests."""
    send_s: float = 20.0
    """Seconds for a reader to take 64 KiB."""


LIMITS: Final = ServerLimits()

log = structlog.get_logger("sark.api")


def bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listening sockets, all on one port (0: any free listener). Raises `ResourceError`."""
    sockets: list[socket.socket] = []
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as exc:
            listener.close()
            if sockets and family == socket.AF_INET6 and exc.errno != errno.EADDRINUSE:
                continue  # no IPv6 on this machine
            for bound in sockets:
                bound.close()
            raise ResourceError(
                f"cannot listen on {host} port {port}: {exc.strerror}",
                hint="use another port: sark-node serve --port 5001",
            ) from None
        port = listener.getsockname()[1]
        sockets.append(listener)
    return sockets


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    limits: ServerLimits = LIMITS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on these sockets until cancelled, then close them. Once started, requests are answered."""
    config = Config()
    config.keep_alive_timeout = limits.idle_s
    config.include_server_header = False
    config.errorlog = None
    untyped_app: Any = app  # Hypercorn has its own type for the same protocol
    wrapped = wrap_app(untyped_app, config.wsgi_max_body_size, "asgi")
    lifespan = Lifespan(wrapped, config, {})
    context = WorkerContext(None)
    limiter = ConnectionLimiter(limits)

    async def connected(stream: trio.SocketStream) -> None:
        with limiter.admit(stream) as guard:
            if guard is None:
                return
            untyped_stream: Any = guard
            try:
                await HttpConnection(wrapped, config, context, {}, untyped_stream).run()
            except* Exception as group:  # noqa: BLE001  (a client's errors end its own connection only)
                log.warning("api.connection_failed", why=" ".join(sorted(_error_types(group))))

    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in sockets]
    async with trio.open_nursery() as living:
        await living.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        async with trio.open_nursery() as connections:
            try:
                async with trio.open_nursery() as listening:
                    await listening.start(
                        partial(trio.serve_listeners, connected, listeners, handler_nursery=connections)
                    )
                    task_status.started()
            finally:
                limiter.close()


def _error_types(group: BaseExceptionGroup[Exception]) -> set[str]:
    return {
        name
        for error in group.exceptions
        for name in (_error_types(error) if isinstance(error, BaseExceptionGroup) else {type(error).__name__})
    }


# -- connections ---------------------------------------------------------------------------------------------------------------


class SlowReaderGuard:
    """A stream that closes itself if its reader stops reading. Hypercorn shields its sends from cancellation, so only closing ends them."""

    def __init__(self, stream: trio.SocketStream, send_s: float) -> None:
        self._stream, self._send_s = stream, send_s
        self.socket = stream.socket

    async def send_all(self, data: bytes) -> None:
        """Send within the time limit. Raises `trio.BrokenResourceError` if the reader has stopped or the stream is being closed."""
        for start in range(0, len(data), CHUNK):
            with trio.move_on_after(self._send_s) as waiting:
                try:
                    await self._stream.send_all(data[start : start + CHUNK])
                except trio.BusyResourceError:
                    raise trio.BrokenResourceError("the connection is being closed") from None
            if waiting.cancelled_caught:
                await trio.aclose_forcefully(self._stream)
                raise trio.BrokenResourceError("the reader has stopped")

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class ConnectionLimiter:
    """Limits connections in total and from each address."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()
        self._open: set[SlowReaderGuard] = set()

    @contextmanager
    def admit(self, stream: trio.SocketStream) -> Iterator[SlowReaderGuard | None]:
        """The guarded connection; None: there are too many, and it was closed."""
        try:
            host = stream.socket.getpeername()[0]
        except OSError:  # closed already
            host = ""
        limit = self._limits.total if _is_loopback(host) else self._limits.per_address
        if not host or len(self._open) >= self._limits.total or self._by_address[host] >= limit:
            stream.socket.close()
            yield None
            return
        guard = SlowReaderGuard(stream, self._limits.send_s)
        self._open.add(guard)
        self._by_address[host] += 1
        try:
            yield guard
        finally:
            self._open.discard(guard)
            self._by_address[host] -= 1
            self._by_address += Counter()  # drops the zeros

    def close(self) -> None:
        for guard in tuple(self._open):
            guard.socket.close()


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")


class _Http11(H11Protocol):
    """HTTP/1.1 without upgrades: browsers speak no HTTP/2 without TLS."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return


class HttpConnection(TCPServer):
    async def run(self) -> None:
        """Answer requests until either side closes."""
        try:
            async with TaskGroup() as group:
                self._task_group = group
                family = self.stream.socket.family
                client = parse_socket_addr(family, self.stream.socket.getpeername())
                server = parse_socket_addr(family, self.stream.socket.getsockname())
                state = ConnectionState(self.state)
                http: Any = _Http11(
                    self.app,
                    self.config,
                    self.context,
                    group,
                    state,
                    False,
                    client,
                    server,
                    self.protocol_send,
                )
                self.protocol = http  # Hypercorn would negotiate the protocol
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
                await self.idle_task.stop()  # the client has disconnected
        except OSError:
            pass
        finally:
            await self._close()
