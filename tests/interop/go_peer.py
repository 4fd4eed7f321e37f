"""A peer of go-libp2p: the program `p2pd`, which is driven over a Unix socket by Protobuf messages with their length before them.

Each command is a connection of its own. What the daemon answers to `open` is followed by the stream's own bytes, and for each stream that
others open to a protocol that is handled here, it connects to a socket of this side.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import base58
import trio
from multiaddr import Multiaddr

PROGRAM: Final = Path(__file__).parent / "go" / "p2pd"
ANSWER_S: Final = 15.0
_IDENTIFY, _CONNECT, _STREAM_OPEN, _STREAM_HANDLER = range(4)
_UNIX: Final = 400
"""The code of such an address."""
_LIMIT_S: Final = 30
"""The daemon's own, for what it is asked."""

Field = tuple[int, int | bytes]
Fields = dict[int, list[int | bytes]]
"""Values by the number of their field, in their order."""
Handler = Callable[[trio.SocketStream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GoPeer:
    """A running daemon."""

    folder: Path
    nursery: trio.Nursery

    async def id(self) -> str:
        return (await self._identify())[0]

    async def addresses(self) -> tuple[str, ...]:
        """Where it listens."""
        return (await self._identify())[1]

    async def connect(self, peer: str, *addresses: str) -> None:
        """`addresses`: without the peer's id."""
        encoded = [(2, Multiaddr(address).to_bytes()) for address in addresses]
        target = _message((1, base58.b58decode(peer)), *encoded, (3, _LIMIT_S))
        await (await self._ask(_message((1, _CONNECT), (2, target))))[1].aclose()

    async def open(self, peer: str, protocol: str) -> trio.SocketStream:
        """A stream to a peer that it is connected with."""
        target = _message((1, base58.b58decode(peer)), (2, protocol.encode()), (3, _LIMIT_S))
        return (await self._ask(_message((1, _STREAM_OPEN), (3, target))))[1]

    async def handle(self, protocol: str, handler: Handler) -> None:
        """Streams that others open to it."""
        place = self.folder / "handled"
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(str(place))
        listening.listen()

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                await read_message(stream)  # who opened it
                await handler(stream)

        self.nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
        path = str(place).encode()  # with its leading slash, which the library for addresses here takes away
        address = _varint(_UNIX) + _varint(len(path)) + path
        wanted = _message((1, address), (2, protocol.encode()), (3, 0))
        await (await self._ask(_message((1, _STREAM_HANDLER), (4, wanted))))[1].aclose()

    async def _identify(self) -> tuple[str, tuple[str, ...]]:
        answer, stream = await self._ask(_message((1, _IDENTIFY)))
        await stream.aclose()
        said = _fields(_bytes(answer[4][0]))
        return _peer(said), tuple(str(Multiaddr(_bytes(each))) for each in said.get(2, ()))

    async def _ask(self, request: bytes) -> tuple[Fields, trio.SocketStream]:
        with trio.fail_after(ANSWER_S):
            stream = await trio.open_unix_socket(self.folder / "control")
            await stream.send_all(_varint(len(request)) + request)
            answer = _fields(await read_message(stream))
        assert answer[1] == [0], _bytes(_fields(_bytes(answer[2][0]))[1][0]).decode()
        return answer, stream


@asynccontextmanager
async def go_peer(*options: str) -> AsyncIterator[GoPeer]:
    """A daemon of its own, on loopback."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [PROGRAM, "-q", "-listen", f"/unix{folder}/control", "-hostAddrs", "/ip4/127.0.0.1/tcp/0"]
        process = await trio.lowlevel.open_process(
            [*map(str, command), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with trio.open_nursery() as nursery:
                peer = GoPeer(folder, nursery)
                with trio.fail_after(ANSWER_S):
                    while not (folder / "control").exists():
                        assert process.poll() is None, "the peer ended"
                        await trio.sleep(0.02)
                yield peer
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _message(*fields: Field) -> bytes:
    parts = [
        _varint(number << 3) + _varint(value)
        if isinstance(value, int)
        else _varint(number << 3 | 2) + _varint(len(value)) + value
        for number, value in fields
    ]
    return b"".join(parts)


def _fields(message: bytes) -> Fields:
    found, rest = Fields(), memoryview(message)
    while rest:
        tag, rest = _first(rest)
        value, rest = _first(rest)
        if tag & 7 == 2:
            found.setdefault(tag >> 3, []).append(bytes(rest[:value]))
            rest = rest[value:]
        else:
            found.setdefault(tag >> 3, []).append(value)
    return found


def _first(data: memoryview) -> tuple[int, memoryview]:
    """The number at the beginning of `data`, and what follows it."""
    end = next(place for place, byte in enumerate(data) if byte < 0x80) + 1
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[:end])), data[end:]


async def read_message(stream: trio.SocketStream) -> bytes:
    """The next message, and no byte more: what follows belongs to somebody else."""
    prefix = bytearray()
    while not prefix or prefix[-1] > 0x7F:
        prefix += await read_exactly(stream, 1)
    return await read_exactly(stream, _first(memoryview(prefix))[0])


async def read_exactly(stream: trio.SocketStream, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        assert more, f"the stream ended after {len(data)} of {size} bytes"
        data += more
    return data


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _peer(said: Fields) -> str:
    return base58.b58encode(_bytes(said[1][0])).decode()
