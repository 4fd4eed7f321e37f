"""The honest swarm of the rig: real processes on loopback, a campaign, and the measurements of them."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from scheduler.trust.pinned import bind_keys, claim_device
from swarm.net.identity import load_or_create
from tests.drivers.onnx_models import OnnxModels
from tests.real.lab import Done, Lab, campaign, free_port, kill_marked, script, until
from tests.rig.attack import Attack, Facts, Node, Target
from tests.rig.verdict import Window

SCHEDULER: Final = "ada"
WORKERS: Final = ("one", "two")
MODELS: Final = 6
LATENCY_MS: Final = 20.0
"""Latency of the first model; each further model takes a millisecond more."""
CAMPAIGN_S: Final = 60.0
"""A campaign is cancelled after this time, or after `PATIENCE` times its duration without an attack. Rows that are not there by then count
as missing."""
PATIENCE: Final = 5.0
SAMPLE_S: Final = 0.05
UP_S: Final = 90.0
"""Time for an attack to get under way."""


class Memory:
    """Samples the resident bytes of processes in its own thread."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._peak: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> dict[str, int]:
        """Resident bytes of each running process; the scheduler's only while a campaign runs."""
        pids = {name: process.pid for name, process in self._lab.running.items()}
        with contextlib.suppress(OSError, ValueError):
            pids["scheduler"] = self._lab.scheduler_pid(SCHEDULER)
        sizes = {}
        for name, pid in pids.items():
            with contextlib.suppress(psutil.Error):
                sizes[name] = psutil.Process(pid).memory_info().rss
        return sizes

    def reset(self) -> None:
        """Forget the peaks."""
        self._peak = {}

    @property
    def peak(self) -> dict[str, int]:
        return dict(self._peak)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            peak = self._peak
            for name, size in self.now().items():
                peak[name] = max(size, peak.get(name, 0))

    def close(self) -> None:
        self._ended.set()
        self._thread.join(5)


@dataclass
class Helper:
    """A process of the rig beside the swarm: an attacker or the honest caller."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def end(self, within_s: float = 10.0) -> None:
        """Close its standard input, and kill it if it does not end within `within_s`."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Swarm:
    """A gate, two workers and a home that submits; an honest caller; and the measurements of them."""

    lab: Lab
    folder: Path
    target: Target
    memory: Memory
    honest: Helper
    models: Mapping[str, float]
    """Model name → scripted median in milliseconds."""
    campaigns: int = 0

    def bind_device(self, device: str) -> None:
        """All workers here are on one machine, so the submitter states who owns its device id."""
        first, *others = self.worker_ids
        home = self.lab.home(SCHEDULER)
        claim_device(home, first, device)
        for peer in others:
            bind_keys(home, peer, first)

    @property
    def worker_ids(self) -> dict[str, str]:
        return {node.peer_id: "" for node in self.target.workers}

    def window(
        self, more: Mapping[str, Any], least_s: float, usual_s: float = CAMPAIGN_S
    ) -> tuple[Window, list[dict[str, Any]]]:
        """Run the honest campaign, which usually takes `usual_s`, and watch for at least `least_s`. Returns what honest nodes observed, and
        the campaign's rows.
        """
        self.memory.reset()
        logs = self._logs()
        began = time.monotonic()
        done, took = self._campaign(more, max(CAMPAIGN_S, PATIENCE * usual_s))
        while time.monotonic() < began + least_s:
            threading.Event().wait(0.05)
        ended = time.monotonic()
        until(lambda: self._calls(ended, math.inf), "an honest call is answered, or given up", within=30)
        peak = self.memory.peak
        rates = {
            name: (size - logs.get(name, 0)) / 1000 / (ended - began) for name, size in self._logs().items()
        }
        calls = self._calls(began, ended)
        regular = [call for call in calls if call[1] != "newcomer"]
        newcomers = [call for call in calls if call[1] == "newcomer"]
        window = Window(
            latencies_ms=[call[2] for call in regular],
            unanswered=sum(not call[3] for call in regular),
            newcomers=len(newcomers),
            refused=sum(not call[3] for call in newcomers),
            campaign_s=took,
            peak=peak,
            log_kb_s=rates,
        )
        assert done.out.startswith("{"), f"the honest campaign says nothing: {done}"
        return window, done.json()["results"]

    def _logs(self) -> dict[str, int]:
        """Size of each process's log in bytes."""
        paths = {name: self.lab.folder / name / "output.log" for name in ("gate", *WORKERS)}
        paths["scheduler"] = self.lab.home(SCHEDULER).logs / "scheduler.jsonl"
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def _calls(self, since: float, until_: float) -> list[tuple[float, str, float, bool]]:
        calls = [json.loads(line) for line in list(self.honest.lines)]
        return [(at, name, ms, ok) for at, name, ms, ok in calls if since <= at < until_]

    def _campaign(self, more: Mapping[str, Any], within_s: float) -> tuple[Done, float]:
        """Submit the campaign and wait for its end; cancel it after `within_s`."""
        self.campaigns += 1
        name = f"honest-{self.campaigns}"
        plain = {"measure": {"runs": 5, "loads": 1}, "timeouts": {"campaign": f"{within_s:.0f}s"}} | dict(
            more
        )
        names = plain.pop("models", list(self.models))
        file = campaign(self.folder, name, [self.folder / model for model in names], **plain)
        began = time.monotonic()
        done = self.lab.submit(SCHEDULER, file, within=within_s + 60)
        took = time.monotonic() - began
        return done, took if took < within_s else math.inf

    @contextlib.contextmanager
    def attacked(self, attack: Attack) -> Iterator[Facts]:
        """Run the attack. Its facts are complete when the context ends."""
        facts: Facts = {}
        helper = start(self.lab, "attacker", "tests.rig.attacker", attack.name, self._for(attack).write())
        try:
            until(
                lambda: "up\n" in helper.lines or helper.process.poll() is not None,
                f"{attack.name} is under way", within=UP_S,
            )  # fmt: skip
            assert helper.process.poll() is None, (
                f"the attacker of {attack.name} has ended:\n{log_of(self.lab)}"
            )
            yield facts
            assert helper.process.poll() is None, (
                f"the attacker of {attack.name} has ended:\n{log_of(self.lab)}"
            )
        finally:
            helper.end()
        facts |= next((json.loads(line) for line in reversed(helper.lines) if line.startswith("{")), {})

    def _for(self, attack: Attack) -> Target:
        target = self.target
        return Target(target.gate, target.workers, target.scheduler, target.folder, attack.options)


def log_of(lab: Lab) -> str:
    return (lab.folder / "attacker.log").read_text("utf-8", errors="replace")[-3000:]


def start(lab: Lab, name: str, module: str, *arguments: str) -> Helper:
    """Start a process of the rig, which carries the lab's mark."""
    with (lab.folder / f"{name}.log").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=lab.environment(name),
        )  # fmt: skip
    return Helper(process)


@contextlib.contextmanager
def a_swarm(folder: Path, schedulers: tuple[str, ...] = (), models: int = MODELS) -> Iterator[Swarm]:
    """A fresh swarm; checks that nothing of it is left afterwards. `schedulers`: further homes that its workers serve."""
    ports = {name: free_port() for name in WORKERS}
    lab = Lab(folder / "honest", (SCHEDULER, *schedulers), workers=WORKERS)
    lab.more = {name: ("--listen", f"/ip4/127.0.0.1/tcp/{port}") for name, port in ports.items()}
    helpers: list[Helper] = []
    memory: Memory | None = None
    try:
        for name in ("gate", *WORKERS):
            lab.start_gate() if name == "gate" else lab.start_worker(name, *lab.more[name])
        for name in ("gate", *WORKERS):
            lab.await_up(name)
        memory = Memory(lab)
        nodes = [_node(lab, "gate", lab.port), *(_node(lab, name, ports[name]) for name in WORKERS)]
        away = folder / "attackers"
        away.mkdir()
        target = Target(nodes[0], tuple(nodes[1:]), lab.peer(SCHEDULER), away)
        honest = start(lab, "honest-caller", "tests.rig.honest", target.write())
        helpers.append(honest)
        for number in range(MODELS):
            OnnxModels(lab.folder).nano(f"nano-{number}", 0.1 + number)
        scripts = {f"m{n}.json": LATENCY_MS + n for n in range(models)}
        for name, median in scripts.items():
            script(lab.folder, name, load_ms=1.0, latencies_ms=[median], sleep=True)
        until(lambda: honest.lines or honest.process.poll() is not None, "the honest caller calls")
        yield Swarm(lab, lab.folder, target, memory, honest, scripts)
    finally:
        for helper in helpers:
            helper.end()
        if memory is not None:
            memory.close()
        try:
            lab.close()
        finally:
            kill_marked(lab.mark)


def _node(lab: Lab, name: str, port: int) -> Node:
    role = "gate" if name == "gate" else "worker"
    peer = load_or_create(lab.home(name).key(role)).peer_id
    return Node(name, peer, f"/ip4/127.0.0.1/tcp/{port}")
