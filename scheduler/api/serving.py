"""An application on sockets: bound before anything is promised, served by Hypercorn in this very loop, ended with its task."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve
from starlette.types import ASGIApp

from protocol.errors import ResourceError

BACKLOG: Final = 100
GRACE_S: Final = 1.0
"""How long open answers may go on once the server ends: streams of events never end by themselves."""

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
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests on these sockets, which are then the server's own, until cancelled. Started means that it answers."""
    config = Config()
    config.bind = [f"fd://{one.detach()}" for one in sockets]
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = 30
    config.include_server_header = False
    config.errorlog = None
    await hypercorn_serve(app, config, task_status=task_status)  # type: ignore[arg-type]
