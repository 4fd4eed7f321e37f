"""A model from several sources at once: the scheduler that speaks for the task, and the workers that it names.

    await pull(network, store, sha256, size, speaker=…, rng=…)

    learn   Pieces: the hash of each piece, of the speaker alone ─▶ Where: who else has it, again and again
    draw    one for each source: Which, Fetch, Fetch, …; each piece is verified and stored as it arrives, in any order
    beside  one that is no peer, such as a URL: asked for pieces once it is known what each must be

The hashes come from whom the task came from, that named the model by its hash: it could as well have named another. A piece that does
not have its hash shows a liar, who is dropped. Until they are known only the speaker is asked. The whole is for the caller to verify.
What is not stored yet is bounded: `DEPTH` pieces of each of at most `MAX_SOURCES` are on their way, one of each being read and
`STORING` waiting for the disk. `pull_plan.py` decides who is asked for what.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, SarkError, Unreachable
from protocol.messages.blobs import HavePieces, HolderInfo
from protocol.signed.transfer_grant import TransferGrant
from protocol.words import ProtocolId, Reason
from swarm.blobs.piece_picker import DEPTH, PiecePlan, PieceSource
from swarm.blobs.pieces import Hashes, count_of, divides, from_bits, span
from swarm.blobs.pull_client import PIECE_S, PullClient, PullDeclined
from swarm.blobs.pull_server import PullServer
from swarm.blobs.wire import ASIDE, STALL_S, Aside
from swarm.net.addresses import PeerId
from swarm.net.network import Network

MAX_SOURCES: Final = 8
STORING: Final = 4
SPEAKER_AGAIN_S: Final = 1.0
LOOK_S: Final = (0.25, 5.0)
"""Between two questions to the speaker for others: twice as long each time, up to the second figure."""
IDLE_S: Final = 0.25
"""A source that had nothing to be asked for is looked at again after so long."""
FIRST_LOOK_S: Final = 1.0
"""The speaker is asked for no piece before it has said who else is there, or this time has passed: so not all begin with the same."""
TRIES: Final = 6
"""A worker that failed so often in a row is not asked any more; one that only has nothing yet, when the scheduler names it again."""
HOPE_S: Final = (60.0, 10.0)
"""When the speaker gives nothing more, the others are asked on for so long after the last sign that somebody's share grows; the second
figure where the caller has another way."""

log = structlog.get_logger("sark.blobs")

Progress = Callable[[int, int], None]


class PartialStore(Protocol):
    """Where the pieces go. The methods block and are called in worker threads, `put` in several at once. They raise `OSError`."""

    def missing(self) -> Collection[int]:
        """The pieces that are not here yet."""
        ...

    def know(self, hashes: Hashes) -> Collection[int]:
        """What each piece must be from now on. Gives the pieces that were here and are not that: they are missing now."""
        ...

    def put(self, index: int, data: bytearray) -> bool:
        """Keep a piece; False when it has not the hash that is known of it."""
        ...


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """A place that is no peer and has the file, it is said."""

    name: str
    """For people."""
    piece: Callable[[int, int], Awaitable[bytearray]]
    """(offset, length). Raises `Refused` and `Unreachable`."""


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """What is to be brought, and with whose help."""

    sha256: str
    size: int
    speaker: Callable[[], PeerId]
    """Who speaks for the task at the moment; there is a connection with it."""
    relayed: Callable[[PeerId], bool] = lambda peer: False
    """Whether a connected peer is reached through a gate only."""
    patient: bool = True
    """A speaker that cannot be reached is tried again for ever: the caller has a deadline. Else that is an end where nobody else gives:
    the caller has another way to the file."""
    beside: HeldElsewhere | None = None


async def pull(
    network: Network,
    store: PartialStore,
    wanted: DownloadRequest,
    *,
    rng: random.Random,
    progress: Progress = lambda done, total: None,
    aside: Aside = ASIDE,
) -> None:
    """Bring all that is missing.

    Raises `Refused` when the speaker gives it to us no more and nobody else has it or is about to, `RemoteProtocolError` when the
    speaker breaks the rules, `Unreachable` when it cannot be reached and we are not `patient`, `OSError` of the store.
    """
    missing = await aside(store.missing)
    await _Pull(network, store, wanted, PiecePlan(missing, rng), progress, aside).run()


@dataclass
class _Pull:
    network: Network
    store: PartialStore
    wanted: DownloadRequest
    plan: PiecePlan
    progress: Progress
    aside: Aside
    grant: TransferGrant | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None
    moved: trio.Event = field(default_factory=trio.Event)
    """Set, and replaced, when there may be something to ask for that there was not before."""
    looked: trio.Event = field(default_factory=trio.Event)
    """The speaker has said who else is there, or will not."""
    room: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(STORING))
    spoke: SarkError | None = None
    """Why the speaker gives nothing more."""
    mute: bool = False
    """It does not tell what the pieces must be, so nobody else can be asked."""
    grew_at: float = -math.inf
    """When a piece came last, or another source had more than before."""

    async def run(self) -> None:
        if self.plan.over:
            return
        self.speaker = PullServer(self.network, self.wanted.sha256, self.wanted.size, self.wanted.speaker)
        async with trio.open_nursery() as self.nursery:
            speaker = PieceSource(self.wanted.speaker(), speaker=True)
            self.plan.add(speaker, trio.current_time())
            self.nursery.start_soon(self._draw, speaker)
            if divides(self.wanted.size):
                self.nursery.start_soon(self._learn)
                if self.wanted.beside is not None:
                    self.nursery.start_soon(self._draw_beside, self.wanted.beside)
            await self.ended.wait()
            self.nursery.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure
        gave = {source.peer[-8:]: source.got for source in self.plan.sources.values() if source.got}
        log.info("model.came", sha256=self.wanted.sha256, bytes=self.wanted.size, pieces=gave)

    def _stir(self) -> None:
        self.moved.set()
        self.moved = trio.Event()

    def _fail(self, why: Exception) -> None:
        if self.failure is None and not self.plan.over:
            self.failure = why
            self.ended.set()

    def _told(self) -> None:
        count = count_of(self.wanted.size) - len(self.plan.missing)
        done = self.wanted.size if self.plan.over else count * span(0, self.wanted.size)[1]
        self.progress(done, self.wanted.size)

    # -- who has it, and what it must be ---------------------------------------------------------------------------------

    async def _learn(self) -> None:
        await self._look()
        self.looked.set()
        hashes = await self.speaker.hashes()
        if hashes is None:
            self.mute = True
            self._consider()
            return
        try:
            wrong = await self.aside(self.store.know, hashes)
        except OSError as exc:
            self._fail(exc)
            return
        self.plan.hashed = True
        self.plan.lost(wrong)
        self._stir()
        pause, most = LOOK_S
        while True:
            await trio.sleep(pause)
            pause = min(2 * pause, most)
            await self._look()

    async def _look(self) -> None:
        """Who else has it, by the speaker's word: begin with those that are new, as many as there is room for."""
        told = await self.speaker.others()
        if told is None:
            return
        self.grant = told.grant
        known = self.plan.sources
        fresh = [
            other for other in told.others if other.peer not in known and other.peer != self.network.peer_id
        ]
        again = [other for other in told.others if other.peer in known and known[other.peer].absent]
        self._begin(*fresh, *again)

    def _begin(self, *others: HolderInfo) -> None:
        for other in others:
            if len(self.plan.alive()) >= MAX_SOURCES:
                return
            source = PieceSource(other.peer, other.addresses)
            self.plan.add(source, trio.current_time())
            self.nursery.start_soon(self._draw, source)

    # -- when to give up -------------------------------------------------------------------------------------------------

    def _given_up(self, why: SarkError) -> None:
        """The speaker gives nothing more. Who had nothing before may have it by now."""
        self.spoke = why
        self.grew_at = max(self.grew_at, trio.current_time())
        absent = [each for each in self.plan.sources.values() if each.absent]
        self._begin(*(HolderInfo(peer=each.peer, addresses=each.addresses) for each in absent))
        self.nursery.start_soon(self._hope, why)

    def _consider(self) -> None:
        """Whether there is an end to it."""
        if self.spoke is not None and (self.mute or not self.plan.alive()):
            self._fail(self.spoke)

    async def _hope(self, why: SarkError) -> None:
        """The others may still be fetching it, or be about to."""
        patience = HOPE_S[0] if self.wanted.patient else HOPE_S[1]
        while (left := self.grew_at + patience - trio.current_time()) > 0 or any(
            each.asked for each in self.plan.alive()
        ):
            with trio.move_on_after(max(left, IDLE_S)):
                await self.moved.wait()
        self._fail(why)

    # -- from one source -------------------------------------------------------------------------------------------------

    async def _draw(self, source: PieceSource) -> None:
        """Ask it for what is missing, until all is here or it is dropped."""
        if source.speaker and divides(self.wanted.size):
            with trio.move_on_after(FIRST_LOOK_S):
                await self.looked.wait()
        while not source.dropped and not self.plan.over:
            pause = 0.0
            try:
                await self._visit(source)
            except Unreachable as exc:
                pause = self._failed(source, exc.what)
                self._stir()
            except Refused as exc:
                pause = self._refused(source, exc)
            except RemoteProtocolError as exc:
                self._drop(source, exc)
                return
            await trio.sleep(pause)

    async def _draw_beside(self, place: HeldElsewhere) -> None:
        """The same from a place that is no peer."""
        while not self.plan.hashed:
            await self.moved.wait()
        source = PieceSource(place.name, known=True)
        self.plan.add(source, trio.current_time())
        for _ in range(DEPTH):  # each piece is an exchange of its own: one sets out while another comes
            self.nursery.start_soon(self._bring, source, place)

    async def _bring(self, source: PieceSource, place: HeldElsewhere) -> None:
        while not source.dropped:
            index = self.plan.next(source, trio.current_time())
            if index is None:
                with trio.move_on_after(IDLE_S):
                    await self.moved.wait()
                continue
            try:
                with trio.fail_after(PIECE_S):
                    data = await place.piece(*span(index, self.wanted.size))
            except Refused as exc:
                self._drop(source, exc)
            except (Unreachable, trio.TooSlowError) as exc:
                pause = self._failed(source, str(exc) or "too slow")
                self._stir()
                await trio.sleep(pause)
            else:
                await self._arrived(source, index, data)

    def _failed(self, source: PieceSource, why: str) -> float:
        log.info("model.source_failed", sha256=self.wanted.sha256, peer=source.peer, why=why)
        pause = self.plan.rests(source, trio.current_time())
        if source.speaker:
            source.rests_until = trio.current_time() + min(pause, SPEAKER_AGAIN_S)
            if not self.wanted.patient and not any(
                each.got and not each.failures for each in self.plan.others()
            ):
                self._fail(Unreachable(why))
            return min(pause, SPEAKER_AGAIN_S)
        if source.failures >= TRIES:
            self._drop(source, Unreachable(why))
        return pause

    def _refused(self, source: PieceSource, why: Refused) -> float:
        """A worker may only now be bringing it, or be measuring."""
        if source.speaker or why.reason not in (Reason.UNKNOWN, Reason.BUSY):
            self._drop(source, why)
            return 0.0
        self._stir()
        pause = self.plan.rests(source, trio.current_time())
        if self.spoke is not None:  # there is nobody better to wait for
            pause = min(pause, LOOK_S[1])
            source.rests_until = trio.current_time() + pause
        elif source.failures >= TRIES:  # makes room for others; it may be named again
            source.absent = True
            self._drop(source, why)
        return pause

    def _drop(self, source: PieceSource, why: SarkError) -> None:
        told = log.info if isinstance(why, Refused) else log.warning
        told("model.source_dropped", sha256=self.wanted.sha256, peer=source.peer, why=why.what)
        self.plan.drop(source, why.what)
        if source.speaker:
            self._given_up(why)
        self._consider()
        self._stir()

    async def _visit(self, source: PieceSource) -> None:
        """One stream with it, until there is a better link. Raises `Unreachable`, `Refused`, `RemoteProtocolError`."""
        if source.speaker:
            source.peer = self.wanted.speaker()
        stream = await self.network.open(source.peer, ProtocolId.BLOB, source.addresses)
        source.relayed = self.wanted.relayed(source.peer)
        asker = PullClient(
            stream, self.wanted.sha256, self.wanted.size, None if source.speaker else self.grant
        )
        try:
            if not source.speaker:
                await asker.which()
            while not self.plan.over and not source.dropped:
                if source.relayed and not asker.pending and not self.wanted.relayed(source.peer):
                    return  # a direct link came meanwhile; new streams take it
                await self._exchange(source, asker)
        except trio.TooSlowError:
            raise Unreachable(
                f"{source.peer} stopped sending {self.wanted.sha256[:12]}… (no byte for {STALL_S:g} s)"
            ) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Unreachable(
                f"the link with {source.peer} broke while {self.wanted.sha256[:12]}… was being fetched"
            ) from None
        finally:
            self.plan.released(source)
            with trio.CancelScope(shield=True):
                await stream.reset()

    async def _exchange(self, source: PieceSource, asker: PullClient) -> None:
        """Ask for what there is to ask for, then take one answer."""
        while (index := self.plan.next(source, trio.current_time())) is not None:
            await asker.fetch(index, self.plan.would_do(source, index))
            if self.plan.others():  # what it has by then comes along
                await asker.which()
        if not asker.pending:
            with trio.move_on_after(IDLE_S):
                await self.moved.wait()
            if self.plan.others() and trio.current_time() >= asker.looked_at + IDLE_S:
                await asker.which()
            return
        answer = await asker.answer()
        if isinstance(answer, PullDeclined):
            self.plan.declined(source, answer.index)
            answer = answer.have
        if isinstance(answer, HavePieces):
            count = count_of(self.wanted.size)
            have = None if answer.pieces is None else from_bits(answer.pieces, count)
            fresh = None if answer.fresh is None else from_bits(answer.fresh, count)
            if self.plan.heard(source, have, fresh):
                self.grew_at = trio.current_time()
            return
        index, named, data = answer
        if index != named:
            self.plan.instead(source, named, index)
        await self._arrived(source, index, data)

    async def _arrived(self, source: PieceSource, index: int, data: bytearray) -> None:
        self.plan.arrived(source, index, trio.current_time())
        await self.room.acquire()
        self.nursery.start_soon(self._keep, source, index, data)

    async def _keep(self, source: PieceSource, index: int, data: bytearray) -> None:
        try:
            good = await self.aside(self.store.put, index, data)
        except OSError as exc:
            self._fail(exc)
            return
        finally:
            self.room.release()
        if not good:
            self.plan.bad(index)
            self._drop(source, RemoteProtocolError(f"{source.peer} sent a piece that is not the model's"))
            return
        before, self.grew_at = len(self.plan.missing), trio.current_time()
        self.plan.came(source, index, self.grew_at)
        if len(self.plan.missing) < before:
            self._told()
        self._stir()
        if self.plan.over:
            self.ended.set()
