"""This node's answers about pools: the newest manifest it has of each, and, at a pool's gate, admission.

A manifest proves itself, so holders also store some of pools they are not in. Members find them there when their gate is down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from protocol.messages.index import RefusedMessage
from protocol.messages.pool import (
    MAX_MANIFEST,
    AskManifest,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    NoManifest,
    PoolManifest,
    read_manifest,
)
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.net.addresses import PeerId
from swarm.net.cost import BYTE_US, MANIFEST_BYTE_US, VERIFY_US
from swarm.net.identity import distance, routing_key
from swarm.net.link import Link
from swarm.pools.manifests import verified

MAX_FOREIGN: Final = 64
"""Manifests stored of pools this node is not in. The first dropped is one that was never requested and is farthest from this node's key:
its members look for it elsewhere."""
ENROL_US: Final = 20_000.0
"""Processor time to admit a member, in µs (an estimate): a manifest is read, signed and written."""

log = structlog.get_logger("sark.pools")

Enroller = Callable[[PeerId, EnrolRequest], Awaitable[ManifestMessage | RefusedMessage]]
"""Admits a peer, or refuses it."""
Admit = Callable[[PeerId], RefusedMessage | None]
"""The refusal for a peer that sends a manifest of a pool which this node neither made nor is in; None: store it."""
OnDisk = Callable[[str], Awaitable[bool]]
"""Whether the newest manifest of a pool is on disk, once that is known. Foreign manifests are never written."""


async def _nothing_to_write(pool: str) -> bool:
    return True


def cost_us(message: Message) -> float:
    """The cost of a call, in µs of processor time."""
    match message:
        case ManifestMessage():
            return VERIFY_US + len(message.body) * MANIFEST_BYTE_US
        case AskManifest():
            return MAX_MANIFEST * BYTE_US
        case EnrolRequest():
            return ENROL_US
    return 0.0


@dataclass(eq=False)
class ManifestRegistry:
    """The newest manifest of each pool. `own`: returns the manifest of a pool whose key is here; `on_manifest`: called with each
    newer manifest of a pool this node follows; `me`: this node's peer id."""

    own: Callable[[str], ManifestMessage | None] = lambda pool: None
    on_manifest: Callable[[PoolManifest, ManifestMessage], object] = lambda manifest, signed: None
    me: str = ""

    def __post_init__(self) -> None:
        self._near = routing_key(self.me) if self.me else bytes(32)
        self.followed: set[str] = set()
        """Pools to which this node belongs, or which it serves."""
        self._stored: dict[str, tuple[int, ManifestMessage]] = {}
        self._asked_for: set[str] = set()
        """Foreign pools that somebody requested."""

    def concerns(self, pool: str) -> bool:
        """Whether this node follows that pool, or has its key."""
        return pool in self.followed or self.own(pool) is not None

    def manifest(self, pool: str) -> PoolManifest | None:
        """The newest manifest of a followed pool."""
        latest = self._stored.get(pool) if pool in self.followed else None
        return read_manifest(latest[1].body) if latest is not None else None

    def latest(self, pool: str) -> tuple[int, ManifestMessage] | None:
        """The newest manifest of any pool, with its number."""
        own = self.own(pool)
        return (read_manifest(own.body).number, own) if own is not None else self._stored.get(pool)

    def asked(self, pool: str) -> tuple[int, ManifestMessage] | None:
        """`latest`, for a peer's request, which is recorded."""
        if pool in self._stored:
            self._asked_for.add(pool)
        return self.latest(pool)

    def store(self, signed: ManifestMessage) -> int:
        """Store a manifest if it is newer; return the highest number here. Raises `RemoteProtocolError` for a forged newer one."""
        manifest = read_manifest(signed.body)
        pool = manifest.pool
        number = (self.latest(pool) or (0,))[0]
        if number >= manifest.number:
            return number
        verified(signed)
        if self.own(pool) is not None:  # our key signed a newer one: this home was copied
            log.warning("pool.newer_elsewhere", pool=pool, number=manifest.number)
            return number
        self._stored[pool] = (manifest.number, signed)
        if pool in self.followed:
            log.info("pool.manifest", pool=pool, number=manifest.number, members=len(manifest.members))
            self.on_manifest(manifest, signed)
        else:
            foreign = self._stored.keys() - self.followed
            if len(foreign) > MAX_FOREIGN:
                gone = max(foreign, key=lambda p: (p not in self._asked_for, distance(p, self._near)))
                del self._stored[gone]
                self._asked_for.discard(gone)
        return manifest.number


class PoolServer:
    """Serves `/sark/pool/1`."""

    def __init__(
        self,
        registry: ManifestRegistry,
        enrol: Enroller | None = None,
        admit: Admit = lambda peer: None,
        on_disk: OnDisk = _nothing_to_write,
    ) -> None:
        self._registry = registry
        self._enrol = enrol
        self._admit = admit
        self._on_disk = on_disk
        self.refused: Counter[str] = Counter()
        """Refused calls, by reason."""

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call from a peer."""
        answer = await self._answer(link, message)
        if isinstance(answer, RefusedMessage):
            self.refused[answer.reason] += 1
        return answer

    async def _answer(self, link: Link, message: Message) -> Message:
        match message:
            case AskManifest():
                latest = self._registry.asked(message.pool)
                return latest[1] if latest is not None and latest[0] > message.have else NoManifest()
            case ManifestMessage():
                pool = read_manifest(message.body).pool
                refusal = None if self._registry.concerns(pool) else self._admit(link.peer)
                if refusal is not None:
                    return refusal
                number = self._registry.store(message)
                if not await self._on_disk(pool):
                    return RefusedMessage(
                        reason=Reason.DISK_FULL,
                        detail="the manifest is in force here, but not on disk yet: send it again",
                    )
                return ManifestStored(number=number)
            case EnrolRequest() if self._enrol is not None:
                return await self._enrol(link.peer, message)
        return RefusedMessage(reason=Reason.UNKNOWN, detail="this node admits nobody to a pool")
