"""Shared by the tests of other libp2p implementations: our side of the conversation, running processes, and waiting for conditions."""

from __future__ import annotations

import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio

from swarm.join.host import HostNetwork
from swarm.net.network import Stream

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
ECHO: Final = "/sark/echo/1"
PING: Final = "/ipfs/ping/1.0.0"
PING_SIZE: Final = 32
HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
ANSWER_S: Final = 15.0

BUILT_FOR_LINUX: Final = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="what is fetched of it is built for Linux on x86-64",
)


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def full_address(network: HostNetwork) -> str:
    return f"{network.addresses[0]}/p2p/{network.peer_id}"


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that becomes true by itself."""
    with trio.fail_after(ANSWER_S):
        while not condition():
            await trio.sleep(0.02)


async def read_exactly(receive: Callable[[int], Awaitable[bytes | bytearray]], size: int) -> bytes:
    """Read exactly `size` bytes of a stream, with its `receive_some`."""
    data = b""
    with trio.fail_after(ANSWER_S):
        while len(data) < size:
            more = await receive(size - len(data))
            assert more, f"the stream ended after {len(data)} of {size} bytes"
            data += more
    return data


async def echoed(stream: Stream | trio.SocketStream, data: bytes) -> bool:
    """Whether all of `data` comes back."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        back = await read_exactly(stream.receive_some, len(data))
    await stream.aclose()
    return back == data


@asynccontextmanager
async def running(command: Sequence[str], **options: Any) -> AsyncIterator[trio.Process]:
    """A process that ends with the block."""
    process = await trio.lowlevel.open_process(command, **options)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
