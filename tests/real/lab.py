"""Real processes on loopback for the tests: a gate, workers and schedulers, each with its own home, and a check for what is left of them.

Every process started here carries a mark in its environment, which its children inherit. So a forgotten process is found whatever it calls
itself. All processes depend on this one through their standard input, or end with the lab.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import psutil

from drivers.launch.child import NAME
from scheduler.trust.listed import read_listed, trust_peer
from swarm.base.home import Home
from swarm.net.identity import load_or_create
from tests.real.apart import a_lock_of_its_own

SARK = (sys.executable, "-P", "-m", "sark")
MARK = "SARK_TEST_MARK"
SUPERVISOR: Final = "scheduler.submit.supervisor"
TIMEOUT_S: Final = 180.0
"""For events that take a second or two on an idle machine, and longer on a busy one."""
_OF_A_USER = frozenset({"NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "PYTHONDONTWRITEBYTECODE"})
"""Variables of a terminal or of a user. With the last one, each of the many processes would compile all our modules again."""
_PAUSE = threading.Event()


def until(condition: Callable[[], Any], what: str, *, within: float = TIMEOUT_S, every: float = 0.03) -> Any:
    """Evaluate `condition` repeatedly and return its first true value; AssertionError when there is none in time."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        _PAUSE.wait(every)


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment or command line holds `mark`: pid and command line."""
    by_key: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            if mark.encode() in (entry / "environ").read_bytes() or mark.encode() in words:
                by_key[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # the process is gone meanwhile, or a zombie
            continue
    return by_key


def kill_marked(mark: str) -> None:
    """Kill every process that still carries the mark."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self) -> Any:
        """The command's output, which must be exactly one JSON document."""
        return json.loads(self.out)


@dataclass
class Lab:
    """A gate, two workers, and homes of schedulers that the workers serve."""

    folder: Path
    schedulers: Sequence[str]
    port: int = field(default_factory=free_port)
    mark: str = field(default_factory=lambda: f"lab-{secrets.token_hex(8)}")
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    more: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workers: Sequence[str] = ("one", "two")
    apart: bool = False
    """Whether each worker is a separate device: see `tests.real.apart`."""
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Home → words to put before its commands, so that they run elsewhere."""
    address: str = "127.0.0.1"
    """The gate's IP address."""
    lan: bool = False
    """Whether the nodes look for neighbours."""
    program: Sequence[str] = SARK
    """The program under test."""
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Home → another program to test there, such as one from another environment."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables for all processes, such as SARK_SLOTS."""

    def home(self, name: str) -> Home:
        """The home of the process with that name."""
        return Home.at(self.folder / name)

    def peer(self, name: str) -> str:
        """Peer id of a scheduler's home."""
        return load_or_create(self.home(name).key("scheduler")).peer_id

    def worker_peer(self, name: str) -> str:
        """Peer id of a worker."""
        return load_or_create(self.home(name).key("worker")).peer_id

    @property
    def gate(self) -> str:
        """The gate's address."""
        gate = load_or_create(self.home("gate").key("gate")).peer_id
        return f"/ip4/{self.address}/tcp/{self.port}/p2p/{gate}"

    # -- processes ---------------------------------------------------------------------------------------------------------

    def environment(self, name: str) -> dict[str, str]:
        """This process's environment without a terminal's or a user's settings, with the lab's marks."""
        stored = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("SARK_") and key not in _OF_A_USER
        }
        return {
            **stored,
            MARK: self.mark,
            "SARK_TEST_NODE": self.mark_of(name),
            "SARK_MAX_WAIT_S": "0",  # the tests' host is busy with the tests
            "ORT_DISABLE_TELEMETRY": "1",
            "XDG_DATA_HOME": str(
                self.folder / "user-data"
            ),  # a device's calibrations do not belong to a home
            "SARK_LAN": str(self.lan).lower(),  # neighbours of the tests' host do not belong to the lab
            **self.settings,
        }

    def mark_of(self, name: str) -> str:
        """The mark of the process with that name and of all its children."""
        return f"{self.mark}/{name}/"

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `sark-node --home …/name ARGUMENTS`; it ends when this side closes its standard input."""
        before = a_lock_of_its_own(self.folder / name) if self.apart and name in self.workers else ()
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        if arguments[:1] == ("join",):
            self.trust(name)
        with (home / "output.log").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [
                    *self.places.get(name, ()),
                    *before,
                    *self.programs.get(name, self.program),
                    "--log-level",
                    "info",
                    "--home",
                    str(home),
                    *arguments,
                    "--stop-with-stdin",
                ],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                cwd=home,
                env=self.environment(name),
            )
        return self.running[name]

    def trust(self, worker: str) -> None:
        """Let the lab's schedulers trust this worker, as `sark-node trust PEER_ID` does."""
        peer = self.worker_peer(worker)
        for scheduler in self.schedulers:
            if peer not in read_listed(self.home(scheduler)).peers:
                trust_peer(self.home(scheduler), peer, worker, now=time.time())

    def start_gate(self) -> None:
        """Start the gate, always on the same port."""
        self.start("gate", "gate", "--listen", f"/ip4/{self.address}/tcp/{self.port}")

    def start_worker(self, name: str, *arguments: str) -> None:
        """Start a worker that serves the lab's schedulers and offers the simulated unit in addition to the real ones, by default on any
        free port.
        """
        allowed = [word for scheduler in self.schedulers for word in ("--allow", self.peer(scheduler))]
        self.more[name] = arguments
        self.start(
            name, "join", *(() if "--gate" in arguments else ("--gate", self.gate)), *allowed, "--name", name, "--simulate",
            "--on-battery", *(() if "--listen" in arguments else ("--listen", "/ip4/127.0.0.1/tcp/0")), *arguments,
        )  # fmt: skip

    def mend(self) -> None:
        """Restart what a test has ended. The gate and all workers are up when this returns."""
        for name in ("gate", *self.workers):
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            before = self.log(name).count(self._up(name))
            if name == "gate":
                self.start_gate()
            else:
                self.start_worker(name, *self.more.get(name, ()))
            self.await_up(name, before)

    def await_up(self, name: str, before: int = 0) -> None:
        """Wait for the line that a node prints once others can reach it."""

        def up() -> bool:
            assert self.running[name].poll() is None, f"{name} ended:\n{self.log(name)[-2000:]}"
            return self.log(name).count(self._up(name)) > before

        until(up, f"{name} is up")

    @staticmethod
    def _up(name: str) -> str:
        return "is up." if name.startswith("gate") else "is a worker now"

    def log(self, name: str) -> str:
        """All output of the process."""
        path = self.folder / name / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill with -9."""
        process = self.running.pop(name)
        process.kill()
        process.communicate()

    def stop(self, *names: str) -> None:
        """Ask processes to end, and wait until they have."""
        for name in names:
            self.running[name].send_signal(signal.SIGTERM)
        for name in names:
            try:
                self.running.pop(name).communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                kill_marked(self.mark_of(name))
                raise

    def close(self) -> None:
        """End every process that began here."""
        try:
            self.stop(*self.running)
        finally:
            kill_marked(self.mark)

    # -- commands ----------------------------------------------------------------------------------------------------------

    def command(self, name: str, *arguments: str | Path) -> list[str]:
        """`sark-node --home …/name ARGUMENTS`."""
        return [
            *self.places.get(name, ()),
            *self.programs.get(name, self.program),
            "--home",
            str(self.folder / name),
            *map(str, arguments),
        ]

    def run(
        self,
        name: str,
        *arguments: str | Path,
        within: float = TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """Run a command to its end, piped, in that home's folder."""
        cwd = self.folder / name
        cwd.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            self.command(name, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=within,
            env={**self.environment(name), **(environment or {})},
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def submit(self, name: str, campaign: Path, *more: str | Path, within: float = TIMEOUT_S) -> Done:
        """`submit --json` through the lab's gate, until the campaign ends."""
        return self.run(name, "submit", campaign, "--gate", self.gate, "--json", *more, within=within)

    def detach(self, name: str, campaign: Path, *more: str) -> str:
        """`submit --detach`; returns the campaign's id."""
        done = self.submit(name, campaign, "--detach", *more)
        assert done.code == 0, done
        return str(done.json()["campaign"])

    # -- a scheduler's store -----------------------------------------------------------------------------------------------

    def ask(self, name: str, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows from a scheduler's store."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.home(name).store}?mode=ro", uri=True)
        ) as connection:
            return connection.execute(question, values).fetchall()

    def tasks(self, name: str, campaign: str) -> list[Task]:
        """The campaign's tasks with their states."""
        rows = self.ask(
            name,
            "SELECT n, state, phase, device, attempt, reason, detail FROM tasks WHERE campaign = ? ORDER BY n",
            campaign,
        )
        return [Task(*row) for row in rows]

    def kill_scheduler(self, name: str) -> None:
        """Kill a scheduler for good: its supervisor first."""
        pid, supervisor = self.scheduler_pid(name), self.supervisor_pid(name)
        if supervisor is not None:
            os.kill(supervisor, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    def supervisor_pid(self, name: str) -> int | None:
        """The pid of this home's supervisor, which started the scheduler process or, if the first supervisor was gone, was started by
        it.
        """
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            scheduler = psutil.Process(self.scheduler_pid(name))
            for one in (scheduler.parent(), *scheduler.children()):
                if one is not None and one.status() != psutil.STATUS_ZOMBIE and SUPERVISOR in one.cmdline():
                    return one.pid
        return None

    def scheduler_pid(self, name: str) -> int:
        """The pid of the scheduler process that holds this home."""
        return int((self.home(name).folder("scheduler") / "lock").read_text())


@dataclass(frozen=True)
class Task:
    """A row of the store's table of tasks."""

    n: int
    state: str
    phase: str | None
    device: str
    attempt: int
    reason: str | None
    detail: str

    @property
    def runs(self) -> bool:
        """Whether the task's timed inferences are under way."""
        return self.state == "running" and self.phase == "run"


def launches(lab: Lab, *names: str) -> list[int]:
    """The pids of launches that run a model at those workers now."""
    results: list[psutil.Process] = []
    for name in names:
        with contextlib.suppress(psutil.NoSuchProcess):
            results += psutil.Process(lab.running[name].pid).children(recursive=True)
    return [
        one.pid for one in results if alive(one.pid, NAME)
    ]  # all were seen before, so these live at the same time


def alive(pid: int, name: str | None = None) -> bool:
    """Whether the process has not ended, and has this name if `name` is given."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and name in (None, process.name())
    return False


@contextlib.contextmanager
def a_lab(folder: Path, schedulers: Sequence[str], **more: Any) -> Iterator[Lab]:
    """A lab; checks that nothing of it is left afterwards. `more`: other fields of the lab."""
    lab = Lab(folder, schedulers, **more)
    try:
        lab.mend()
        yield lab
    finally:
        lab.close()


def script(folder: Path, name: str, **content: object) -> Path:
    """A model of the simulated unit: see `drivers/testing/fake.py`."""
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def campaign(
    folder: Path, name: str, models: Sequence[Path | str | Mapping[str, object]], **more: object
) -> Path:
    """A campaign file (JSON is YAML too), on the simulated unit unless `more` says otherwise."""
    content: dict[str, object] = {
        "campaign": name,
        "models": [str(model) if isinstance(model, Path) else model for model in models],
        "units": ["Fake (Simulation)"],
        "measure": {"runs": 5, "loads": 1},
        "retry": {"attempts": 3, "backoff": "200ms"},
    }
    content |= more
    if "replicas" not in more:  # most tests do not care which worker runs a task
        content["devices"] = {"spread": "any", **dict(cast(Mapping[str, object], more.get("devices", {})))}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
