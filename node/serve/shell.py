"""The trio shell of the conversation: carries out its commands over links and on disk, and reports the outcomes back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from node.capacity.allocations import KillCommand, RunCommand
from node.conversation.commands import (
    ControlDevice,
    DiskCommand,
    DropLink,
    ForgetFiles,
    RevealRun,
    SendCall,
    SendNote,
    SendReply,
)
from node.conversation.conversation import WorkerConversation
from node.store.outbox_files import OutboxFiles
from protocol.errors import RemoteProtocolError, ResourceError, Unreachable
from protocol.messages.work import LaunchEnded, Preempt, Progress
from protocol.wire.base import Message
from swarm.base.threads import DISK
from swarm.net.link import Link

MAX_NOTES: Final = 32
"""Notes that may wait for one link; further notes are dropped, since later progress makes them obsolete."""

log = structlog.get_logger("sark.conversation")


@dataclass(eq=False)
class _Request:
    """A scheduler's call that is not answered yet."""

    reply: Message | None = None
    done: trio.Event = field(default_factory=trio.Event)


class ConversationShell:
    """Connects one conversation to the outside world. Set `nursery` before the first input."""

    nursery: trio.Nursery

    def __init__(
        self,
        conversation: WorkerConversation,
        outbox: OutboxFiles,
        *,
        begin_run: Callable[[RunCommand], None],
        stop_run: Callable[[KillCommand], None],
        reveal: Callable[[RevealRun], None],
        control: Callable[[ControlDevice], None],
        forget: Callable[[ForgetFiles], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after every input. None of these functions waits."""
        self.conversation = conversation
        self._outbox = outbox
        self._begin_run = begin_run
        self._stop_run = stop_run
        self._reveal = reveal
        self._control = control
        self._forget = forget
        self._on_change = changed
        self._changed = trio.Event()
        self._disk: deque[DiskCommand] = deque()
        self._to_disk = trio.Event()
        self._notes: dict[object, trio.MemorySendChannel[Progress | LaunchEnded | Preempt]] = {}

    async def answer(self, link: Link, message: Message) -> Message | None:
        """For `swarm.net.links.serve_links`."""
        request = _Request()
        self.conversation.received(link, message, request)
        self.carry_out()
        await request.done.wait()
        return request.reply

    async def use(self, link: Link) -> None:
        """Use a link that a permitted scheduler opened, until the link ends."""
        self._notes[link], notes = trio.open_memory_channel[Progress | LaunchEnded | Preempt](MAX_NOTES)
        try:
            self.conversation.connected(link)
            self.carry_out()
            async for note in notes:
                await link.tell(note)
        except Unreachable:
            pass
        finally:
            del self._notes[link]
            self.conversation.disconnected(link)
            self.carry_out()

    async def _call(self, command: SendCall) -> None:
        link, reply = command.link, None
        assert isinstance(link, Link)
        try:
            reply = await link.call(command.message, max_wait_s=command.timeout_s)
        except (Unreachable, RemoteProtocolError) as exc:
            log.info("call.failed", peer=link.peer, call=type(command.message).__name__, why=exc.what)
        self.conversation.commands.answered(command, reply)
        self.carry_out()

    def carry_out(self) -> None:
        """Call this after each input of the conversation and each change of its ledger. Never waits."""
        self.conversation.carry_out()
        for command in self.conversation.commands.take():
            match command:
                case SendReply(_Request() as request, message):
                    request.reply = message
                    request.done.set()
                case SendReply():
                    raise AssertionError("a reply to no request of ours")
                case SendCall():
                    self.nursery.start_soon(self._call, command)
                case SendNote(link, note):
                    self._send_note(link, note)
                case DropLink(link):
                    assert isinstance(link, Link)
                    self.nursery.start_soon(link.reset)
                case RunCommand():
                    self._begin_run(command)
                case KillCommand():
                    log.info("run.stopping", lease=command.lease, reason=command.reason)
                    self._stop_run(command)
                case RevealRun():
                    self._reveal(command)
                case ControlDevice():
                    self._control(command)
                case ForgetFiles():
                    self._forget(command)
                case _:
                    self._disk.append(command)
                    self._to_disk.set()
        self._changed.set()
        self._changed = trio.Event()
        self._on_change()

    def _send_note(self, link: object, note: Progress | LaunchEnded | Preempt) -> None:
        if isinstance(note, Preempt):
            log.info("run.warned", lease=note.lease, grace_s=note.grace_s, priority=note.priority)
        try:
            if link in self._notes:
                self._notes[link].send_nowait(note)
        except trio.WouldBlock:
            log.debug("note.dropped", note=note.type, lease=note.lease)

    async def keep_time(self) -> None:
        """Run timers when they are due, until cancelled."""
        while True:
            deadline = self.conversation.next_deadline()
            changed = self._changed
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await changed.wait()
            if deadline is not None and deadline <= trio.current_time():
                self.conversation.run_timers()
                self.carry_out()

    async def keep_disk(self) -> None:
        """Carry out disk commands one after the other, until cancelled."""
        while True:
            await self._to_disk.wait()
            self._to_disk = trio.Event()
            while self._disk:
                command, data, error = self._disk.popleft(), None, ""
                try:
                    data = await DISK.run(self._outbox.carry_out, command)
                except ResourceError as exc:
                    error = exc.what
                self.conversation.commands.disk_done(command, data, error)
                self.carry_out()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. It is checked after each change."""
        while not condition():
            await self._changed.wait()
