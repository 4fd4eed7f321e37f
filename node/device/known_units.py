"""The units found to work here, stored so that a measurement need not first start every runtime.

    units = known_units(cache / "units.json", state_of(gpus, boot_environment), look)

They are valid until something changes on which they depend: packages, drivers' code, Python, GPUs, system, boot, and the environment that
drivers get.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import UnitInfo
from drivers.contract.boot import clean_environment
from drivers.launch.launch import ProbedUnits
from node.device.gpu_units import DeviceGpus
from protocol.errors import ResourceError
from swarm.base.durable import write_durably

PACKAGES: Final = (".dist-info", ".egg-info", ".pth")
MAX_FILE: Final = 64 * 1024


def state_of(gpus: DeviceGpus, environ: Mapping[str, str] = os.environ) -> str:
    """The sha256 of everything that decides which units work."""
    folder = Path(__file__).parents[2] / "drivers"
    what: list[Any] = [
        *(sys.version, sys.prefix, platform.platform(), _boot(), repr(gpus), sorted(clean_environment(environ).items())),
        [_times(Path(place), PACKAGES) for place in sys.path],
        [_times(each, (".py",)) for each in (folder, *folder.iterdir()) if each.is_dir()],
    ]  # fmt: skip
    return hashlib.sha256(repr(what).encode()).hexdigest()


def known_units(file: Path, state: str, look: Callable[[], ProbedUnits]) -> ProbedUnits:
    """The units that `file` stores for this `state`, else the units that `look` finds, which are stored if `sure` is set."""
    kept = _read(file, state)
    if kept is not None:
        return kept
    found = look()
    if found.sure:
        units = [asdict(unit) for unit in found.units]
        content = {"state": state, "units": units, "troubles": list(found.troubles)}
        with contextlib.suppress(ResourceError):  # the next measurement probes again
            write_durably(file, json.dumps(content).encode())
    return found


def _read(file: Path, state: str) -> ProbedUnits | None:
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(MAX_FILE))
        if content["state"] != state:
            return None
        return ProbedUnits(
            tuple(UnitInfo(**{**unit, "formats": tuple(unit["formats"])}) for unit in content["units"]),
            tuple(map(str, content["troubles"])),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _times(folder: Path, endings: tuple[str, ...]) -> list[tuple[str, int]]:
    """Names and times of the files in `folder` with these endings."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name.endswith(endings)
            )
    except OSError:
        return []


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        return ""
