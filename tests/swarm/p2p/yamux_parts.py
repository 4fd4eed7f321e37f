"""A victim's yamux connection, whose other end the test drives frame by frame. No sockets."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, cast

import trio
import trio.testing
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IncompleteReadError
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux import yamux

from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.memory import MemoryAccount
from swarm.p2p.muxed_stream import PatientStream
from swarm.p2p.yamux import (
    BoundedYamux,
)

PEER = ID(peer_id_bytes(Identity.from_seed("attacker").peer_id))
WINDOW = 256 * 1024


class Pipe:
    """A secured connection whose far end the test holds."""

    is_initiator = False

    def __init__(self) -> None:
        self._to_victim, self._victim_reads = trio.open_memory_channel[bytes](10_000)
        self._victim_writes, self.replies = trio.open_memory_channel[bytes](10_000)
        self.blocked = False
        """Whether the socket takes no more bytes."""
        self.closed = False
        self.kind = ConnectionType.DIRECT

    async def read(self) -> bytes:
        try:
            return await self._victim_reads.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise IncompleteReadError("end", expected_bytes=1, received_bytes=0) from None

    async def write(self, data: bytes) -> None:
        if self.blocked:
            await trio.sleep_forever()
        await self._victim_writes.send(data)

    def get_connection_type(self) -> ConnectionType:
        return self.kind

    async def close(self) -> None:
        self.closed = True
        self._victim_reads.close()
        await trio.lowlevel.checkpoint()

    async def frame(self, kind: int, flags: int, stream_id: int, length: int, body: bytes = b"") -> None:
        """Send a frame as the attacker."""
        header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, length)
        await self._to_victim.send(header + body)

    async def open(self, stream_id: int) -> None:
        await self.frame(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, stream_id, 0)

    async def data(self, stream_id: int, body: bytes, flags: int = 0) -> None:
        await self.frame(yamux.TYPE_DATA, flags, stream_id, len(body), body)


class Rig:
    """A victim's connection, the attacker's end of it, and the streams that the victim accepted and never reads."""

    def __init__(self, nursery: trio.Nursery, memory: MemoryAccount | None = None, peer: ID = PEER) -> None:
        self.pipe = Pipe()
        self.conn = BoundedYamux(cast(Any, self.pipe), peer)
        self.conn.memory = memory or self.conn.memory
        self.accepted: list[PatientStream] = []
        nursery.start_soon(self.conn.start)
        nursery.start_soon(self._accept)

    async def _accept(self) -> None:
        async for stream in self.conn.new_stream_receive_channel:
            self.accepted.append(cast(PatientStream, stream))

    async def settled(self) -> None:
        """Wait until every task is blocked."""
        await trio.testing.wait_all_tasks_blocked()


def sent(rig: Rig) -> list[bytes]:
    """The messages that the victim has sent."""
    messages = []
    with contextlib.suppress(trio.WouldBlock):
        while True:
            messages.append(rig.pipe.replies.receive_nowait())
    return messages
