"""`sark-node demo`: a whole swarm on this machine: a gate, workers and a scheduler, each a process with a key of its own.

They are started as a user would start them, by the command line, and all end with the demo, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from protocol.errors import ResourceError
from scheduler.output.tables import finish
from scheduler.output.watch import watch
from scheduler.store.store import open_store
from scheduler.submit.submit import submit_campaign
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.process import own_command
from swarm.base.text import count
from swarm.base.units import show_elapsed
from swarm.join.known_gates import local_gates
from swarm.net.identity import load_or_create

MODELS_FROM: Final = ("magika", "onnx")
"""Packages that carry the quickstart's models."""
START_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0


@dataclass
class Swarm:
    """The demo's processes and where they keep their things."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def home(self, name: str) -> Path:
        """The `--home` of one of the processes."""
        return self.folder / name

    def start(self, name: str, *arguments: str) -> None:
        """Start `sark-node --home …/name ARGUMENTS`, its output in `…/name/output.log`; it ends when our end of its stdin closes."""
        home = self.home(name)
        home.mkdir(parents=True, exist_ok=True)
        command = [*own_command(), "--log-level", "info", "--home", str(home), *arguments]
        with (home / "output.log").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=home,
                env={**os.environ, "SARK_LAN": "false"},  # a swarm of this machine alone
            )  # fmt: skip

    def check(self) -> None:
        """Raise `ResourceError` with the last words of a process that has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                log = self.home(name) / "output.log"
                words = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise ResourceError(
                    f"the demo's {name} ended: {' / '.join(words)}", hint=f"its whole output: {log}"
                )

    def stop(self) -> None:
        """End every process, the hard way those that do not go in time. Another Ctrl-C does not cut it short."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._stop()
        finally:
            signal.signal(signal.SIGINT, before)

    def _stop(self) -> None:
        for process in self.processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            if process.poll() is None and sys.platform != "win32":
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def demo_swarm(
    folder: Path, workers: int, say: Callable[[str], None], *, fleet: Sequence[DemoNode] = ()
) -> Iterator[tuple[Swarm, Home]]:
    """A gate, `workers` workers and the home of a scheduler that they serve. `fleet`: devices that further workers pretend to be.
    Everything ends with the context.
    """
    swarm = Swarm(folder.absolute())
    scheduler_home = Home.at(swarm.home("scheduler"))
    scheduler = load_or_create(scheduler_home.key("scheduler")).peer_id
    try:
        say("starting a gate …")
        gate_home = Home.at(swarm.home("gate"))
        gate_home.gate_file.unlink(missing_ok=True)
        swarm.start("gate", "gate", "--listen", "/ip4/127.0.0.1/tcp/0", "--stop-with-stdin")
        _wait(swarm, lambda: bool(local_gates(gate_home)), "the gate does not come up")
        (gate,) = local_gates(gate_home)
        many = count(len(fleet), "simulated worker") if fleet else count(workers, "worker")
        say(f"starting {many}, each with its own key and folder …")
        for number in range(1, workers + 1):
            swarm.start(
                f"worker-{number}", "join", "--gate", gate, "--allow", scheduler, "--name", f"worker-{number}",
                "--on-battery", "--no-calibrate", "--listen", "/ip4/127.0.0.1/tcp/0", "--stop-with-stdin",
            )  # fmt: skip
        for member in fleet:
            swarm.start(
                member.name, "join", "--gate", gate, "--allow", scheduler, "--name", member.name, "--pretend",
                member.pretended, "--on-battery", "--no-calibrate", "--listen", "/ip4/127.0.0.1/tcp/0", "--stop-with-stdin",
            )  # fmt: skip
        swarm.start("scheduler", "schedule", "--gate", gate, "--stay", "--stop-with-stdin")
        yield swarm, scheduler_home
    finally:
        swarm.stop()


def _await_fleet(swarm: Swarm, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Until each of these workers is found by who looks around: a campaign by classes is planned on those that are there."""

    def up() -> bool:
        logs = (swarm.home(name) / "output.log" for name in names)
        return all("worker now" in log.read_text(errors="replace") for log in logs)

    within = START_WITHIN_S * max(1, len(names) // 2)
    _wait(swarm, up, "the workers do not come up", within=within)
    found = 0

    def all_found() -> bool:
        nonlocal found
        found = max(found, _seen(swarm, within))
        return found >= len(names)

    with contextlib.suppress(ResourceError):  # a very busy machine: it goes on with those that are found
        _wait(swarm, all_found, "not all workers are found", within=within)
    swarm.check()
    if found < len(names):
        say(f"only {found} of {len(names)} are found on this busy machine: the campaign is planned on those")


def _seen(swarm: Swarm, within: float) -> int:
    """How many devices somebody who looks around finds."""
    (gate,) = local_gates(Home.at(swarm.home("gate")))
    command = [*own_command(), "--home", str(swarm.home("scheduler")), "peers", "--json"]
    try:
        done = subprocess.run(
            [*command, "--gate", gate],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=within,
        )
        return int(json.loads(done.stdout)["count"])
    except (subprocess.TimeoutExpired, ValueError):
        return 0


def _wait(swarm: Swarm, condition: Callable[[], bool], what: str, *, within: float = START_WITHIN_S) -> None:
    deadline = time.monotonic() + within
    while not condition():
        swarm.check()
        if time.monotonic() > deadline:
            raise ResourceError(f"{what} within {within:g} s", hint=f"look into {swarm.folder}")
        time.sleep(0.05)


def need_packages(names: Sequence[str], find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Raises `ResourceError` with the command that installs those that are not here."""
    missing = [name for name in names if find(name) is None]
    if missing:
        raise ResourceError(
            f"the demo's models come with Python packages that are not installed here: {', '.join(missing)}",
            hint=f"{sys.executable} -m pip install {' '.join(missing)}",
        )


def run_demo(folder: Path, workers: int, console: Console, *, fleet: int = 0) -> int:
    """The whole demo; gives the exit code of its campaign. Nothing of it runs any more when this returns or raises. `fleet`: instead of
    workers so many that pretend to be devices of all kinds, in a folder of their own.
    """
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{show_elapsed(time.monotonic() - began):>5}  {text}", highlight=False, soft_wrap=True)

    try:
        if fleet:
            folder = folder / "simulation"
            file = write_campaign(folder)
            say("a simulation: these devices are not there, and no figure of theirs is measured")
        else:
            file = quickstart_file()
            need_packages(MODELS_FROM)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ResourceError(
            f"cannot use {folder}: {exc.strerror}", hint="name another: --directory"
        ) from None
    try:
        joins = members(fleet)
        with (
            lock_folder(folder / "demo"),
            demo_swarm(folder, 0 if fleet else workers, say, fleet=joins) as (swarm, home),
        ):
            if fleet:
                _await_fleet(swarm, [member.name for member in joins], say)
            say(f"submitting {file} …")
            campaign_id = submit_campaign(home, file, wait_s=60.0)
            with open_store(home) as store:
                campaign = watch(
                    store, campaign_id, console, keep_alive=swarm.check, hint="q or Ctrl-C stops the demo"
                )
                csv = folder.absolute() / "results.csv"
                code = finish(store, campaign, console, csv=csv, raw=folder.absolute(), as_json=False)
            say("stopping everything …")
    except KeyboardInterrupt:
        console.print("\ninterrupted; everything of the demo has been stopped", highlight=False)
        return 130
    say("done; nothing of the demo is running any more")
    return code


def quickstart_file() -> Path:
    """The quickstart's campaign: beside this module in an installed package, in `examples/` of a checkout."""
    here = Path(__file__).absolute().parent
    for place in (here / "quickstart.yaml", here.parents[1] / "examples" / "quickstart" / "campaign.yaml"):
        if place.is_file():
            return place
    raise ResourceError("the quickstart's campaign file is missing", hint="install sark-node again")


GIB: Final = 1024**3
MOST: Final = 16
RUNS: Final = 60
LOADS: Final = 6


@dataclass(frozen=True, slots=True)
class DemoKind:
    """A sort of device. `speed`: how many times as fast as the slowest; `noise`: how much its times scatter, as a share."""

    kind: str
    soc: str
    os: str
    arch: str
    cores: int
    ram_gib: int
    speed: float
    noise: float
    gpu: str = ""
    vram_gib: int = 0

    def pretended(self, number: int) -> dict[str, Any]:
        """What a worker is told to pretend, as JSON values; see `node.device.simulated`. `number`: which of several of this kind."""
        return {
            "kind": self.kind,
            "device": f"simulated-{self.kind}-{number}",
            "soc": f"Simulated {self.soc}",
            "os": self.os,
            "arch": self.arch,
            "cores": self.cores,
            "ram": self.ram_gib * GIB,
            "gpu": f"Simulated {self.gpu}" if self.gpu else "",
            "vram": self.vram_gib * GIB if self.gpu else None,
        }


KINDS: Final = (
    DemoKind("laptop", "laptop processor", "Windows 11", "AMD64", 8, 16, 6.0, 0.015),
    DemoKind("board", "single-board SoC", "Debian 12", "aarch64", 4, 8, 1.0, 0.004),
    DemoKind("phone", "phone-class SoC", "Android 15", "aarch64", 8, 12, 4.0, 0.03),
    DemoKind("mac", "desktop SoC", "macOS 15.1", "arm64", 10, 24, 11.0, 0.003),
    DemoKind("gpu-server", "server processor", "Ubuntu 24.04", "x86_64", 64, 512, 40.0, 0.006, "server GPU", 80),
    DemoKind("mini-pc", "mini PC processor", "Fedora 41", "x86_64", 6, 32, 5.0, 0.008),
    DemoKind("tablet", "tablet SoC", "iPadOS 18", "arm64", 6, 8, 7.0, 0.01),
    DemoKind("workstation", "workstation processor", "Ubuntu 22.04", "x86_64", 24, 128, 16.0, 0.005, "desktop GPU", 24),
)  # fmt: skip
MODELS: Final = {"keyword-spotter": 3.0, "image-classifier": 45.0, "object-detector": 310.0}
"""Made-up milliseconds of one inference on the slowest."""


@dataclass(frozen=True, slots=True)
class DemoNode:
    """One worker of a fleet."""

    name: str
    pretended: str
    """For `join --pretend`."""


def members(count: int) -> list[DemoNode]:
    """So many, one of each kind in turn."""
    demo_nodes = []
    for index in range(count):
        kind, number = KINDS[index % len(KINDS)], index // len(KINDS) + 1
        name = f"sim-{kind.kind}" if number == 1 else f"sim-{kind.kind}-{number}"
        demo_nodes.append(DemoNode(name, json.dumps(kind.pretended(number))))
    return demo_nodes


def script(model: str, *, seed: int = 0) -> dict[str, Any]:
    """The `model` of the simulated unit: other times for each kind of device."""
    cost = MODELS[model]
    return {
        "kinds": {
            kind.kind: _times(kind, cost, random.Random(f"{seed} {model} {kind.kind}")) for kind in KINDS
        }
    }


def _times(kind: DemoKind, cost: float, chance: random.Random) -> dict[str, Any]:
    middle = cost / kind.speed * chance.uniform(0.8, 1.25)
    times = [round(middle * chance.lognormvariate(0.0, kind.noise), 6) for _ in range(RUNS // LOADS)]
    return {"load_ms": round(8 + 2 * middle, 3), "latencies_ms": times}


def write_campaign(folder: Path) -> Path:
    """The fleet's campaign and its models, in `folder`; gives the campaign's file. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{model}.json" for model in MODELS]
    for model, name in zip(MODELS, names, strict=True):
        (folder / name).write_text(json.dumps(script(model)), encoding="utf-8")
    file = folder / "campaign.yaml"
    content = {
        "campaign": "simulated-fleet",
        "models": names,
        "units": ["Fake (Simulation)"],
        "devices": {"spread": "class"},
        "measure": {"runs": RUNS, "loads": LOADS},
    }
    file.write_text(
        "# A simulation: nothing of this is measured.\n" + json.dumps(content, indent=2) + "\n",
        encoding="utf-8",
    )
    return file
