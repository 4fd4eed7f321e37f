"""What a worker is made of, put together by the program, and what it needs of the index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from drivers.contract.base import Limits, WorkOrder
from node.device.lock import DeviceLock
from node.device.probe import Profile
from node.run import runner
from node.serve.owner_control import OwnerSenses, Pause
from node.store.cache import ModelCache
from node.store.outbox_files import OutboxFiles
from protocol.messages.pool import PoolManifest
from protocol.values.advert import Advert
from swarm.download.download import EDGE, Edge
from swarm.net.addresses import PeerId


class AdvertIndex(Protocol):
    """What the worker needs of `swarm.index.Index`."""

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int: ...

    async def withdraw(self) -> int: ...


@dataclass(frozen=True)
class WorkerParts:
    """What a worker is made of; the program puts them together, tests put in doubles."""

    profile: Profile
    incarnation: int
    owners: Collection[PeerId]
    """This user's own schedulers."""
    cache: ModelCache
    outbox: OutboxFiles
    lock: DeviceLock
    launch: Callable[[WorkOrder, Limits], runner.RunLauncher]
    examine: Callable[[], str]
    """Runs something that is known to work on this device, and says what is wrong; empty: nothing. Blocks."""
    wall: Callable[[], float]
    """Seconds since the epoch, for retention over restarts."""
    warmup_floor: Callable[[str], int] = lambda unit: runner.FLOOR
    """Fewest warm-up inferences of a unit, as found when this device was enrolled."""
    tell: Callable[[str], object] = lambda line: None
    """Where a line goes about each run, for the device's owner."""
    version: str = ""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Id → name of the pools it works for."""
    manifests: Collection[PoolManifest] = ()
    """The newest of these pools that are on disk."""
    pause: Pause = field(default_factory=Pause)
    senses: OwnerSenses = field(default_factory=OwnerSenses)
    examine_again_s: float = 60.0
    """A device that was found not to work is examined again so often."""
    web: Edge = EDGE
    """Where models that tasks name by URL come from."""
    addresses: Callable[[], Sequence[str]] = tuple
    """Where others reach this node now, best first; empty: where it listens."""
    reach: Callable[[], str] = str
    """How they do, in words; empty: not known."""
    leave: trio.Event = field(default_factory=trio.Event)
    """Set it to make the worker leave in good order: runs are ended and reported, the advert is withdrawn."""
