"""What the conversation has its shell do, and how the shell reports back.

A shell takes the commands after each input and carries them out in order; disk commands one at a time, each once the one before is done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

from node.capacity.allocations import KillCommand, RunCommand
from node.conversation.outbox import OutboxItem
from protocol.messages.work import Control, Denied, LaunchEnded, Preempt, Progress, Reveal
from protocol.wire.base import Message

T = TypeVar("T")


class SchedulerLink(Protocol):
    """A link that a scheduler opened; any hashable object that the shell sends over."""

    @property
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class SendReply:
    """Answer a request. `request`: the token that it came in with."""

    request: object
    message: Message


@dataclass(frozen=True, slots=True, eq=False)
class SendCall:
    """Send a message that wants an answer; report with `Commands.answered`."""

    link: SchedulerLink
    message: Message
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SendNote:
    """Send a message that wants none, or drop it where the link is slow."""

    link: SchedulerLink
    message: Progress | LaunchEnded | Preempt


@dataclass(frozen=True, slots=True, eq=False)
class DropLink:
    """Reset a link that is of no use any more."""

    link: SchedulerLink


@dataclass(frozen=True, slots=True, eq=False)
class RevealRun:
    """The answer that a witnessed run waits for."""

    lease: str
    message: Reveal | Denied


@dataclass(frozen=True, slots=True, eq=False)
class ControlDevice:
    """Do what the owner wants, then answer the request."""

    request: object
    message: Control


@dataclass(frozen=True, slots=True, eq=False)
class WriteRecord:
    """Store a record, then its head: durable when done."""

    item: OutboxItem
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class WriteHead:
    """Store the head of a record that is on disk, as one that waits."""

    item: OutboxItem


@dataclass(frozen=True, slots=True, eq=False)
class ReadRecord:
    """Read a record: `None` when it is gone for good. Of a large one only see that it is there."""

    item: OutboxItem


@dataclass(frozen=True, slots=True, eq=False)
class SettleRecords:
    """Rename the heads of settled records, and remove others. Never fails; what a crash undoes is sent once more."""

    settled: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ForgetFiles:
    """Remove a campaign's manifest and models, then answer the request: `Forgotten`, or `Denied` where a disk refuses."""

    request: object
    principal: str
    campaign: str
    records: int
    """That were removed."""


DiskCommand = WriteRecord | WriteHead | ReadRecord | SettleRecords
Command = (
    SendReply
    | SendCall
    | SendNote
    | DropLink
    | RevealRun
    | ControlDevice
    | ForgetFiles
    | RunCommand
    | KillCommand
    | DiskCommand
)
Flow = Generator[DiskCommand | SendCall | float, Any, T]
"""Steps of the conversation one after the other. It yields a call (and gets the answer; None: the peer could not be asked), a disk command
(and gets the bytes that were read and what failed, empty: nothing) or the time at which it goes on."""


class Commands:
    """Commands on their way to the shell, and the flows that wait for them."""

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self._flows: dict[DiskCommand | SendCall, Flow[None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def take(self) -> tuple[Command, ...]:
        """The commands to carry out now; each command is returned once."""
        commands, self._commands = tuple(self._commands), []
        return commands

    def emit(self, command: Command) -> None:
        self._commands.append(command)

    def start(self, flow: Flow[None]) -> None:
        """Go through its steps, as far as they do not wait now."""
        self._advance(flow, None)

    def to_disk(self, command: DiskCommand) -> None:
        """Have the disk `command` carried out, and ignore its outcome."""

        def once() -> Flow[None]:
            yield command

        self.start(once())

    def answered(self, command: SendCall, reply: Message | None) -> None:
        """The shell has the answer to a call. None: the link broke, or the time was over."""
        self._advance(self._flows.pop(command), reply)

    def disk_done(self, command: DiskCommand, data: bytes | None = None, error: str = "") -> None:
        """The shell carried a disk command out. `data`: what was read; `error`: why it failed."""
        self._advance(self._flows.pop(command), (data, error))

    @property
    def disk_idle(self) -> bool:
        """Whether nothing is on its way to or from the disk."""
        return all(isinstance(command, SendCall) for command in self._flows)

    def at(self, when: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), then))

    def next_timer(self) -> float | None:
        """When `run_timers` has something to do next."""
        return self._timers[0][0] if self._timers else None

    def run_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _advance(self, flow: Flow[None], value: object) -> None:
        try:
            step = flow.send(value)
        except StopIteration:
            return
        if isinstance(step, int | float):
            self.at(step, lambda: self._advance(flow, None))
        else:
            self._flows[step] = flow
            self.emit(step)
