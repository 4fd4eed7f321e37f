"""Looking around: who is in the swarm and how are they. A passing visitor with a key of its own, seen by nobody's index."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
import trio
from pydantic import BaseModel, ConfigDict

from protocol.errors import SarkError, Unreachable
from protocol.formats.phase import Phase
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.values.advert import Advert
from protocol.values.match import Match, match
from protocol.values.requirement import Requirement
from protocol.words import ProtocolId, WorkerState
from swarm.base.text import safe_text
from swarm.index.index import Index
from swarm.join.ephemeral import Visitor, inside
from swarm.net.identity import Identity
from swarm.net.link import Links
from swarm.net.network import Network, Path
from swarm.net.paths import gate_name

MAX_ASKED_AT_ONCE: Final = 32
MAX_SEEN: Final = 256
"""Devices that are looked at."""


@dataclass(frozen=True, slots=True)
class SeenPeer:
    """A device of the swarm: what it says, how it is now, whether it fits what was asked for."""

    advert: Advert
    pong: Pong | None
    why_silent: str
    verdict: Match
    path: Path | None = None
    """By which way it answered."""

    def held_against(self, requirement: Requirement) -> SeenPeer:
        """The same device with another question."""
        return replace(self, verdict=match(requirement, self.advert))


def by_fit(seen: Sequence[SeenPeer]) -> tuple[SeenPeer, ...]:
    """Those that fit first, then by name."""
    return tuple(sorted(seen, key=lambda item: (not item.verdict.fits, item.advert.name, item.advert.peer)))


class SwarmObserver:
    """A visitor that stays for a while and looks around as often as it is asked."""

    def __init__(self, network: Network, index: Index, links: Links, visitor: Visitor | None) -> None:
        self._network = network
        self._index = index
        self._links = links
        self._visitor = visitor

    async def look(self, limit: int = MAX_SEEN) -> tuple[SeenPeer, ...]:
        """Every device that can be found, nothing asked of it yet. Raises `Unreachable` once nobody is connected any more."""
        if not self._network.connected():
            raise Unreachable("no gate answers any more", hint="is it running? sark-node gate status")
        found = (await self._index.everybody(limit)).found
        if self._visitor is not None:
            await self._visitor.announce(a for sighting in found for a in sighting.advert.addresses)
        slots = trio.CapacityLimiter(MAX_ASKED_AT_ONCE)
        seen: dict[str, SeenPeer] = {}

        async def ask(advert: Advert) -> None:
            async with slots:
                seen[advert.peer] = await self._ask(advert)

        async with trio.open_nursery() as asking:
            for sighting in found:
                asking.start_soon(ask, sighting.advert)
        return by_fit(tuple(seen.values()))

    async def _ask(self, advert: Advert) -> SeenPeer:
        nothing = match(Requirement(), advert)
        try:
            link = await self._links.get(advert.peer, advert.addresses, max_wait_s=3.0)
            began = trio.current_time()
            pong = await link.ask(Ping(), Pong, max_wait_s=3.0)
        except SarkError as exc:
            return SeenPeer(advert, None, exc.what, nothing)
        took_ms = (trio.current_time() - began) * 1000
        path = self._network.path(advert.peer)
        # the time of this very answer: a visitor has no other yet
        return SeenPeer(advert, pong, "", nothing, path and replace(path, rtt_ms=took_ms))


Opening = Callable[[], AbstractAsyncContextManager[SwarmObserver]]


@asynccontextmanager
async def eyes_open(gates: Sequence[str], *, signer: Identity | None = None) -> AsyncIterator[SwarmObserver]:
    """In the swarm for a while, to look around. `signer`: vouches for us at gates on the way. Raises `Unreachable`."""
    async with inside(gates) as (network, index, nursery):
        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
        yield SwarmObserver(network, index, links, None if signer is None else Visitor(network, signer))


async def look_around(
    gates: Sequence[str], requirement: Requirement, limit: int = MAX_SEEN, *, signer: Identity | None = None
) -> tuple[SeenPeer, ...]:
    """Every device that can be found, those that fit first. `signer`: vouches for us at gates on the way.

    Raises `Unreachable` when no gate answers.
    """
    async with eyes_open(gates, signer=signer) as eyes:
        seen = await eyes.look(limit)
    return by_fit([item.held_against(requirement) for item in seen])


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


EVERY_S: Final = 3.0
LINGER_S: Final = 20.0
"""So long the visitor stays when nobody looks any more: whoever comes back sees the swarm at once."""
REST: Final = 3.0
"""Looking takes no more than a part of the time: a large swarm is asked less often."""

log = structlog.get_logger("sark.api")


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What was seen in one look, or why nothing could be seen."""

    number: int
    """From 1, rising."""
    at: float
    """Wall seconds since 1970."""
    seen: tuple[SeenPeer, ...]
    error: SarkError | None = None


class FleetWatcher:
    """One for a server. `run` must be running; `opening` opens the eyes and raises SarkErrors."""

    def __init__(
        self,
        opening: Opening,
        *,
        every_s: float = EVERY_S,
        linger_s: float = LINGER_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._opening = opening
        self._every_s = every_s
        self._linger_s = linger_s
        self._wall = wall
        self._looking = 0
        self._left_at = 0.0
        self._came = trio.Event()
        self._shown = trio.Event()
        self._number = 0
        self._picture: FleetSnapshot | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks for as long as the block lasts."""
        self._looking += 1
        self._came.set()
        try:
            yield
        finally:
            self._looking -= 1
            self._left_at = trio.current_time()

    @property
    def readers(self) -> int:
        """How many look now."""
        return self._looking

    async def newer(self, than: int = 0) -> FleetSnapshot:
        """The latest picture, once there is one with a higher number. To be called while watching."""
        while self._picture is None or self._picture.number <= than:
            await self._shown.wait()
        return self._picture

    async def run(self) -> None:
        """Look around for as long as somebody wants it, again and again, for ever."""
        while True:
            await self._came.wait()
            error: SarkError | None = None
            try:
                await self._keep_looking()
            except* SarkError as group:
                error = _first(group)
            if error is not None:
                log.info("lookout.blind", why=error.what)
                self._show((), error)
                await trio.sleep(self._every_s)
            if not self._wanted():
                self._picture = None  # what comes next shall not be what was long ago
                self._came = trio.Event()

    async def _keep_looking(self) -> None:
        async with self._opening() as eyes:
            while self._wanted():
                began = trio.current_time()
                self._show(await eyes.look())
                took_s = trio.current_time() - began
                await trio.sleep(max(self._every_s, REST * took_s))

    def _wanted(self) -> bool:
        return self._looking > 0 or trio.current_time() - self._left_at < self._linger_s

    def _show(self, seen: tuple[SeenPeer, ...], error: SarkError | None = None) -> None:
        self._number += 1
        self._picture = FleetSnapshot(self._number, self._wall(), seen, error)
        self._shown.set()
        self._shown = trio.Event()


def _first(group: BaseExceptionGroup[SarkError]) -> SarkError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
