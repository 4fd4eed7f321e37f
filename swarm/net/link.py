"""One end of a link: a stream of one message family, with calls and replies in both directions.

A call on an open link costs a third of a call on a new stream; `swarm.net.links` keeps one link for each peer and family. Once it is open,
both ends work alike.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

import structlog
import trio

from protocol.errors import (
    LocalProtocolError,
    Overloaded,
    ProtocolError,
    RemoteProtocolError,
    Unreachable,
    first_error,
)
from protocol.wire.base import Message
from protocol.wire.busy import Busy
from protocol.wire.codec import Decoder, Frame, FrameKind, Vocabulary
from swarm.net.addresses import PeerId
from swarm.net.cost import BYTE_US, CALL_US, NOTE_US, SLICE_US
from swarm.net.governor import Payer
from swarm.net.memory import CALL_BYTES, DECODED_TIMES
from swarm.net.network import Stream

M = TypeVar("M", bound=Message)

READ_SIZE = 65_536
MAX_ANSWERING = 32
"""Calls from one peer on one link being answered; above this, reading pauses."""
MAX_UNSENT = 8
"""Replies that the peer has not read; above this, none of its calls is served."""
FRAME_WITHIN_S = 60.0
"""Time limit of one frame, and of the first frame on a link that the peer opened."""
WRITE_S = 10.0
"""Seconds after which a peer that reads nothing is disconnected."""
BUSY_PAUSE_S = 0.05
"""The shortest wait after `Busy`."""

log = structlog.get_logger("sark.link")

Answer = Callable[["Link", Message], Awaitable[Message | None]]
"""Serves one call (the returned value is the reply) or one note (the value must be None)."""
Cost = Callable[[Message], float]
"""What serving a message costs, in µs of this process's processor time, without reading it and answering."""


def light(message: Message) -> float:
    """The cost of services whose calls cost no more than to be read and answered."""
    return 0.0


async def refuse_all(link: Link, message: Message) -> Message | None:
    """For links on which only we make calls: any call from the peer breaks the protocol."""
    raise RemoteProtocolError(f"{type(message).__name__} is not a call that this node answers")


@dataclass(slots=True)
class _Call:
    """A call that waits for its reply."""

    done: trio.Event = field(default_factory=trio.Event)
    reply: Message | None = None


@dataclass(eq=False, repr=False)
class Link:
    """One end of a link. `run` must be running for calls to be answered."""

    stream: Stream
    vocabulary: Vocabulary
    answer: Answer = refuse_all
    _: KW_ONLY
    cost: Cost = light
    payer: Payer | None = None
    """The account to which the peer's messages are charged; None: not charged."""
    opened_by_peer: bool = False
    closed: trio.Event = field(default_factory=trio.Event)
    """Set once nothing more is sent or received."""
    _pending: dict[int, _Call] = field(default_factory=dict)
    _next_id: int = 0
    _answering: int = 0
    _held: int = 0
    _unsent: int = 0
    _one_done: trio.Event = field(default_factory=trio.Event)
    _sending: trio.Lock = field(default_factory=trio.Lock)
    _retrying: trio.Lock = field(default_factory=trio.Lock)
    """Repeats calls to a busy peer one after another: all at once, they would use up the peer's time for us."""
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __repr__(self) -> str:
        return (
            f"<Link {self.stream.protocol} with {self.peer[-6:]}{' closed' if self.closed.is_set() else ''}>"
        )

    @property
    def peer(self) -> PeerId:
        return self.stream.peer

    @property
    def owner(self) -> PeerId:
        """The peer to whom memory is charged."""
        return self.stream.peer

    @property
    def relayed(self) -> bool:
        """Whether the link goes through a gate."""
        return self.stream.relayed

    async def call(self, message: Message, *, max_wait_s: float = 5.0) -> Message:
        """Send a call and wait for its reply; if the peer is busy, repeat the call after the time it names. Raises `Overloaded` if that
        would be too late, and `Unreachable` on silence or a broken link; the peer may have served the call even then."""
        deadline = trio.current_time() + max_wait_s
        reply = await self._call(message, deadline, max_wait_s)
        if isinstance(reply, Busy):
            with trio.move_on_at(deadline):
                async with self._retrying:
                    reply = await self._retry(message, reply, deadline, max_wait_s)
        if isinstance(reply, Busy):
            wait = reply.retry_after_s
            raise Overloaded(f"{self.peer} is overloaded; try again in {wait:.1f} s", retry_after_s=wait)
        return reply

    async def _retry(self, message: Message, busy: Busy, deadline: float, max_wait_s: float) -> Message:
        """Repeat the call until the answer is not `Busy`, or the next try would be too late."""
        reply: Message = busy
        while isinstance(reply, Busy):
            again = trio.current_time() + max(reply.retry_after_s, BUSY_PAUSE_S)
            if again >= deadline:
                return reply
            await trio.sleep_until(again)
            reply = await self._call(message, deadline, max_wait_s)
        return reply

    async def turn(self, cost_us: float) -> None:
        """Wait for the peer's turn; called before each slice of long work in an answer."""
        if self.payer is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.payer.turn(cost_us)

    async def _call(self, message: Message, deadline: float, max_wait_s: float) -> Message:
        if self.closed.is_set():
            raise Unreachable(f"the link with {self.peer} is closed")
        self._next_id = self._next_id % 0xFFFF_FFFE + 1
        call_id = self._next_id
        call = self._pending[call_id] = _Call()
        try:
            with trio.move_on_at(deadline):
                await self._send(Frame(FrameKind.CALL, call_id, message))
                await call.done.wait()
        finally:
            del self._pending[call_id]
        if call.reply is not None:
            return call.reply
        if self.closed.is_set():
            raise Unreachable(f"the link with {self.peer} broke before the answer came")
        raise Unreachable(f"{self.peer} did not answer within {max_wait_s:g} s")

    async def ask(self, message: Message, expected: type[M], *, max_wait_s: float = 5.0) -> M:
        """Like `call`, but checks the type of the reply. Any other type breaks the protocol and resets the link."""
        answer = await self.call(message, max_wait_s=max_wait_s)
        if isinstance(answer, expected):
            return answer
        await self.reset()
        raise RemoteProtocolError(
            f"{self.peer} answered {type(message).__name__} with {type(answer).__name__}"
        )

    async def tell(self, message: Message) -> None:
        """Send a note. Raises `Unreachable` if the link is gone."""
        await self._send(Frame(FrameKind.NOTE, 0, message))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until the peer ends the link or it breaks. Raises `RemoteProtocolError`, after resetting the stream, and nothing else."""
        decoder = Decoder(self.vocabulary)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    until = trio.current_time() + (FRAME_WITHIN_S if self.opened_by_peer else math.inf)
                    while True:
                        try:
                            data = await self._receive(until)
                        except (trio.BrokenResourceError, trio.ClosedResourceError):
                            break
                        if data is None:
                            if decoder.partial:
                                raise RemoteProtocolError(f"no whole frame within {FRAME_WITHIN_S:g} s")
                            break  # opened but never used
                        if not data:
                            if decoder.partial:
                                raise RemoteProtocolError("the stream ended in the middle of a frame")
                            break
                        decoder.feed(data)
                        self._note(decoder.held)
                        whole = False
                        while (frame := await self._next(decoder)) is not None:
                            whole = True
                            self._held = decoder.held
                            await self._take(frame, nursery)
                        self._note(decoder.held)
                        if not decoder.partial:
                            until = math.inf
                        elif whole or until == math.inf:
                            until = trio.current_time() + FRAME_WITHIN_S
                    nursery.cancel_scope.cancel()
        except* ProtocolError as group:
            await self.stream.reset()
            raise first_error(group) from None
        finally:
            self._finish()
            self._note(0)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                await self.stream.aclose()

    async def _receive(self, until: float) -> bytes | None:
        """The next bytes, or None if none arrive before `until`."""
        if until == math.inf:  # between frames: a timeout costs as much as the read
            return await self.stream.receive_some(READ_SIZE)
        with trio.move_on_at(until):
            return await self.stream.receive_some(READ_SIZE)
        return None

    def _note(self, held: int) -> None:
        """Record the bytes that have arrived but are not decoded."""
        self._held = held
        if self.payer is not None:
            self.payer.governor.memory.buffer(self, held)

    def waiting(self) -> int:
        """Bytes that have arrived but are not decoded."""
        return self._held

    async def _take(self, frame: Frame, nursery: trio.Nursery) -> None:
        self.vocabulary.check_kind(frame)
        if frame.kind is FrameKind.ANSWER:
            call = self._pending.get(frame.id)
            if call is not None:
                call.reply = frame.message
                call.done.set()
            elif self.payer is not None:  # the call timed out, or was never made
                self.payer.charge_refusal(NOTE_US + frame.size * BYTE_US)
        elif frame.kind is FrameKind.NOTE:
            if self.payer is not None:
                self.payer.charge(NOTE_US + frame.size * BYTE_US + self.cost(frame.message))
                if owes := self.payer.owes_s():
                    await trio.sleep(owes)
            await self.answer(self, frame.message)
        else:
            while self._unsent >= MAX_UNSENT or self._answering >= MAX_ANSWERING:
                await self._one_done.wait()
            self._answering += 1
            size = CALL_BYTES + DECODED_TIMES * frame.size
            if self.payer is not None:
                self.payer.hold(size)  # now, since the next frame is read before this one is served
            nursery.start_soon(self._serve, frame, size)

    async def _next(self, decoder: Decoder) -> Frame | None:
        """The next complete frame, once it is the peer's turn; until then it stays undecoded."""
        if self.payer is not None and decoder.held:
            await self.payer.read_turn()
        return decoder.next()

    async def _answer(self, frame: Frame) -> Message | None:
        """The reply to a peer's call."""
        if self.payer is not None:
            reading = CALL_US + frame.size * BYTE_US
            serving = self.cost(frame.message)
            wait = self.payer.admit(reading + serving)
            if wait:
                self.payer.charge_refusal(reading)
                return Busy(retry_after_s=wait)
            if serving:
                await self.payer.turn(min(serving, SLICE_US))
        return await self.answer(self, frame.message)

    async def _serve(self, frame: Frame, size: int) -> None:
        try:
            answer = await self._answer(frame)
            if answer is None:
                raise LocalProtocolError(f"no answer to a {type(frame.message).__name__}")
            self._unsent += 1
            try:
                await self._send(Frame(FrameKind.ANSWER, frame.id, answer))
            except Unreachable:
                self._scope.cancel()
            finally:
                self._unsent -= 1
        finally:
            if self.payer is not None:
                self.payer.release(size)
            self._answering -= 1
            self._one_done.set()
            self._one_done = trio.Event()

    async def _send(self, frame: Frame) -> None:
        data = self.vocabulary.encode(frame)
        if frame.kind is FrameKind.ANSWER and self.payer is not None:
            with self.payer.holding(2 * len(data)):
                await self._send_bytes(data)
        else:
            await self._send_bytes(data)

    async def _send_bytes(self, data: bytes) -> None:
        if self._sending.locked():
            await self._sending.acquire()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()  # nothing was sent, and the link stays usable
            self._sending.acquire_nowait()
        try:
            try:
                with trio.move_on_after(WRITE_S) as writing:
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.closed.set()
                raise Unreachable(f"the link with {self.peer} is broken") from None
            except trio.Cancelled:  # in the middle of a frame: the peer could not decode the next one
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                    await self.reset()
                raise
            if writing.cancelled_caught:
                await self.reset()
                raise Unreachable(f"{self.peer} no longer reads")
        finally:
            self._sending.release()

    @property
    def at_rest(self) -> bool:
        """Whether no call is pending on either side."""
        return not (self._pending or self._answering)

    def _finish(self) -> None:
        self.closed.set()
        for call in self._pending.values():
            call.done.set()

    async def reset(self) -> None:
        """Abandon the link at once; pending calls raise `Unreachable`."""
        self._finish()
        self._scope.cancel()
        await self.stream.reset()

    async def aclose(self) -> None:
        """Close the link gracefully."""
        self._finish()
        self._scope.cancel()
        await self.stream.aclose()
