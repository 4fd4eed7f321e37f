"""How fast one uploader's model reaches several workers, and how often it leaves the uploader.

    python benchmarks/network/spread.py [--mib 64] [--workers 1,3,8] [--upload MIB_PER_S] [--folder FOLDER]

Every node is a process with a libp2p host on loopback, a model cache on disk and the worker's own code for fetching; the uploader answers
as a scheduler does. `--upload` limits the uploader's line to that many MiB per second, like a home connection: on loopback all nodes share
one machine's processors, which would dominate the times. Times are relative to one copy sent to one worker, which is measured first. The
peak memory of a process is Linux's count (VmHWM), and 0 on other systems. The folder needs room for one more copy of the model than there
are workers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from node.run.model_source import model_source
from node.store.cache import ModelCache
from protocol.messages.blobs import HolderInfo, Holders, TransferGrant
from protocol.values.task import Model
from swarm.base.logs import set_up_logs
from swarm.blobs.server import serve_blobs
from swarm.join.host import open_host
from swarm.net.identity import Identity

MIB = 1024 * 1024


class Counted:
    """A network whose inbound streams count what is sent over them, and keep to the rate limit."""

    def __init__(self, network: Any, rate: float | None) -> None:
        self.network, self.governor = network, network.governor
        self.rate, self.sent, self.free_at = rate, 0, 0.0

    def handle(self, protocol: str, handler: Any) -> None:
        async def counting(stream: Any) -> None:
            send_all = stream.send_all

            async def send(data: Any) -> None:
                self.sent += len(data)
                if self.rate is not None:
                    now = trio.current_time()
                    self.free_at = max(now, self.free_at) + len(data) / self.rate
                    await trio.sleep(self.free_at - now)
                await send_all(data)

            await handler(_Sending(stream, send))

        self.network.handle(protocol, counting)


class _Sending:
    def __init__(self, stream: Any, send: Any) -> None:
        self._stream, self.send_all = stream, send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


async def ask() -> Any:
    """Read the next line of standard input."""
    line = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return json.loads(line) if line else None


async def upload(path: Path, rate: float | None) -> None:
    """Play the scheduler."""
    others: dict[str, list[str]] = {}

    async def where(peer: str, sha256: str) -> Holders:
        grant = TransferGrant(giver=network.peer_id, taker=peer, sha256=sha256, until=1, signature=b"s" * 64)
        holder_infos = [
            HolderInfo(peer=each, addresses=tuple(at)) for each, at in others.items() if each != peer
        ]
        random.shuffle(holder_infos)
        return Holders(grant=grant, others=tuple(holder_infos[:16]))

    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"]) as network:
        counted = Counted(network, rate)
        serve_blobs(counted, lambda peer, sha256: path, where=where)  # type: ignore[arg-type]
        print(json.dumps([network.peer_id, [a for a in network.addresses if "127.0.0.1" in a]]), flush=True)
        others.update(await ask())
        await ask()
        print(json.dumps(counted.sent), flush=True)


async def work(folder: Path, speaker: str, addresses: list[str], model: Model) -> None:
    """Play a worker."""
    cache = ModelCache(folder, 10**12)
    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"]) as network:
        counted = Counted(network, None)
        serve_blobs(
            counted,  # type: ignore[arg-type]
            lambda peer, sha256: None,
            shared=lambda peer, sha256, grant: cache.find(sha256) or cache.download(sha256),
        )
        print(json.dumps([network.peer_id, [a for a in network.addresses if "127.0.0.1" in a]]), flush=True)
        await ask()
        begin = time.perf_counter()
        await network.connect(speaker, addresses)
        source = model_source(network, model, lambda: speaker, principal=speaker, rng=random.Random())
        async with cache.using(model, source):
            print(json.dumps(time.perf_counter() - begin), flush=True)
        await ask()  # keep serving until all have it
        print(json.dumps(counted.sent), flush=True)


class Child:
    """A process that exchanges lines of JSON with this one."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def say(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Spread:
    """The outcome of one distribution."""

    seconds: list[float]
    """For each worker."""
    sent: int
    """Bytes that the uploader sent."""
    among: int
    """Bytes that the workers sent to each other."""
    memory: list[int]
    """Peak bytes of memory of each process, the uploader first."""


def most_held(pid: int) -> int:
    """Bytes of memory that a process held at its peak."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def make(path: Path, size: int) -> str:
    """Write a file of random bytes; return its sha256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            block = os.urandom(min(MIB, size - start))
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def spread(path: Path, sha256: str, size: int, workers: int, rate: float | None) -> Spread:
    """Send the file from one uploader to `workers` workers."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        uploader = Child("--serve", str(path), "--upload", str(rate or 0))
        children = [uploader]
        try:
            peer, addresses = uploader.hear()
            for number in range(workers):
                text = json.dumps([f"{folder}/{number}", peer, addresses, sha256, size])
                children.append(Child("--work", text))
            crowd = children[1:]
            uploader.say(dict(child.hear() for child in crowd))
            for child in crowd:
                child.say("go")
            seconds = [child.hear() for child in crowd]
            for child in children:
                child.say("count")
            sent = [child.hear() for child in children]
            memory = [most_held(child.process.pid) for child in children]
            return Spread(seconds, sent[0], sum(sent[1:]), memory)
        finally:
            for child in children:
                child.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--workers", default="1,3,8")
    parser.add_argument("--upload", type=float, default=0.0, help="MiB a second; 0: no limit")
    parser.add_argument("--folder", type=Path, help="where the model and its copies are put for the time")
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--work")
    args = parser.parse_args()
    rate = args.upload * MIB or None
    set_up_logs(sys.stderr, level=logging.ERROR, plain=True)
    if args.serve:
        trio.run(upload, args.serve, rate)
        return
    if args.work:
        folder, peer, addresses, sha256, size = json.loads(args.work)
        trio.run(work, Path(folder), peer, addresses, Model(name="model", sha256=sha256, size=size))
        return
    size = args.mib * MIB
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "model"
        sha256 = make(path, size)
        one: float | None = None
        for workers in map(int, args.workers.split(",")):
            went = spread(path, sha256, size, workers, args.upload or None)
            last = max(went.seconds)
            one = one or last
            uploader, *others = (held / MIB for held in went.memory)
            print(
                f"{workers} workers: all have {args.mib} MiB after {last:6.2f} s, {last / one:5.2f} × one copy "
                f"({size * workers / MIB / last:6.1f} MiB/s in all); the uploader sent {went.sent / size:5.2f} copies, "
                f"the workers each other {went.among / size:5.2f}; "
                f"at most {uploader:.0f} MiB in the uploader, {max(others):.0f} MiB in a worker",
                flush=True,
            )


if __name__ == "__main__":
    main()
