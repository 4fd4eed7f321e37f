"""What the endpoints work with: this home's store, its scheduler process, and ways into the swarm."""

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
from scheduler.store.store import Store, open_store
from scheduler.submit.daemon import is_running
from swarm.base.home import Home
from swarm.download.urls import FOR_OTHERS, UrlReach
from web.http.feeds import Feeds
from web.http.idempotency import IdempotencyStore

MAX_SLOW: Final = 4
"""Slow store operations at a time."""
MAX_FETCHING: Final = 16
"""Operations at a time that may wait for a model download."""
CHECK_S: Final = 5.0
MAX_CHECK_S: Final = 300.0
"""Upper bound of the back-off for a scheduler process that keeps ending."""

log = structlog.get_logger("sark.api")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActionReply:
    """A worker's state after an action of its owner."""

    state: WorkerState
    why: str


SendAction = Callable[[str, Action], Awaitable[ActionReply]]
"""Sends an action to the worker with this peer id, as its owner. Raises `Refused` and `Unreachable`."""


async def _no_worker(peer: str, action: Action) -> ActionReply:
    raise Unreachable(
        "this server cannot control workers", hint="run the command on the worker's own machine"
    )


@dataclass(slots=True)
class ApiContext:
    """One for each server. `gates`: ways into the swarm as of now; `start_scheduler`: starts the scheduler process unless it runs. Both
    block."""

    home: Home
    gates: Callable[[], tuple[str, ...]]
    start_scheduler: Callable[[], None]
    allow_paths: bool = False
    """Campaigns sent over HTTP may name files of this machine."""
    reach: UrlReach = FOR_OTHERS
    """Where their models by URL may be fetched from."""
    send_action: SendAction = _no_worker
    feeds: Feeds = field(init=False)
    idempotency: IdempotencyStore = field(init=False)
    _store: Store | None = None
    _store_lock: trio.Lock = field(default_factory=trio.Lock)
    _slow: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_SLOW))
    _fetching: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_FETCHING))

    def __post_init__(self) -> None:
        self.idempotency = IdempotencyStore(self.home.folder("scheduler") / "idempotency")
        self.feeds = Feeds(self.open_store, partial(is_running, self.home))

    async def store(self, work: Callable[[Store], T]) -> T:
        """`work(store)` in a thread, one caller at a time. Raises what `work` raises, and `ResourceError`."""

        def run() -> T:
            if self._store is None:
                self._store = self.open_store()
            return work(self._store)

        async with self._store_lock:
            return await trio.to_thread.run_sync(run)

    async def isolated(self, work: Callable[[Store], T], *, fetching: bool = False) -> T:
        """`work(store)` with a connection of its own, for slow work: a few at a time; it continues when the caller is cancelled.
        `fetching`: it may wait hours for downloads, under a limit of its own. Raises what `work` raises, and `ResourceError`."""

        def run() -> T:
            with self.open_store() as store:
                return work(store)

        limiter = self._fetching if fetching else self._slow
        return await trio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=True)

    def open_store(self) -> Store:
        """A new connection, which the caller closes. Blocking; raises `ResourceError`."""
        return open_store(self.home)

    async def wake_scheduler(self) -> None:
        """Start the scheduler process unless it runs. Raises `ResourceError`."""
        await trio.to_thread.run_sync(self.start_scheduler)

    async def ensure_scheduler(self) -> None:
        """Like `wake_scheduler`, but a failure is only logged: the campaign is stored, and a client that saw an error would send it twice.
        `keep_scheduler_alive` retries."""
        try:
            await self.wake_scheduler()
        except SarkError as exc:
            log.warning("scheduler.start_failed", why=exc.what)

    async def keep_scheduler_alive(self, every_s: float = CHECK_S) -> None:
        """Restart the scheduler process while campaigns are open, with a growing delay when it keeps ending. Never returns."""
        wait_s = every_s
        while True:
            await trio.sleep(wait_s)
            try:
                unfinished = await self.store(lambda store: len(store.campaigns.unfinished()))
                if not unfinished or await trio.to_thread.run_sync(is_running, self.home):
                    wait_s = every_s
                    continue
                log.info("scheduler.restarted", campaigns=unfinished)
                await self.wake_scheduler()
            except SarkError as exc:  # also for settings that were broken meanwhile: they may be corrected
                log.warning("scheduler.start_failed", why=exc.what)
            wait_s = min(2 * wait_s, MAX_CHECK_S)

    def close(self) -> None:
        """Close the stores."""
        self.feeds.close()
        if self._store is not None:
            self._store.close()
            self._store = None
