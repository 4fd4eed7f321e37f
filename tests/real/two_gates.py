"""Workers that know one of two gates, or both, while the gates do not know each other; and when each worker can be found.

    half the workers ──▶ gate        gate-b ◀── a third of them
              a sixth ──▶ both ──────┘

The sixth that knows both gates makes one swarm of them, together with what nodes tell each other. Processes are real, on loopback.
"""

from __future__ import annotations

import contextlib
import csv
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from protocol.errors import SarkError
from swarm.index.index import Index
from swarm.join.host import open_host
from swarm.join.known_gates import local_gates
from swarm.net.identity import Identity, load_or_create
from tests.real.lab import TIMEOUT_S, Lab, campaign, script, until

OTHER = "gate-b"
LOOK_EVERY_S = 0.25
RUNS = {"measure": {"runs": 5, "loads": 1, "warmup": 1}}


def start_two_gates(lab: Lab) -> None:
    """Start two gates that do not know each other; both are up when this returns."""
    lab.start_gate()
    lab.start(OTHER, "gate", "--listen", "/ip4/127.0.0.1/tcp/0")
    for gate in ("gate", OTHER):
        lab.await_up(gate)


def other_gate(lab: Lab) -> str:
    """The second gate's address."""
    return local_gates(lab.home(OTHER))[0]


def gates_of(lab: Lab, number: int) -> tuple[str, ...]:
    """The gates that worker `number`, counted from 0, knows: of six in a row three know the first, two the second, and one knows both."""
    first, second = ("--gate", lab.gate), ("--gate", other_gate(lab))
    return {0: first, 1: second, 2: first, 3: second, 4: first}.get(number % 6, (*first, *second))


def start_workers(lab: Lab, names: Sequence[str]) -> dict[str, float]:
    """Start all workers at once. Returns when each was started, by the wall clock."""
    began: dict[str, float] = {}
    for name in names:
        began[name] = time.time()
        lab.start_worker(name, *gates_of(lab, lab.workers.index(name)))
    return began


def worker_ids(lab: Lab) -> dict[str, str]:
    """Peer id → name of each worker that has created its key."""
    return {
        load_or_create(lab.home(name).key("worker")).peer_id: name
        for name in lab.workers
        if lab.home(name).key("worker").exists()
    }


@dataclass
class Watch:
    """Joins through one gate and looks for workers again and again. Ends with the context."""

    gate: str
    first_seen: dict[str, float] = field(default_factory=dict)
    """Peer id → when it was first found, by the wall clock."""
    looks_s: list[float] = field(default_factory=list)
    """Duration of each look."""

    @contextlib.contextmanager
    def running(self) -> Iterator[Watch]:
        """Look for workers until the block ends."""
        over = threading.Event()
        thread = threading.Thread(target=trio.run, args=(self._look, over), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join(TIMEOUT_S)

    async def _look(self, over: threading.Event) -> None:
        rng = random.Random()
        async with (
            open_host(Identity.fresh(), bootstrap=[self.gate], rng=rng) as network,
            trio.open_nursery() as nursery,
        ):
            index = Index(network, rng=rng, serve=False)
            await nursery.start(index.run)
            while not over.is_set():
                began = time.time()
                with contextlib.suppress(SarkError):
                    for sighting in (await index.everybody(1_000)).devices:
                        self.first_seen.setdefault(sighting.advert.peer, time.time())
                self.looks_s.append(time.time() - began)
                await trio.sleep(LOOK_EVERY_S)
            nursery.cancel_scope.cancel()


def await_found(watch: Watch, count: int, within: float = TIMEOUT_S) -> None:
    """Wait until this many workers have been found."""
    until(lambda: len(watch.first_seen) >= count, f"{count} workers are found", within=within, every=0.1)


def shares(path: Path) -> Counter[str]:
    """Number of complete rows in a CSV that each worker signed, by peer id."""
    with path.open(newline="", encoding="utf-8") as file:
        return Counter(row["WorkerId"] for row in csv.DictReader(file) if row["Status"] == "Complete")


def tasks_for(lab: Lab, folder: Path, each: int, seconds: float) -> Path:
    """A campaign of `each` tasks for each worker, each lasting `seconds`: if all workers are free, each gets one."""
    return campaign(folder, "everybody", models_for(folder, each * len(lab.workers), seconds), **RUNS)


def one_for_each(folder: Path, workers: Sequence[str], seconds: float) -> Path:
    """A campaign in the plain form with one job for each of these workers, by peer id."""
    model = models_for(folder, 1, seconds)[0]["path"]
    jobs = [
        {"compute_unit": "Fake (Simulation)", "num_inference_runs": 5, "worker_id": peer} for peer in workers
    ]
    path = folder / "one-for-each.json"
    path.write_text(json.dumps({"model_url": model, "jobs": jobs}), encoding="utf-8")
    return path


def models_for(folder: Path, count: int, seconds: float) -> list[dict[str, str]]:
    """`count` models, each of whose tasks lasts `seconds`."""
    model = script(folder, f"m-{seconds:g}.json", latencies_ms=[seconds * 200.0], sleep=True)
    return [{"name": f"m{number}", "path": str(model)} for number in range(count)]
