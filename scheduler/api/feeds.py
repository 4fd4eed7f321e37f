"""What streams are told: one look at the store serves all of them, and each takes what is new to it when it has sent what was before.

    store ── one look ──▶ Feed (rows, each with the look that changed it) ──▶ Follower ── what changed since its last look ──▶ a client
                                                                          └─▶ Follower ──▶ …

Whoever waits does the looking, one at a time: where nobody follows, nothing runs. A follower has no queue. One that is slow is told less
often, and then only the newest state of a task; of stored events it is told every one, from the store where they are no longer here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import trio

from protocol.errors import ResourceError
from scheduler.api.live import Tell, event_text
from scheduler.api.problems import Wrong
from scheduler.forms import CampaignInfo, TaskInfo, campaign_info, event_info, task_info
from scheduler.store import Store
from scheduler.stored import Event, TaskRow

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
    events: deque[Event] = field(default_factory=deque)
    """The last of them."""
    last: int = 0
    """Number of the newest event."""
    followers: int = 0

    @property
    def over(self) -> bool:
        """The campaign has ended: nothing of it changes any more."""
        return self.info.ended is not None

    def update(self, store: Store, look: int, *, scheduling: bool) -> None:
        """See what is new. Raises `ResourceError`."""
        item = store.summary(self.campaign)
        if item is None:
            return  # the store was put in place of another
        info = campaign_info(item, scheduling=scheduling)
        for task in store.tasks(self.campaign):
            if self.tasks.get(task.id) != task:
                self.tasks[task.id] = task
                self.told[task.id] = (look, task_info(task))
        while page := store.events_since(self.campaign, self.last):
            self.events.extend(page)
            self.last = page[-1].seq
        if info != self.info:
            self.info, self.info_at = info, look


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

        None: there is no such campaign. Raises `ResourceError`, and `Wrong` when too many follow.
        """
        if self.followers >= MAX_FOLLOWERS:
            raise Wrong(
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
                    await trio.to_thread.run_sync(self._see)

    async def events(self, campaign: str, after: int) -> tuple[Event, ...]:
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
        self._runs = self._scheduling()
        feed = Feed(
            campaign,
            campaign_info(item, scheduling=self._runs),
            info_at=self.look,
            events=deque(maxlen=self._recent),
            last=max(0, store.event_count(campaign)[1] - self._recent),
        )
        feed.update(store, self.look, scheduling=self._runs)
        return feed

    def _see(self) -> None:
        store = self._stored()
        self._beats += 1
        version, runs = store.changed_by_others(), self._runs
        if self._beats % BEATS == 0:
            runs = self._scheduling()
        if version == self._version and runs == self._runs:
            return
        self._version, self._runs = version, runs
        for feed in tuple(self._feeds.values()):
            feed.update(store, self.look + 1, scheduling=runs)
        self.look += 1


class Follower:
    """What one client is told: first how all of it stands, then what changes; at the end that it has ended."""

    def __init__(self, feeds: Feeds, feed: Feed, after: int) -> None:
        self._feeds, self._feed = feeds, feed
        self._seq = after
        self._look = -1
        self._done = False

    async def more(self) -> list[str] | None:
        """The next events as text, at least one; None: the campaign has ended and all is told. Raises `ResourceError`."""
        while not self._done:
            told = self._changes() + await self._events()
            if told:
                return told
            if self._feed.over and self._look == self._feeds.look:
                self._done = True
                end = f'{{"campaign":"{self._feed.campaign}","status":"{self._feed.info.status}"}}'
                return [_block("end", end, self._seq)]
            await self._feeds.changed(self._look)
        return None

    def all_told(self, mark: int) -> bool:
        """Whether somebody who was told everything up to event `mark` need not come back: the campaign has ended."""
        return self._feed.over and mark >= self._feed.last

    async def tell_all(self, tell: Tell) -> None:
        """Tell a reader, until the campaign has ended."""
        try:
            while (told := await self.more()) is not None:
                for some in _pieces(told):
                    await tell.text(some)
        except ResourceError as exc:
            await tell("problem", {"detail": exc.what, "hint": exc.hint})
        finally:
            self.close()

    def close(self) -> None:
        """Be gone."""
        self._feeds.leave(self._feed)

    def _changes(self) -> list[str]:
        """The campaign, where it changed, and the tasks that did."""
        feed, since = self._feed, self._look
        self._look = self._feeds.look
        told = []
        if feed.info_at > since:
            told.append(_block("campaign", feed.info.model_dump_json(), self._seq))
        told += [
            _block("task", info.model_dump_json(), self._seq)
            for look, info in feed.told.values()
            if look > since
        ]
        return told

    async def _events(self) -> list[str]:
        feed = self._feed
        if self._seq >= feed.last:
            return []
        if feed.events and feed.events[0].seq <= self._seq + 1:
            page = [event for event in feed.events if event.seq > self._seq][:PAGE]
        else:
            page = list(await self._feeds.events(feed.campaign, self._seq))
        told = [_block("event", event_info(event).model_dump_json(), event.seq) for event in page]
        self._seq = page[-1].seq if page else feed.last
        return told


def _block(name: str, value: str, mark: int) -> str:
    """`mark`: after which stored event a reader that was cut off goes on."""
    return event_text(name, value, id=str(mark))


def _pieces(told: list[str]) -> list[str]:
    """Joined, so that not each small event is a write of its own."""
    pieces: list[list[str]] = [[]]
    size = 0
    for one in told:
        if size > PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(one)
        size += len(one)
    return ["".join(piece) for piece in pieces]
