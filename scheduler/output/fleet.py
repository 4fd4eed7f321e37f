"""The devices of the swarm: how each is now, by which path, and what of this home it runs; observed once, or for many readers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog
import trio
from pydantic import BaseModel, ConfigDict

from protocol.errors import SarkError, Unreachable, first_error
from protocol.formats.phase import Phase
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.values.advert import Advert
from protocol.values.match import Match, match
from protocol.values.requirement import Requirement
from protocol.words import ProtocolId, WorkerState
from scheduler.output.schemas import shown_as
from scheduler.store.rows import TaskRow
from swarm.base.text import safe_text
from swarm.index.index import Index
from swarm.join.ephemeral import GateVisitor, open_ephemeral_node
from swarm.net.identity import Identity
from swarm.net.link import Links
from swarm.net.network import Network, Path, gate_name

MAX_CONCURRENT_PINGS: Final = 32
MAX_DEVICES: Final = 256
INTERVAL_S: Final = 3.0
LINGER_S: Final = 20.0
"""How long the visitor stays without readers: whoever comes back sees the swarm at once."""
MIN_REST: Final = 3.0
"""Least wait between two observations, as a multiple of how long one takes: a large swarm is asked less often."""

log = structlog.get_logger("sark.api")


@dataclass(frozen=True, slots=True)
class ObservedDevice:
    """A device of the swarm: what it says, how it is now, whether it meets a requirement."""

    advert: Advert
    pong: Pong | None
    error: str
    """Why it did not answer."""
    fit: Match
    path: Path | None = None
    """By which path it answered."""

    def matched(self, requirement: Requirement) -> ObservedDevice:
        """The same device with its fit for `requirement`."""
        return replace(self, fit=match(requirement, self.advert))


def by_fit(devices: Sequence[ObservedDevice]) -> tuple[ObservedDevice, ...]:
    """Those that fit first, then by name."""
    return tuple(sorted(devices, key=lambda item: (not item.fit.fits, item.advert.name, item.advert.peer)))


@dataclass(frozen=True)
class SwarmObserver:
    """A visitor with a key of its own that stays for a while and pings all devices as often as it is asked."""

    network: Network
    index: Index
    links: Links
    visitor: GateVisitor | None

    async def observe(self) -> tuple[ObservedDevice, ...]:
        """Every device that can be found. Raises `Unreachable` once no gate is connected any more."""
        if not self.network.connected():
            raise Unreachable("no gate answers any more", hint="is it running? sark-node gate status")
        adverts = [sighting.advert for sighting in (await self.index.everybody(MAX_DEVICES)).devices]
        if self.visitor is not None:
            await self.visitor.announce(address for advert in adverts for address in advert.addresses)
        slots = trio.CapacityLimiter(MAX_CONCURRENT_PINGS)
        devices: dict[str, ObservedDevice] = {}

        async def ping(advert: Advert) -> None:
            async with slots:
                devices[advert.peer] = await self._ping(advert)

        async with trio.open_nursery() as nursery:
            for advert in adverts:
                nursery.start_soon(ping, advert)
        return by_fit(tuple(devices.values()))

    async def _ping(self, advert: Advert) -> ObservedDevice:
        fit = match(Requirement(), advert)
        try:
            link = await self.links.get(advert.peer, advert.addresses, max_wait_s=3.0)
            began = trio.current_time()
            pong = await link.ask(Ping(), Pong, max_wait_s=3.0)
        except SarkError as exc:
            return ObservedDevice(advert, None, exc.what, fit)
        rtt_ms = (trio.current_time() - began) * 1000
        path = self.network.path(advert.peer)
        # the time of this very answer: a visitor has no other yet
        return ObservedDevice(advert, pong, "", fit, path and replace(path, rtt_ms=rtt_ms))


OpenObserver = Callable[[], AbstractAsyncContextManager[SwarmObserver]]


@asynccontextmanager
async def open_observer(
    gates: Sequence[str], *, signer: Identity | None = None
) -> AsyncIterator[SwarmObserver]:
    """In the swarm for a while, to observe it. `signer`: shows us to the gates on the way. Raises `Unreachable` when no gate answers."""
    async with open_ephemeral_node(gates) as (network, index, nursery):
        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
        yield SwarmObserver(network, index, links, None if signer is None else GateVisitor(network, signer))


async def observe_fleet(
    gates: Sequence[str], requirement: Requirement, *, signer: Identity | None = None
) -> tuple[ObservedDevice, ...]:
    """Every device that can be found, those that fit first. Arguments and errors as of `open_observer`."""
    async with open_observer(gates, signer=signer) as observer:
        return by_fit([device.matched(requirement) for device in await observer.observe()])


# -- watching for many readers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One observation of the fleet, or why there is none."""

    number: int
    """From 1, rising."""
    at: float
    """Wall seconds since 1970."""
    devices: tuple[ObservedDevice, ...]
    error: SarkError | None = None


@dataclass(slots=True)
class FleetWatcher:
    """Observes the swarm for many readers at once, through one visitor that stays while anybody reads. One for a server; `run` must be
    running. `open_observer` raises SarkErrors.
    """

    open_observer: OpenObserver
    interval_s: float = INTERVAL_S
    linger_s: float = LINGER_S
    wall: Callable[[], float] = time.time
    readers: int = 0
    """How many read now."""
    snapshot: FleetSnapshot | None = None
    """The latest one."""
    _last_read: float = 0.0
    _requested: trio.Event = field(default_factory=trio.Event)
    _updated: trio.Event = field(default_factory=trio.Event)
    _number: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """There is one reader more for as long as the block lasts."""
        self.readers += 1
        self._requested.set()
        try:
            yield
        finally:
            self.readers -= 1
            self._last_read = trio.current_time()

    async def newer(self, than: int = 0) -> FleetSnapshot:
        """The latest snapshot, once there is one with a higher number. To be called while watching."""
        while self.snapshot is None or self.snapshot.number <= than:
            await self._updated.wait()
        return self.snapshot

    async def run(self) -> None:
        """Observe while there are readers, for ever."""
        while True:
            await self._requested.wait()
            error: SarkError | None = None
            try:
                await self._observe()
            except* SarkError as group:
                error = first_error(group)
            if error is not None:
                log.info("fleet.unreachable", why=error.what)
                self._publish((), error)
                await trio.sleep(self.interval_s)
            if not self._has_readers():
                self.snapshot = None  # the next reader shall not see what was long ago
                self._requested = trio.Event()

    async def _observe(self) -> None:
        async with self.open_observer() as observer:
            while self._has_readers():
                began = trio.current_time()
                self._publish(await observer.observe())
                took_s = trio.current_time() - began
                await trio.sleep(max(self.interval_s, MIN_REST * took_s))

    def _has_readers(self) -> bool:
        return self.readers > 0 or trio.current_time() - self._last_read < self.linger_s

    def _publish(self, devices: tuple[ObservedDevice, ...], error: SarkError | None = None) -> None:
        self._number += 1
        self.snapshot = FleetSnapshot(self._number, self.wall(), devices, error)
        self._updated.set()
        self._updated = trio.Event()


# -- for programs and pages --------------------------------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class DevicePath(_Part):
    """By which path a device answered."""

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
    path: DevicePath | None = None
    fits: bool = True
    unmet: tuple[str, ...] = ()
    """Clauses that it does not meet, each in words."""
    why: str = ""
    """Why it takes no work, as it says."""
    via: str | None = None
    """Where the gate is that it was reached through, else the end of that gate's id; null where it answered directly."""


class DeviceTask(_Part):
    """A task of this home that a device has now."""

    campaign: str
    n: int
    model: str
    unit: str
    phase: Phase | None


class CachedModel(_Part):
    """A model in a device's cache."""

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
    """All that were found."""
    fit: int
    """How many of them meet the clauses."""
    explain: str = ""
    """Clause by clause how many are left, where clauses were asked for."""
    peers: tuple[FleetDevice, ...]
    next: str | None = None


def device_info(device: ObservedDevice) -> DeviceInfo:
    """`device` for programs."""
    return shown_as(DeviceInfo, device.advert, **_state(device))


def fleet_device(
    device: ObservedDevice, tasks: Mapping[str, Sequence[DeviceTask]], names: Mapping[str, str]
) -> FleetDevice:
    """The same with `tasks` by worker, and `names` of models by hash."""
    warm = tuple(CachedModel(sha256=sha256, name=names.get(sha256)) for sha256 in device.advert.models)
    running = tuple(tasks.get(device.advert.peer, ()))
    return shown_as(FleetDevice, device.advert, **_state(device), tasks=running, warm=warm)


def device_tasks(rows: Iterable[TaskRow]) -> dict[str, list[DeviceTask]]:
    """Tasks of this home by the worker that has them."""
    tasks: dict[str, list[DeviceTask]] = {}
    for row in rows:
        tasks.setdefault(row.worker or "", []).append(shown_as(DeviceTask, row))
    return tasks


def changed_devices(before: Mapping[str, FleetDevice], now: Iterable[FleetDevice]) -> tuple[FleetDevice, ...]:
    """Those that are not as they were."""
    return tuple(device for device in now if before.get(device.peer) != device)


def _state(device: ObservedDevice) -> dict[str, Any]:
    pong, path = device.pong, device.path
    rtt_ms = None if path is None or path.rtt_ms is None else round(path.rtt_ms, 3)
    return {
        "state": pong.state if pong else None,
        "running": pong.running if pong else None,
        "queue": pong.queue if pong else None,
        "unreachable": device.error or None,
        "path": path and DevicePath(direct=path.direct, gate=path.via, rtt_ms=rtt_ms),
        "fits": device.fit.fits,
        "unmet": tuple(map(str, device.fit.missing)),
        "why": safe_text(pong.why) if pong else "",
        "via": None if path is None or path.direct else gate_name(path.via, device.advert.addresses),
    }
