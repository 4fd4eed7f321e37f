"""What streams are told: one look at the store serves all of them, and each takes what is new to it when it has sent what was before.

    store ── one look ──▶ Feed (rows, each with the look that changed it) ──▶ Follower ── what changed since its last look ──▶ a client
                                                                          └─▶ Follower ──▶ …

Whoever waits does the looking, one at a time: where nobody follows, nothing runs. A look reads in a thread, and what it found is put in
place in the loop, all at once: no follower sees half of it. A follower has no queue. One that is slow is told less often, and then only
the newest state of a task; of stored events it is told every one, from the store where they are no longer here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import trio
from pydantic import BaseModel

from protocol.errors import ResourceError
from results.row.form import JsonModel
from results.row.variant import UNSAID, Variant, ways_of
from scheduler.output.schemas import CampaignInfo, TaskInfo, campaign_info, event_info, task_info
from scheduler.store.rows import CampaignStatus, EventRow, TaskRow
from scheduler.store.store import Store
from web.http.problems import InvalidField
from web.http.sse import SendEvent, event_text

POLL_S: Final = 0.2
BEATS: Final = 10
"""After so many looks that found nothing new it is seen whether a scheduler process still runs."""
MAX_FOLLOWERS: Final = 200
"""Each holds a connection open."""
RECENT: Final = 2000
"""Events of a campaign that are kept for its followers."""
PIECE: Final = 64 * 1024
PAGE: Final = 500
"""Events that one is told at a time."""


@dataclass(frozen=True, slots=True)
class News:
    """What a look found of one campaign."""

    info: CampaignInfo
    tasks: tuple[tuple[TaskRow, TaskInfo], ...]
    """Those that are not as they were."""
    ways: Mapping[str, Variant]
    """Of all of them."""
    events: tuple[EventRow, ...]


Told = tuple[str, BaseModel, int]
"""An event's name, what it says, and after which stored event a reader that was cut off goes on."""


@dataclass(slots=True)
class Feed:
    """One campaign as of the last look, shared by its followers."""

    campaign: str
    info: CampaignInfo
    info_at: int = 0
    """The look that found it so."""
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    told: dict[str, tuple[int, TaskInfo]] = field(default_factory=dict)
    """Of each task the look that found it so."""
    ways: Mapping[str, Variant] = field(default_factory=dict)
    """How each is measured: a task's signed bytes never change, and are read once."""
    events: deque[EventRow] = field(default_factory=deque)
    """The last of them."""
    last: int = 0
    """Number of the newest event."""
    followers: int = 0

    @property
    def over(self) -> bool:
        """The campaign has ended: nothing of it changes any more."""
        return self.info.ended is not None

    def read(self, store: Store, *, scheduling: bool) -> News | None:
        """What is new, for `take`; nothing changes here. None: there is no such campaign any more. Blocking; raises `ResourceError`."""
        item = store.summary(self.campaign)
        if item is None:
            return None  # the store was put in place of another
        info = campaign_info(item, scheduling=scheduling)
        rows = [task for task in store.tasks(self.campaign) if self.tasks.get(task.id) != task]
        ways = self.ways
        if any(task.id not in ways for task in rows):
            ways = ways_of(store.bodies(self.campaign))
        tasks = tuple((task, task_info(task, ways.get(task.id, UNSAID))) for task in rows)
        events: list[EventRow] = []
        last = self.last
        while page := store.events_since(self.campaign, last):
            events += page
            last = page[-1].seq
        return News(info, tasks, ways, tuple(events))

    def take(self, news: News, look: int) -> None:
        """It is so from this look on."""
        self.ways = news.ways
        for task, info in news.tasks:
            self.tasks[task.id] = task
            self.told[task.id] = (look, info)
        if news.events:
            self.events.extend(news.events)
            self.last = news.events[-1].seq
        if news.info != self.info:
            self.info, self.info_at = news.info, look


class Feeds:
    """All feeds of a server, on a store of their own: what any other connection writes is seen."""

    def __init__(
        self, open_store: Callable[[], Store], scheduling: Callable[[], bool], *, recent: int = RECENT
    ) -> None:
        self._open, self._scheduling, self._recent = open_store, scheduling, recent
        self._store: Store | None = None
        self._turn = trio.Lock()
        self._feeds: dict[str, Feed] = {}
        self._version = -1
        self._runs = False
        self._beats = 0
        self.look = 0
        """Counts the looks that found something."""
        self.followers = 0

    async def follow(self, campaign: str, after: int | None) -> Follower | None:
        """Somebody who is told of a campaign from now on, and of its events after `after` (None: those to come). To be closed.

        None: there is no such campaign. Raises `ResourceError`, and `InvalidField` when too many follow.
        """
        if self.followers >= MAX_FOLLOWERS:
            raise InvalidField(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_FOLLOWERS} streams are open on this server",
                hint="close one, or ask for the events as JSON now and then",
            )
        self.followers += 1
        try:
            async with self._turn:
                feed = await trio.to_thread.run_sync(self._feed, campaign)
            if feed is not None:
                feed.followers += 1
                self._feeds[campaign] = feed
                return Follower(self, feed, feed.last if after is None else min(after, feed.last))
        except BaseException:
            self.followers -= 1
            raise
        self.followers -= 1
        return None

    def leave(self, feed: Feed) -> None:
        """A follower is gone."""
        self.followers -= 1
        feed.followers -= 1
        if not feed.followers:
            self._feeds.pop(feed.campaign, None)

    async def changed(self, seen: int) -> None:
        """Until there has been a look after `seen` that found something. Raises `ResourceError`."""
        while self.look == seen:
            async with self._turn:
                if self.look == seen:
                    await trio.sleep(POLL_S)
                    found = await trio.to_thread.run_sync(self._see, tuple(self._feeds.values()))
                    if found is not None:
                        self.look += 1
                        for feed, news in found:
                            feed.take(news, self.look)

    async def events(self, campaign: str, after: int) -> tuple[EventRow, ...]:
        """Those that no feed holds any more."""
        async with self._turn:
            return await trio.to_thread.run_sync(
                lambda: self._stored().events_since(campaign, after, limit=PAGE)
            )

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- in a thread, one at a time ------------------------------------------------------------------------------------------------

    def _stored(self) -> Store:
        if self._store is None:
            self._store = self._open()
            self._runs = self._scheduling()
        return self._store

    def _feed(self, campaign: str) -> Feed | None:
        store = self._stored()
        known = self._feeds.get(campaign)
        if known is not None:
            return known
        item = store.summary(campaign)
        if item is None:
            return None
        runs = self._scheduling()
        feed = Feed(
            campaign,
            campaign_info(item, scheduling=runs),
            info_at=self.look,
            events=deque(maxlen=self._recent),
            last=max(0, store.event_count(campaign)[1] - self._recent),
        )
        news = feed.read(store, scheduling=runs)
        if news is not None:  # nobody else has this feed yet
            feed.take(news, self.look)
        return feed

    def _see(self, feeds: Sequence[Feed]) -> list[tuple[Feed, News]] | None:
        """What is new in all of them; None: nothing was written since. A look that fails has seen nothing: the next one looks again."""
        store = self._stored()
        self._beats += 1
        version, runs = store.changed_by_others(), self._runs
        if self._beats % BEATS == 0:
            runs = self._scheduling()
        if version == self._version and runs == self._runs:
            return None
        found = [(feed, feed.read(store, scheduling=runs)) for feed in feeds]
        self._version, self._runs = version, runs
        return [(feed, news) for feed, news in found if news is not None]


class Follower:
    """What one client is told: first how all of it stands, then what changes; at the end that it has ended."""

    def __init__(self, feeds: Feeds, feed: Feed, after: int) -> None:
        self._feeds, self._feed = feeds, feed
        self._seq = after
        self._look = -1
        self._done = False

    async def more(self) -> list[Told] | None:
        """The next events, at least one; None: the campaign has ended and all is told. Raises `ResourceError`."""
        while not self._done:
            told = self._changes() + await self._events()
            if told:
                return told
            if self._feed.over and self._look == self._feeds.look:
                self._done = True
                end = _End(campaign=self._feed.campaign, status=self._feed.info.status)
                return [("end", end, self._seq)]
            await self._feeds.changed(self._look)
        return None

    def all_told(self, mark: int) -> bool:
        """Whether somebody who was told everything up to event `mark` need not come back: the campaign has ended."""
        return self._feed.over and mark >= self._feed.last

    async def tell_all(self, tell: SendEvent) -> None:
        """Tell a reader, until the campaign has ended."""
        try:
            while (told := await self.more()) is not None:
                for some in _pieces(
                    told
                ):  # text is made as it is taken: a reader may be slow, and the campaign large
                    await tell.text(some)
        except ResourceError as exc:
            await tell("problem", {"detail": exc.what, "hint": exc.hint})
        finally:
            self.close()

    def close(self) -> None:
        """Be gone."""
        self._feeds.leave(self._feed)

    def _changes(self) -> list[Told]:
        """The campaign, where it changed, and the tasks that did."""
        feed, since = self._feed, self._look
        self._look = self._feeds.look
        told: list[Told] = []
        if feed.info_at > since:
            told.append(("campaign", feed.info, self._seq))
        told += [("task", info, self._seq) for look, info in feed.told.values() if look > since]
        return told

    async def _events(self) -> list[Told]:
        feed = self._feed
        if self._seq >= feed.last:
            return []
        if feed.events and feed.events[0].seq <= self._seq + 1:
            page = [event for event in feed.events if event.seq > self._seq][:PAGE]
        else:
            page = list(await self._feeds.events(feed.campaign, self._seq))
        told: list[Told] = [("event", event_info(event), event.seq) for event in page]
        self._seq = page[-1].seq if page else feed.last
        return told


class _End(JsonModel):
    campaign: str
    status: CampaignStatus


def _pieces(told: Iterable[Told]) -> Iterator[str]:
    """As text, several joined, so that not each small event is a write of its own."""
    piece: list[str] = []
    size = 0
    for name, value, mark in told:
        text = event_text(name, value.model_dump_json(), id=str(mark))
        piece.append(text)
        size += len(text)
        if size > PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)
