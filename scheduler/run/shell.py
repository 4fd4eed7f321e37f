"""Performs the effects of the conversation with trio: links, waits, the index, and the bytes of results."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

import trio

from protocol.errors import Refused, RemoteProtocolError
from protocol.messages.work import WORK, Result
from protocol.values.record import MAX_RECORD
from protocol.wire.base import Message
from protocol.words import ProtocolId
from scheduler.conversation import effects
from scheduler.conversation.effects import LinkHandle, drive, perform_call
from scheduler.conversation.links import CONNECT_S
from scheduler.core.scheduler import SchedulerCore
from scheduler.planning.devices import DeviceFinder, find, survey
from scheduler.run.canaries import Canaries
from scheduler.run.checks import RecordChecks
from scheduler.run.credentials import CredentialPresenter
from scheduler.run.scoring import Scorings
from scheduler.trust.book import TrustBook
from swarm.blobs.client import fetch_blob
from swarm.net.cost import BYTE_US, VERIFY_US, PeerClass
from swarm.net.link import Link
from swarm.net.links import Links
from swarm.net.network import Network

RESULT_US: Final = 3_000.0
"""Estimated processor time to read, check and store an ordinary record, in µs."""
LOOKUPS: Final = 8
"""Most simultaneous searches of the index."""


@dataclass(eq=False)
class TrioShell:
    network: Network
    index: DeviceFinder
    nursery: trio.Nursery
    core: SchedulerCore
    presenter: CredentialPresenter
    received: Callable[[str, Message], Coroutine[Any, Any, Message | None]]
    """The conversation's handler of workers' messages."""
    reached: Callable[[str], None]
    """Called with a worker that answered."""
    checks: RecordChecks
    book: Callable[[], TrustBook]
    """The trust book of this submitter, now."""
    canaries: Canaries
    """Repeats inferences of strangers' runs."""
    stored: Callable[[], Awaitable[None]]
    """Waits until everything written to the store is on disk."""
    scorings: Scorings
    """Scores the answers of evaluated models."""

    def __post_init__(self) -> None:
        self._links = Links(self.network, ProtocolId.WORK, WORK, self.nursery, self._answer, cost=cost_us)
        self._class_before = self.network.governor.class_of
        self.network.governor.class_of = self._class_of
        self._waiting: dict[trio.Event, Callable[[], bool]] = {}
        """The condition for which each procedure waits, by the event that wakes it."""
        self._lookups = trio.CapacityLimiter(LOOKUPS)

    async def aclose(self) -> None:
        """Close all links in good order, so that the last answers arrive."""
        for peer in tuple(self.core.state.workers):
            link = self._links.peek(peer)
            if link is not None:
                await link.aclose()

    def _class_of(self, peer: str) -> PeerClass:
        """How much of this scheduler's processor a worker may use."""
        stranger = self.core.state.trust_of(peer).stranger
        return self._class_before(peer) if stranger else PeerClass.KNOWN

    async def _answer(self, link: Link, message: Message) -> Message | None:
        return await drive(self.received(link.peer, message), self.perform)

    # -- at once ------------------------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return trio.current_time()

    def start(self, job: Coroutine[Any, Any, None]) -> None:
        self.nursery.start_soon(drive, job, self.perform)

    def wake(self) -> None:
        for happened, ready in self._waiting.items():
            if ready():
                happened.set()

    def peek(self, peer: str) -> Link | None:
        return self._links.peek(peer)

    def is_needlessly_relayed(self, link: LinkHandle) -> bool:
        return self._links.is_needlessly_relayed(_own(link))

    # -- effects ------------------------------------------------------------------------------------------------------------------------

    async def perform(self, effect: Any) -> Any:
        """The reply to an effect. Raises the failures that the effect documents."""
        match effect:
            case effects.Connect(peer):
                link = await self._links.get(
                    peer, self.core.state.worker(peer).addresses, max_wait_s=CONNECT_S
                )
                await self.presenter.introduce(link)
                return link
            case effects.Stored():
                return await self.stored()
            case effects.Introduce(link):
                return await self.presenter.introduce(_own(link))
            case effects.Reintroduce(link):
                return await self.presenter.retry(_own(link))
            case effects.Drop(peer):
                return await self._links.drop(peer)
            case effects.WaitFor(ready, until):
                return None if ready() else await self._wait_for(ready, until)
            case effects.SleepUntil(until):
                return await trio.sleep_until(until)
            case effects.WaitClosed(handle, until):
                closed = _own(handle).closed
                with trio.move_on_at(until):
                    await closed.wait()
                return closed.is_set()
            case effects.SearchIndex(requirement, want, trust):
                async with self._lookups:
                    if want is None:
                        return await survey(self.index, requirement)
                    return await find(self.index, requirement, want, trust, self.book())
            case effects.FetchRecord(peer, result):
                return await pull(self.network, peer, result)
            case effects.RepeatInference(task, record):
                return await self.canaries.check(task, record)
            case effects.CheckRecord():
                return await self.checks.check(effect)
            case effects.ScoreAnswers():
                await self.stored()  # the record is read from the store
                return await self.scorings.score(effect)
            case _:
                return await perform_call(effect)

    async def _wait_for(self, ready: Callable[[], bool], until: float) -> None:
        """Wait until `ready`, or the deadline. Turns of the loop are costly and most events are irrelevant to a waiter, so each is woken
        only for its own condition.
        """
        with trio.move_on_at(until):
            while not ready():
                happened = trio.Event()
                self._waiting[happened] = ready
                try:
                    await happened.wait()
                finally:
                    del self._waiting[happened]


def cost_us(message: Message) -> float:
    """Processor time of a worker's call or note, besides reading and answering it, in µs."""
    return VERIFY_US + RESULT_US + message.size * BYTE_US if isinstance(message, Result) else 0.0


def _own(handle: LinkHandle) -> Link:
    """The link behind a handle, which this shell made."""
    return cast(Link, handle)


async def pull(network: Network, peer: str, result: Result) -> bytes:
    """The record's bytes: from the message, or fetched by hash if the record does not fit into it. Hash and size are checked.

    Raises `RemoteProtocolError`, and `Unreachable` if the fetch breaks off; the worker then sends the result again.
    """
    body = result.body
    if result.size > MAX_RECORD:
        raise RemoteProtocolError(f"a record of {result.size} bytes; {MAX_RECORD} are allowed")
    if body is None:
        fetched = bytearray()

        def store(piece: bytearray) -> None:
            if len(fetched) + len(piece) > result.size:
                raise ValueError("more than announced")
            fetched.extend(piece)

        try:
            await fetch_blob(network, peer, (), result.sha256, sink=store, size=result.size)
        except (Refused, ValueError) as exc:
            raise RemoteProtocolError(
                f"the record of {result.task} could not be fetched from its worker: {exc}"
            ) from exc
        body = bytes(fetched)
    if len(body) != result.size or hashlib.sha256(body).hexdigest() != result.sha256:
        raise RemoteProtocolError(f"the record of {result.task} does not match its announced hash and size")
    return body
