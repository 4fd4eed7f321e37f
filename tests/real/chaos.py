"""Campaigns of real processes on loopback under faults: which process is killed, frozen or cut off, when, and who repairs it.

    storm = Storm(lab, plan)            gate, workers (each behind a relay), in each home a terminal with `watch`, or `serve`
    storm.run()                         strikes until the campaigns have ended; restarts what died
    storm.faults, storm.breaches        for `tests.real.aftermath`, which judges

The seed determines the victims and times of the strikes, but not how far the processes are by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.real.lab import TIMEOUT_S, Lab, free_port, launches, script, until
from tests.real.relay import Relay, relayed
from tests.real.strikes import LASTS, ON_WORKER, WEIGHTS, Fault, Kind, Plan

WAITING: Final = "who waits in "
"""Prefix of a home's name, for its terminal or server."""
STEP_S: Final = 0.05
DEAD_S: Final = 3.0
"""This long after its worker was killed, no process of a run may live."""
_PAUSE = threading.Event()


@dataclass
class Storm:
    """The lab under faults."""

    lab: Lab
    plan: Plan
    say: Callable[[str], object] = print
    faults: list[Fault] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    campaigns: list[tuple[str, str]] = field(default_factory=list)
    """(home, campaign) of each."""
    back: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """For the gate and the server: seconds from their start until they listen again."""
    began: float = 0.0
    ended: float = 0.0
    _relays: dict[str, Relay] = field(default_factory=dict)
    _due: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    """Pending repairs: when (monotonic), of which victim, and the call that repairs it."""
    _dying: list[tuple[float, psutil.Process]] = field(default_factory=list)
    _watching: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Home → its terminal, or the server."""
    _port: int = field(default_factory=free_port)
    """The server's port."""

    @property
    def _dead_s(self) -> float:
        return DEAD_S * self.plan.slow

    @contextlib.contextmanager
    def swarm(self) -> Iterator[None]:
        """Run the gate and the workers; everything ends with the context."""
        with relayed(self.lab) as self._relays:
            yield

    def file(self, folder: Path) -> Path:
        """The campaign file. Its tasks share a few models, so that some fetch their model and most find it cached."""
        runs = 10
        per_ms = 1000 * self.plan.task_s / runs
        models = [
            script(folder, f"m{n}.json", load_ms=1.0 + n, latencies_ms=[per_ms], sleep=True) for n in range(6)
        ]
        content = {
            "campaign": "chaos",
            "models": [
                {"name": f"task-{n}", "path": str(models[n % len(models)])} for n in range(self.plan.tasks)
            ],
            "units": ["Fake (Simulation)"],
            "devices": {"spread": "any"},
            "measure": {"runs": runs, "loads": 1, "warmup": 1},
            "retry": {"attempts": 10, "backoff": "200ms"},
        }
        path = folder / "chaos.yaml"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    # -- the storm ---------------------------------------------------------------------------------------------------------

    def run(self, folder: Path) -> None:
        """Submit, strike until the campaigns have ended or their time is over, then repair everything."""
        rng = random.Random(self.plan.seed)
        self.began = time.time()
        file = self.file(folder)
        for home in self.lab.schedulers:
            self.campaigns.append((home, self.lab.detach(home, file, "--wait", "10m")))
            self._open(home)
        until(lambda: self._held(), "the first task has its place")
        try:
            self._strikes(rng)
        finally:
            self.ended = time.time()
            self._mend_all()
            self._close()
        until(lambda: not self._see_dead(time.monotonic()), "the dying are dead", within=self._dead_s + 5)

    def _strikes(self, rng: random.Random) -> None:
        deadline = time.monotonic() + self.plan.within_s
        strike = time.monotonic() + rng.uniform(0.5, 1.5) * self.plan.every_s
        while not self._over():
            now = time.monotonic()
            if now > deadline:
                self.breaches.append(f"the campaign did not end within {self.plan.within_s:g} s")
                return
            self._put_right(now)
            self._see_dead(now)
            if now >= strike and self.plan.faults != len(self.faults):
                kind, victim, lasts = self._draw(rng)
                strike = now + rng.uniform(0.5, 1.5) * self.plan.every_s
                self._strike(kind, victim, lasts, rng)
            _PAUSE.wait(STEP_S)

    def _draw(self, rng: random.Random) -> tuple[Kind, str, float]:
        kinds = list(self.plan.kinds)
        kind = rng.choices(kinds, [WEIGHTS[one] for one in kinds])[0]
        worker, home = rng.choice(list(self.lab.workers)), rng.choice(list(self.lab.schedulers))
        least, most = LASTS.get(kind, (0.0, 0.0))
        lasts = rng.uniform(least, min(most, self.plan.lasts_most_s))
        if kind in ON_WORKER:
            return kind, worker, lasts
        waiting = WAITING if kind in (Kind.SERVER, Kind.TERMINAL) else ""
        return kind, "gate" if kind is Kind.GATE else waiting + home, lasts

    def _strike(self, kind: Kind, victim: str, lasts: float, rng: random.Random) -> None:
        """Strike, unless the victim is already down or does not exist."""
        if any(whose == victim for _, whose, _ in self._due):
            return
        at, held = time.time(), self._held(device=victim if kind in ON_WORKER else None)
        timed = frozenset(task for task, (_, runs) in held.items() if runs)
        mend = self._hit(kind, victim, rng)
        if mend is None:
            return
        attempts = {task: attempt for task, (attempt, _) in held.items()}
        self.faults.append(Fault(kind, victim, at, lasts, attempts, time.time(), timed))
        self.say(f"{at - self.began:7.2f} s  {kind}: {victim}" + (f" for {lasts:.1f} s" if lasts else ""))
        if lasts:
            self._due.append((time.monotonic() + lasts, victim, mend))

    def _hit(self, kind: Kind, victim: str, rng: random.Random) -> Callable[[], None] | None:
        """The strike itself. Returns the call that repairs it, or None when there was nothing to hit."""
        lab, home = self.lab, victim.removeprefix(WAITING)
        match kind:
            case Kind.WORKER:
                below = psutil.Process(lab.running[victim].pid).children(recursive=True)
                self._dying += [(time.monotonic() + self._dead_s, process) for process in below]
                self._relays[victim].refuse()
                lab.kill(victim)
                return lambda: self._restart(victim)
            case Kind.RUN:
                runs = launches(lab, victim)
                return _kill(rng.choice(runs)) if runs else None
            case Kind.ZYGOTE:
                there = psutil.Process(lab.running[victim].pid).children()
                return _kill(rng.choice(there).pid) if there else None
            case Kind.SCHEDULER:
                return _kill(self._scheduler(victim))
            case Kind.SUPERVISOR:
                return _kill(self.lab.supervisor_pid(victim))
            case Kind.SERVER:
                if not self._submit_over_http(home):
                    return None
                self._end(home)
                return lambda: self._start(kind, victim, lambda: self._open(home), self._port)
            case Kind.GATE:
                lab.kill("gate")
                return lambda: self._start(kind, victim, lab.start_gate, lab.port)
            case Kind.TERMINAL:
                self._end(home)
                return lambda: self._open(home)
            case Kind.FROZEN_WORKER:
                return _freeze(lab.running[victim].pid)
            case Kind.FROZEN_SCHEDULER:
                return _freeze(self._scheduler(victim))
            case Kind.RESET:
                self._relays[victim].reset()
            case Kind.SILENT:
                self._relays[victim].silence()
            case Kind.REFUSED:
                self._relays[victim].refuse()
        return self._relays[victim].mend

    def _restart(self, worker: str) -> None:
        self.lab.start_worker(worker, *self.lab.more[worker])
        self._open_again(worker)

    def _open_again(self, worker: str) -> None:
        """Let the worker's port accept connections again as soon as somebody listens behind it, and not before."""
        if self._relays[worker].answers():
            self._relays[worker].mend()
        else:
            again = time.monotonic() + 2 * STEP_S
            self._due.append((again, worker, lambda: self._open_again(worker)))

    def _start(self, kind: Kind, victim: str, start: Callable[[], object], port: int) -> None:
        """Restart a victim, and measure how long it takes until it listens. It is not struck before that."""
        start()
        self._see_up(kind, victim, port, time.monotonic())

    def _see_up(self, kind: Kind, victim: str, port: int, since: float) -> None:
        now = time.monotonic()
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                self.back[kind].append(now - since)
                return
        self._due.append((now + STEP_S, victim, lambda: self._see_up(kind, victim, port, since)))

    def _put_right(self, now: float) -> None:
        due = [item for item in self._due if item[0] <= now]
        self._due = [item for item in self._due if item[0] > now]
        for _, _, mend in due:
            mend()

    def _mend_all(self) -> None:
        """Repair everything now."""
        until(lambda: self._put_right(float("inf")) or not self._due, "all that was struck is up again")

    def _see_dead(self, now: float) -> bool:
        """Whether processes of killed workers still live. Those that live too long are noted."""
        self._dying = [(at, process) for at, process in self._dying if lives(process)]
        for at, process in self._dying:
            if at <= now:
                self.breaches.append(
                    f"process {process.pid} outlived its killed worker by {self._dead_s:g} s"
                )
        self._dying = [(at, process) for at, process in self._dying if at > now]
        return bool(self._dying)

    # -- observations ------------------------------------------------------------------------------------------------------

    def _open(self, home: str) -> None:
        """Start a terminal or the server, which waits for the campaign there and so keeps a scheduler process alive."""
        if Kind.SERVER in self.plan.kinds:
            words: list[str | Path] = ["serve", "--port", str(self._port), "--allow-paths"]
        else:
            words = ["watch", self.campaigns[list(self.lab.schedulers).index(home)][1], "--json"]
        cwd = self.lab.folder / home
        with (cwd / "terminal.log").open("ab") as out:
            self._watching[home] = subprocess.Popen(
                self.lab.command(home, *words, "--gate", self.lab.gate),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=self.lab.environment(home),
            )  # fmt: skip

    def _end(self, home: str) -> None:
        """Kill the waiting process with -9."""
        process = self._watching[home]
        process.kill()
        process.wait()

    def _close(self) -> None:
        """End the storm's waiting processes: a server would keep running."""
        for process in self._watching.values():
            process.terminate()
            process.wait(TIMEOUT_S)

    def _submit_over_http(self, home: str) -> bool:
        """Submit a campaign of one task. Returns whether the server, which is killed next, has confirmed it. The server may not be up
        yet.
        """
        model = script(self.lab.folder, "of-the-server.json", load_ms=1.0)
        content = {
            "campaign": f"kept-{len(self.campaigns)}", "models": [str(model)], "units": ["Fake (Simulation)"],
            "devices": {"spread": "any"}, "measure": {"runs": 2, "loads": 1}, "retry": {"attempts": 10, "backoff": "200ms"},
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/v1/campaigns?wait=10m",
            json.dumps(content).encode(), {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                self.campaigns.append((home, json.load(answer)["campaign_id"]))
                return True
        except urllib.error.HTTPError as error:
            self.breaches.append(f"the server answered {error.code}: {error.read()[:300]!r}")
        except OSError:
            pass
        return False

    def _held(self, device: str | None = None) -> dict[str, tuple[int, bool]]:
        """Task → its attempt and whether its run is under way, for tasks that have a slot at the device (or anywhere)."""
        states = "SELECT id, attempt, state, device FROM tasks WHERE state IN ('leased', 'running')"
        rows = [row for home in self.lab.schedulers for row in self.lab.ask(home, states)]
        return {
            task: (attempt, state == "running")
            for task, attempt, state, where in rows
            if device in (None, where)
        }

    def _over(self) -> bool:
        """Whether the campaigns have ended, and the terminals have said so."""
        over = [self._is_over(home) for home in self.lab.schedulers]
        return all(over)

    def _is_over(self, home: str) -> bool:
        ((opened,),) = self.lab.ask(home, "SELECT count(*) FROM campaigns WHERE ended IS NULL")
        mended = any(whose == WAITING + home for _, whose, _ in self._due)
        code = self._watching[home].poll()
        if code is not None and opened and not mended:
            self.breaches.append(f"in {home} what waits for the campaign ended with {code} before it did")
            self._open(home)
        return not opened and (mended or code is not None or Kind.SERVER in self.plan.kinds)

    def _scheduler(self, home: str) -> int | None:
        """The scheduler process's pid. A process that only checks for a scheduler holds the lock for a moment, too."""
        try:
            pid = self.lab.scheduler_pid(home)
            return pid if "schedule" in psutil.Process(pid).cmdline() else None
        except (OSError, ValueError, psutil.NoSuchProcess):  # not there yet
            return None


def lives(process: psutil.Process) -> bool:
    """Whether this very process exists and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill(pid: int | None) -> Callable[[], None] | None:
    return _signal(pid, signal.SIGKILL)


def _freeze(pid: int | None) -> Callable[[], None] | None:
    return _signal(pid, signal.SIGSTOP)


def _signal(pid: int | None, number: int) -> Callable[[], None] | None:
    """Send a signal. The repair is to let the process continue. None: there is no such process."""
    if pid is None:
        return None
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return go_on
