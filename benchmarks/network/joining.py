"""How soon a device that joins by ticket behind one router is found from behind another, at first and after its gate restarts.

    python benchmarks/network/joining.py [--times 5]

Runs as root on Linux with iproute2 and nftables. The swarm: a gate in the open, which created the pool; Ben behind one router, who joins
with a fresh home and a ticket; Anna behind another, who looks repeatedly, as `peers` does, until Ben answers her through the gate. All are
real processes, without simulated units; installing the package is not included. Seconds from the start of `sark-node join TICKET`:

  worker           it prints that it is a worker: its device is known, its drivers are examined, its port is open
  place            the gate has found that Ben cannot be dialled, and grants a reservation
  found            Ben answers Anna; one look takes about a second itself
  found, rebooted  the same for a second start with the same home

and from the start of a gate that was killed, with all other nodes still running:

  gate             it prints that it is up
  place again      Ben has a reservation again
  found again      Ben answers Anna again
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.nat.homes import Homes, Looker
from tests.nat.topology import missing, sites
from tests.real.lab import until

UP = '"gate.up"'
WORKER = "is a worker now"
PLACE = '"reservation.made"'
WITHIN_S = 120.0


class Bench:
    """The swarm, and the measurements on it."""

    def __init__(self, homes: Homes) -> None:
        self.homes = homes
        self.seen: dict[str, list[float]] = defaultdict(list)
        homes.up("gate-1")
        self.command("gate-1", "pool", "create", "lab")
        self.ticket = self.command("gate-1", "pool", "invite", "lab").strip()
        self.looker = Looker(homes, "anna")

    def command(self, name: str, *words: str) -> str:
        """The output of a command."""
        done = self.homes.run(name, *words)
        if done.code:
            raise SystemExit(f"{' '.join(words[:2])}: {done}")
        return done.out

    def note(self, what: str, began: float) -> None:
        """Record the seconds from `began` to now."""
        self.seen[what].append(time.monotonic() - began)

    def says(self, name: str, words: str, more_than: int = 0) -> None:
        """Wait until the node's log has `words` more than `more_than` times."""
        until(lambda: self.homes.count_in_log(name, words) > more_than, f"{name}: {words}", within=WITHIN_S)

    def found(self, name: str) -> None:
        """Wait until Anna finds the device, and it answers her."""

        def answers() -> bool:
            met = self.looker.look(self.homes.at("gate-1")).get(name)
            return met is not None and met.answers

        until(answers, f"{name} is found", within=WITHIN_S)

    def join(self, name: str) -> None:
        """Join with a fresh home; then start again as after a reboot."""
        began = time.monotonic()
        self.homes.start(name, "join", self.ticket, "--name", name, "--on-battery")
        self.says(name, WORKER)
        self.note("worker", began)
        self.says(name, PLACE)
        self.note("place", began)
        self.found(name)
        self.note("found", began)
        self.homes.stop(name)
        until(lambda: name not in self.looker.look(self.homes.at("gate-1")), f"{name} is gone", within=30)
        began = time.monotonic()
        self.homes.start(name, "join", "--name", name, "--on-battery")
        self.found(name)
        self.note("found, rebooted", began)

    def restart_the_gate(self, name: str) -> None:
        """Kill the gate with kill -9, and start it again."""
        before, ups = self.homes.count_in_log(name, PLACE), self.homes.count_in_log("gate-1", UP)
        self.homes.kill("gate-1")
        began = time.monotonic()
        self.homes.begin("gate-1")
        self.says("gate-1", UP, ups)
        self.note("gate", began)
        self.says(name, PLACE, before)
        self.note("place again", began)
        self.found(name)
        self.note("found again", began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    if lacks := missing():
        raise SystemExit(f"no sites behind NATs: {lacks}")
    names = [f"ben-{number}" for number in range(1, arguments.times + 1)]
    with (
        sites(("gate-1",), {"a": ("anna",), "b": ("ben",)}) as world,
        tempfile.TemporaryDirectory() as folder,
    ):
        homes = Homes(Path(folder), world, ("gate-1", "anna"))
        homes.workers = tuple(names)  # so that Ben waits for no other worker of this host
        homes.places = {**homes.places, **dict.fromkeys(names, world.inside("ben"))}
        try:
            bench = Bench(homes)
            for name in names:
                bench.join(name)
                bench.restart_the_gate(name)
                homes.stop(name)
            bench.looker.close()
        finally:
            homes.close()
    sys.stdout.write(f"{'seconds':<18} {'p50':>7} {'max':>7} {'n':>4}\n")
    for what, values in bench.seen.items():
        sys.stdout.write(f"{what:<18} {statistics.median(values):7.1f} {max(values):7.1f} {len(values):4d}\n")
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    sys.stdout.write(f"load of this machine at the end: {load}, {os.cpu_count()} cores\n")


if __name__ == "__main__":
    main()
