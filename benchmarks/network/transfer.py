"""How fast a model moves between two processes over libp2p, against bare Noise on the same loopback, in the same run.

    python benchmarks/network/transfer.py [--mib 256] [--rounds 3]

Six methods take turns, and their medians are compared. `noise` is one Noise session on a TCP connection with nothing above it. `stock` is a
stream of unmodified py-libp2p, between two other processes (`stock.py`). `stream` is a raw libp2p stream of ours (Noise and yamux). `file`
is the same stream into a new file, flushed to disk at the end, without hashing. `blob` is `fetch_blob` into a file on disk, hashed on the
way, as for a large record. `model` is what a worker does for a task: a download into its model cache, in pieces that are hashed one by one
and as a whole, and flushed to disk at the end. Beside the speed: processor seconds per GiB of both processes, which say more than the clock
on a machine with other work.

What `file` costs above `stream` is due to the system: 0.2 s/GiB if the guest has the memory, ten times as much on a virtual machine whose
host reclaims free memory after seconds and returns it page by page.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import structlog
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport

from node.run.model_source import task_source
from node.store.cache import ModelCache
from protocol.messages.blobs import WRITE_SIZE
from protocol.values.task import Model
from swarm.blobs.client import fetch_blob
from swarm.blobs.server import serve_blobs
from swarm.join.host import open_host
from swarm.net.identity import Identity

RAW = "/sark/bench/raw/1"
MIB = 1024 * 1024
GIB = 1024 * MIB


def noise() -> Transport:
    """One end of a bare session."""
    return Transport(create_new_key_pair(), noise_privkey=new_noise_keys().private_key)


async def serve(path: Path, data: bytes) -> None:
    """The holder: prints where it listens, then serves all three methods until it is killed."""
    pieces = [data[start : start + WRITE_SIZE] for start in range(0, len(data), WRITE_SIZE)]
    bare = noise()

    async def raw_stream(stream: Any) -> None:
        for piece in pieces:
            await stream.send_all(piece)
        await stream.send_eof()
        await stream.receive_some()

    async def noise_only(stream: trio.SocketStream) -> None:
        session = await bare.secure_inbound(RawConnection(TrioTCPStream(stream), False))
        for piece in pieces:
            await session.write(piece)
        await session.read(1)

    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"]) as network:
        serve_blobs(network, lambda peer, sha256: path)
        network.handle(RAW, raw_stream)
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, noise_only, listeners)
            port = listeners[0].socket.getsockname()[1]
            address = next(a for a in network.addresses if "127.0.0.1" in a)
            print(network.peer_id, address, port, bare.local_peer, flush=True)
            await trio.sleep_forever()


async def take_noise(port: int, peer: str, size: int) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    session = await noise().secure_outbound(RawConnection(TrioTCPStream(stream), True), ID.from_string(peer))
    got = 0
    while got < size:
        got += len(await session.read(MIB))
    await session.write(b"!")
    await session.close()


async def take_stream(network: Any, peer: str, address: str, size: int) -> None:
    stream = await network.open(peer, RAW, [address])
    got = 0
    while got < size:
        got += len(await stream.receive_some())
    await stream.aclose()


async def take_file(network: Any, peer: str, address: str, size: int, folder: Path) -> None:
    path = folder / "stream"
    stream = await network.open(peer, RAW, [address])
    got = 0
    with path.open("wb", buffering=0) as file:
        while got < size:
            got += file.write(await stream.receive_some())
        await trio.to_thread.run_sync(os.fsync, file.fileno())
    await stream.aclose()
    path.unlink()


async def take_blob(network: Any, peer: str, address: str, sha256: str, folder: Path) -> None:
    path = folder / "taken"
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:

        def sink(data: bytearray) -> None:
            digest.update(data)
            file.write(data)

        await fetch_blob(network, peer, [address], sha256, sink=sink)
        await trio.to_thread.run_sync(os.fsync, file.fileno())
    assert digest.hexdigest() == sha256
    path.unlink()


async def take_model(network: Any, peer: str, sha256: str, size: int, folder: Path) -> None:
    cache = ModelCache(folder / "cache", 4 * size)
    model = Model(name="m.onnx", sha256=sha256, size=size)
    source = task_source(network, model, None, lambda: peer, principal=peer, owner=True, rng=random.Random(1))
    async with cache.using(model, source) as path:
        pass
    path.unlink()


class Stock:
    """Two processes with unmodified py-libp2p."""

    def __init__(self, give: subprocess.Popen[str], take: subprocess.Popen[str]) -> None:
        self._giver, self._take = psutil.Process(give.pid), take

    def turn(self) -> tuple[float, float, float]:
        """Seconds of one transfer, and processor seconds of the receiver and the sender."""
        assert self._take.stdin is not None
        assert self._take.stdout is not None
        before = self._giver.cpu_times()
        self._take.stdin.write("again\n")
        self._take.stdin.flush()
        seconds, takes = map(float, self._take.stdout.readline().split())
        after = self._giver.cpu_times()
        return seconds, takes, after.user + after.system - before.user - before.system


@contextmanager
def stock(size: int) -> Iterator[Stock]:
    """Run the two processes until the end of the block."""
    command = [sys.executable, str(Path(__file__).with_name("stock.py"))]
    with subprocess.Popen([*command, "give", str(size)], stdout=subprocess.PIPE, text=True) as give:
        assert give.stdout is not None
        address = give.stdout.readline().strip()
        with subprocess.Popen(
            [*command, "take", address, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as take:
            try:
                yield Stock(give, take)
            finally:
                take.kill()
                give.kill()


def compare(size: int, rounds: int, folder: Path) -> None:
    """Measure, and print the results."""
    source = folder / "model"
    source.write_bytes(os.urandom(size))
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(source)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        peer, address, port, bare = child.stdout.readline().split()
        with stock(size) as other:
            taken = trio.run(
                take_turns, peer, address, int(port), bare, size, sha256, rounds, folder, child.pid, other
            )
    finally:
        child.kill()
        child.communicate()
    middle = {
        way: [statistics.median(column) for column in zip(*runs, strict=True)] for way, runs in taken.items()
    }
    for way, (seconds, takes, gives) in middle.items():
        print(
            f"{way:8} {size / MIB / seconds:8.1f} MiB/s   {100 * middle['noise'][0] / seconds:5.1f} % of noise   "
            f"{takes * GIB / size:5.2f} s/GiB to take, {gives * GIB / size:5.2f} to give"
        )
    for way, base in (("blob", "stream"), ("model", "stream"), ("model", "file"), ("model", "stock")):
        clock = 100 * middle[base][0] / middle[way][0]
        processor = 100 * sum(middle[base][1:]) / sum(middle[way][1:])
        print(
            f"{way} is {clock:.1f} % of {base} by the clock, {processor:.1f} % by processor time; "
            f"{rounds} rounds of {size // MIB} MiB"
        )


async def take_turns(
    peer: str,
    address: str,
    port: int,
    bare: str,
    size: int,
    sha256: str,
    rounds: int,
    folder: Path,
    holder: int,
    other: Stock,
) -> dict[str, list[tuple[float, float, float]]]:
    """For each method and round: seconds, and processor seconds of this process and of the holder."""
    process = psutil.Process(holder)
    async with open_host(Identity.fresh()) as network:
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "noise": lambda: take_noise(port, bare, size),
            "stream": lambda: take_stream(network, peer, address, size),
            "file": lambda: take_file(network, peer, address, size, folder),
            "blob": lambda: take_blob(network, peer, address, sha256, folder),
            "model": lambda: take_model(network, peer, sha256, size, folder),
        }
        taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in (*ways, "stock")}
        for _ in range(rounds):
            taken["stock"].append(await trio.to_thread.run_sync(other.turn))
            for way, take in ways.items():
                before = process.cpu_times()
                began, used = time.perf_counter(), time.process_time()
                await take()
                after = process.cpu_times()
                gave = after.user + after.system - before.user - before.system
                taken[way].append((time.perf_counter() - began, time.process_time() - used, gave))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=Path)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if args.serve:
        trio.run(serve, args.serve, args.serve.read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(args.mib * MIB, args.rounds, Path(folder))


if __name__ == "__main__":
    main()
