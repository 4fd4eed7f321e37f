"""Live events of campaigns: one poll of the store serves all streams.

    store ── poll ──▶ Feed (tasks, each with the revision that changed it) ──▶ Follower ── changes since its revision ──▶ a client
                                                                           └─▶ Follower ──▶ …

One waiting follower at a time polls; without followers nothing runs. A poll makes new feeds in a thread, and the event loop installs them
all at once, so that no follower sees a partial update. Followers have no queue: a slow follower gets changes less often and only the newest
state of a task, but still gets every stored event, if necessary from the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from pydantic import BaseModel

from protocol.errors import ResourceError
from results.row.form import Configuration, JsonModel, configurations_of
from scheduler.output.schemas import CampaignInfo, TaskInfo, campaign_info, event_info, task_info
from scheduler.store.rows import CampaignStatus, EventRow, TaskRow
from scheduler.store.store import Store
from swarm.base.threads import DISK
from web.http.problems import HttpProblem
from web.http.sse import SendEvent, event_text

POLL_S: Final = 0.2
CHECK_SCHEDULER: Final = 10
"""Polls between checks for a running scheduler process."""
MAX_FOLLOWERS: Final = 200
"""Limited because each follower holds a connection open."""
RECENT: Final = 2000
"""Most events of a campaign that its feed holds."""
CHUNK: Final = 64 * 1024
PAGE: Final = 500
"""Events sent at a time."""

StreamEvent = tuple[str, BaseModel, int]
"""(event name, value, number of the stored event after which to resume)."""


@dataclass(frozen=True, slots=True)
class Feed:
    """The state of one campaign at a poll, shared by its followers."""

    campaign: str
    info: CampaignInfo
    info_revision: int
    rows: Mapping[str, TaskRow] = field(default_factory=dict)
    tasks: Mapping[str, tuple[int, TaskInfo]] = field(default_factory=dict)
    """Task id → (revision that last changed the task, task)."""
    configurations: Mapping[str, Configuration] = field(default_factory=dict)
    """Read once, because a task's signed bytes never change."""
    events: tuple[EventRow, ...] = ()
    """The most recent events."""
    last: int = 0
    """Number of the newest event."""

    @property
    def ended(self) -> bool:
        return self.info.ended is not None

    def advanced(self, store: Store, revision: int, *, scheduling: bool, recent: int) -> Feed | None:
        """The campaign's current state; None: it is gone, because the store was replaced. Blocking; raises `ResourceError`."""
        summary = store.campaigns.summary(self.campaign)
        if summary is None:
            return None
        changed = [task for task in store.tasks.all(self.campaign) if self.rows.get(task.id) != task]
        configurations = self.configurations
        if any(task.id not in configurations for task in changed):
            bodies = store.tasks.bodies(self.campaign)
            configurations = configurations_of(bodies)
        infos = {task.id: (revision, task_info(task, configurations[task.id])) for task in changed}
        events, last = list(self.events), self.last
        while page := store.events.since(self.campaign, last):
            events += page
            last = page[-1].seq
        info = campaign_info(summary, scheduling=scheduling)
        return Feed(
            self.campaign,
            info,
            info_revision=self.info_revision if info == self.info else revision,
            rows={**self.rows, **{task.id: task for task in changed}},
            tasks={**self.tasks, **infos},
            configurations=configurations,
            events=tuple(events[-recent:]),
            last=last,
        )


class Feeds:
    """All feeds of a server. They have their own store connection, which notices the writes of every other connection."""

    def __init__(
        self, open_store: Callable[[], Store], scheduling: Callable[[], bool], *, recent: int = RECENT
    ) -> None:
        self._open_store, self._is_scheduling, self._recent = open_store, scheduling, recent
        self._store: Store | None = None
        self._lock = trio.Lock()
        self._feeds: dict[str, Feed] = {}
        self._followers_of: Counter[str] = Counter()
        self._store_version = -1
        self._scheduling = False
        self._polls = 0
        self.revision = 0
        """Counts the polls that found changes."""
        self.followers = 0

    async def follow(self, campaign: str, after: int | None) -> Follower | None:
        """A follower of a campaign, which the caller must close; None: there is no such campaign. Stored events start after `after` (None:
        only new events). Raises `ResourceError`, and `HttpProblem` 429 if there are too many followers."""
        if self.followers >= MAX_FOLLOWERS:
            raise HttpProblem(
                429,
                f"{MAX_FOLLOWERS} streams are open on this server",
                hint="close one, or poll the events as JSON",
            )
        self.followers += 1
        self._followers_of[campaign] += 1
        try:
            async with self._lock:
                feed = await DISK.run(self._find_feed, campaign)
        except BaseException:
            self.leave(campaign)
            raise
        if feed is None:
            self.leave(campaign)
            return None
        self._feeds[campaign] = feed
        return Follower(self, campaign, feed.last if after is None else min(after, feed.last))

    def feed(self, campaign: str) -> Feed:
        """The campaign's state at the last poll. The campaign must have a follower."""
        return self._feeds[campaign]

    def leave(self, campaign: str) -> None:
        self.followers -= 1
        self._followers_of[campaign] -= 1
        if not self._followers_of[campaign]:
            del self._followers_of[campaign]
            self._feeds.pop(campaign, None)

    async def wait_for_change(self, revision: int) -> None:
        """Return when a poll has found changes after `revision`. Raises `ResourceError`."""
        while self.revision == revision:
            async with self._lock:
                if self.revision == revision:
                    await trio.sleep(POLL_S)
                    changed = await DISK.run(self._poll, tuple(self._feeds.values()))
                    if changed is not None:
                        self.revision += 1
                        self._feeds |= {
                            feed.campaign: feed for feed in changed if feed.campaign in self._feeds
                        }

    async def stored_events(self, campaign: str, after: int) -> tuple[EventRow, ...]:
        """Events that the feed no longer holds."""
        async with self._lock:
            return await DISK.run(lambda: self._connection().events.since(campaign, after, limit=PAGE))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- in a thread, one at a time ------------------------------------------------------------------------------------------------

    def _connection(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
            self._scheduling = self._is_scheduling()
        return self._store

    def _find_feed(self, campaign: str) -> Feed | None:
        store = self._connection()
        if campaign in self._feeds:
            return self._feeds[campaign]
        summary, scheduling = store.campaigns.summary(campaign), self._is_scheduling()
        if summary is None:
            return None
        info, last = campaign_info(summary, scheduling=scheduling), store.events.count(campaign)[1]
        feed = Feed(campaign, info, self.revision, last=max(0, last - self._recent))
        return feed.advanced(store, self.revision, scheduling=scheduling, recent=self._recent)

    def _poll(self, feeds: Sequence[Feed]) -> list[Feed] | None:
        """The current state of all feeds; None: nothing was written. A failed poll changes no state, and the next one repeats it."""
        store = self._connection()
        self._polls += 1
        version, scheduling = store.changes_by_others(), self._scheduling
        if self._polls % CHECK_SCHEDULER == 0:
            scheduling = self._is_scheduling()
        if version == self._store_version and scheduling == self._scheduling:
            return None
        after = self.revision + 1
        changed = [feed.advanced(store, after, scheduling=scheduling, recent=self._recent) for feed in feeds]
        self._store_version, self._scheduling = version, scheduling
        return [feed for feed in changed if feed is not None]


class Follower:
    """One client of a feed. It gets first the complete state, then changes, and last the end."""

    def __init__(self, feeds: Feeds, campaign: str, after: int) -> None:
        self._feeds, self._campaign = feeds, campaign
        self._seq = after
        self._revision = -1
        self._done = False

    async def next_events(self) -> list[StreamEvent] | None:
        """At least one event, or None after the campaign's end. Raises `ResourceError`."""
        while not self._done:
            events = self._changes() + await self._events()
            if events:
                return events
            feed = self._feeds.feed(self._campaign)
            if feed.ended and self._revision == self._feeds.revision:
                self._done = True
                return [("end", _End(campaign=self._campaign, status=feed.info.status), self._seq)]
            await self._feeds.wait_for_change(self._revision)
        return None

    def is_complete(self, after: int) -> bool:
        """Whether a client that has all events up to `after` can expect no more."""
        feed = self._feeds.feed(self._campaign)
        return feed.ended and after >= feed.last

    async def send_all(self, send: SendEvent) -> None:
        try:
            while (events := await self.next_events()) is not None:
                for text in _chunks(events):  # encoded only as they are sent, because a reader may be slow
                    await send.text(text)
        except ResourceError as exc:
            await send("problem", {"detail": exc.what, "hint": exc.hint})
        finally:
            self.close()

    def close(self) -> None:
        self._feeds.leave(self._campaign)

    def _changes(self) -> list[StreamEvent]:
        """The campaign and the tasks that changed."""
        feed, since = self._feeds.feed(self._campaign), self._revision
        self._revision = self._feeds.revision
        events: list[StreamEvent] = []
        if feed.info_revision > since:
            events.append(("campaign", feed.info, self._seq))
        events += [("task", info, self._seq) for revision, info in feed.tasks.values() if revision > since]
        return events

    async def _events(self) -> list[StreamEvent]:
        feed = self._feeds.feed(self._campaign)
        if self._seq >= feed.last:
            return []
        if feed.events and feed.events[0].seq <= self._seq + 1:
            page = [event for event in feed.events if event.seq > self._seq][:PAGE]
        else:
            page = list(await self._feeds.stored_events(self._campaign, self._seq))
        self._seq = page[-1].seq if page else feed.last
        return [("event", event_info(event), event.seq) for event in page]


class _End(JsonModel):
    campaign: str
    status: CampaignStatus


def _chunks(events: Iterable[StreamEvent]) -> Iterator[str]:
    """Events as text, joined into larger writes."""
    chunk: list[str] = []
    size = 0
    for name, value, seq in events:
        text = event_text(name, value.model_dump_json(), id=str(seq))
        chunk.append(text)
        size += len(text)
        if size > CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield "".join(chunk)
