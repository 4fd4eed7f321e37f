"""Many schedulers compete for the slots of few workers: no slot is ever given twice. Pure ledgers, random order, no network.

    python benchmarks/scheduling/racing.py [--commits 1000000] [--seed 1] [--schedulers 16] [--workers 4]

Each step is one message of a scheduler to a worker, or time that passes: commits (half of them based on an old quote), renewals, releases,
cancels, answers to offers, runs that end, silence until leases lapse. After each step the affected ledger is checked against its slots:
never more leases than slots, never more runs than slots, each grant under a higher fence, each lease run at most once.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from node.capacity.allocations import (
    DEVICE_OCCUPYING_STATES,
    SLOT_HOLDING_STATES,
    KillCommand,
    OfferCommand,
    RunCommand,
    SlotRequest,
    WarnCommand,
)
from node.capacity.ledger import Ledger
from protocol.messages.permission import ALL, CallPermission
from protocol.messages.work import Commit, Conflict, Denied, Granted, HeldLease, Queued
from protocol.values.lease import LeaseState
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason, RunOutcome

TASKS: Final = 64
"""Different tasks of each scheduler; attempts make the requests differ."""
HELD: Final = 12
"""A scheduler that holds more than this releases its oldest lease."""


@dataclass
class Racer:
    """One scheduler."""

    peer: str
    tasks: list[Task]
    priority: int
    attempts: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """Worker → ledger version of its last quote."""
    held: list[tuple[int, HeldLease]] = field(default_factory=list)


@dataclass
class Device:
    """One worker: its ledger, and the state that its shell would track."""

    ledger: Ledger
    slots: int
    now: float = 0.0
    running: list[str] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)
    fence: tuple[int, int] = (0, 0)


@dataclass
class Race:
    """All schedulers and workers."""

    rng: random.Random
    racers: list[Racer]
    devices: list[Device]
    counts: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        at = rng.randrange(len(self.devices))
        device, racer = self.devices[at], rng.choice(self.racers)
        device.now += rng.expovariate(20.0)
        what = rng.random()
        if what < 0.60:
            self._commit(racer, at, device)
        elif what < 0.68:
            mine = [held for where, held in racer.held if where == at]
            device.ledger.renew(racer.peer, mine, device.now)
            self.counts["renewals"] += 1
        elif what < 0.78:
            self._let_go(racer)
        elif what < 0.88 and device.offered:
            self._answer(device)
        elif what < 0.98 and device.running:
            self._end(device)
        elif what > 0.9995:
            device.now += rng.choice((5.0, 16.0))
            device.ledger.expire(device.now)
            self.counts["silences"] += 1
        self._obey(device)

    def _commit(self, racer: Racer, at: int, device: Device) -> None:
        task = self.rng.choice(racer.tasks)
        racer.attempts += 1
        commit = Commit(
            key=f"{task.task}/{racer.attempts}",
            attempt=1 + racer.attempts % 1000,
            epoch=1,
            task=b"",
            signature=bytes(64),
            priority=racer.priority,
            queue=self.rng.random() < 0.3,
            ledger=racer.known.get(at) if self.rng.random() < 0.5 else None,
        )
        slot_request = SlotRequest(racer.peer, CallPermission(racer.peer, ALL), commit, task, "")
        answer = device.ledger.commit(slot_request, device.now)
        self.counts["commits"] += 1
        match answer:
            case Granted() | Queued():
                self.counts["granted" if isinstance(answer, Granted) else "queued"] += 1
                fence = answer.fence.key()
                assert fence > device.fence, f"fence {fence} after {device.fence}"
                device.fence = fence
                racer.held.append((at, HeldLease(lease=answer.lease, fence=answer.fence)))
                if self.rng.random() < 0.05:  # the answer was lost: repeat the request
                    again = device.ledger.commit(slot_request, device.now)
                    assert isinstance(again, (Granted, Queued))
                    assert again.lease == answer.lease, "one key, two leases"
                    self.counts["said twice"] += 1
            case Conflict():
                self.counts["conflicts"] += 1
                racer.known[at] = answer.quote.ledger
            case Denied():
                self.counts["denied"] += 1
        if len(racer.held) > HELD:
            self._let_go(racer)

    def _let_go(self, racer: Racer) -> None:
        if racer.held:
            at, held = racer.held.pop(0)
            device = self.devices[at]
            device.ledger.stop(racer.peer, (held,), Reason.CANCELLED, device.now)
            self.counts["releases"] += 1
            self._obey(device)

    def _answer(self, device: Device) -> None:
        lease = device.offered.pop(self.rng.randrange(len(device.offered)))
        says = self.rng.choice(
            (device.ledger.start, device.ledger.start, device.ledger.skip, device.ledger.defer)
        )
        says(lease, device.now)

    def _end(self, device: Device) -> None:
        lease = device.running.pop(self.rng.randrange(len(device.running)))
        device.ledger.condition.end(RunOutcome.COMPLETE, None, False, "")
        device.ledger.condition.clean()
        device.ledger.finish(lease, device.now)
        self.counts["runs"] += 1
        self._obey(device)
        device.ledger.acknowledge(lease)

    def _obey(self, device: Device) -> None:
        """Carry out the ledger's commands, and check the ledger against its slots."""
        for order in device.ledger.take_commands():
            match order:
                case RunCommand():
                    assert order.lease not in device.ran, f"{order.lease} runs twice"
                    device.ran.add(order.lease)
                    device.running.append(order.lease)
                    device.ledger.condition.begin()
                case OfferCommand():
                    device.offered.append(order.lease)
                case KillCommand():
                    self.counts[f"stopped: {order.reason}"] += 1
                case WarnCommand():
                    self.counts["warned"] += 1
        holds = occupies = 0
        for place in device.ledger.allocations():
            holds += place.state in SLOT_HOLDING_STATES
            occupies += place.state in DEVICE_OCCUPYING_STATES
            if place.state in SLOT_HOLDING_STATES or place.state is LeaseState.QUEUED:
                assert place.deadline is not None, f"{place.lease} never ends"
        assert holds <= device.slots, f"{holds} leases on {device.slots} slots"
        assert occupies <= device.slots, f"{occupies} runs on {device.slots} slots"
        assert occupies == len(device.running), "the ledger knows what runs"


def race(commits: int, seed: int, *, schedulers: int = 16, workers: int = 4) -> Counter[str]:
    """Run `commits` commits in an order drawn from the seed. AssertionError at the first slot that is given twice."""
    rng = random.Random(seed)
    racers = [Racer(_peer(f"s{n}"), [], rng.choice((20, 50, 50, 50, 80))) for n in range(schedulers)]
    for number, racer in enumerate(racers):
        racer.tasks = [_task(racer.peer, number, n) for n in range(TASKS)]
    devices = []
    for n in range(workers):
        slots = 1 + n % 2
        devices.append(Device(Ledger(1, name=f"w{n}", slots=slots, max_queue=20, max_queue_each=4), slots))
        for racer in racers:
            devices[-1].ledger.link_up(racer.peer, 0.0)
    running = Race(rng, racers, devices)
    while running.counts["commits"] < commits:
        running.step()
    return running.counts


def _peer(name: str) -> str:
    return name.replace("0", "z").rjust(32, "x")


def _task(peer: str, scheduler: int, n: int) -> Task:
    return Task(
        campaign=f"c-{scheduler}",
        task=f"c-{scheduler}/{n}",
        scheduler=peer,
        model=Model(name="m.onnx", sha256=hashlib.sha256(f"{n}".encode()).hexdigest(), size=1),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def main() -> int:
    """Return 0 if no slot was given twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedulers", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    began = time.perf_counter()
    counts = race(args.commits, args.seed, schedulers=args.schedulers, workers=args.workers)
    took = time.perf_counter() - began
    print(
        f"{args.commits} commits of {args.schedulers} schedulers on {args.workers} workers, seed {args.seed}"
    )
    print(f"overcommitted: 0, {args.commits / took:.0f} commits/s in one process, checks included")
    for name, count in sorted(counts.items()):
        print(f"  {name:24} {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
