"""Passages in which Linux itself moves bytes from one socket to another: the bytes never enter this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final

import trio

assert sys.platform == "linux"

PIPE: Final = 256 * 1024
"""Bytes moved at once."""
TURN: Final = 1 << 20
"""After this many bytes of one circuit, other tasks have their turn."""
LEAST: Final = TURN // 32
"""What each move counts at least."""


class Pipe:
    """A pipe between two sockets. One pipe serves all circuits, since each circuit fills and drains it before another has its turn."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._holds = 0

    def widen(self) -> None:
        """Make room for a chunk. Raises `OSError` if this user has too many large pipes."""
        fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE)

    def fill(self, source: int) -> int:
        """Move bytes from a socket; return how many, 0 at its end. Raises `BlockingIOError` while it has none, or only urgent ones."""
        if self._holds:  # left by a circuit that may not carry them
            self._read(self._holds)
        self._holds = self._move(source, self._in, PIPE)
        return self._holds

    def drain(self, sink: int) -> bytes:
        """Move the pipe's bytes to a socket; return those that the socket did not take."""
        while self._holds:
            try:
                self._holds -= self._move(self._out, sink, self._holds)
            except BlockingIOError:
                return self._read(self._holds)
        return b""

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)

    def _read(self, size: int) -> bytes:
        data = os.read(self._out, size)
        self._holds -= len(data)
        return data

    def _move(self, source: int, sink: int, size: int) -> int:
        return os.splice(source, sink, size, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)


@cache
def shared_pipe() -> Pipe | None:
    """The pipe; None if the system lacks `splice` between sockets and pipes (gVisor), large pipes, or free file descriptors."""
    pipe: Pipe | None = None
    try:
        one, other = socket.socketpair()
        with one, other:
            pipe = Pipe()
            pipe.widen()
            other.send(b"?")
            pipe.fill(one.fileno())
            pipe.drain(one.fileno())
            return pipe
    except OSError:
        if pipe is not None:
            pipe.close()
        return None


class Spliced:
    """A `swarm.relay.passing.Passage` between two sockets. Nothing is awaited between `take` and `give`."""

    def __init__(self, source: trio.SocketStream, sink: trio.SocketStream, pipe: Pipe) -> None:
        self._source, self._sink, self._pipe = source, sink, pipe
        self._read: bytes | bytearray = b""
        """Bytes that could only be read, not spliced."""
        self._in_a_row = 0
        """Bytes moved since other tasks had their turn."""

    async def take(self, within_s: float) -> int:
        if self._in_a_row >= TURN:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()
        size = self._fill()
        if size is None:
            self._in_a_row = 0
            with trio.fail_after(within_s):
                await trio.lowlevel.wait_readable(self._source.socket)
                size = self._fill()
                if size is None:  # `splice` cannot move urgent bytes
                    self._read = await self._source.receive_some(PIPE)
                    size = len(self._read)
        self._in_a_row += max(size, LEAST)
        return size

    def _fill(self) -> int | None:
        """Fill the pipe; None while there is nothing that can be moved."""
        with _translated():
            try:
                return self._pipe.fill(self._source.socket.fileno())
            except BlockingIOError:
                return None

    async def give(self, within_s: float) -> None:
        rest, self._read = self._read, b""
        if not rest:
            with _translated():
                rest = self._pipe.drain(self._sink.socket.fileno())
        if rest:
            with trio.fail_after(within_s):
                await self._sink.send_all(rest)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors as `trio.SocketStream` does."""
    try:
        yield
    except OSError as error:
        raise trio.BrokenResourceError(f"the data connection broke: {error}") from error
