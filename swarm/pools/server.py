"""What this node answers when others speak of pools: the newest manifest it has of each, and, at a pool's gate, letting in.

A manifest proves itself, so any holder keeps some of pools it is not in: their members find them there when their gate is down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import (
    POOL,
    AskManifest,
    Enrolled,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    NoManifest,
    PoolManifest,
    SpreadManifest,
)
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.index.server import TokenBuckets
from swarm.net.addresses import PeerId
from swarm.net.identity import distance, routing_key
from swarm.net.link import Link, serve_links
from swarm.net.network import Network
from swarm.pools.manifests import verified

MAX_FOREIGN: Final = 64
"""Manifests kept of pools this node is not in. The one that goes first was never asked for, and is farthest from this node's key:
its members look for it elsewhere."""
LATEST_PER_S: Final = 10.0
SPREAD_PER_S: Final = 2.0
ENROL_PER_S: Final = 1.0
"""Of each peer, on average; bursts up to twice that."""

log = structlog.get_logger("sark.pools")

Enroller = Callable[[PeerId, EnrolRequest], Awaitable[Enrolled | RefusedMessage]]
"""Lets a peer in, or not."""
Admit = Callable[[PeerId], RefusedMessage | None]
"""The answer for a peer that brings a manifest of a pool which this node neither made nor is in; None: it is kept."""


class ManifestShelf:
    """The newest manifest at hand of each pool. `own` gives that of a pool whose key is here; `news` hears of each newer one of
    a pool this node is in, and keeps it. `me`: this node's peer id."""

    def __init__(
        self,
        own: Callable[[str], ManifestMessage | None] = lambda pool: None,
        news: Callable[[PoolManifest, ManifestMessage], object] = lambda manifest, signed: None,
        me: str = "",
    ) -> None:
        self._near = routing_key(me) if me else bytes(32)
        self._own = own
        self._news = news
        self._mine: dict[str, tuple[PoolManifest, ManifestMessage] | None] = {}
        self._foreign: dict[str, tuple[int, ManifestMessage]] = {}
        self._asked: set[str] = set()
        """Those of the foreign ones that somebody asked for."""

    def follow(self, pools: Iterable[str]) -> None:
        """The pools this node is in, from now on."""
        for pool in pools:
            self._mine.setdefault(pool, None)

    @property
    def followed(self) -> tuple[str, ...]:
        """The pools this node is in."""
        return tuple(self._mine)

    def concerns(self, pool: str) -> bool:
        """Whether this node is in that pool, or has its key."""
        return pool in self._mine or self._own(pool) is not None

    def manifest(self, pool: str) -> PoolManifest | None:
        """The newest one of a pool this node is in."""
        known = self._mine.get(pool)
        return known[0] if known is not None else None

    def latest(self, pool: str) -> tuple[int, ManifestMessage] | None:
        """The newest one of any pool, with its number."""
        own = self._own(pool)
        if own is not None:
            return verified(own.body, own.signature).number, own
        known = self._mine.get(pool)
        if known is not None:
            return known[0].number, known[1]
        return self._foreign.get(pool)

    def asked(self, pool: str) -> tuple[int, ManifestMessage] | None:
        """The newest one, for somebody who asks."""
        if pool in self._foreign:
            self._asked.add(pool)
        return self.latest(pool)

    def _crowd(self) -> None:
        """Let one of too many foreign ones go."""
        gone = max(self._foreign, key=lambda pool: (pool not in self._asked, distance(pool, self._near)))
        del self._foreign[gone]
        self._asked.discard(gone)

    def take(self, body: bytes, signature: bytes) -> int:
        """Keep a manifest if it is newer than what is here; gives the highest number here. Raises `RemoteProtocolError` for a forgery."""
        manifest, signed = verified(body, signature), ManifestMessage(body=body, signature=signature)
        pool = manifest.pool
        known = self.latest(pool)
        if known is not None and known[0] >= manifest.number:
            return known[0]
        if self._own(pool) is not None:  # more than its own key has written here: a copy of the home was used
            log.warning("pool.newer_elsewhere", pool=pool, number=manifest.number)
            return known[0] if known is not None else 0
        if pool in self._mine:
            self._mine[pool] = (manifest, signed)
            log.info("pool.manifest", pool=pool, number=manifest.number, members=len(manifest.members))
            self._news(manifest, signed)
        else:
            self._foreign[pool] = (manifest.number, signed)
            if len(self._foreign) > MAX_FOREIGN:
                self._crowd()
        return manifest.number


class PoolServer:
    """Answers `/sark/pool/1`."""

    def __init__(
        self, shelf: ManifestShelf, enrol: Enroller | None = None, admit: Admit = lambda peer: None
    ) -> None:
        self._shelf = shelf
        self._enrol = enrol
        self._admit = admit
        self.refused: Counter[str] = Counter()
        """Calls that were answered with a no, by reason."""
        self._buckets = {
            AskManifest: TokenBuckets(LATEST_PER_S),
            SpreadManifest: TokenBuckets(SPREAD_PER_S),
            EnrolRequest: TokenBuckets(ENROL_PER_S),
        }

    def serve(self, network: Network) -> None:
        """Answer whoever asks."""
        serve_links(network, ProtocolId.POOL, POOL, self.answer)

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call of a peer."""
        answer = await self._answer(link, message)
        if isinstance(answer, RefusedMessage):
            self.refused[answer.reason] += 1
        return answer

    async def _answer(self, link: Link, message: Message) -> Message:
        bucket = self._buckets.get(type(message))
        if bucket is None:
            raise RemoteProtocolError(f"a {type(message).__name__} is an answer, not a call")
        wait = bucket.wait(trio.current_time(), link.peer)
        if wait:
            return RefusedMessage(reason=Reason.OVERLOADED, detail="too many calls", retry_after_s=wait)
        match message:
            case AskManifest():
                known = self._shelf.asked(message.pool)
                return known[1] if known is not None and known[0] > message.have else NoManifest()
            case SpreadManifest():
                signed = verified(message.body, message.signature)
                no = None if self._shelf.concerns(signed.pool) else self._admit(link.peer)
                return no or ManifestStored(number=self._shelf.take(message.body, message.signature))
            case EnrolRequest() if self._enrol is not None:
                return await self._enrol(link.peer, message)
        return RefusedMessage(reason=Reason.UNKNOWN, detail="nobody is let into a pool here")
