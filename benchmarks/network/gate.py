"""What a gate costs: memory and processor time for peers that are merely connected, for reservations, and for relayed bytes.

    python benchmarks/network/gate.py                      # 0, 50, 100 and 200 peers
    python benchmarks/network/gate.py --peers 20 --window 10

The gate is a real process, as `sark-node gate` runs it. The peers are light: fifty libp2p hosts in a process, each with its own connection,
an advert in the index and, from the second table on, a reservation at the gate. Memory and processor time are the gate process's alone, the
latter over a window in which nothing new happens. Everything runs on loopback on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CIRCUITS = (1, 4, 16)
CALLERS_FROM = 100_000
"""Number of the first peer that calls others."""
EACH = 50
"""Peers per process."""
CHUNK = 65_507
ECHO = "/sark/benchmark"


# -- peers -------------------------------------------------------------------------------------------------------------------


def peers(first: int, count: int, gate: str) -> None:
    """Run peers `first` to `first + count - 1`; obeys one JSON line at a time."""
    import trio

    trio.run(_peers, first, count, gate)


async def _peers(first: int, count: int, gate: str) -> None:
    import structlog
    import trio

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    async with trio.open_nursery() as nursery:
        networks = [await nursery.start(_peer, number, gate) for number in range(first, first + count)]
        _say("up")
        contact = gate.rpartition("/p2p/")
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            order = json.loads(line)
            if order["do"] == "places":
                places = [await each.reserve(contact[2], (contact[0],)) for each in networks]
                _say([[each.peer_id, place.address] for each, place in zip(networks, places, strict=True)])
            elif order["do"] == "send":
                began = time.perf_counter()
                async with trio.open_nursery() as sending:
                    for each, (peer, address) in zip(networks, order["to"], strict=False):
                        sending.start_soon(_send, each, peer, address, order["size"])
                _say(time.perf_counter() - began)
        nursery.cancel_scope.cancel()


async def _peer(number: int, gate: str, *, task_status: Any) -> None:
    import trio

    from protocol.values.advert import Advert
    from swarm.index.index import Index
    from swarm.join.host import open_host
    from swarm.net.identity import Identity

    identity = Identity.from_seed(f"benchmark {number}")
    rng = random.Random(number)
    async with (
        open_host(identity, bootstrap=(gate,), rng=rng) as network,
        trio.open_nursery() as nursery,
    ):
        index = Index(network, rng=rng, incarnation=1, serve=False)
        await nursery.start(index.run)
        network.handle(ECHO, _count)
        await index.publish(
            Advert(peer=identity.peer_id, seq=0, device=f"d-{number}", name="n", ram=16 << 30, os="Linux 6")
        )
        task_status.started(network)
        await trio.sleep_forever()


async def _count(stream: Any) -> None:
    got = 0
    while data := await stream.receive_some():
        got += len(data)
    await stream.send_all(got.to_bytes(8, "big"))


async def _send(network: Any, peer: str, address: str, size: int) -> None:
    stream = await network.open(peer, ECHO, (address,), max_wait_s=20)
    left, chunk = size, bytes(CHUNK)
    while left:
        part = min(left, CHUNK)
        await stream.send_all(chunk[:part])
        left -= part
    await stream.send_eof()
    assert int.from_bytes(await stream.receive_some(), "big") == size
    await stream.aclose()


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


# -- the gate and the measurements ----------------------------------------------------------------------------------------------


class Gate:
    """The gate's process and its figures."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.home = folder / "gate"
        environment = {**os.environ, "SARK_LAN": "false"}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sark",
                "--home",
                str(self.home),
                "gate",
                "--listen",
                f"/ip4/127.0.0.1/tcp/{port}",
            ],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "--gate" in line:
                self.address = line.split()[-1]
                return
        raise SystemExit("the gate did not come up")

    def standing(self) -> dict[str, Any]:
        """The output of `sark-node gate status --json`."""
        done = subprocess.run(
            [sys.executable, "-m", "sark", "--home", str(self.home), "gate", "status", "--json"],
            check=True,
            capture_output=True,
            env={**os.environ, "SARK_LAN": "false"},
        )
        return dict(json.loads(done.stdout))


class Group:
    """A process with peers."""

    def __init__(self, first: int, count: int, gate: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--be", str(first), str(count), gate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.heard()

    def heard(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process with peers has died")
        return json.loads(line)

    def do(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()


def idle(gate: Gate, what: str, window_s: float) -> None:
    """Print one line of the table: the gate does only what connected peers cause by themselves."""
    import psutil

    process = psutil.Process(gate.process.pid)
    before = process.cpu_times()
    time.sleep(window_s)
    after = process.cpu_times()
    share = (after.user + after.system - before.user - before.system) / window_s
    memory = process.memory_info().rss
    observed = gate.standing()
    print(
        f"{what:<22} {observed['connected'] - 1:>6} {observed['reservations']:>12} {observed['adverts']:>8} {memory / 2**20:>8.0f} MiB"
        f" {100 * share:>8.2f} % {1000 * observed['lag_s']:>8.0f} ms",
        flush=True,
    )


def load(gate: Gate, callers: Group, places: list[list[str]], circuits: int, size: int) -> None:
    """Send bytes through `circuits` circuits at once: each caller calls a peer of its own."""
    import psutil

    process = psutil.Process(gate.process.pid)
    before = process.cpu_times()
    callers.do(do="send", to=places[:circuits], size=size)
    seconds = callers.heard()
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    total = circuits * size
    print(
        f"{circuits:>8} circuits {total / 2**20:>8.0f} MiB {total / 2**20 / seconds:>8.1f} MiB/s"
        f" {used / (total / 2**30):>8.1f} s of processor for a GiB {process.memory_info().rss / 2**20:>6.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument(
        "--window", type=float, default=30.0, help="seconds for which the processor is watched"
    )
    parser.add_argument("--size", type=int, default=128, help="MiB that each circuit carries")
    parser.add_argument("--be", nargs=3, metavar=("FIRST", "COUNT", "GATE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        peers(int(given.be[0]), int(given.be[1]), given.be[2])
        return
    groups: list[Group] = []
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(Path(folder))
        try:
            print(
                f"{'':<22} {'peers':>6} {'reservations':>12} {'adverts':>8} {'memory':>12} {'processor':>10} {'late':>11}"
            )
            idle(gate, "nobody", given.window)
            here = 0
            for most in given.peers:
                while here < most:
                    count = min(EACH, most - here)
                    groups.append(Group(here, count, gate.address))
                    here += count
                idle(gate, "connected", given.window)
            places: list[list[str]] = []
            for group in groups:
                group.do(do="places")
                places += group.heard()
            idle(gate, "with places", given.window)
            print()
            groups.append(Group(CALLERS_FROM, CIRCUITS[-1], gate.address))
            for circuits in CIRCUITS:
                load(gate, groups[-1], places, min(circuits, here), given.size << 20)
            idle(gate, "afterwards", given.window)
        finally:
            for group in groups:
                group.process.kill()
                group.process.wait()
            gate.process.send_signal(signal.SIGKILL)
            gate.process.wait()


if __name__ == "__main__":
    main()
