"""The devices of the swarm: their status, their paths, and which tasks of this home they run; observed once, or for many readers."""

from __future__ import annotations

import math
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
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import ShowCredentials
from protocol.values.advert import Advert
from protocol.values.match import Match, match
from protocol.values.requirement import Requirement
from protocol.values.trust import MINE, Trust
from protocol.words import ProtocolId, Right, Role, WorkerState
from results.analysis.sittings import IntervalCoverage
from scheduler.output.coverage import NO_COVERAGE, DeviceCoverage, coverage_of
from scheduler.output.readings import NONE_SHOWN, ShownReading
from scheduler.output.schemas import shown_as
from scheduler.store.rows import TaskRow
from scheduler.trust.book import TrustBook
from scheduler.trust.home import HomeTrust
from scheduler.trust.identities import clashes
from scheduler.trust.search import find_admitted
from scheduler.trust.serving import MAX_ASKED, serving_peers
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.index.index import Index
from swarm.join.ephemeral import GateVisitor, open_ephemeral_node
from swarm.net.identity import load_or_create
from swarm.net.links import Links
from swarm.net.network import Network, Path, gate_name
from swarm.pools.membership import signed_manifests
from swarm.pools.tokens import Grant, issue

MAX_CONCURRENT_PINGS: Final = 32
MAX_DEVICES: Final = 256
INTERVAL_S: Final = 3.0
LINGER_S: Final = 20.0
"""Seconds for which the visitor stays without readers, so that a returning reader sees the swarm at once."""
ASK_S: Final = 60.0
"""Seconds between two questions to an untrusted device whether it serves this home."""
TOKEN_S: Final = 86_400.0
MIN_REST: Final = 3.0
"""Least pause between two observations, as a multiple of an observation's duration: a large swarm is asked less often."""

log = structlog.get_logger("sark.api")


@dataclass(frozen=True, slots=True)
class ObservedDevice:
    """A device of the swarm: its advert, its status, and whether it meets a requirement."""

    advert: Advert
    pong: Pong | None
    error: str
    """Why it did not answer; empty: it did."""
    fit: Match
    path: Path | None = None
    """The path by which it answered."""
    trust: Trust | None = None
    """This home's trust in it; None: not checked."""
    serves: bool = False
    """Whether it is untrusted but allows this home's scheduler."""
    clash: str = ""
    """Why its claim to its device id is not accepted, with both keys; empty: it is accepted."""

    def matched(self, requirement: Requirement) -> ObservedDevice:
        """The same device with its fit for `requirement`."""
        return replace(self, fit=match(requirement, self.advert))


def by_fit(devices: Sequence[ObservedDevice]) -> tuple[ObservedDevice, ...]:
    """Devices that fit first, then by name."""
    return tuple(sorted(devices, key=lambda item: (not item.fit.fits, item.advert.name, item.advert.peer)))


@dataclass(eq=False)
class FleetTrust:
    """Which devices this home trusts, and which others serve it; each is asked at most every `ASK_S`."""

    book: Callable[[], TrustBook]
    token: ShowCredentials
    """A token with which a visitor asks on behalf of the home's scheduler."""
    manifests: Sequence[tuple[str, ManifestMessage | None]] = ()
    _asked: dict[str, float] = field(default_factory=dict)
    _serving: set[str] = field(default_factory=set)

    async def judge(self, network: Network, devices: Iterable[ObservedDevice]) -> tuple[ObservedDevice, ...]:
        """The same devices, with this home's trust in them."""
        book, now = self.book(), trio.current_time()
        seen = tuple(devices)
        clashing = clashes(book, (device.advert for device in seen))
        judged = tuple(
            replace(
                device,
                trust=book.trust_of(device.advert.peer, device.advert.addresses),
                clash=str(clashing.get(device.advert.peer, "")),
            )
            for device in seen
        )
        due = [
            device.advert
            for device in judged
            if device.pong is not None
            and device.trust is not None
            and device.trust.stranger
            and now - self._asked.get(device.advert.peer, -math.inf) >= ASK_S
        ][:MAX_ASKED]
        if due:
            self._serving.difference_update(advert.peer for advert in due)
            self._serving |= await serving_peers(network, due, self.token, self.manifests)
            self._asked.update({advert.peer: now for advert in due})
        return tuple(
            replace(device, serves=device.advert.peer in self._serving)
            if device.trust is not None and device.trust.stranger
            else device
            for device in judged
        )


@dataclass(frozen=True)
class SwarmObserver:
    """A visitor with a key of its own that stays for a while and pings all devices on request."""

    network: Network
    index: Index
    links: Links
    visitor: GateVisitor | None
    trust: FleetTrust | None = None

    async def observe(self) -> tuple[ObservedDevice, ...]:
        """Every device that can be found. Raises `Unreachable` once no gate is connected any more."""
        if not self.network.connected():
            raise Unreachable("no gate answers any more", hint="is it running? sark-node gate status")
        found = {each.advert.peer: each.advert for each in (await self.index.everybody(MAX_DEVICES)).devices}
        if self.trust is not None:  # finds the home's devices among any number of strangers
            mine, _ = await find_admitted(self.index, Requirement(), MAX_DEVICES, MINE, self.trust.book())
            found |= {advert.peer: advert for advert in mine}
        adverts = list(found.values())
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
        if self.trust is None:
            return by_fit(tuple(devices.values()))
        return by_fit(await self.trust.judge(self.network, devices.values()))

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
        # The time of this answer, since a visitor has no other measurement yet.
        return ObservedDevice(advert, pong, "", fit, path and replace(path, rtt_ms=rtt_ms))


OpenObserver = Callable[[], AbstractAsyncContextManager[SwarmObserver]]


@asynccontextmanager
async def open_observer(gates: Sequence[str], *, home: Home | None = None) -> AsyncIterator[SwarmObserver]:
    """Join the swarm for a while, to observe it. `home`: its scheduler's key introduces us to gates and devices, and its trust is added to
    each device. Raises `Unreachable` when no gate answers, `ResourceError` when the home's list of trusted keys is damaged.
    """
    async with open_ephemeral_node(gates) as (network, index, nursery):
        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
        if home is None:
            yield SwarmObserver(network, index, links, None)
            return
        signer = load_or_create(home.key("scheduler"))
        grant = Grant(frozenset({Right.STATUS}), ttl_s=TOKEN_S)
        token = issue(signer, network.peer_id, grant, now=time.time())
        trust = FleetTrust(
            HomeTrust(home).book,
            ShowCredentials(issuer=signer.peer_id, token=token),
            signed_manifests(home, Role.SUBMIT),
        )
        yield SwarmObserver(network, index, links, GateVisitor(network, signer), trust)


async def observe_fleet(
    gates: Sequence[str], requirement: Requirement, *, home: Home | None = None
) -> tuple[ObservedDevice, ...]:
    """Every device that can be found, those that fit first. Arguments and errors as for `open_observer`."""
    async with open_observer(gates, home=home) as observer:
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
    """Observes the swarm for many readers at once, through one visitor that stays while anybody reads. Create one for a server, and keep
    `run` running. `open_observer` raises `SarkError`s.
    """

    open_observer: OpenObserver
    interval_s: float = INTERVAL_S
    linger_s: float = LINGER_S
    wall: Callable[[], float] = time.time
    readers: int = 0
    """Number of current readers."""
    snapshot: FleetSnapshot | None = None
    """The latest snapshot."""
    _last_read: float = 0.0
    _requested: trio.Event = field(default_factory=trio.Event)
    _updated: trio.Event = field(default_factory=trio.Event)
    _number: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count one more reader for the duration of the block."""
        self.readers += 1
        self._requested.set()
        try:
            yield
        finally:
            self.readers -= 1
            self._last_read = trio.current_time()

    async def newer(self, than: int = 0) -> FleetSnapshot:
        """The latest snapshot, once its number is above `than`. Call it inside `watching`."""
        while self.snapshot is None or self.snapshot.number <= than:
            await self._updated.wait()
        return self.snapshot

    async def run(self) -> None:
        """Observe while there are readers, forever."""
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
                self.snapshot = None  # the next reader should not see an old state
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
    """The path over which a device answered."""

    direct: bool
    gate: str | None
    """Peer id of the gate that the connection goes through. Null if the connection is direct, or the gate is not known."""
    rtt_ms: float | None


class DeviceInfo(Advert):
    """A device: its advert and its current state."""

    state: WorkerState | None = None
    """State of the worker. Null if the device did not answer, or does not report its state."""
    running: int | None = None
    queue: int | None = None
    unreachable: str | None = None
    """Why the device did not answer."""
    path: DevicePath | None = None
    fits: bool = True
    unmet: tuple[str, ...] = ()
    """Descriptions of the clauses that the device does not meet."""
    why: str = ""
    """Why the device takes no work, as it reports."""
    trust: str | None = None
    """Why this home trusts the device: own, pool NAME or listed; stranger if it does not. Null if nobody asked."""
    serves: bool = False
    """Whether the device is not trusted but allows this home, so that only `sark-node trust PEER_ID` is missing."""
    clash: str = ""
    """Why the device is not the one that it claims to be, with both keys and the command for another worker of that machine."""
    via: str | None = None
    """Address of the gate through which the device answered, else the last characters of that gate's id. Null if it answered directly."""
    coverage: DeviceCoverage | None = None
    """Coverage of the intervals of the device's results in this home. Null if there are too few of them."""


class DeviceTask(_Part):
    """A task of this home that a device has at the moment."""

    campaign: str
    n: int
    model: str
    unit: str
    phase: Phase | None


class CachedModel(_Part):
    """A model in a device's cache."""

    sha256: str
    name: str | None
    """Name of the model in this home's campaigns."""


class FleetDevice(DeviceInfo):
    """A device with everything that this home knows about it."""

    tasks: tuple[DeviceTask, ...] = ()
    warm: tuple[CachedModel, ...] = ()
    reading: ShownReading | None = None
    """Sensor reading of the device while it runs a task of this home. Null if it runs none, or reports no readings."""


class Fleet(BaseModel):
    """Devices, the matching ones first."""

    count: int
    """Number of devices found."""
    fit: int
    """Number of devices that meet the clauses."""
    explain: str = ""
    """Number of devices left after each clause. Empty if the request has no clauses."""
    peers: tuple[FleetDevice, ...]
    next: str | None = None


def device_info(device: ObservedDevice, held: Mapping[str, IntervalCoverage] = NO_COVERAGE) -> DeviceInfo:
    """`device` for programs. `held`: by `device_identity`."""
    return shown_as(DeviceInfo, device.advert, **_state(device), coverage=device_coverage(device, held))


def device_coverage(device: ObservedDevice, held: Mapping[str, IntervalCoverage]) -> DeviceCoverage | None:
    """Coverage of this device, under its worker's key; None: too few sittings."""
    return coverage_of(f"{device.advert.device} {device.advert.peer}", held)


def coverage_lines(devices: Sequence[ObservedDevice], held: Mapping[str, IntervalCoverage]) -> list[str]:
    """For people: a line for each device with enough sittings, and the target."""
    lines = [
        f"{safe_text(device.advert.name, 40)}: {each.words}"
        for device in devices
        if (each := device_coverage(device, held)) is not None
    ]
    return [*lines, "the target is 95 %; if fewer hold, measure in several sittings"] if lines else []


def fleet_device(
    device: ObservedDevice,
    tasks: Mapping[str, Sequence[DeviceTask]],
    names: Mapping[str, str],
    held: Mapping[str, IntervalCoverage] = NO_COVERAGE,
    readings: Mapping[str, ShownReading] = NONE_SHOWN,
) -> FleetDevice:
    """Like `device_info`, with `tasks` and `readings` by worker, and `names` of models by hash."""
    warm = tuple(CachedModel(sha256=sha256, name=names.get(sha256)) for sha256 in device.advert.models)
    running = tuple(tasks.get(device.advert.peer, ()))
    own = device_coverage(device, held)
    return shown_as(
        FleetDevice,
        device.advert,
        **_state(device),
        tasks=running,
        warm=warm,
        coverage=own,
        reading=readings.get(device.advert.peer),
    )


def device_tasks(rows: Iterable[TaskRow]) -> dict[str, list[DeviceTask]]:
    """Tasks of this home by the worker that has them."""
    tasks: dict[str, list[DeviceTask]] = {}
    for row in rows:
        tasks.setdefault(row.worker or "", []).append(shown_as(DeviceTask, row))
    return tasks


def changed_devices(before: Mapping[str, FleetDevice], now: Iterable[FleetDevice]) -> tuple[FleetDevice, ...]:
    """The devices that changed."""
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
        "trust": device.trust.text if device.trust is not None else None,
        "serves": device.serves,
        "clash": device.clash,
        "via": None if path is None or path.direct else gate_name(path.via, device.advert.addresses),
    }
