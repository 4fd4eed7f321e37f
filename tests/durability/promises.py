"""What a home tells the outside that has to hold from then on, and the file in which a recorded run writes it down.

A promise is a line of JSON, written to a file in the recorded folder just before the message goes out. The line's place in the log of
writes shows which writes came before it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocol.formats.phase import Phase
from protocol.messages.work import (
    WORK,
    Accepted,
    AdoptReply,
    AdoptRequest,
    Commit,
    Granted,
    Probe,
    Progress,
    Queued,
    Quote,
    Ready,
    Result,
    Stale,
    Start,
)
from protocol.values.task import read_task
from protocol.wire.base import Message
from protocol.wire.codec import Frame, FrameKind
from protocol.words import ProtocolId

FILE: Final = "promises"
EVERY: Final = "*"
PREFIX: Final = 4


@dataclass(frozen=True, slots=True)
class Promise:
    """`home`: the home that makes it; `kind`: see `facts.py`; `key`: what it is about; `value`: its statement. `ends`: the promise is about
    to be replaced, or all promises of the kind if `key` is `EVERY`.
    """

    home: str
    kind: str
    key: str
    value: Any = None
    ends: bool = False

    def line(self) -> bytes:
        return json.dumps([self.home, self.kind, self.key, self.value, self.ends]).encode() + b"\n"


class Promises:
    """The promises of a run, in order."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def make(self, home: str, kind: str, key: str, value: Any = None) -> None:
        os.write(self._file, Promise(home, kind, key, value).line())

    def end(self, home: str, kind: str, key: str) -> None:
        """End a promise, because its maker has asked for something else: until the new promise is made, either may hold."""
        os.write(self._file, Promise(home, kind, key, ends=True).line())


@dataclass
class Wire:
    """Reads the messages of the work protocol as they leave the homes of `names` (peer id → home)."""

    promises: Promises
    names: dict[str, str]
    _calls: dict[tuple[str, str, int], Message] = field(default_factory=dict)
    """(caller, callee, number) → the call."""
    _models: dict[str, str] = field(default_factory=dict)
    """Lease → its model."""

    def sends(self, sender: str, receiver: str, frame: Frame) -> None:
        """Called just before `sender` sends a frame."""
        if frame.kind is FrameKind.CALL:
            self._calls[sender, receiver, frame.id] = frame.message
        call = self._calls.get((receiver, sender, frame.id)) if frame.kind is FrameKind.ANSWER else None
        if isinstance(call, Result) and isinstance(frame.message, Stale):
            self.promises.end(self.names[receiver], "record", call.sha256)  # the worker may forget the record
        if isinstance(call, Commit) and isinstance(frame.message, Granted | Queued):
            self._models[frame.message.lease] = read_task(call.task).model.sha256
        if isinstance(frame.message, Progress) and frame.message.phase in (Phase.LOAD, Phase.RUN):
            self.promises.make(self.names[sender], "model", self._models[frame.message.lease])
        for kind, key, value in _said(call, frame.message):
            self.promises.make(self.names[sender], kind, key, value)


def _said(call: Message | None, message: Message) -> list[tuple[str, str, Any]]:
    """(kind, key, value) of the promises in a message; `call`: the call that it answers."""
    match call, message:
        case None, Commit():
            task = read_task(message.task)
            return [
                ("intent", f"{task.task}#{message.attempt}", message.key),
                ("epoch", task.campaign, message.epoch),
            ]
        case None, AdoptRequest():
            return [("epoch", message.campaign, message.epoch)]
        case Ready(), Start():
            return [("started", call.lease, None)]
        case Result(), Accepted():
            return [("result", f"{call.task}#{call.attempt}", call.sha256)]
        case Commit(), Granted() | Queued():
            return [("incarnation", "worker", message.fence.incarnation)]
        case None, Result():
            return [("record", message.sha256, None)]
        case Probe(), Quote():
            warm = zip(call.shapes, message.shapes, strict=True)
            return [("model", shape.model, None) for shape, quote in warm if quote.warm]
        case _, AdoptReply() if message.manifest is not None:
            return [("manifest", message.manifest, None)]
        case _:
            return []


class WatchedStream:
    """A stream of the work protocol whose frames are reported before they go out."""

    def __init__(self, stream: Any, me: str, wire: Wire) -> None:
        self._stream, self._me, self._wire = stream, me, wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send_all(self, data: bytes) -> None:
        self._wire.sends(self._me, self._stream.peer, WORK.decode(bytes(data[PREFIX:])))
        await self._stream.send_all(data)


class WatchedNetwork:
    """A node's network whose streams of the work protocol are watched."""

    def __init__(self, network: Any, wire: Wire) -> None:
        self._network, self._wire = network, wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    async def open(self, peer: str, protocol: str, *more: Any, **options: Any) -> Any:
        stream = await self._network.open(peer, protocol, *more, **options)
        return self._watched(protocol, stream)

    def handle(self, protocol: str, handler: Any) -> None:
        async def watched(stream: Any) -> None:
            await handler(self._watched(protocol, stream))

        self._network.handle(protocol, watched)

    def _watched(self, protocol: str, stream: Any) -> Any:
        return (
            WatchedStream(stream, self._network.peer_id, self._wire)
            if protocol == ProtocolId.WORK
            else stream
        )
