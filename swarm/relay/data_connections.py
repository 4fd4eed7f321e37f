"""Data connections: each half of a circuit on a TCP connection of its own, between which the gate copies bytes.

    node                                           gate
     │ ── 0, the id (16 bytes) ──────────────────▶  │   an id that this gate gave out a moment ago, once
     │ ◀────────────────────────────────────── 1 ── │
     │ ◀═══════════ bytes of the circuit ═════════▶ │ ◀═══ the other half ═══▶

Both ends get their ids from the gate on streams that nobody else can read. Until the two ends have secured the circuit (Noise), they mask
what they say with a key from there: somebody between a node and its gate who takes over its half learns nothing of the other end.
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

MARK: Final = b"\0"
"""The first byte. Everybody else begins with a name of multistream, which has at least one character."""
TAKEN: Final = b"\1"
ID_SIZE: Final = 16
MASK_SIZE: Final = 32
BIND_WITHIN_S: Final = 3.0
"""From the gate's word to a data connection that it has taken."""
SAY_WITHIN_S: Final = 10.0
"""Until a connection that a gate accepted has said what it is; as long as libp2p waits."""


class Binding(NamedTuple):
    """What a gate tells one end of a circuit: by which id it knows that end's data connection, and the key of the mask."""

    id: bytes
    mask: bytes

    @classmethod
    def parse(cls, body: bytes) -> Binding | None:
        """None for no bytes: the circuit stays on its stream. Raises ValueError for another length."""
        if not body:
            return None
        if len(body) != ID_SIZE + MASK_SIZE:
            raise ValueError(f"{len(body)} bytes are no binding")
        return cls(body[:ID_SIZE], body[ID_SIZE:])

    def to_bytes(self) -> bytes:
        return self.id + self.mask


class Mask:
    """Hides the first bytes both ways. No proof of anything: a changed byte arrives as another one."""

    def __init__(self, key: bytes, *, initiator: bool) -> None:
        """`initiator`: whether this end called."""
        streams = [
            Cipher(ChaCha20(key, bytes(15) + bytes([side])), mode=None).encryptor() for side in range(2)
        ]
        called, calling = streams
        outbound, inbound = (calling, called) if initiator else (called, calling)
        self.send, self.receive = outbound.update, inbound.update


async def bind(stream: trio.abc.Stream, binding: Binding) -> None:
    """Make a fresh connection with a gate one half of a circuit. Raises `trio.BrokenResourceError` if the gate does not take it."""
    await stream.send_all(MARK + binding.id)
    if await stream.receive_some(1) != TAKEN:
        raise trio.BrokenResourceError("the gate did not take the data connection")


class ExpectedConnection:
    """A data connection that a gate waits for."""

    def __init__(self) -> None:
        self.id = secrets.token_bytes(ID_SIZE)
        self.over = trio.Event()
        """Its circuit has ended, or never began."""
        self._stream: trio.abc.HalfCloseableStream | None = None
        self._came = trio.Event()

    def came(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream
        self._came.set()

    async def arrival(self) -> trio.abc.HalfCloseableStream:
        """Wait for it. Raises `trio.TooSlowError`."""
        with trio.fail_after(BIND_WITHIN_S):
            await self._came.wait()
        assert self._stream is not None
        return self._stream


class DataConnections:
    """Of a gate: those that it waits for."""

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
            self._expected.pop(expected.id, None)
            expected.over.set()

    async def serve(self, stream: trio.SocketStream, admit: Callable[[], bool]) -> bool:
        """Serve a connection as long as its circuit lives, if it is a data connection; returns whether it was. Of any other nothing has
        been read. `admit`: whether there is room for one, asked of those that are expected."""
        expected: ExpectedConnection | None = None
        with trio.move_on_after(SAY_WITHIN_S):
            if await stream.socket.recv(1, socket.MSG_PEEK) != MARK:
                return False
            with contextlib.suppress(trio.BrokenResourceError):
                expected = await self.take(stream, admit)
        if expected is not None:
            await expected.over.wait()
        return True

    async def take(
        self, stream: trio.abc.HalfCloseableStream, admit: Callable[[], bool]
    ) -> ExpectedConnection | None:
        """Read the id, and answer; None if nobody waits for it. Raises `trio.BrokenResourceError`."""
        begin = bytearray()
        while len(begin) < len(MARK) + ID_SIZE:
            more = await stream.receive_some(len(MARK) + ID_SIZE - len(begin))
            if not more:
                return None
            begin += more
        expected = self._expected.get(bytes(begin[len(MARK) :]))
        if expected is None or not admit():
            return None
        del self._expected[expected.id]
        await stream.send_all(TAKEN)
        expected.came(stream)
        return expected
