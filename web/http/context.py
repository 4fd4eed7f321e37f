"""The context of the endpoints: this home's store, its scheduler process, and its addresses into the swarm."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, TypeVar

import structlog
import trio
from fastapi import Depends, Request

from protocol.errors import SarkError, Unreachable
from protocol.messages.work import Action
from protocol.words import WorkerState
from results.analysis.sittings import IntervalCoverage
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.reach import FindUnits
from scheduler.models.describe import Fetch
from scheduler.models.fetch import downloader
from scheduler.models.uploads import Uploads, placed
from scheduler.preview.look import units_finder
from scheduler.store.database import ServerLocation
from scheduler.store.store import Store, open_store, store_location
from scheduler.submit.daemon import is_running
from scheduler.submit.keep_running import CHECK_S, keep_running
from swarm.base.home import Home
from swarm.base.threads import DISK
from swarm.download.urls import OTHERS_URL_REACH, UrlReach
from swarm.net.identity import load_or_create
from web.http.coverage import CoverageView
from web.http.feeds import Feeds
from web.http.idempotency import IdempotencyStore

MAX_SLOW: Final = 4
"""Simultaneous slow store operations."""
MAX_FETCHING: Final = 16
"""Simultaneous operations that may wait for a model download."""
MAX_SCORING: Final = 1
"""Campaigns scored again at the same time. A metric may take half of the memory."""
MAX_UPLOADS: Final = 4
"""Simultaneous model uploads."""

log = structlog.get_logger("sark.api")

T = TypeVar("T")


SendAction = Callable[[str, Action], Awaitable[WorkerState]]
"""Sends an action to the worker with this peer id, as its owner. Returns the worker's state. Raises `Refused` and `Unreachable`."""


async def _no_worker(peer: str, action: Action) -> WorkerState:
    raise Unreachable(
        "this server cannot control workers", hint="run the command on the worker's own machine"
    )


@dataclass(slots=True)
class ApiContext:
    """The context of one server. `gates`: returns the current addresses into the swarm; `start_scheduler`: starts the scheduler process
    unless it runs. Both block."""

    home: Home
    gates: Callable[[], tuple[str, ...]]
    start_scheduler: Callable[[], None]
    allow_paths: bool = False
    """Whether campaigns sent over HTTP may name files of this machine."""
    reach: UrlReach = OTHERS_URL_REACH
    """Where the models' URLs in such campaigns may lead."""
    send_action: SendAction = _no_worker
    feeds: Feeds = field(init=False)
    idempotency: IdempotencyStore = field(init=False)
    uploads: Uploads = field(init=False)
    find_units: FindUnits = field(init=False)
    coverage: CoverageView = field(init=False)
    uploading: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MAX_UPLOADS))
    fetching: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_FETCHING))
    """Limits operations that may wait hours for downloads."""
    scoring: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_SCORING))
    """Limits operations that wait for metrics."""
    file_sizes: dict[str, float] = field(default_factory=dict)
    """Sizes of the predecessor's result files, cached because an ended campaign never changes."""
    _store: Store | None = None
    _store_lock: trio.Lock = field(default_factory=trio.Lock)
    _slow: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_SLOW))
    _computing: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    def __post_init__(self) -> None:
        self.idempotency = IdempotencyStore(
            self.home.folder("scheduler") / "idempotency", self._shared_secret()
        )
        self.feeds = Feeds(self.open_store, partial(is_running, self.home))
        self.uploads = Uploads(self.home)
        self.find_units = units_finder(lambda: self.gates())
        self.coverage = CoverageView(partial(self.isolated, lambda store: store.results.coverage()))

    def _shared_secret(self) -> bytes | None:
        """The secret of servers on several machines that share a store, from their common scheduler key; None: the store is local."""
        if not isinstance(store_location(self.home), ServerLocation):
            return None
        return hmac.digest(
            load_or_create(self.home.key("scheduler")).seed, b"sark idempotency keys", hashlib.sha256
        )

    @asynccontextmanager
    async def shared_store(self) -> AsyncIterator[Store]:
        """The store for one caller at a time. The caller must block only in threads. Raises `ResourceError`."""
        async with self._store_lock:
            if self._store is None:
                self._store = await DISK.run(self.open_store)
            yield self._store

    async def store(self, work: Callable[[Store], T]) -> T:
        """`work(store)` in a thread, one caller at a time. Raises what `work` raises, and `ResourceError`."""
        async with self.shared_store() as store:
            return await DISK.run(work, store)

    async def isolated(self, work: Callable[[Store], T], *, limiter: trio.CapacityLimiter | None = None) -> T:
        """`work(store)` with a connection of its own, for slow work, a few at a time. The work continues if the caller is cancelled.
        `limiter`: another limit, for even slower work. Raises what `work` raises, and `ResourceError`."""

        def run() -> T:
            with self.open_store() as store:
                return work(store)

        return await trio.to_thread.run_sync(run, limiter=limiter or self._slow, abandon_on_cancel=True)

    async def compute(self, work: Callable[[], T]) -> T:
        """`work()` in a thread, one at a time, for work that takes seconds of CPU time or much memory."""
        return await trio.to_thread.run_sync(work, limiter=self._computing)

    def open_store(self) -> Store:
        """A new connection, which the caller closes. Blocking; raises `ResourceError`."""
        return open_store(self.home)

    def read_campaign(self, data: bytes, file: str) -> Campaign:
        """A campaign sent to this server, with its uploaded models named by their paths. Blocking; raises `CampaignError`."""
        campaign = parse_campaign(data, file, find_units=self.find_units)
        return placed(campaign, self.uploads, allow_paths=self.allow_paths)

    def fetch_model(self, reach: UrlReach | None = None) -> Fetch:
        """A function that downloads models by URL, without a progress display. `reach`: where URLs may lead, if not as for campaigns over
        HTTP."""
        return downloader(self.home, lambda name, done, total: None, reach=reach or self.reach)

    async def wake_scheduler(self) -> None:
        """Start the scheduler process unless it runs. Raises `ResourceError`."""
        await DISK.run(self.start_scheduler)

    async def ensure_scheduler(self) -> None:
        """Like `wake_scheduler`, but only log a failure: the campaign is stored, and a client that got an error would send it again.
        `keep_scheduler_alive` retries."""
        try:
            await self.wake_scheduler()
        except SarkError as exc:
            log.warning("scheduler.start_failed", why=exc.what)

    async def keep_scheduler_alive(self, every_s: float = CHECK_S) -> None:
        """Keep the scheduler process running while campaigns are open. Never returns."""

        async def unfinished() -> int:
            return await self.store(lambda store: len(store.campaigns.unfinished()))

        await keep_running(self.home, unfinished, self.wake_scheduler, every_s=every_s)

    def close(self) -> None:
        self.feeds.close()
        if self._store is not None:
            self._store.close()
            self._store = None


async def _context_of(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context_of)]


async def _coverage(context: Context) -> Mapping[str, IntervalCoverage]:
    return await context.coverage.now()


Coverage = Annotated[Mapping[str, IntervalCoverage], Depends(_coverage)]
"""How often the intervals of each device hold."""


async def _shared_store(context: Context) -> AsyncIterator[Store]:
    async with context.shared_store() as store:
        yield store


SharedStore = Annotated[Store, Depends(_shared_store, scope="function")]
"""The store, for a synchronous endpoint, which runs in a thread. No other caller uses the store meanwhile."""
