"""Server-sent events: an answer that goes on for as long as somebody reads it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
BREATH_S: Final = 15.0
"""A line that says nothing is sent so often: what stands between would cut a silent connection."""


def event_text(name: str, value: str, *, id: str | None = None) -> str:
    """One event; `value` is JSON on one line. `id`: what a reader that was cut off comes back with."""
    return f"event: {name}\ndata: {value}\n" + (f"id: {id}\n" if id is not None else "") + "\n"


class SendEvent:
    """Sends events to one reader."""

    def __init__(self, send: Send) -> None:
        self._send, self._turn = send, trio.Lock()

    async def __call__(self, name: str, value: Any, *, id: str | None = None) -> None:
        """One event."""
        line = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        await self.text(event_text(name, line, id=id))

    async def text(self, text: str) -> None:
        """Events that are made already, whole ones."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})


class EventStream(Response):
    """Sends the events that `feed` tells, until it returns or the reader is gone."""

    media_type = MEDIA_TYPE

    def __init__(self, feed: Callable[[SendEvent], Awaitable[None]], status_code: int = 200) -> None:
        super().__init__(status_code=status_code, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One reader."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        tell = SendEvent(send)

        async def breathe() -> None:
            while True:
                await tell.text(": here\n\n")
                await trio.sleep(BREATH_S)

        async def mind() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mind)
            nursery.start_soon(breathe)
            await self._feed(tell)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()
