"""The cost of a gate in between: round trips and MiB/s of a direct connection and a circuit, in turns, and the gate's processor time.

    python benchmarks/network/relay.py [--mib 256] [--rounds 5] [--trips 400] [--places 0]

Four processes on loopback: a gate, a node with a port, a node without one, and this process, which calls both. `--places N`: N more nodes
hold reservations at the gate, to measure what they cost in memory and, while nothing else happens, in processor time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import psutil
import trio

from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Address, PeerId
from swarm.net.identity import Identity
from swarm.net.network import Stream
from swarm.net.reservations import RelayLimits, RelayReservations

ECHO = "/sark/bench/echo/1"
SINK = "/sark/bench/sink/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
MIB = 1024 * 1024
IDLE_S = 20.0


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def sink(stream: Stream) -> None:
    """Read everything, then send one byte."""
    while await stream.receive_some():
        pass
    await stream.send_all(b"!")


async def be_gate() -> None:
    """Serve as a relay; print the peer id and address."""
    limits = RelayLimits(circuit_bytes=1 << 40, reservations_per_network=4096, reservations=4096)
    async with open_host(Identity.fresh(), listen=[LOOPBACK]) as network:
        network.serve_relay(RelayReservations(limits))
        print(network.peer_id, network.addresses[0], flush=True)
        await trio.sleep_forever()


async def be_node(gate: PeerId, at: Address, port: bool) -> None:
    """Serve both protocols, with a port or a reservation at the gate; print the peer id and address."""
    async with open_host(Identity.fresh(), listen=[LOOPBACK] if port else []) as network:
        network.handle(ECHO, echo)
        network.handle(SINK, sink)
        where = network.addresses[0] if port else (await network.reserve(gate, [at])).address
        print(network.peer_id, where, flush=True)
        await trio.sleep_forever()


async def hold_places(gate: PeerId, at: Address, count: int) -> None:
    """Run `count` nodes in one process, each with a reservation."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            network = await stack.enter_async_context(open_host(Identity.fresh()))
            network.handle(ECHO, echo)
            await network.reserve(gate, [at], max_wait_s=30)
        print(count, "places", flush=True)
        await trio.sleep_forever()


class Child:
    """A child process: the peer id and address that it printed, and its use of the machine."""

    def __init__(self, *role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--role", *role], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.peer, self.address = self._process.stdout.readline().split()

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def mib(self) -> float:
        """Resident memory in MiB."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / MIB

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Way:
    """One path to a node, with the measured times in seconds."""

    name: str
    node: Child
    connect_s: float
    trips: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)


async def connect(network: HostNetwork, name: str, node: Child) -> Way:
    begin = time.perf_counter()
    await network.connect(node.peer, [node.address])
    return Way(name, node, time.perf_counter() - begin)


async def ask(network: HostNetwork, measured: Way, trips: int) -> None:
    """Measure small requests."""
    node = measured.node
    stream = await network.open(node.peer, ECHO)
    for _ in range(trips):
        begin = time.perf_counter()
        await stream.send_all(b"x" * 1024)
        await _exactly(stream, 1024)
        measured.trips.append(time.perf_counter() - begin)
    await stream.aclose()
    for _ in range(trips // 4):
        begin = time.perf_counter()
        stream = await network.open(node.peer, ECHO)
        await stream.send_all(b"x" * 1024)
        await _exactly(stream, 1024)
        measured.streams.append(time.perf_counter() - begin)
        await stream.aclose()


async def send(network: HostNetwork, measured: Way, size: int) -> None:
    """Measure a bulk transfer."""
    body = bytes(MIB)
    stream = await network.open(measured.node.peer, SINK)
    begin = time.perf_counter()
    for _ in range(size // MIB):
        await stream.send_all(body)
    await stream.send_eof()
    await _exactly(stream, 1)
    measured.bulk.append(time.perf_counter() - begin)
    await stream.aclose()


async def _exactly(stream: Stream, size: int) -> None:
    while size > 0:
        data = await stream.receive_some()
        assert data
        size -= len(data)


def tell(found: Way, size: int) -> None:
    """Print one line."""

    def ms(seconds: list[float], share: float) -> float:
        return sorted(seconds)[int(len(seconds) * share)] * 1000

    speed = size / MIB / statistics.median(found.bulk)
    print(
        f"{found.name:8} connect {found.connect_s * 1000:6.1f} ms   1 KiB there and back p50 {ms(found.trips, 0.5):5.2f} "
        f"p95 {ms(found.trips, 0.95):5.2f} ms   on a new stream p50 {ms(found.streams, 0.5):5.2f} "
        f"p95 {ms(found.streams, 0.95):5.2f} ms   {speed:6.1f} MiB/s"
    )


async def compare(gate: Child, direct: Child, relayed: Child, size: int, rounds: int, trips: int) -> None:
    """Measure both paths and print the results."""
    async with open_host(Identity.fresh()) as network:
        network.handle(ECHO, echo)
        ways = [
            await connect(network, "direct", direct),
            await connect(network, "relayed", relayed),
        ]
        path = network.path(relayed.peer)
        assert path is not None
        assert path.via == gate.peer
        for way in ways:
            await ask(network, way, trips)
        before = gate.cpu_s()
        for _ in range(rounds):
            for way in ways:
                await send(network, way, size)
        used = gate.cpu_s() - before
        for way in ways:
            tell(way, size)
        share = statistics.median(one / other for one, other in zip(ways[0].bulk, ways[1].bulk, strict=True))
        print(
            f"gate     {100 * share:.0f} % of direct, the median of {rounds} pairs; {used / (size * rounds / 1e9):.2f} processor seconds "
            f"for each GB passed on; {gate.mib():.0f} MiB"
        )


def places(gate: Child, count: int) -> None:
    """Measure what reservations cost the gate."""
    before, cpu_before = gate.mib(), gate.cpu_s()
    holders = Child("places", gate.peer, gate.address, str(count))
    try:
        taken = gate.cpu_s() - cpu_before
        cpu_before = gate.cpu_s()
        time.sleep(IDLE_S)
        idle = (gate.cpu_s() - cpu_before) / IDLE_S
        print(
            f"gate     {count} places: {before:.0f} MiB → {gate.mib():.0f} MiB, {taken:.1f} processor seconds to give them, "
            f"{100 * idle:.1f} % of a processor while nothing else happens"
        )
    finally:
        holders.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=400)
    parser.add_argument("--places", type=int, default=0)
    parser.add_argument("--role", nargs="+")
    args = parser.parse_args()
    match args.role:
        case ["gate"]:
            trio.run(be_gate)
        case ["node", peer, address, port]:
            trio.run(be_node, peer, address, port == "port")
        case ["places", peer, address, count]:
            trio.run(hold_places, peer, address, int(count))
        case _:
            children = [gate := Child("gate")]
            try:
                children += [Child("node", gate.peer, gate.address, port) for port in ("port", "none")]
                trio.run(compare, *children, args.mib * MIB, args.rounds, args.trips)  # type: ignore[arg-type]
                if args.places:
                    places(gate, args.places)
            finally:
                for child in children:
                    child.stop()


if __name__ == "__main__":
    main()
