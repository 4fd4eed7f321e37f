"""How a gate passes bytes from one half of a circuit to the other.

Between two sockets, Linux can move them by itself (`splicing`). Everywhere else they are read and written.
"""

from __future__ import annotations

import sys
from typing import Final, Protocol

import trio

from swarm.relay.data_connections import Half

if sys.platform == "linux":
    from swarm.relay.splicing import Spliced, shared_pipe

CHUNK: Final = 4 * 65_507
"""Whole frames in, whole frames out; under a rate limit, no circuit waits long for another's chunk."""


class Passage(Protocol):
    """One direction of a circuit. Raises `trio.BrokenResourceError`, `trio.ClosedResourceError`, or `trio.TooSlowError` (`within_s`)."""

    async def take(self, within_s: float) -> int:
        """Wait for bytes from the source, take at most `CHUNK`, and return how many; 0 at its end."""
        ...

    async def give(self, within_s: float) -> None:
        """Send the bytes taken."""
        ...


def passage(source: Half, sink: Half, *, at_once: bool) -> Passage:
    """The fastest passage available. `at_once`: nothing is awaited between `take` and `give`."""
    if sys.platform == "linux" and at_once:
        pipe = shared_pipe()
        if pipe and isinstance(source, trio.SocketStream) and isinstance(sink, trio.SocketStream):
            return Spliced(source, sink, pipe)
    return Copied(source, sink)


class Copied:
    """Reads and writes the bytes."""

    def __init__(self, source: Half, sink: Half) -> None:
        self._source, self._sink = source, sink
        self._data: bytes | bytearray = b""

    async def take(self, within_s: float) -> int:
        with trio.fail_after(within_s):
            self._data = await self._source.receive_some(CHUNK)
        return len(self._data)

    async def give(self, within_s: float) -> None:
        data, self._data = self._data, b""
        with trio.fail_after(within_s):
            await self._sink.send_all(data)
