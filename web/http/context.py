"""What the endpoints work with: this home's store, one step at a time and never in the way of the loop, and ways into the swarm.

The scheduler process of the home does the work, as it does for the command line: it is started when there is something to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from protocol.errors import SarkError, Unreachable
from protocol.messages.work import Action
from protocol.words import WorkerState
from scheduler.store.opening import open_store
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from swarm.download.urls import FOR_OTHERS, UrlReach
from web.http.feeds import Feeds
from web.http.idempotency import IdempotencyStore

SLOW: Final = 4
"""Things that may take long that are done at a time."""
FETCHING: Final = 16
"""The same of those that may wait for a model to be fetched."""

MIND_S: Final = 5.0
"""How often it is seen whether a scheduler process runs for what has not ended."""
RAREST_S: Final = 300.0

log = structlog.get_logger("sark.api")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OwnerReplyInfo:
    """How a worker stands after it was told something."""

    state: WorkerState
    why: str


Tell = Callable[[str, Action], Awaitable[OwnerReplyInfo]]
"""Say this to the worker with this peer id, if it is this home's own or its owner is this home's scheduler. Raises `Refused` when it is
not, `Unreachable`. The program knows how; nothing here speaks to workers."""


async def _nobody(peer: str, action: Action) -> OwnerReplyInfo:
    raise Unreachable("no worker can be told anything from here", hint="tell it on its own machine")


@dataclass(slots=True)
class ApiContext:
    """One for each server. `gates`: the ways into the swarm as of now; `keep_alive`: starts the scheduler process when it is gone."""

    home: Home
    gates: Callable[[], tuple[str, ...]]
    keep_alive: Callable[[], None]
    allow_paths: bool = False
    """Campaigns that come over HTTP may name files of this machine."""
    reach: UrlReach = FOR_OTHERS
    """Where their models by URL may be fetched from."""
    tell: Tell = _nobody
    _store: Store | None = None
    _turn: trio.Lock = field(default_factory=trio.Lock)
    _slow: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(SLOW))
    _fetching: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(FETCHING))
    feeds: Feeds = field(init=False)
    """What streams are told."""
    once: IdempotencyStore = field(init=False)
    """What is done once though it is asked for twice."""

    def __post_init__(self) -> None:
        self.once = IdempotencyStore(self.home.folder("scheduler") / "once")
        self.feeds = Feeds(self.open_store, partial(is_running, self.home))

    async def store(self, work: Callable[[Store], T]) -> T:
        """Do this with the store, in a thread of its own, one caller after the other. Raises what `work` raises, and `ResourceError`."""
        async with self._turn:
            return await trio.to_thread.run_sync(partial(self._with_store, work))

    async def apart(self, work: Callable[[Store], T], *, fetching: bool = False) -> T:
        """Do this with a connection of its own, for what may take long: a few at a time, in nobody's way. Goes on when its caller is gone.
        `fetching`: it may wait for other servers, for hours: more at a time, and in the way of none that does not.

        Raises what `work` raises, and `ResourceError`.
        """

        def whole() -> T:
            with self.open_store() as store:
                return work(store)

        limiter = self._fetching if fetching else self._slow
        return await trio.to_thread.run_sync(whole, limiter=limiter, abandon_on_cancel=True)

    def _with_store(self, work: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = self.open_store()
        return work(self._store)

    def open_store(self) -> Store:
        """One more connection of its own, to be closed by who asked. Blocking; raises `ResourceError`."""
        return open_store(self.home)

    async def wake(self) -> None:
        """See to it that a scheduler process runs: somebody waits for its work. Raises `ResourceError` when it cannot be started."""
        await trio.to_thread.run_sync(self.keep_alive)

    async def go_on(self) -> None:
        """The same for what was stored just now. That it is stored is what its client is told, whatever comes of this: who was told of a
        failure would ask for it once more. Where no process can be started now, `mind` does it later.
        """
        try:
            await self.wake()
        except SarkError as exc:
            log.warning("scheduler.gone", why=exc.what)

    async def mind(self, every_s: float = MIND_S) -> None:
        """For ever: who submitted here relies on the scheduler process. One that was killed, or ended because its store was away for a
        moment, is started again; one that ends each time, ever more rarely.
        """
        wait_s = every_s
        while True:
            await trio.sleep(wait_s)
            try:
                open_ = await self.store(lambda store: len(store.unfinished_campaigns()))
                if not open_ or await trio.to_thread.run_sync(is_running, self.home):
                    wait_s = every_s
                    continue
                log.info("scheduler.again", campaigns=open_)
                await self.wake()
            except (
                SarkError
            ) as exc:  # also for settings that were changed meanwhile: they may be mended again
                log.warning("scheduler.gone", why=exc.what)
            wait_s = min(2 * wait_s, RAREST_S)

    def close(self) -> None:
        """Close the stores."""
        self.feeds.close()
        if self._store is not None:
            self._store.close()
            self._store = None
