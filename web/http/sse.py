"""Server-sent events: a response that lasts until its feed ends or the reader disconnects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT_S: Final = 15.0
"""Seconds between heartbeats, because proxies close silent connections."""


def event_text(name: str, value: str, *, id: str | None = None) -> str:
    """One event. `value`: JSON on one line. `id`: the Last-Event-ID that a reader sends when it reconnects."""
    return f"event: {name}\ndata: {value}\n" + (f"id: {id}\n" if id is not None else "") + "\n"


class SendEvent:
    def __init__(self, send: Send) -> None:
        self._send, self._lock = send, trio.Lock()

    async def __call__(self, name: str, value: Any) -> None:
        await self.text(event_text(name, json.dumps(value, separators=(",", ":"))))

    async def text(self, text: str) -> None:
        """Send complete events that are already text."""
        async with self._lock:
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})


class EventStream(Response):
    """Runs `feed` with a `SendEvent` until it returns or the reader disconnects."""

    media_type = MEDIA_TYPE

    def __init__(self, feed: Callable[[SendEvent], Awaitable[None]], status_code: int = 200) -> None:
        super().__init__(status_code=status_code, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send_event = SendEvent(send)

        async def heartbeat() -> None:
            while True:
                await send_event.text(": heartbeat\n\n")
                await trio.sleep(HEARTBEAT_S)

        async def watch_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_disconnect)
            nursery.start_soon(heartbeat)
            await self._feed(send_event)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()
