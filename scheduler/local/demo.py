"""`sark-node demo`: a whole swarm on this machine: a gate, workers and a scheduler, each a process with a key of its own.

They are started by the command line, as a user would, and all end with the demo, however it ends.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from protocol.errors import ResourceError
from protocol.words import Role
from scheduler.output.live_matrix import LiveMatrix
from scheduler.output.tables import finish, show_matrix
from scheduler.output.watch import watch
from scheduler.store.store import open_store
from scheduler.submit.submit import submit_campaign
from scheduler.trust.pinned import bind_keys, claim_device
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.process import own_command
from swarm.base.text import count
from swarm.base.units import show_elapsed
from swarm.join.known_gates import local_gates
from swarm.net.identity import load_or_create
from swarm.pools.enrolment import invite_peer
from swarm.pools.home_pool import home_pool
from swarm.pools.owner import MemberTerms
from swarm.pools.tickets import write_ticket

MODELS_FROM: Final = ("magika", "onnx")
"""Packages that carry the quickstart's models."""
START_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0


class DemoNode(NamedTuple):
    """One worker. `pretended`: for `join --pretend`; empty: it is this device."""

    name: str
    pretended: str = ""

    @property
    def device(self) -> str | None:
        """The id of the device that it pretends to be."""
        return str(json.loads(self.pretended)["device"]) if self.pretended else None


@dataclass
class Swarm:
    """The demo's processes and their homes, in `folder`."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def home(self, name: str) -> Home:
        """The home of one of the processes."""
        return Home.at(self.folder / name)

    def output(self, name: str) -> Path:
        """The file with the output of the process `name`."""
        return self.folder / name / "output.log"

    def start(self, name: str, *arguments: str) -> None:
        """Start `sark-node --home …/name ARGUMENTS`; the process ends when our end of its stdin closes."""
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        command = [
            *own_command(),
            "--log-level",
            "info",
            "--home",
            str(home),
            *arguments,
            "--stop-with-stdin",
        ]
        with self.output(name).open("ab") as out:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=home,
                env={**os.environ, "SARK_LAN": "false"},  # a swarm of this machine alone
            )  # fmt: skip

    def check(self) -> None:
        """Raise `ResourceError`, with a process's last output, if the process has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                words = self.output(name).read_text(errors="replace").strip().splitlines()[-3:]
                raise ResourceError(
                    f"the demo's {name} ended: {' / '.join(words)}",
                    hint=f"all of its output: {self.output(name)}",
                )

    def wait(self, condition: Callable[[], bool], what: str, within: float = START_WITHIN_S) -> None:
        """Wait until `condition` holds. Raises `ResourceError` with `what` when it takes too long."""
        deadline = time.monotonic() + within
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ResourceError(f"{what} within {within:g} s", hint=f"see the logs in {self.folder}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End every process; kill those that do not exit in time. Another Ctrl-C does not interrupt this."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
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
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def demo_swarm(
    folder: Path, nodes: Sequence[DemoNode], say: Callable[[str], None]
) -> Iterator[tuple[Swarm, Home]]:
    """A gate, workers and the home of a scheduler, whose pool the workers join. Everything ends with the context."""
    swarm = Swarm(folder.absolute())
    home, gate_home = swarm.home("scheduler"), swarm.home("gate")
    listen = ("--listen", "/ip4/127.0.0.1/tcp/0")
    try:
        say("starting a gate …")
        gate_home.gate_file.unlink(missing_ok=True)
        swarm.start("gate", "gate", *listen)
        swarm.wait(lambda: bool(local_gates(gate_home)), "the gate did not start")
        (gate,) = local_gates(gate_home)
        noun = "simulated worker" if any(node.pretended for node in nodes) else "worker"
        say(f"starting {count(len(nodes), noun)}, each with its own key and folder …")
        pool, terms = home_pool(home, time.time()), MemberTerms(role=Role.WORKER)
        for node in nodes:
            worker = load_or_create(swarm.home(node.name).key("worker")).peer_id
            ticket = invite_peer(
                pool, (gate,), terms, worker, now=time.time(), name=node.name, device=node.device
            )
            pretend = ("--pretend", node.pretended) if node.pretended else ()
            swarm.start(
                node.name, "join", write_ticket(ticket), "--gate", gate, "--name", node.name, *pretend,
                "--on-battery", "--no-calibrate", *listen,
            )  # fmt: skip
        swarm.start("scheduler", "schedule", "--gate", gate, "--stay")
        yield swarm, home
    finally:
        swarm.stop()


def _await_fleet(swarm: Swarm, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Wait until a search finds each of these workers: the campaign is planned on the workers found."""
    within, found = START_WITHIN_S * max(2, len(names)), dict[str, str]()

    def up() -> bool:
        return all("worker now" in swarm.output(name).read_text(errors="replace") for name in names)

    def all_found() -> bool:
        found.update(_find_workers(swarm, within))
        return len(found) >= len(names)

    swarm.wait(up, "the workers did not start", within)
    with contextlib.suppress(
        ResourceError
    ):  # a very busy machine: the demo continues with those that are found
        swarm.wait(all_found, "not all workers were found", within)
    swarm.check()
    _bind_workers(swarm.home("scheduler"), found)
    if len(found) < len(names):
        say(
            f"only {len(found)} of {len(names)} were found on this busy machine: the campaign uses only those"
        )


def _bind_workers(home: Home, found: Mapping[str, str]) -> None:
    """Does the work of `trust --same-device-as`, since all workers that claim one device run on this machine. `found`: device ids by peer
    id.
    """
    first: dict[str, str] = {}
    for peer, device in sorted(found.items()):
        if first.setdefault(device, peer) == peer:
            claim_device(home, peer, device)
        else:
            bind_keys(home, peer, first[device])


def _find_workers(swarm: Swarm, within: float) -> dict[str, str]:
    """The workers that `peers` finds, each with its device id."""
    (gate,) = local_gates(swarm.home("gate"))
    home = str(swarm.folder / "scheduler")
    command = [*own_command(), "--home", home, "peers", "--json", "--gate", gate]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=within
        )
        return {peer["peer"]: peer["device"] for peer in json.loads(done.stdout)["peers"]}
    except (subprocess.TimeoutExpired, ValueError):
        return {}


def need_packages(names: Sequence[str], find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Raises `ResourceError`, with the command that installs them, if packages are missing."""
    missing = [name for name in names if find(name) is None]
    if missing:
        raise ResourceError(
            f"the demo's models come with Python packages that are not installed here: {', '.join(missing)}",
            hint=f"{sys.executable} -m pip install {' '.join(missing)}",
        )


def run_demo(folder: Path, workers: int, console: Console, *, fleet: int = 0) -> int:
    """Run the whole demo; returns the exit code of its campaign. None of its processes is left when this returns or raises. `fleet`: this
    many simulated devices of all kinds in place of the workers, in a folder of their own.
    """
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{show_elapsed(time.monotonic() - began):>5}  {text}", highlight=False, soft_wrap=True)

    try:
        if fleet:
            folder = folder / "simulation"
            file = write_campaign(folder)
            say("a simulation: these devices do not exist, and none of their figures is measured")
        else:
            file = quickstart_file()
            need_packages(MODELS_FROM)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ResourceError(
            f"cannot use {folder}: {exc.strerror}", hint="name another: --directory"
        ) from None
    try:
        nodes = members(fleet) or [DemoNode(f"worker-{number}") for number in range(1, workers + 1)]
        with lock_folder(folder / "demo"), demo_swarm(folder, nodes, say) as (swarm, home):
            _await_fleet(swarm, [node.name for node in nodes], say)
            say(f"submitting {file} …")
            campaign_id = submit_campaign(home, file, wait_s=60.0)
            with open_store(home) as store:
                names = {
                    load_or_create(swarm.home(node.name).key("worker")).peer_id: node.name for node in nodes
                }
                campaign = watch(
                    store,
                    campaign_id,
                    console,
                    keep_alive=swarm.check,
                    hint="q or Ctrl-C stops the demo",
                    draw=LiveMatrix(store, campaign_id, names),
                )
                csv, raw = folder.absolute() / "results.csv", folder.absolute()
                code = finish(store, campaign, console, csv=csv, raw=raw, as_json=False, show=show_matrix)
            say("stopping everything …")
    except KeyboardInterrupt:
        console.print("\ninterrupted; everything of the demo has been stopped", highlight=False)
        return 130
    say("done; nothing of the demo is running any more")
    return code


def quickstart_file() -> Path:
    """The quickstart's campaign: next to this module in an installed package, in `examples/` of a checkout."""
    folder = Path(__file__).absolute().parent
    for place in (
        folder / "quickstart.yaml",
        folder.parents[1] / "examples" / "quickstart" / "campaign.yaml",
    ):
        if place.is_file():
            return place
    raise ResourceError("the quickstart's campaign file is missing", hint="install sark-node again")


GIB: Final = 1024**3
RUNS: Final = 60
LOADS: Final = 6


@dataclass(frozen=True, slots=True)
class DemoKind:
    """A kind of device. `speed`: how many times as fast as the slowest; `noise`: spread of its times, as a share."""

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
        """What a worker pretends to be, as JSON values; see `node.device.simulated`. `number`: among the devices of this kind."""
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
"""Invented milliseconds of one inference on the slowest kind."""


def members(count: int) -> list[DemoNode]:
    """`count` simulated devices, one of each kind in turn."""
    nodes = []
    for index in range(count):
        kind, number = KINDS[index % len(KINDS)], index // len(KINDS) + 1
        name = f"sim-{kind.kind}" if number == 1 else f"sim-{kind.kind}-{number}"
        nodes.append(DemoNode(name, json.dumps(kind.pretended(number))))
    return nodes


def script(model: str) -> dict[str, Any]:
    """The `model` of the simulated unit, with different times for each kind of device."""

    def times(kind: DemoKind) -> dict[str, Any]:
        chance = random.Random(f"0 {model} {kind.kind}")
        middle = MODELS[model] / kind.speed * chance.uniform(0.8, 1.25)
        latencies = [round(middle * chance.lognormvariate(0.0, kind.noise), 6) for _ in range(RUNS // LOADS)]
        return {"load_ms": round(8 + 2 * middle, 3), "latencies_ms": latencies}

    return {"kinds": {kind.kind: times(kind) for kind in KINDS}}


def write_campaign(folder: Path) -> Path:
    """Write the fleet's campaign and its models to `folder`; returns the campaign's file. Raises `OSError`."""
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
