"""The devices of the swarm for programs and pages: what each says of itself, how it is now, by which way, and what of ours it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from protocol.formats.phase import Phase
from protocol.values.advert import Advert
from protocol.words import WorkerState
from scheduler.output.peers import SeenPeer
from swarm.base.text import safe_text
from swarm.net.paths import gate_name


class UnitOfDevice(BaseModel):
    """By which way a device answered."""

    model_config = ConfigDict(frozen=True)

    direct: bool
    gate: str | None
    """Peer id of the gate that the connection goes through; null where it is direct, or the gate is not known."""
    rtt_ms: float | None


class DeviceInfo(Advert):
    """A device: its advert, and how it is now."""

    state: WorkerState | None = None
    """Null: it did not answer, or says nothing of it."""
    running: int | None = None
    queue: int | None = None
    unreachable: str | None = None
    """Why it did not answer."""
    path: UnitOfDevice | None = None
    fits: bool = True
    unmet: tuple[str, ...] = ()
    """Clauses that it does not meet, each in words."""
    why: str = ""
    """Why it takes no work, as it says."""
    via: str | None = None
    """Where the gate is that it was reached through, else the end of that gate's id; null where it answered directly."""


class DeviceTask(BaseModel):
    """A task of this home that a device has in its hands now."""

    model_config = ConfigDict(frozen=True)

    campaign: str
    n: int
    model: str
    unit: str
    phase: Phase | None


class CachedModel(BaseModel):
    """A model in a device's cache."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    name: str | None
    """As the campaigns of this home call it."""


class FleetDevice(DeviceInfo):
    """A device with what this home knows of it."""

    tasks: tuple[DeviceTask, ...] = ()
    warm: tuple[CachedModel, ...] = ()


class Fleet(BaseModel):
    """Devices, those that fit first."""

    count: int
    """All that were seen."""
    fit: int
    """How many of them meet the clauses."""
    explain: str = ""
    """Clause by clause how many are left, where clauses were asked for."""
    peers: tuple[FleetDevice, ...]
    next: str | None = None


def show_device(seen: SeenPeer) -> DeviceInfo:
    """How it is shown."""
    return DeviceInfo(**_plain(seen))


def show_fleet_device(
    seen: SeenPeer, tasks: Mapping[str, Sequence[DeviceTask]], names: Mapping[str, str]
) -> FleetDevice:
    """The same with `tasks` by worker, and `names` of models by hash."""
    warm = tuple(CachedModel(sha256=one, name=names.get(one)) for one in seen.advert.models)
    return FleetDevice(**_plain(seen), tasks=tuple(tasks.get(seen.advert.peer, ())), warm=warm)


def changed(before: Mapping[str, FleetDevice], now: Iterable[FleetDevice]) -> tuple[FleetDevice, ...]:
    """Those that are not as they were."""
    return tuple(item for item in now if before.get(item.peer) != item)


def _plain(seen: SeenPeer) -> dict[str, Any]:
    pong, path, advert = seen.pong, seen.path, seen.advert
    way = path and UnitOfDevice(
        direct=path.direct, gate=path.via, rtt_ms=None if path.rtt_ms is None else round(path.rtt_ms, 3)
    )
    return {
        **{name: getattr(advert, name) for name in Advert.model_fields},
        "state": pong.state if pong else None,
        "running": pong.running if pong else None,
        "queue": pong.queue if pong else None,
        "unreachable": seen.why_silent or None,
        "path": way or None,
        "fits": seen.verdict.fits,
        "unmet": tuple(str(item) for item in seen.verdict.missing),
        "why": safe_text(pong.why) if pong else "",
        "via": None if path is None or path.direct else gate_name(path.via, advert.addresses),
    }
