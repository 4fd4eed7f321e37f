"""Honest calls beside one hostile peer, in real processes on loopback: how slow the calls get, and how much the victim's memory grows.

    python benchmarks/network/hostile.py                        # every attack for 15 s each
    python benchmarks/network/hostile.py pages --seconds 30

The victim is one libp2p host with an index that holds 800 adverts. An honest process requests a small page from it ten times a second, and
gives up after 5 s. `pages`: page requests of 32 patterns, four at a time. `frames`: 64 KiB of tiny calls on each of 32 streams, repeatedly,
without reading any answers. `notes`: calls sent as notes on 8 links. `calls`: as many small calls as the victim answers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarm.join.host import HostNetwork

ADVERTS = 800
EVERY_S = 0.1
GIVE_UP_S = 5.0
ATTACKS = ("pages", "frames", "notes", "calls")


def adverts(count: int) -> list[Any]:
    """Signed adverts of invented devices, each with the peer that signed it."""
    from protocol.values.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message
    from swarm.net.identity import Identity

    made = []
    for number in range(count):
        identity = Identity.from_seed(f"device {number}")
        body = advert_body(
            Advert(
                peer=identity.peer_id,
                seq=1,
                device=f"device-{number}",
                name=f"node-{number}",
                soc="a" * 180,
                ram=16 * 2**30,
                units=(UnitOffer(unit="CPU (ONNX)", runtime="onnxruntime"),),
            )
        )
        made.append(
            (identity.peer_id, SignedAdvert(body=body, signature=identity.sign(advert_message(body))))
        )
    return made


async def victim() -> None:
    import psutil
    import structlog
    import trio

    from protocol.messages import index as index_messages
    from swarm.index.index import Index
    from swarm.join.host import open_host
    from swarm.net.identity import Identity

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    async with (
        open_host(Identity.from_seed("victim"), listen=["/ip4/127.0.0.1/tcp/0"]) as network,
        trio.open_nursery() as nursery,
    ):
        index = Index(network, rng=random.Random(1), incarnation=1)
        await nursery.start(index.run)
        for peer, signed in adverts(ADVERTS):
            index.holder.store(
                trio.current_time(), peer, "", signed, (index_messages.StoreItem(attribute="node"),)
            )
        say_line({"peer": network.peer_id, "address": network.addresses[0]})
        process = psutil.Process()
        while await trio.to_thread.run_sync(sys.stdin.readline):
            cpu = process.cpu_times()
            say_line({"rss": process.memory_info().rss, "cpu": cpu.user + cpu.system})
        nursery.cancel_scope.cancel()


async def honest(peer: str, address: str, seconds: float) -> None:
    import structlog
    import trio

    from protocol.errors import Unreachable
    from protocol.messages import index as index_messages
    from protocol.values.requirement import Requirement, parse_clause
    from swarm.join.host import open_host
    from swarm.net.identity import Identity
    from swarm.net.links import Links

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    ask = index_messages.QueryShard(
        attribute="node", limit=4, requirement=Requirement(clauses=(parse_clause("ram >= 8 GiB"),))
    )
    times: list[float] = []
    failed = 0
    async with open_host(Identity.from_seed("honest")) as network, trio.open_nursery() as nursery:
        links = Links(network, index_messages.FAMILY, index_messages.INDEX, nursery)
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            began = time.perf_counter()
            try:
                answer = await links.call(peer, (address,), ask, max_wait_s=GIVE_UP_S)
                failed += not isinstance(answer, index_messages.ShardPage)
            except Unreachable:
                failed += 1
            times.append(time.perf_counter() - began)
            await trio.sleep(EVERY_S)
        nursery.cancel_scope.cancel()
    say_line({"times": times, "failed": failed})


async def attacker(kind: str, peer: str, address: str) -> None:
    import structlog
    import trio

    from protocol.errors import SarkError
    from protocol.messages import index as index_messages
    from protocol.values.requirement import Clause, Op, Requirement
    from protocol.wire.codec import Frame, FrameKind
    from swarm.net.identity import Identity

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    pattern = Clause(attribute="soc", op=Op.LIKE, value="*" + "a*" * 30 + "b")
    bomb = index_messages.QueryShard(
        attribute="node", limit=0, requirement=Requirement(clauses=(pattern,) * 32)
    )
    small = index_messages.MarkSplit(attribute="node", depth=0, prefix=0)
    match kind:
        case "pages":
            frame, links, read = Frame(FrameKind.CALL, 1, bomb), 4, True
        case "frames":
            frame, links, read = Frame(FrameKind.CALL, 1, small), 32, False
        case "notes":
            frame, links, read = Frame(FrameKind.NOTE, 0, small), 8, True
        case _:
            frame, links, read = Frame(FrameKind.CALL, 1, small), 8, True
    body = index_messages.INDEX.encode(frame)
    part = body if kind == "pages" else body * (65_536 // len(body))

    async def flood(network: HostNetwork) -> None:
        while True:
            with contextlib.suppress(SarkError, trio.BrokenResourceError, trio.ClosedResourceError):
                stream = await network.open(peer, index_messages.FAMILY, (address,))
                if read:
                    nursery.start_soon(drain, stream)
                while True:
                    await stream.send_all(part)
                    await trio.sleep(0.5 if kind == "pages" else 0.01)
            await trio.sleep(0.05)

    async def drain(stream: Any) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await stream.receive_some():
                pass

    async with trio.open_nursery() as nursery:
        keys = 4 if kind == "frames" else 1  # one peer may open eight streams of a protocol
        for key in range(keys):
            network = await nursery.start(host, Identity.from_seed(f"attacker {key}"))
            for _ in range(links // keys):
                nursery.start_soon(flood, network)
        await trio.sleep_forever()


async def host(identity: Any, *, task_status: Any) -> None:
    import trio

    from swarm.join.host import open_host

    async with open_host(identity) as network:
        task_status.started(network)
        await trio.sleep_forever()


def say_line(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


# -- the parent ----------------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--role", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def reply_of(process: subprocess.Popen[str], order: str = "") -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    if order:
        process.stdin.write(order + "\n")
        process.stdin.flush()
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def measure(kind: str, seconds: float) -> str:
    """One row: honest calls without and with the attack."""
    server = start("victim")
    hello = reply_of(server)
    where = hello["peer"], hello["address"]
    quiet = reply_of(start("honest", *where, str(seconds)))
    before = reply_of(server, "memory")
    attack = start("attacker", kind, *where)
    time.sleep(1)
    busy = reply_of(start("honest", *where, str(seconds)))
    after = reply_of(server, "memory")
    attack.kill()
    server.kill()
    shown = [
        (statistics.median(each) * 1e3, sorted(each)[int(len(each) * 0.99)] * 1e3)
        for each in (quiet["times"], busy["times"])
    ]
    (p50, p99), (p50_b, p99_b) = shown
    calls = f"{len(busy['times']) - busy['failed']}/{len(busy['times'])}"
    grown = (after["rss"] - before["rss"]) / 2**20
    cpu = (after["cpu"] - before["cpu"]) / (seconds + 1) * 100
    return f"{kind:8} {p50:8.1f} {p99:8.1f} {p50_b:10.1f} {p99_b:10.1f} {calls:>10} {grown:10.1f} {cpu:7.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", nargs="*", default=ATTACKS)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        import trio

        match arguments.role:
            case ["victim"]:
                trio.run(victim)
            case ["honest", peer, address, seconds]:
                trio.run(honest, peer, address, float(seconds))
            case [_, kind, peer, address]:
                trio.run(attacker, kind, peer, address)
        return
    print(
        f"{'attack':8} {'p50 ms':>8} {'p99 ms':>8} {'p50 beside':>10} {'p99 beside':>10} {'answered':>10} {'MiB more':>10} {'CPU %':>7}"
    )
    for kind in arguments.attack:
        print(measure(kind, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
