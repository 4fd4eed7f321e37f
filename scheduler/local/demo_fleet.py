"""The devices of `sark-node demo --fleet`: none of them is there. Made up so that all views have something varied to show.

Neither they nor their figures stand for any product: the numbers follow from a made-up speed, a made-up cost of each model, and a seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
    found = []
    for index in range(count):
        kind, number = KINDS[index % len(KINDS)], index // len(KINDS) + 1
        name = f"sim-{kind.kind}" if number == 1 else f"sim-{kind.kind}-{number}"
        found.append(DemoNode(name, json.dumps(kind.pretended(number))))
    return found


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
