"""Data connections: halves of circuits on TCP connections of their own, whose bytes the gate copies.

    node                                           gate
     │ ── 0, the id (16 bytes) ──────────────────▶  │   an id that this gate waits for, once
     │ ◀────────────────────────────────────── 1 ── │
     │ ◀═══════════ bytes of the circuit ═════════▶ │ ◀═══ the other half ═══▶

Both ends get their ids from the gate, on streams that nobody else can read. On the same streams they say whether they have a data
connection or stay on the stream. Until the two ends have secured the circuit (Noise), they mask their bytes with a key from the gate, so
that an attacker between a node and its gate who takes over its half learns nothing about the other end.
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
"""The first byte. Other connections begin with a multistream protocol name, which has at least one character."""
TAKEN: Final = b"\1"
BOUND: Final = b"\1"
"""Sent by an end on its stream once it has a data connection."""
STAYS: Final = b"\0"
"""Sent by an end on its stream if it has none."""
ID_SIZE: Final = 16
MASK_SIZE: Final = 32

Half = Stream | trio.abc.HalfCloseableStream
"""One half of a circuit: the stream on which it was requested, or a data connection."""


async def abandon(half: Half) -> None:
    """End a half of a circuit at once."""
    if isinstance(half, trio.abc.AsyncResource):
        await trio.aclose_forcefully(half)
    else:
        await half.reset()


class Binding(NamedTuple):
    """What a gate tells one end of a circuit: the id by which it knows that end's data connection, and the key of the mask."""

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
    """Hides the first bytes in both directions. It does not authenticate: a changed byte arrives as a different one."""

    def __init__(self, key: bytes, *, initiator: bool) -> None:
        """`initiator`: whether this end called."""
        called, calling = (
            Cipher(ChaCha20(key, bytes(15) + bytes([side])), mode=None).encryptor() for side in range(2)
        )
        outbound, inbound = (calling, called) if initiator else (called, calling)
        self.send, self.receive = outbound.update, inbound.update


async def bind(stream: trio.abc.Stream, binding: Binding) -> None:
    """Turn a fresh connection with a gate into one half of a circuit. Raises `trio.BrokenResourceError` if the gate does not take it."""
    await stream.send_all(MARK + binding.id)
    if await stream.receive_some(1) != TAKEN:
        raise trio.BrokenResourceError("the gate did not take the data connection")


class UnexpectedDataConnection(SwarmException):
    """A data connection that the gate does not expect, or for which there is no room."""


class ExpectedConnection:
    """A data connection that a gate waits for."""

    def __init__(self) -> None:
        self.id = secrets.token_bytes(ID_SIZE)
        self.over = trio.Event()
        """Set when the circuit has ended or will not begin."""
        self.stream: trio.abc.HalfCloseableStream | None = None
        """Set once the connection has arrived."""


class DataConnections:
    """The data connections that a gate waits for."""

    def __init__(self) -> None:
        self._expected: dict[bytes, ExpectedConnection] = {}

    @contextlib.contextmanager
    def expect(self) -> Iterator[ExpectedConnection]:
        """Wait for a data connection during the block, and end it with the block."""
        expected = ExpectedConnection()
        self._expected[expected.id] = expected
        try:
            yield expected
        finally:
            self.drop(expected)

    def drop(self, expected: ExpectedConnection) -> None:
        """Stop waiting for a data connection; if it has arrived, it ends."""
        self._expected.pop(expected.id, None)
        expected.over.set()

    async def recognise(self, stream: trio.SocketStream, admit: Callable[[], bool]) -> trio.Event | None:
        """The event for the end of the circuit if `stream` is a data connection; None, with nothing read, for any other connection.
        `admit`: whether there is room, called for expected connections only. Raises `UnexpectedDataConnection` and
        `trio.BrokenResourceError`."""
        try:
            first = await stream.socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(f"it sent nothing: {error}") from error
        return (await self.take(stream, admit)).over if first == MARK else None

    async def take(
        self, stream: trio.abc.HalfCloseableStream, admit: Callable[[], bool]
    ) -> ExpectedConnection:
        """Read the id, and answer. Raises `UnexpectedDataConnection` and `trio.BrokenResourceError`."""
        begin = bytearray()
        while len(begin) < len(MARK) + ID_SIZE:
            more = await stream.receive_some(len(MARK) + ID_SIZE - len(begin))
            if not more:
                raise UnexpectedDataConnection("a data connection without its id")
            begin += more
        expected = self._expected.get(bytes(begin[len(MARK) :]))
        if expected is None or not admit():
            raise UnexpectedDataConnection(
                "a data connection that nobody waits for"
                if expected is None
                else "no room for a data connection"
            )
        del self._expected[expected.id]
        expected.stream = stream
        await stream.send_all(TAKEN)
        return expected
