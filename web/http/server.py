"""An application on sockets: bound before anything is promised, served by Hypercorn in this very loop, ended with its task.

sockets ──▶ Door (how many, from where) ──▶ Wire (readers that stop are dropped) ──▶ Hypercorn's HTTP/1.1 ──▶ the application
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
PIECE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may take."""

    total: int = 500
    """Connections at a time."""
    each: int = 60
    """From one address, but for this machine's own."""
    idle_s: float = 20.0
    """Until a whole request head is here, and between one request and the next."""
    send_s: float = 20.0
    """That a reader may take for 64 KiB."""


LIMITS: Final = ServerLimits()

log = structlog.get_logger("sark.api")


def bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets that listen there, all on one port (0: any that is free). Raises `ResourceError`."""
    sockets: list[socket.socket] = []
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
            one.listen(BACKLOG)
            one.setblocking(False)
        except OSError as exc:
            one.close()
            if sockets and family == socket.AF_INET6 and exc.errno != errno.EADDRINUSE:
                continue  # a machine without IPv6
            for other in sockets:
                other.close()
            raise ResourceError(
                f"cannot listen on {host} port {port}: {exc.strerror}",
                hint="another port: sark-node serve --port 5001",
            ) from None
        port = one.getsockname()[1]
        sockets.append(one)
    return sockets


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    limits: ServerLimits = LIMITS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests on these sockets, which are then the server's own, until cancelled. Started means that it answers."""
    config = Config()
    config.keep_alive_timeout = limits.idle_s
    config.include_server_header = False
    config.errorlog = None
    told: Any = app  # its own name for the same shape
    wrapped = wrap_app(told, config.wsgi_max_body_size, "asgi")
    lifespan = Lifespan(wrapped, config, {})
    context = WorkerContext(None)
    door = ConnectionLimiter(limits)

    async def connected(stream: trio.SocketStream) -> None:
        with door.entered(stream) as wire:
            if wire is None:
                return
            like_a_stream: Any = wire
            try:
                await Connection(wrapped, config, context, {}, like_a_stream).run()
            except* Exception as group:  # noqa: BLE001  (whatever a client made of its connection ends that one, and no other)
                log.warning("api.connection", why=" ".join(sorted(_kinds(group))))

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
                door.close()


def _kinds(group: BaseExceptionGroup[Exception]) -> set[str]:
    """Of all errors in it."""
    return {
        kind
        for inner in group.exceptions
        for kind in (_kinds(inner) if isinstance(inner, BaseExceptionGroup) else {type(inner).__name__})
    }


# -- connections ---------------------------------------------------------------------------------------------------------------


class SlowReaderGuard:
    """A connection whose reader must go on reading: what it does not take in time ends it. Hypercorn sees to it that a cancelled server
    still sends what it began, so only an end of its own makes an end.
    """

    def __init__(self, stream: trio.SocketStream, send_s: float) -> None:
        self._stream, self._send_s = stream, send_s
        self.socket = stream.socket

    async def send_all(self, data: bytes) -> None:
        """As a stream's. Raises `trio.BrokenResourceError` for a reader that has stopped, and where this side is ending it already."""
        for start in range(0, len(data), PIECE):
            with trio.move_on_after(self._send_s) as waiting:
                try:
                    await self._stream.send_all(data[start : start + PIECE])
                except trio.BusyResourceError:
                    raise trio.BrokenResourceError("it is being ended") from None
            if waiting.cancelled_caught:
                await trio.aclose_forcefully(self._stream)
                raise trio.BrokenResourceError("the reader does not read")

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As a stream's."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """As a stream's."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As a stream's."""
        await self._stream.aclose()


class ConnectionLimiter:
    """Counts connections, so that nobody takes all there are."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._from: Counter[str] = Counter()
        self._open: set[SlowReaderGuard] = set()

    @contextmanager
    def entered(self, stream: trio.SocketStream) -> Iterator[SlowReaderGuard | None]:
        """A connection for as long as it lasts; None: there are too many, and this one is closed at once."""
        try:
            host = stream.socket.getpeername()[0]
        except OSError:  # gone already
            host = ""
        each = self._limits.total if _is_here(host) else self._limits.each
        if not host or len(self._open) >= self._limits.total or self._from[host] >= each:
            stream.socket.close()
            yield None
            return
        wire = SlowReaderGuard(stream, self._limits.send_s)
        self._open.add(wire)
        self._from[host] += 1
        try:
            yield wire
        finally:
            self._open.discard(wire)
            self._from[host] -= 1
            self._from += Counter()  # only those above zero are kept

    def close(self) -> None:
        """End those that are still open."""
        for wire in tuple(self._open):
            wire.socket.close()


def _is_here(host: str) -> bool:
    return host == "::1" or host.startswith("127.")


class _Http11(H11Protocol):
    """HTTP/1.1 and nothing that it might be changed into: no browser speaks HTTP/2 without TLS, which is one more thing to be flooded."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return


class Connection(TCPServer):
    """One connection."""

    async def run(self) -> None:
        """Answer what comes until either side has enough."""
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
                self.protocol = http  # in place of Hypercorn's choice between several
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
                await self.idle_task.stop()  # the client has gone: nothing is waited for
        except OSError:
            pass
        finally:
            await self._close()
