"""Data connections: a half of a circuit on a TCP connection of its own, whose bytes the gate copies.

    node                                           gate
     │ ── 0, the id (16 bytes) ──────────────────▶  │   an id that this gate waits for, once
     │ ◀────────────────────────────────────── 1 ── │
     │ ◀═══════════ bytes of the circuit ═════════▶ │ ◀═══ the other half ═══▶

Both ends get their ids from the gate on streams that nobody else can read, and say there whether they have such a connection or stay on the
stream. Until the two ends have secured the circuit (Noise), they mask what they say with a key from there: somebody between a node and its
gate who takes over its half learns nothing of the other end.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import trio
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from libp2p.network.exceptions import SwarmException

from swarm.net.network import Stream

MARK: Final = b"\0"
"""The first byte. Everybody else begins with a name of multistream, which has at least one character."""
TAKEN: Final = b"\1"
BOUND: Final = b"\1"
"""What an end says on its stream once it has a data connection."""
STAYS: Final = b"\0"
"""And what it says without one."""
ID_SIZE: Final = 16
MASK_SIZE: Final = 32

Half = Stream | trio.abc.HalfCloseableStream
"""One half of a circuit: the stream on which it was asked for, or a data connection."""


async def abandon(half: Half) -> None:
    """End it at once."""
    if isinstance(half, trio.abc.AsyncResource):
        await trio.aclose_forcefully(half)
    else:
        await half.reset()


class Binding(NamedTuple):
    """What a gate tells one end of a circuit: by which id it knows that end's data connection, and the key of the mask."""

    id: bytes
    mask: bytes

    @classmethod
    def parse(cls, body: bytes) -> Binding | None:
        """The binding in `body`; None if empty: the circuit stays on its stream, without a mask. Raises ValueError for another length."""
        if not body:
            return None
        if len(body) != ID_SIZE + MASK_SIZE:
            raise ValueError(f"{len(body)} bytes are not a binding")
        return cls(body[:ID_SIZE], body[ID_SIZE:])

    def to_bytes(self) -> bytes:
        return self.id + self.mask


class Mask:
    """Hides the first bytes both ways. No proof of anything: a changed byte arrives as another one."""

    def __init__(self, key: bytes, *, initiator: bool) -> None:
        """`initiator`: whether this end called."""
        called, calling = (
            Cipher(ChaCha20(key, bytes(15) + bytes([side])), mode=None).encryptor() for side in range(2)
        )
        outbound, inbound = (calling, called) if initiator else (called, calling)
        self.send, self.receive = outbound.update, inbound.update


async def bind(stream: trio.abc.Stream, binding: Binding) -> None:
    """Make a fresh connection with a gate one half of a circuit. Raises `trio.BrokenResourceError` if the gate does not take it."""
    await stream.send_all(MARK + binding.id)
    if await stream.receive_some(1) != TAKEN:
        raise trio.BrokenResourceError("the gate did not take the data connection")


class NotTaken(SwarmException):
    """A data connection that nobody waits for, or for which there is no room."""


class ExpectedConnection:
    """A data connection that a gate waits for."""

    def __init__(self) -> None:
        self.id = secrets.token_bytes(ID_SIZE)
        self.over = trio.Event()
        """Its circuit has ended, or never began."""
        self.stream: trio.abc.HalfCloseableStream | None = None
        """Once it has come."""


class DataConnections:
    """The data connections that a gate waits for."""

    def __init__(self) -> None:
        self._expected: dict[bytes, ExpectedConnection] = {}

    @contextlib.contextmanager
    def expect(self) -> Iterator[ExpectedConnection]:
        """Wait for one; it ends with the block."""
        expected = ExpectedConnection()
        self._expected[expected.id] = expected
        try:
            yield expected
        finally:
            self.drop(expected)

    def drop(self, expected: ExpectedConnection) -> None:
        """Wait for it no longer; if it has come, it ends."""
        self._expected.pop(expected.id, None)
        expected.over.set()

    async def recognise(self, stream: trio.SocketStream, admit: Callable[[], bool]) -> trio.Event | None:
        """The end of the circuit if `stream` is a data connection; None, with nothing read, for any other. `admit`: whether there is room
        for one, asked of those that are expected. Raises `NotTaken` and `trio.BrokenResourceError`."""
        try:
            first = await stream.socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(f"it sent nothing: {error}") from error
        return (await self.take(stream, admit)).over if first == MARK else None

    async def take(
        self, stream: trio.abc.HalfCloseableStream, admit: Callable[[], bool]
    ) -> ExpectedConnection:
        """Read the id, and answer. Raises `NotTaken` and `trio.BrokenResourceError`."""
        begin = bytearray()
        while len(begin) < len(MARK) + ID_SIZE:
            more = await stream.receive_some(len(MARK) + ID_SIZE - len(begin))
            if not more:
                raise NotTaken("a data connection without its id")
            begin += more
        expected = self._expected.get(bytes(begin[len(MARK) :]))
        if expected is None or not admit():
            raise NotTaken(
                "a data connection that nobody waits for"
                if expected is None
                else "no room for a data connection"
            )
        del self._expected[expected.id]
        expected.stream = stream
        await stream.send_all(TAKEN)
        return expected
