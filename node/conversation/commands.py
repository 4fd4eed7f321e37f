"""The commands that the conversation gives its shell, and how the shell reports back.

A shell takes the commands after each input and carries them out in order. It carries out disk commands one at a time.
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
    """A link that a scheduler opened: any hashable object over which the shell can send."""

    @property
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class SendReply:
    """Answer a request. `request`: the token with which the request came in."""

    request: object
    message: Message


@dataclass(frozen=True, slots=True, eq=False)
class SendCall:
    """Send a message that expects an answer, and report the answer with `Commands.answered`."""

    link: SchedulerLink
    message: Message
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SendNote:
    """Send a message that expects no answer, or drop the message if the link is slow."""

    link: SchedulerLink
    message: Progress | LaunchEnded | Preempt


@dataclass(frozen=True, slots=True, eq=False)
class DropLink:
    """Reset a link that is no longer of use."""

    link: SchedulerLink


@dataclass(frozen=True, slots=True, eq=False)
class RevealRun:
    """Pass on the answer for which a witnessed run waits."""

    lease: str
    message: Reveal | Denied


@dataclass(frozen=True, slots=True, eq=False)
class ControlDevice:
    """Carry out the owner's order, then answer the request."""

    request: object
    message: Control


@dataclass(frozen=True, slots=True, eq=False)
class WriteRecord:
    """Store a record, then its head. Both are durable when this is done."""

    item: OutboxItem
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class WriteHead:
    """Store the head of a waiting record whose body is already on disk."""

    item: OutboxItem


@dataclass(frozen=True, slots=True, eq=False)
class ReadRecord:
    """Read a record: `None` if it is gone for good. For a large record, only check that it exists."""

    item: OutboxItem


@dataclass(frozen=True, slots=True, eq=False)
class SettleRecords:
    """Rename the heads of settled records, and remove other records. Never fails; a record whose settling a crash undoes is sent again."""

    settled: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ForgetFiles:
    """Remove a campaign's manifest and models, then answer the request: `Forgotten`, or `Denied` if the disk refuses."""

    request: object
    principal: str
    campaign: str
    records: int
    """Number of records removed."""


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
"""Consecutive steps of the conversation. A flow yields a call (and gets the answer; None: the peer could not be asked), a disk command (and
gets the bytes read and the error, empty: none), or the time at which to continue."""


class Commands:
    """Commands for the shell, and the flows that wait for their outcomes."""

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
        """Run a flow up to its first step that waits."""
        self._advance(flow, None)

    def to_disk(self, command: DiskCommand) -> None:
        """Have the shell carry out the disk `command`, and ignore the outcome."""

        def once() -> Flow[None]:
            yield command

        self.start(once())

    def answered(self, command: SendCall, reply: Message | None) -> None:
        """The shell has the answer to a call. None: the link broke, or the call timed out."""
        self._advance(self._flows.pop(command), reply)

    def disk_done(self, command: DiskCommand, data: bytes | None = None, error: str = "") -> None:
        """The shell has carried out a disk command. `data`: the bytes read; `error`: why it failed."""
        self._advance(self._flows.pop(command), (data, error))

    @property
    def disk_idle(self) -> bool:
        """Whether no disk command is in progress."""
        return all(isinstance(command, SendCall) for command in self._flows)

    def at(self, when: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), then))

    def next_timer(self) -> float | None:
        """When `run_timers` next has work to do."""
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
