"""A peer of go-libp2p: the program `p2pd`, driven over a Unix socket by length-prefixed Protobuf messages.

Each command uses its own connection. After the daemon's answer to `open`, the connection carries the stream's own bytes. For each stream
that others open to a protocol handled here, the daemon connects to a socket of this side.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import base58
import trio
from libp2p.utils.varint import encode_uvarint, encode_varint_prefixed
from multiaddr import Multiaddr

from swarm.net.network import Stream
from swarm.relay.wire import read_message, write_message
from tests.interop.ours import ANSWER_S, running, until

FOLDER: Final = Path(__file__).parent / "go"
PROGRAM: Final = FOLDER / "p2pd"
_UNIX: Final = 400
"""The multiaddr code of a Unix socket."""
_LIMIT_S: Final = 30
"""The daemon's own limit for a command, in seconds."""

Handler = Callable[[trio.SocketStream], Awaitable[None]]


def _messages() -> Any:
    """The module of the daemon's messages, which comes with the daemon."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module("p2pd_pb2")


@dataclass(frozen=True, slots=True)
class GoPeer:
    """A running daemon."""

    folder: Path
    nursery: trio.Nursery
    messages: Any

    async def id(self) -> str:
        return base58.b58encode((await self._identify()).id).decode()

    async def addresses(self) -> tuple[str, ...]:
        """The addresses on which it listens."""
        return tuple(str(Multiaddr(each)) for each in (await self._identify()).addrs)

    async def connect(self, peer: str, *addresses: str) -> None:
        """`addresses`: without the peer id."""
        encoded = [Multiaddr(address).to_bytes() for address in addresses]
        await self._told(
            "CONNECT", connect={"peer": base58.b58decode(peer), "addrs": encoded, "timeout": _LIMIT_S}
        )

    async def open(self, peer: str, protocol: str) -> trio.SocketStream:
        """Open a stream to a connected peer."""
        wanted = {"peer": base58.b58decode(peer), "proto": [protocol], "timeout": _LIMIT_S}
        return (await self._ask("STREAM_OPEN", streamOpen=wanted))[1]

    async def handle(self, protocol: str, handler: Handler) -> None:
        """Handle the streams that others open to this peer."""
        place = self.folder / "handled"
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(str(place))
        listening.listen()

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                await read_message(cast("Stream", stream), self.messages.StreamInfo())
                await handler(stream)

        self.nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
        # the path with its leading slash, which the multiaddr library would remove
        address = encode_uvarint(_UNIX) + encode_varint_prefixed(str(place).encode())
        await self._told(
            "STREAM_HANDLER", streamHandler={"addr": address, "proto": [protocol], "balanced": False}
        )

    async def _identify(self) -> Any:
        return (await self._told("IDENTIFY")).identify

    async def _told(self, kind: str, **fields: object) -> Any:
        """The answer to a command after which no bytes follow."""
        answer, stream = await self._ask(kind, **fields)
        await stream.aclose()
        return answer

    async def _ask(self, kind: str, **fields: object) -> tuple[Any, trio.SocketStream]:
        with trio.fail_after(ANSWER_S):
            stream = await trio.open_unix_socket(self.folder / "control")
            wire = cast("Stream", stream)
            await write_message(wire, self.messages.Request(type=kind, **fields))
            answer: Any = await read_message(wire, self.messages.Response())
        assert answer.type == self.messages.Response.OK, answer.error.msg
        return answer, stream


@asynccontextmanager
async def go_peer(*options: str) -> AsyncIterator[GoPeer]:
    """A fresh daemon, on loopback."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        where = ("-listen", f"/unix{folder}/control", "-hostAddrs", "/ip4/127.0.0.1/tcp/0")
        async with (
            running([str(PROGRAM), "-q", *where, *options], **quiet) as process,
            trio.open_nursery() as nursery,
        ):
            await until(lambda: (folder / "control").exists() or process.poll() is not None)
            assert process.poll() is None, "the peer ended"
            yield GoPeer(folder, nursery, _messages())
            nursery.cancel_scope.cancel()
