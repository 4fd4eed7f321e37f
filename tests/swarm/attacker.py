"""A peer that writes the bytes itself, down to the frames of yamux, over real sockets."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux import yamux
from libp2p.utils.varint import encode_uvarint

from swarm.net.addresses import parse_tcp
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.network import Network

MSS: Final = b"/multistream/1.0.0\n"
ATTACKER: Final = Identity.from_seed("attacker")
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"


async def tcp(victim: Network, source: str | None = None) -> trio.SocketStream:
    """A connection on which nothing has been sent yet; `source`: its source address."""
    address = parse_tcp(victim.addresses[0])
    assert address is not None
    return await trio.open_tcp_stream(address.host, address.port, local_address=source)


def line(text: bytes) -> bytes:
    """One multistream message."""
    return encode_uvarint(len(text) + 1) + text + b"\n"


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the other side closes the stream, whatever it still sends before."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    return True


class SecureConn(Protocol):
    """A socket secured by Noise."""

    async def read(self, n: int | None = None) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


class RawLink:
    """A secured connection on which the attacker writes yamux frames by hand."""

    def __init__(self, secure: SecureConn) -> None:
        self._secure = secure
        self._next = 1

    async def frame(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, len(body))
        await self._secure.write(header + body)

    async def open(self) -> int:
        """Open a stream on which nothing has been negotiated; returns its number."""
        number, self._next = self._next, self._next + 2
        await self.frame(yamux.TYPE_WINDOW_UPDATE, yamux.FLAG_SYN, number)
        return number

    async def speak(self, protocol: str, body: bytes = b"") -> int:
        """Open a stream for that protocol and send `body` on it at once."""
        number = await self.open()
        await self.data(number, line(MSS[:-1]) + line(protocol.encode()) + body)
        return number

    async def data(self, stream_id: int, body: bytes) -> None:
        await self.frame(yamux.TYPE_DATA, 0, stream_id, body)

    async def finish(self, stream_id: int) -> None:
        """Announce that nothing more will be sent on the stream."""
        await self.frame(yamux.TYPE_DATA, yamux.FLAG_FIN, stream_id)

    async def end_of(self, stream_id: int) -> None:
        """Wait until the victim finishes or resets the stream."""
        while True:
            kind, flags, number, _ = await self.next()
            assert kind != -1, "the victim closed the connection"
            if number == stream_id and flags & (yamux.FLAG_RST | yamux.FLAG_FIN):
                return

    async def next(self) -> tuple[int, int, int, bytes]:
        """(type, flags, stream, body) of the next frame; pings are answered. A connection that ends gives type -1."""
        try:
            while True:
                header = await self._secure.read(12)
                _, kind, flags, stream_id, size = struct.unpack(yamux.YAMUX_HEADER_FORMAT, header)
                if kind == yamux.TYPE_PING:
                    if flags & yamux.FLAG_SYN:
                        pong = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, kind, yamux.FLAG_ACK, 0, size)
                        await self._secure.write(pong)
                    continue
                body = await self._secure.read(size) if kind == yamux.TYPE_DATA else b""
                return kind, flags, stream_id, body
        except (BaseLibp2pError, OSError, struct.error):
            return -1, 0, 0, b""

    async def reset_of(self, stream_id: int) -> None:
        """Wait until the victim resets the stream (or closes the connection)."""
        while True:
            kind, flags, number, _ = await self.next()
            assert kind != -1, "the victim closed the connection"
            if number == stream_id and flags & yamux.FLAG_RST:
                return

    async def body_of(self, stream_id: int, size: int) -> bytes:
        """The next `size` bytes on the stream."""
        received = b""
        while len(received) < size:
            kind, flags, number, body = await self.next()
            assert kind != -1, "the victim closed the connection"
            assert not (number == stream_id and flags & yamux.FLAG_RST), "the victim reset the stream"
            if number == stream_id:
                received += body
        return received


@asynccontextmanager
async def attack(
    victim: Network,
    muxer: str = yamux.PROTOCOL_ID,
    *,
    keys: KeyPair | None = None,
    source: str | None = None,
) -> AsyncIterator[RawLink]:
    """A Noise connection to the victim, under the attacker's own identity."""
    keys = keys or create_new_key_pair(ATTACKER.seed)
    stream = await tcp(victim, source)
    async with stream:
        raw = RawConnection(TrioTCPStream(stream), True)
        client = MultiselectClient()
        await client.select_one_of([NOISE], MultiselectCommunicator(raw), 5)
        noise = NoiseTransport(keys, noise_privkey=new_noise_keys().private_key)
        secure = await noise.secure_outbound(raw, ID(peer_id_bytes(victim.peer_id)))
        await client.select_one_of([muxer], MultiselectCommunicator(secure), 5)  # type: ignore[list-item]
        yield RawLink(secure)
