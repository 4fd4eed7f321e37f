"""The processes of the tests here: gates in the open, workers and a scheduler behind routers, and two neighbours that know no gate.

gate-1 ── rita (a router that keeps no ports)        anna submits, and knows gate-2 alone
   └───── ben ────── gate-2 ── anna                  lena, leo: a LAN of their own, no gate
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swarm.net.identity import load_or_create
from tests.nat.topology import Sites
from tests.real.apart import can_be_apart
from tests.real.lab import Lab, kill_marked, script, until

GATES: Final = {"ben": ("gate-1", "gate-2"), "rita": ("gate-1",)}
"""Worker → the gates it joins through."""
EVERYWHERE: Final = ("--listen", "/ip4/0.0.0.0/tcp/0")
PORT: Final = 4101
UNIT: Final = "Fake (Simulation)"
RUNS: Final = 12


class Homes(Lab):
    """A lab whose gates and workers start all at once, because most of their startup waits for the same processor."""

    def __init__(self, folder: Path, world: Sites, names: Sequence[str], *, lan: bool = False) -> None:
        """`names`: all homes."""
        super().__init__(
            folder,
            ("leo",) if lan else ("anna",),
            workers=("lena",) if lan else tuple(GATES),
            apart=can_be_apart(),
            places={name: world.inside(name) for name in names},
            lan=lan,
        )
        self.world = world

    def at(self, gate: str) -> str:
        """A gate's address."""
        peer = load_or_create(self.home(gate).key("gate")).peer_id
        return f"/ip4/{self.world.addresses[gate]}/tcp/{PORT}/p2p/{peer}"

    def begin(self, name: str) -> None:
        """Start a gate or a worker."""
        if name.startswith("gate"):
            self.start(name, "gate", "--listen", f"/ip4/{self.world.addresses[name]}/tcp/{PORT}")
            return
        gates = [word for gate in GATES.get(name, ()) for word in ("--gate", self.at(gate))]
        allowed = ("--allow", self.peer(self.schedulers[0]))
        self.start(name, "join", *gates, *allowed, "--name", name, "--simulate", "--on-battery", *EVERYWHERE)

    def up(self, *names: str) -> None:
        """Start all of them, and wait until they report that they are up."""
        before = {name: self.log(name).count(UP[name[:4]]) for name in names}
        for name in names:
            self.begin(name)
        for name in names:
            until(lambda name=name: self.count_in_log(name, UP[name[:4]]) > before[name], f"{name} is up")

    def count_in_log(self, name: str, words: str) -> int:
        """How often the words occur in the process's log. AssertionError when the process has ended."""
        process = self.running[name]
        assert process.poll() is None, f"{name} ended:\n{self.log(name)[-2000:]}"
        return self.log(name).count(words)

    def count_in_scheduler_log(self, words: str) -> int:
        """How often the log of Anna's scheduler has the words."""
        log = self.folder / "anna" / "logs" / "scheduler.jsonl"
        return log.read_text(errors="replace").count(words) if log.exists() else 0

    def close(self) -> None:
        """End everything that began here. Other tests show that these processes end when asked to."""
        for name in tuple(self.running):
            self.kill(name)
        kill_marked(self.mark)

    def pinned(self, folder: Path, *, each: int, task_ms: float) -> Path:
        """A campaign with `each` tasks for each worker and no other, each lasting about `task_ms`."""
        model = script(folder, "m.json", latencies_ms=[task_ms / RUNS], sleep=True)
        peers = [load_or_create(self.home(name).key("worker")).peer_id for name in self.workers]
        job = {"compute_unit": UNIT, "num_inference_runs": RUNS}
        jobs = [job | {"worker_id": peer} for _ in range(each) for peer in peers]
        path = folder / "pinned.json"
        path.write_text(json.dumps({"model_url": str(model), "jobs": jobs}))
        return path


UP: Final = {"gate": '"gate.up"'} | dict.fromkeys(("ben", "rita", "lena"), "is a worker now")


@dataclass(frozen=True)
class Met:
    """A device, as `looking` reports it."""

    answers: bool
    why: str
    addresses: tuple[str, ...]
    path: dict[str, Any] | None


class Looker:
    """Looks for peers from some host, with a process that is started once."""

    def __init__(self, homes: Homes, place: str) -> None:
        self._process = subprocess.Popen(
            [*homes.world.inside(place), sys.executable, "-m", "tests.nat.looking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=homes.environment(place),
        )

    def look(self, *gates: str) -> dict[str, Met]:
        """The devices found through these gates, by name; empty where no gate answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(gates) + "\n")
        self._process.stdin.flush()
        document = json.loads(self._process.stdout.readline())
        return {name: Met(**peer) for name, peer in document["peers"].items()}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
