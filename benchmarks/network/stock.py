"""A stream of unmodified py-libp2p between two processes, as a further baseline for `transfer.py`. Imports none of our code, because our
node changes libp2p in the process that it runs in.

    python benchmarks/network/stock.py give BYTES         prints its address, then sends that many bytes on each stream
    python benchmarks/network/stock.py take ADDRESS BYTES takes them once for each line on standard input, and prints seconds and its
                                                          processor seconds
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr

PROTOCOL: Final = TProtocol("/sark/bench/stock/1")
PIECE: Final = 2 * 1024 * 1024
"""Bytes written at once, like a holder of a model."""


async def give(size: int) -> None:
    """Send zeros, which are encrypted like any other data."""
    piece = bytes(PIECE)

    async def send(stream: Any) -> None:
        for start in range(0, size, PIECE):
            await stream.write(piece[: size - start])
        await stream.read(1)  # wait until the other end has all of it

    host = new_host(key_pair=create_new_key_pair())
    host.set_stream_handler(PROTOCOL, send)
    async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        print(host.get_addrs()[0], flush=True)
        await trio.sleep_forever()


async def take(address: str, size: int) -> None:
    """Receive the bytes once for each input line."""
    host = new_host(key_pair=create_new_key_pair())
    async with host.run([]):
        info = info_from_p2p_addr(Multiaddr(address))
        await host.connect(info)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            began, used, taken = time.perf_counter(), time.process_time(), 0
            stream = await host.new_stream(info.peer_id, [PROTOCOL])
            while taken < size:
                data = await stream.read(PIECE)
                if not data:
                    raise EOFError(f"the stream ended after {taken} of {size} bytes")
                taken += len(data)
            await stream.write(b"!")
            print(time.perf_counter() - began, time.process_time() - used, flush=True)
            await stream.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["give", size]:
            trio.run(give, int(size))
        case ["take", address, size]:
            trio.run(take, address, int(size))
        case _:
            raise SystemExit(__doc__)
