"""The listener for Prometheus: one page over plain HTTP/1.1, on loopback unless told otherwise.

It runs in the gate's own event loop, and whoever connects can cost it little: few connections at a time, one request on each,
small headers, five seconds for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import h11
import structlog
import trio

from gate.settings import split_listener
from gate.status.metrics import CONTENT_TYPE
from protocol.errors import ResourceError

MAX_AT_ONCE: Final = 8
WITHIN_S: Final = 5.0
MAX_HEAD: Final = 8_192
PATH: Final = b"/metrics"

log = structlog.get_logger("sark.gate")

Page = Callable[[], bytes]


async def serve_metrics(
    where: str, page: Page, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve for ever at `HOST:PORT`; started with the host and port it got. Raises `ResourceError` when it cannot listen there."""
    host, port = split_listener(where)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as exc:
        raise ResourceError(
            f"cannot serve metrics at {where}: {exc.strerror or exc}", hint="choose another place: --metrics"
        ) from None
    slots = trio.CapacityLimiter(MAX_AT_ONCE)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, partial(_serve, page, slots), listeners))
        name = listeners[0].socket.getsockname()
        log.info("gate.status.metrics", host=name[0], port=name[1])
        task_status.started((name[0], name[1]))


async def _serve(page: Page, slots: trio.CapacityLimiter, stream: trio.SocketStream) -> None:
    try:
        slots.acquire_nowait()
    except trio.WouldBlock:
        await trio.aclose_forcefully(stream)
        return
    try:
        with trio.move_on_after(WITHIN_S):
            await answer(page, stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        slots.release()
        await trio.aclose_forcefully(stream)


async def answer(page: Page, stream: trio.abc.Stream) -> None:
    """Read one request and answer it."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(MAX_HEAD)))
    except h11.RemoteProtocolError as exc:
        status, kind, content = exc.error_status_hint, "text/plain", b"not understood\n"
        shown = content
    else:
        if not isinstance(event, h11.Request):
            return
        status, kind, content = _content(page, event)
        shown = b"" if event.method == b"HEAD" else content
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(content))),
        ("Connection", "close"),
    ]
    parts = (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=shown),
        h11.EndOfMessage(),
    )
    await stream.send_all(b"".join(http.send(part) or b"" for part in parts))
    if isinstance(stream, trio.SocketStream):
        await stream.send_eof()
        while await stream.receive_some(MAX_HEAD):  # a close with bytes unread would take back what was sent
            pass


def _content(page: Page, request: h11.Request) -> tuple[int, str, bytes]:
    if request.method not in (b"GET", b"HEAD"):
        return 405, "text/plain", b"only GET\n"
    if request.target.partition(b"?")[0] != PATH:
        return 404, "text/plain", b"the metrics are at /metrics\n"
    return 200, CONTENT_TYPE, page()
