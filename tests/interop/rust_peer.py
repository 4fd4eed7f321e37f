"""A peer of rust-libp2p in its own process (`rust/peer.py`), and the messages of its own protocol for calls.

It pings every connected peer, and identifies itself. It disconnects from peers that name another protocol version than its own, unless it
is told that the peer is a relay (`friends`). At its start it asks public STUN servers for its address.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from swarm.net.network import Stream
from tests.interop.ours import ANSWER_S, running, until

FOLDER: Final = Path(__file__).parent / "rust"
INSTALLED: Final = FOLDER / "installed"
CALL: Final = "/rpc/req-resp/1.0.0"
SPOKEN: Final = "/sark/rust/1"
"""The name of its own routing, chosen so that a gate takes it for one of our peers."""
ANSWER: Final = "ANSWER "
_CALL_ID: Final = b"1"


@dataclass
class RustPeer:
    """A running peer."""

    process: trio.Process
    answers: trio.MemoryReceiveChannel[Any]
    addresses: list[str] = field(default_factory=list)
    """The addresses on which it listens, with its peer id."""
    id: str = ""

    async def ask(self, method: str, *arguments: str) -> Any:
        """Call one of its methods and return the result."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps([method, *arguments]).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        with trio.fail_after(ANSWER_S):
            return await self.answers.receive()

    async def until_asked(self, method: str, *arguments: str) -> Any:
        """Repeat `ask` until the result is not empty."""
        with trio.fail_after(ANSWER_S):
            while not (value := await self.ask(method, *arguments)):
                await trio.sleep(0.05)
        return value


@asynccontextmanager
async def rust_peer(
    *, friends: Sequence[str] = (), gates: Sequence[str] = (), **options: object
) -> AsyncIterator[RustPeer]:
    """A running peer. `friends`: ids of peers that it keeps connected; `gates`: full addresses of the gates where it makes reservations."""
    relays = [*gates, *(f"/ip4/127.0.0.1/tcp/1/p2p/{peer}" for peer in friends)]
    settings = json.dumps({"protocol": SPOKEN, **options, "relay_servers": relays})
    environment = {**os.environ, "PYTHONPATH": str(INSTALLED), "RUST_LOG": "lattica=info", "NO_COLOR": "1"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    send, receive = trio.open_memory_channel[Any](8)
    async with (
        running([sys.executable, str(FOLDER / "peer.py"), settings], env=environment, **pipes) as process,
        trio.open_nursery() as nursery,
    ):
        peer = RustPeer(process, receive)

        async def read_log() -> None:
            async for line in _lines(process.stdout):
                if listening := re.search(r"Listening on: (/ip4/\S+/tcp/\S+/p2p/\w+)$", line):
                    peer.addresses.append(listening[1])

        async def read_answers() -> None:
            async for line in _lines(process.stderr):
                if line.startswith(ANSWER):
                    await send.send(json.loads(line.removeprefix(ANSWER)))

        nursery.start_soon(read_log)
        nursery.start_soon(read_answers)
        peer.id = await peer.answer()
        await until(lambda: peer.addresses)
        yield peer
        nursery.cancel_scope.cancel()


async def _lines(pipe: trio.abc.ReceiveStream | None) -> AsyncIterator[str]:
    assert pipe is not None
    rest = b""
    async for data in pipe:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")


async def called(stream: Stream, data: bytes) -> bool:
    """Whether the peer at the other end of a `CALL` stream sends it back."""
    request = b"\0" + _text(_CALL_ID) + _text(b"Echo.echo") + _text(data) + b"\0"
    back = bytearray()
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await stream.send_all(request)
            await stream.send_eof()

        nursery.start_soon(send)
        while part := await stream.receive_some():
            back += part
    await stream.aclose()
    return bytes(back) == b"\1" + _text(_CALL_ID) + _text(data) + b"\0"


def _text(data: bytes) -> bytes:
    """The text with its length in front, as bincode writes it."""
    size = len(data)
    if size < 251:
        return bytes([size]) + data
    return (b"\xfb" + struct.pack("<H", size) if size < 1 << 16 else b"\xfc" + struct.pack("<I", size)) + data
