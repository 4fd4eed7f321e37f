"""What a worker is made of, put together by the program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from drivers.contract.base import Limits, WorkOrder
from node.device.lock import DeviceLock
from node.device.probe import Profile
from node.run import runner
from node.serve.owner_control import OwnerSenses, Pause
from node.store.cache import ModelCache
from node.store.outbox_files import OutboxFiles
from protocol.messages.pool import PoolManifest
from swarm.download.download import EDGE, Edge
from swarm.net.addresses import PeerId


@dataclass(frozen=True)
class DeviceParts:
    """The device, and how it runs and examines models."""

    profile: Profile
    lock: DeviceLock
    launch: Callable[[WorkOrder, Limits], runner.RunLauncher]
    examine: Callable[[], str]
    """Runs something that is known to work on this device, and says what is wrong; empty: nothing. Blocks."""
    warmup_floor: Callable[[str], int] = lambda unit: runner.FLOOR
    """Fewest warm-up inferences of a unit, as the calibration has it."""
    version: str = ""
    """Of this program."""
    retry_s: float = 60.0
    """A faulty device is examined again so often."""


@dataclass(frozen=True)
class WorkerParts:
    """What a worker is made of; the program puts the parts together, tests put in doubles."""

    device: DeviceParts
    incarnation: int
    owners: Collection[PeerId]
    """This user's own schedulers."""
    cache: ModelCache
    outbox: OutboxFiles
    wall: Callable[[], float]
    """Seconds since the epoch, for retention over restarts."""
    tell: Callable[[str], object] = lambda line: None
    """Takes a line about each run, for the device's owner."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Id → name of the pools it works for."""
    manifests: Collection[PoolManifest] = ()
    """The newest of these pools that are on disk."""
    pause: Pause = field(default_factory=Pause)
    senses: OwnerSenses = field(default_factory=OwnerSenses)
    web: Edge = EDGE
    """Where models that tasks name by URL come from."""
    addresses: Callable[[], Sequence[str]] = tuple
    """Where others reach this node now, best first; empty: where it listens."""
    reach: Callable[[], str] = str
    """How they do, in words; empty: not known."""
    leave: trio.Event = field(default_factory=trio.Event)
    """Set it to make the worker leave in good order: runs are ended and reported, the advert is withdrawn."""
