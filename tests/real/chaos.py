"""A campaign of real processes on loopback while somebody pulls plugs: what is killed, frozen and cut, when, and who puts it right again.

    storm = Storm(lab, names, plan)     gate, workers (each behind a relay that can be cut), a terminal with `watch`
    storm.run()                         strikes until the campaign has ended; a supervisor starts again what died
    storm.faults, storm.breaches        for `tests.real.aftermath`, which judges

What is struck, and when, follows from the seed; how far the processes are by then does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import psutil

from tests.real.lab import Lab, launches, script, until
from tests.real.relay import Relay, relayed

HOME: Final = "ada"
STEP_S: Final = 0.05
DEAD_S: Final = 3.0
"""After its worker was killed no process of a run may live longer."""
_PAUSE = threading.Event()


class Kind(StrEnum):
    """What can go wrong."""

    WORKER = "worker killed"
    RUN = "run's process killed"
    ZYGOTE = "zygote killed"
    SCHEDULER = "scheduler killed"
    GATE = "gate killed"
    TERMINAL = "terminal killed"
    FROZEN_WORKER = "worker frozen"
    FROZEN_SCHEDULER = "scheduler frozen"
    RESET = "link reset"
    SILENT = "link silent"
    REFUSED = "link refused"


WEIGHTS: Final = {
    Kind.WORKER: 5, Kind.RUN: 3, Kind.ZYGOTE: 1, Kind.SCHEDULER: 3, Kind.GATE: 1, Kind.TERMINAL: 1,
    Kind.FROZEN_WORKER: 2, Kind.FROZEN_SCHEDULER: 1, Kind.RESET: 3, Kind.SILENT: 2, Kind.REFUSED: 2,
}  # fmt: skip
LASTS: Final = {
    Kind.WORKER: (0.3, 4.0),
    Kind.GATE: (0.3, 6.0),
    Kind.TERMINAL: (0.1, 2.0),
    Kind.FROZEN_WORKER: (1.0, 20.0),
    Kind.FROZEN_SCHEDULER: (1.0, 20.0),
    Kind.SILENT: (1.0, 20.0),
    Kind.REFUSED: (0.5, 6.0),
}
"""Seconds until it is put right; the others are over at once."""
ON_WORKER: Final = frozenset(
    {Kind.WORKER, Kind.RUN, Kind.ZYGOTE, Kind.FROZEN_WORKER, Kind.RESET, Kind.SILENT, Kind.REFUSED}
)


@dataclass(frozen=True)
class Plan:
    """How long and how hard. Times in seconds."""

    seed: int
    tasks: int = 300
    task_s: float = 1.5
    every_s: float = 3.0
    """Between two strikes: half of it to one and a half."""
    faults: int | None = None
    """Stop after so many; None: when the campaign ends."""
    lasts_most_s: float = 20.0
    within_s: float = 900.0
    slow: float = 1.0
    """So many times as long as is promised may pass: above 1 on a machine that has other work."""
    kinds: Sequence[Kind] = tuple(Kind)


@dataclass(frozen=True)
class Fault:
    """One strike."""

    kind: Kind
    victim: str
    at: float
    """Wall clock."""
    lasts: float
    held: dict[str, int]
    """Tasks that had a place at the victim (of a scheduler: anywhere), with their attempt."""
    over: float
    """When the blow was done, by the wall clock: until then a victim that dies lived on."""


@dataclass
class Storm:
    """The lab under strain."""

    lab: Lab
    plan: Plan
    say: Callable[[str], object] = print
    faults: list[Fault] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    campaign: str = ""
    began: float = 0.0
    ended: float = 0.0
    _relays: dict[str, Relay] = field(default_factory=dict)
    _due: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    """When (monotonic), whose, and what puts it right."""
    _dying: list[tuple[float, psutil.Process]] = field(default_factory=list)
    _terminal: subprocess.Popen[bytes] | None = None

    @property
    def _dead_s(self) -> float:
        return DEAD_S * self.plan.slow

    @contextlib.contextmanager
    def swarm(self) -> Iterator[None]:
        """The gate and the workers are up, and everything ends with the context."""
        with relayed(self.lab) as self._relays:
            yield

    def file(self, folder: Path) -> Path:
        """The campaign: its tasks share a few models, so that some fetch and most find theirs."""
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
            "measure": {"runs": runs, "loads": 1, "warmup": 1},
            "retry": {"attempts": 10, "backoff": "200ms"},
        }
        path = folder / "chaos.yaml"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    # -- the storm ---------------------------------------------------------------------------------------------------------

    def run(self, folder: Path) -> None:
        """Submit, strike until the campaign has ended or its time is over, then put everything right."""
        rng = random.Random(self.plan.seed)
        self.began = time.time()
        self.campaign = self.lab.detach(HOME, self.file(folder), "--wait", "10m")
        self._open()
        until(lambda: self._held(None), "the first task has its place")
        try:
            self._strikes(rng)
        finally:
            self.ended = time.time()
            self._put_right(float("inf"))
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
        victim = rng.choice(list(self.lab.workers))
        least, most = LASTS.get(kind, (0.0, 0.0))
        lasts = rng.uniform(least, min(most, self.plan.lasts_most_s))
        return kind, victim if kind in ON_WORKER else kind.split()[0], lasts

    def _strike(self, kind: Kind, victim: str, lasts: float, rng: random.Random) -> None:
        """Do it, unless the victim is down already or there is nobody to be struck."""
        if any(whose == victim for _, whose, _ in self._due):
            return
        held, at = self._held(victim if kind in ON_WORKER else None), time.time()
        mend = self._hit(kind, victim, rng)
        if mend is None:
            return
        self.faults.append(Fault(kind, victim, at, lasts, held, time.time()))
        self.say(
            f"{self.faults[-1].at - self.began:7.2f} s  {kind}: {victim}"
            + (f" for {lasts:.1f} s" if lasts else "")
        )
        if lasts:
            self._due.append((time.monotonic() + lasts, victim, mend))

    def _hit(self, kind: Kind, victim: str, rng: random.Random) -> Callable[[], None] | None:
        """The blow itself. Gives what puts it right, None when nobody was there to be hit."""
        lab = self.lab
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
                return _kill(self._scheduler())
            case Kind.GATE:
                lab.kill("gate")
                return lab.start_gate
            case Kind.TERMINAL:
                assert self._terminal is not None
                self._terminal.kill()
                self._terminal.wait()
                return self._open
            case Kind.FROZEN_WORKER:
                return _freeze(lab.running[victim].pid)
            case Kind.FROZEN_SCHEDULER:
                return _freeze(self._scheduler())
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
        """Its port takes connections again as soon as somebody listens behind it, and not before."""
        if self._relays[worker].answers():
            self._relays[worker].mend()
        else:
            again = time.monotonic() + 2 * STEP_S
            self._due.append((again, worker, lambda: self._open_again(worker)))

    def _put_right(self, now: float) -> None:
        due = [item for item in self._due if item[0] <= now]
        self._due = [item for item in self._due if item[0] > now]
        for _, _, mend in due:
            mend()

    def _see_dead(self, now: float) -> bool:
        """Whether processes of killed workers still live; those that live for too long are noted."""
        self._dying = [(at, process) for at, process in self._dying if lives(process)]
        for at, process in self._dying:
            if at <= now:
                self.breaches.append(
                    f"process {process.pid} outlived its killed worker by {self._dead_s:g} s"
                )
        self._dying = [(at, process) for at, process in self._dying if at > now]
        return bool(self._dying)

    # -- what is seen ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """A terminal in which somebody waits for the campaign, and so keeps a scheduler process alive."""
        cwd = self.lab.folder / HOME
        with (cwd / "terminal.log").open("ab") as out:
            self._terminal = subprocess.Popen(
                self.lab.command(HOME, "watch", self.campaign, "--gate", self.lab.gate, "--json"),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=self.lab.environment(HOME),
            )  # fmt: skip

    def _held(self, device: str | None) -> dict[str, int]:
        rows = self.lab.ask(
            HOME, "SELECT id, attempt, device FROM tasks WHERE campaign = ? AND state IN ('leased', 'running')",
            self.campaign,
        )  # fmt: skip
        return {task: attempt for task, attempt, where in rows if device in (None, where)}

    def _over(self) -> bool:
        """The campaign has ended, and the terminal has said so."""
        assert self._terminal is not None
        (row,) = self.lab.ask(HOME, "SELECT ended FROM campaigns WHERE id = ?", self.campaign)
        mended = any(whose == "terminal" for _, whose, _ in self._due)
        code = self._terminal.poll()
        if code is not None and row[0] is None and not mended:
            self.breaches.append(f"the terminal ended with {code} before the campaign did")
            self._open()
        return row[0] is not None and (mended or code is not None)

    def _scheduler(self) -> int | None:
        """The scheduler process; who only looks whether there is one holds its lock for a moment too."""
        try:
            pid = self.lab.scheduler_pid(HOME)
            return pid if "schedule" in psutil.Process(pid).cmdline() else None
        except (OSError, ValueError, psutil.NoSuchProcess):  # not there yet
            return None


def lives(process: psutil.Process) -> bool:
    """Whether it is this very process and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill(pid: int | None) -> Callable[[], None] | None:
    return _signal(pid, signal.SIGKILL)


def _freeze(pid: int | None) -> Callable[[], None] | None:
    return _signal(pid, signal.SIGSTOP)


def _signal(pid: int | None, number: int) -> Callable[[], None] | None:
    """Send it. What puts it right is to let the process go on. None: there is no such process."""
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
