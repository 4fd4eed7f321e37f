"""Download a model from several sources at once: the scheduler that leads the campaign, the workers that it names, and a mirror.

    await pull(network, store, DownloadRequest(sha256, size, leader=…), rng=rng)

    hashes   from the leader alone: what each piece has to be and, repeatedly, who else has pieces
    sources  one task for each peer: AskPieces, FetchPiece, FetchPiece, …; pieces are verified and stored in any order
    mirror   a source that is not a peer, such as a URL: asked once the hashes are known

The leader named the model by its hash, so its piece hashes are trusted. A piece with a wrong hash exposes a liar, which is dropped. Until
the hashes are known, only the leader is asked. The caller verifies the whole file; while the leader is the only source, pieces need no
verification of their own. Memory is bounded: `DEPTH` pieces of each of at most `MAX_SOURCES` sources are on their way, one of each is being
read, and `STORING` wait for the disk. `piece_picker.py` decides which source is asked for what.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, SarkError, Unreachable
from protocol.messages.blobs import (
    HASH_SIZE,
    PIECE_SIZE,
    AskHolders,
    AskPieceHashes,
    FetchPiece,
    HavePieces,
    HolderInfo,
    Holders,
    PieceFollows,
    TransferGrant,
)
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.base.threads import DISK, HASHING
from swarm.blobs.client import BlobClient, Progress, blob_client
from swarm.blobs.piece_picker import DEPTH, PiecePicker, PieceSource
from swarm.blobs.pieces import Hashes, count_of, divides, from_bits, span, to_bits
from swarm.blobs.wire import STALL_S, PieceMemory
from swarm.net.addresses import PeerId
from swarm.net.network import Network

MAX_SOURCES: Final = 8
STORING: Final = 4
PIECE_S: Final = 300.0
"""Time limit for a whole piece, however slow the link."""
LEADER_RETRY_S: Final = 1.0
HASHES_S: Final = 120.0
"""Long enough for the leader to read a file of many GB first."""
HOLDERS_S: Final = (0.25, 5.0)
"""Between two requests for the holders: the first pause, doubled each time, and the longest."""
IDLE_S: Final = 0.25
"""Seconds after which a source that had no piece to offer is tried again."""
FIRST_HOLDERS_S: Final = 1.0
"""The leader is asked for pieces only after it has named the holders, or after this time, so that not every worker starts with the same."""
TRIES: Final = 6
"""A worker is dropped after this many failures in a row. If it just had no pieces yet, it is retried when the leader names it again."""
GROWTH_S: Final = (60.0, 10.0)
"""If the leader sends nothing more, how long to ask the others after the last sign that any source gained pieces; the second figure applies
if the caller has another way."""

log = structlog.get_logger("sark.blobs")


class PartialStore(Protocol):
    """Where the pieces are stored. The methods block and are called in worker threads, `put` in several at once. They raise `OSError`."""

    def missing(self) -> Collection[int]:
        """The pieces that are not here yet."""
        ...

    def know(self, hashes: Hashes) -> Collection[int]:
        """Use these hashes to verify from now on. Returns the stored pieces that were wrong, which are missing now."""
        ...

    def put(self, index: int, data: bytearray, *, trusted: bool) -> bool:
        """Store a piece, keeping no reference to `data`; False if its hash is wrong. `trusted`: do not verify it now; then it is given to
        nobody before `verify`."""
        ...

    def verify(self) -> Collection[int]:
        """Verify the trusted pieces. Returns those that were wrong, which are missing now."""
        ...


@dataclass(frozen=True, slots=True)
class Mirror:
    """A source that is not a peer."""

    name: str
    """Shown to users."""
    fetch: Callable[[int, int], Awaitable[bytearray]]
    """(offset, length). Raises `Refused` and `Unreachable`."""


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """What to download, and from where."""

    sha256: str
    size: int
    leader: Callable[[], PeerId]
    """The peer that leads the campaign now; this node is connected to it."""
    relayed: Callable[[PeerId], bool] = lambda peer: False
    """Whether a connected peer is reached only through a gate."""
    retry_leader: bool = True
    """Keep retrying an unreachable leader, since the caller has a deadline. False: give up if nobody else sends pieces."""
    mirror: Mirror | None = None


async def pull(
    network: Network,
    store: PartialStore,
    request: DownloadRequest,
    *,
    rng: random.Random,
    progress: Progress = lambda done, total: None,
) -> None:
    """Download all missing pieces.

    Raises `Refused` if the leader refuses and nobody else has the pieces or is about to, `RemoteProtocolError` if the leader breaks the
    rules, `Unreachable` if it cannot be reached and is not retried, and the store's `OSError`.
    """
    picker = PiecePicker(await DISK.run(store.missing), rng)
    if picker.missing:
        await _Pull(network, store, request, picker, progress).run()


@dataclass
class _Pull:
    network: Network
    store: PartialStore
    request: DownloadRequest
    picker: PiecePicker
    progress: Progress
    grant: TransferGrant | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None
    changed: trio.Event = field(default_factory=trio.Event)
    """Set, and replaced, when there may be something new to request."""
    holders_named: trio.Event = field(default_factory=trio.Event)
    """Set when the leader has named the holders, or will not."""
    storing: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(STORING))
    memory: PieceMemory = field(default_factory=lambda: PieceMemory(STORING))
    leader_error: SarkError | None = None
    """Why the leader sends nothing more."""
    alone: bool = True
    """Only the leader was ever a source, so the hash of the whole file is enough."""
    no_hashes: bool = False
    """The leader has no hashes, so nobody else can be asked."""
    grew_at: float = -math.inf
    """When a piece last arrived, or another source gained pieces."""

    async def run(self) -> None:
        request = self.request
        async with trio.open_nursery() as self.nursery:
            leader = PieceSource(request.leader(), leader=True)
            self.picker.add(leader, trio.current_time())
            self.nursery.start_soon(self._draw, leader)
            if divides(request.size):
                self.nursery.start_soon(self._learn)
                if request.mirror is not None:
                    self.nursery.start_soon(self._draw_from_mirror, request.mirror)
            await self.ended.wait()
            self.nursery.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure
        pieces = {source.peer[-8:]: source.got for source in self.picker.sources.values() if source.got}
        log.info("model.downloaded", sha256=request.sha256, bytes=request.size, pieces=pieces)

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def _wait_for_change(self, max_wait_s: float = IDLE_S) -> None:
        with trio.move_on_after(max_wait_s):
            await self.changed.wait()

    def _fail(self, why: Exception) -> None:
        if self.failure is None and self.picker.missing:
            self.failure = why
            self.ended.set()

    # -- who has pieces, and their hashes --------------------------------------------------------------------------------

    async def _learn(self) -> None:
        await self._ask_holders()
        self.holders_named.set()
        hashes = await self._ask_hashes()
        if hashes is None:
            self.no_hashes = True
            self._check_end()
            return
        try:
            wrong = await HASHING.run(self.store.know, hashes)
        except OSError as exc:
            self._fail(exc)
            return
        self.picker.hashed = True
        self.picker.missing |= set(wrong)
        self._notify()
        pause, longest = HOLDERS_S
        while True:
            await trio.sleep(pause)
            pause = min(2 * pause, longest)
            await self._ask_holders()

    async def _verify(self) -> None:
        """Verify the trusted pieces, so that they can be replaced by others' and given to others."""
        try:
            wrong = await HASHING.run(self.store.verify)
        except OSError as exc:
            self._fail(exc)
            return
        self.picker.missing |= set(wrong)
        self._notify()

    async def _ask_leader(
        self, message: AskHolders | AskPieceHashes, max_wait_s: float
    ) -> tuple[Message, bytearray]:
        """Ask on a separate stream, since the leader may change."""
        leader, sha256 = self.request.leader(), self.request.sha256
        async with blob_client(self.network, leader, (), sha256, piece_s=max_wait_s) as client:
            await client.request(message)
            _, reply, data = await client.reply(first_byte_s=max_wait_s)
            return reply, data

    async def _ask_hashes(self) -> Hashes | None:
        """The hash of each piece, retried until the leader answers; None: the leader does not have them."""
        size, sha256 = self.request.size, self.request.sha256
        while True:
            try:
                reply, data = await self._ask_leader(AskPieceHashes(sha256=sha256), HASHES_S)
            except Unreachable:
                await trio.sleep(LEADER_RETRY_S)
                continue
            except (Refused, RemoteProtocolError) as exc:  # an older leader does not know the request
                log.info("model.hashes_refused", sha256=sha256, why=exc.what)
                return None
            length = count_of(size) * HASH_SIZE
            if not isinstance(reply, PieceFollows) or (reply.size, len(data)) != (size, length):
                log.warning("model.hashes_invalid", sha256=sha256, bytes=len(data))
                return None
            return tuple(bytes(data[start : start + HASH_SIZE]) for start in range(0, length, HASH_SIZE))

    async def _ask_holders(self) -> None:
        """Begin with new holders, and again with those that had nothing, up to `MAX_SOURCES`."""
        try:
            reply, _ = await self._ask_leader(AskHolders(sha256=self.request.sha256), STALL_S)
        except (Unreachable, Refused, RemoteProtocolError) as exc:
            log.debug("model.holders_unknown", sha256=self.request.sha256, why=exc.what)
            return
        if not isinstance(reply, Holders) or reply.grant is None:
            return
        self.grant = reply.grant
        sources = self.picker.sources
        new = [h for h in reply.others if h.peer not in sources and h.peer != self.network.peer_id]
        again = [h for h in reply.others if h.peer in sources and sources[h.peer].absent]
        self._begin(*new, *again)

    def _begin(self, *holders: HolderInfo) -> None:
        for holder in holders:
            if len(self.picker.alive()) >= MAX_SOURCES:
                return
            if self.alone:
                self.alone = False
                self.nursery.start_soon(self._verify)
            source = PieceSource(holder.peer, holder.addresses)
            self.picker.add(source, trio.current_time())
            self.nursery.start_soon(self._draw, source)

    # -- giving up -------------------------------------------------------------------------------------------------------

    def _leader_gives_nothing(self, why: SarkError) -> None:
        """Handle the end of the leader's pieces: other sources that had nothing before may have pieces by now."""
        self.leader_error = why
        self.grew_at = max(self.grew_at, trio.current_time())
        absent = [source for source in self.picker.sources.values() if source.absent]
        self._begin(*(HolderInfo(peer=source.peer, addresses=source.addresses) for source in absent))
        self.nursery.start_soon(self._fail_when_nothing_grows, why)

    def _check_end(self) -> None:
        if self.leader_error is not None and (self.no_hashes or not self.picker.alive()):
            self._fail(self.leader_error)

    async def _fail_when_nothing_grows(self, why: SarkError) -> None:
        """Fail once no source gains pieces; the others may still be fetching some, or be about to."""
        growth_s = GROWTH_S[0] if self.request.retry_leader else GROWTH_S[1]
        while (left := self.grew_at + growth_s - trio.current_time()) > 0 or any(
            source.requested for source in self.picker.alive()
        ):
            await self._wait_for_change(max(left, IDLE_S))
        self._fail(why)

    # -- from one source -------------------------------------------------------------------------------------------------

    async def _draw(self, source: PieceSource) -> None:
        """Request missing pieces until all have arrived or the source is dropped."""
        if source.leader and divides(self.request.size):
            with trio.move_on_after(FIRST_HOLDERS_S):
                await self.holders_named.wait()
        while not source.dropped and self.picker.missing:
            pause = 0.0
            try:
                await self._visit(source)
            except Unreachable as exc:
                pause = self._failed(source, exc.what)
            except Refused as exc:
                pause = self._refused(source, exc)
            except RemoteProtocolError as exc:
                self._drop(source, exc)
                return
            await trio.sleep(pause)

    async def _draw_from_mirror(self, mirror: Mirror) -> None:
        while not self.picker.hashed:
            await self.changed.wait()
        source = PieceSource(mirror.name, declared=True)
        self.picker.add(source, trio.current_time())
        for _ in range(DEPTH):  # each piece is a separate exchange: one begins while another arrives
            self.nursery.start_soon(self._draw_pieces, source, mirror)

    async def _draw_pieces(self, source: PieceSource, mirror: Mirror) -> None:
        while not source.dropped:
            index = self.picker.next(source, trio.current_time())
            if index is None:
                await self._wait_for_change()
                continue
            try:
                with trio.fail_after(PIECE_S):
                    data = await mirror.fetch(*span(index, self.request.size))
            except Refused as exc:
                self._drop(source, exc)
            except (Unreachable, trio.TooSlowError) as exc:
                await trio.sleep(self._failed(source, str(exc) or "too slow"))
            else:
                await self._arrived(source, index, data)

    def _failed(self, source: PieceSource, why: str) -> float:
        """Handle a failed source; returns the seconds to wait before the next try."""
        log.info("model.source_failed", sha256=self.request.sha256, peer=source.peer, why=why)
        now = trio.current_time()
        pause = self.picker.rest(source, now)
        if source.leader:
            pause = min(pause, LEADER_RETRY_S)
            source.rests_until = now + pause
            others_give = any(other.got and not other.failures for other in self.picker.others())
            if not self.request.retry_leader and not others_give:
                self._fail(Unreachable(why))
        elif source.failures >= TRIES:
            self._drop(source, Unreachable(why))
        self._notify()
        return pause

    def _refused(self, source: PieceSource, why: Refused) -> float:
        """Handle a refusal: a worker may still be fetching the model, or be measuring. Returns the seconds until the next try."""
        if source.leader or why.reason not in (Reason.UNKNOWN, Reason.BUSY):
            self._drop(source, why)
            return 0.0
        self._notify()
        now = trio.current_time()
        pause = self.picker.rest(source, now)
        if self.leader_error is not None:  # there is no better source to wait for
            pause = min(pause, HOLDERS_S[1])
            source.rests_until = now + pause
        elif source.failures >= TRIES:  # makes room for others; the leader may name it again
            source.absent = True
            self._drop(source, why)
        return pause

    def _drop(self, source: PieceSource, why: SarkError) -> None:
        level = log.info if isinstance(why, Refused) else log.warning
        level("model.source_dropped", sha256=self.request.sha256, peer=source.peer, why=why.what)
        self.picker.drop(source, why.what)
        if source.leader:
            self._leader_gives_nothing(why)
        self._check_end()
        self._notify()

    async def _visit(self, source: PieceSource) -> None:
        """Use one stream with the source, until there is a better link. Raises `Unreachable`, `Refused`, `RemoteProtocolError`."""
        request = self.request
        if source.leader:
            source.peer = request.leader()
        try:
            async with blob_client(
                self.network,
                source.peer,
                source.addresses,
                request.sha256,
                size=request.size,
                grant=None if source.leader else self.grant,
                piece_s=PIECE_S,
                memory=self.memory,
            ) as client:
                source.relayed = request.relayed(source.peer)
                asked_at = trio.current_time()
                if not source.leader:
                    await client.ask_pieces()
                while self.picker.missing and not source.dropped:
                    if source.relayed and not client.pending and not request.relayed(source.peer):
                        return  # there is a direct link now; new streams use it
                    asked_at = await self._exchange(source, client, asked_at)
        finally:
            source.requested.clear()

    async def _exchange(self, source: PieceSource, client: BlobClient, asked_at: float) -> float:
        """Request all the pieces that can be requested, then take one reply. Returns when the peer was last asked which pieces it has."""
        size, count = self.request.size, count_of(self.request.size)
        while (index := self.picker.next(source, trio.current_time())) is not None:
            alternatives = self.picker.alternatives(source, index)
            bits = None if alternatives is None else to_bits(alternatives, count)
            await client.fetch(*span(index, size), bits)
            if self.picker.others():  # also learn what it has by then
                asked_at = trio.current_time()
                await client.ask_pieces()
        if not client.pending:
            await self._wait_for_change()
            if self.picker.others() and trio.current_time() >= asked_at + IDLE_S:
                asked_at = trio.current_time()
                await client.ask_pieces()
            return asked_at
        request, reply, data = await client.reply()
        if isinstance(reply, HavePieces):
            if isinstance(request, FetchPiece):  # it sent none of them, since others can
                source.requested.pop(request.offset // PIECE_SIZE, None)
            have = None if reply.pieces is None else from_bits(reply.pieces, count)
            fresh = None if reply.fresh is None else from_bits(reply.fresh, count)
            if self.picker.update(source, have, fresh):
                self.grew_at = trio.current_time()
        elif isinstance(request, FetchPiece) and isinstance(reply, PieceFollows):
            requested, sent = request.offset // PIECE_SIZE, (reply.offset or 0) // PIECE_SIZE
            if sent != requested:
                source.requested[sent] = source.requested.pop(requested)
            await self._arrived(source, sent, data)
        return asked_at

    async def _arrived(self, source: PieceSource, index: int, data: bytearray) -> None:
        self.picker.arrived(source, index, trio.current_time())
        await self.storing.acquire()
        self.nursery.start_soon(self._store, source, index, data)

    async def _store(self, source: PieceSource, index: int, data: bytearray) -> None:
        try:
            trusted = source.leader and self.alone
            good = await HASHING.run(partial(self.store.put, index, data, trusted=trusted))
        except OSError as exc:
            self._fail(exc)
            return
        finally:
            self.storing.release()
        if not good:
            self.picker.invalid(index)
            self._drop(source, RemoteProtocolError(f"{source.peer} sent a piece with a wrong hash"))
            return
        self.memory.give(data)
        before, self.grew_at = len(self.picker.missing), trio.current_time()
        self.picker.stored(source, index, self.grew_at)
        left, size = len(self.picker.missing), self.request.size
        if left < before:
            self.progress((count_of(size) - left) * span(0, size)[1] if left else size, size)
        self._notify()
        if not left:
            self.ended.set()
