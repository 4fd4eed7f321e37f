"""The events of a campaign, as JSON and live."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import h11
import httpx
import pytest
import trio

from protocol.errors import ResourceError
from scheduler.store.database import Database
from scheduler.store.events import EventRepository
from scheduler.store.rows import EventRow
from scheduler.store.store import Store
from web.http import feeds
from web.http.context import ApiContext

BASE = "/api/v1/campaigns"
TIMEOUT_S = 20.0

pytestmark = pytest.mark.usefixtures("writer")


class EventReader:
    """Reads a stream of events from a socket of its own, so that closing it leaves nothing on this side."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._text = ""
        self.status = 0
        self.type = ""

    async def ask(self, target: str, host: str, headers: dict[str, str]) -> None:
        request_found = {"Host": host, "Accept": "text/event-stream", **headers}
        request = h11.Request(method="GET", target=target, headers=list(request_found.items()))
        sent = self._http.send(request), self._http.send(h11.EndOfMessage())
        await self._stream.send_all(b"".join(part or b"" for part in sent))
        answer = await self._event()
        assert isinstance(answer, h11.Response)
        self.status = answer.status_code
        self.type = dict(answer.headers).get(b"content-type", b"").decode()

    async def _event(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some())
        assert isinstance(event, h11.Event)
        return event

    async def next(self) -> tuple[str, dict[str, Any], str]:
        """The next event: name, value, id. Skips comments."""
        with trio.fail_after(TIMEOUT_S):
            while True:
                block, result, rest = self._text.partition("\n\n")
                if not result:
                    event = await self._event()
                    if not isinstance(event, h11.Data):
                        raise EOFError
                    self._text += bytes(event.data).decode()
                    continue
                self._text = rest
                fields = dict(
                    line.partition(": ")[::2] for line in block.split("\n") if not line.startswith(":")
                )
                if "event" in fields:
                    return fields["event"], json.loads(fields["data"]), fields.get("id", "")

    async def until(self, name: str) -> tuple[dict[str, Any], str]:
        """The next event of that name."""
        while True:
            result, value, mark = await self.next()
            if result == name:
                return value, mark


@asynccontextmanager
async def listening(
    served: httpx.AsyncClient, campaign: str, query: str = "", **headers: str
) -> AsyncIterator[EventReader]:
    url = served.base_url
    async with await trio.open_tcp_stream(url.host, url.port or 0) as stream:
        result = EventReader(stream)
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        await result.ask(f"{BASE}/{campaign}/events{query}", f"{url.host}:{url.port}", more)
        assert result.status == HTTPStatus.OK
        assert result.type.startswith("text/event-stream")
        yield result


async def test_events_come_as_json_a_page_at_a_time(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    first = (await client.get(f"{BASE}/c-one/events", params={"limit": 2})).json()
    assert [event["seq"] for event in first["events"]] == [1, 2]
    assert first["events"][0]["name"] == "campaign.created"
    rest = (await client.get(f"{BASE}/c-one/events", params={"after": first["next"]})).json()
    assert [event["seq"] for event in rest["events"]] == [3, 4]
    assert rest["next"] is None


async def test_a_stream_tells_threads_and_batch_of_each_task_also_when_it_changes(
    served: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=2, batches=True)
    async with listening(served, "c-one") as output:
        results = [await output.next() for _ in range(3)]
        assert [(value["threads"], value["batch"]) for _, value, _ in results[1:]] == [(2, 1), (2, 2)]
        writer.begin("c-one/2")
        while (event := await output.next())[0] != "task":
            pass
        assert (event[1]["n"], event[1]["batch"]) == (2, 2)


async def test_a_stream_tells_how_all_stands_then_what_changes_and_that_it_has_ended(
    served: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=2)
    async with listening(served, "c-one") as output:
        assert (await output.next())[:2] == (
            "campaign",
            (await served.get(BASE)).json()["campaigns"][0],
        )
        standing = [await output.next() for _ in range(2)]
        assert [(name, value["task"], value["state"]) for name, value, _ in standing] == [
            ("task", "c-one/1", "pending"),
            ("task", "c-one/2", "pending"),
        ]
        writer.begin("c-one/2", device="mini-7")
        value = {}
        while value.get("state") != "leased":  # a look may fall between the two steps
            value, _ = await output.until("task")
        assert (value["task"], value["device"]) == ("c-one/2", "mini-7")
        while value.get("name") != "task.granted":
            value, mark = await output.until("event")
        assert mark == str(value["seq"])
        writer.store.campaigns.request_cancel("c-one")
        value, _ = await output.until("campaign")
        assert value["status"] == "cancelling"


async def test_a_campaign_that_has_ended_is_streamed_whole_and_the_stream_closes(
    served: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=1)
    writer.fail("c-one/1")
    writer.store.campaigns.end("c-one")
    async with listening(served, "c-one", "?after=0") as output:
        names = []
        while names[-1:] != ["end"]:
            name, value, mark = await output.next()
            names.append(name)
        with pytest.raises(EOFError):
            await output.next()
        assert names[:2] == ["campaign", "task"]
        assert names.count("event") == int(mark)
        assert value == {"campaign": "c-one", "status": "failed"}
    again = await served.get(
        f"{BASE}/c-one/events", headers={"Accept": "text/event-stream", "Last-Event-ID": mark}
    )
    assert again.status_code == HTTPStatus.NO_CONTENT


async def test_who_was_cut_off_goes_on_where_it_was(served: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one", tasks=2)
    writer.begin("c-one/1")
    async with listening(served, "c-one", Last_Event_ID="1") as output:
        assert (await output.until("event"))[0]["seq"] == 2


async def test_a_late_reader_gets_every_event_though_only_the_last_are_held(
    writer: Any, context: ApiContext
) -> None:
    writer.campaign("c-one", tasks=20)
    for n in range(1, 21):
        writer.begin(f"c-one/{n}")
    few = feeds.Feeds(context.open_store, lambda: False, recent=7)
    follower = await few.follow("c-one", 3)
    assert follower is not None
    observed: list[int] = []
    while len(observed) < writer.store.events.count("c-one")[1] - 3:
        observed += [mark for name, _, mark in await follower.next_events() or [] if name == "event"]
    assert observed == list(range(4, len(observed) + 4))
    follower.close()
    few.close()


class GatedEvents(EventRepository):
    """Events that are read only when the test allows it. Reading can be made to fail."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.go, self.reading = threading.Event(), threading.Event()
        self.go.set()
        self.broken = False

    def since(self, campaign: str, seq: int = 0, *, limit: int = 1000) -> tuple[EventRow, ...]:
        if self.broken:
            raise ResourceError("the server does not answer")
        result = super().since(campaign, seq, limit=limit)
        self.reading.set()
        assert self.go.wait(TIMEOUT_S)
        return result


async def test_what_a_look_finds_is_seen_whole_or_not_at_all(writer: Any, context: ApiContext) -> None:
    writer.campaign("c-one", tasks=2)
    store = Store(context.home.store)
    store.events = events = GatedEvents(store.database)
    some = feeds.Feeds(lambda: store, lambda: False)
    one, two = [await some.follow("c-one", None) for _ in range(2)]
    assert one is not None
    assert two is not None
    await one.next_events()
    events.reading.clear()
    events.go.clear()
    writer.begin("c-one/1")
    received: list[list[feeds.StreamEvent] | None] = []

    async def hear() -> None:
        received.append(await one.next_events())

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            await trio.to_thread.run_sync(events.reading.wait, TIMEOUT_S)
            before = await two.next_events()  # while a thread reads, the whole earlier state
            events.go.set()
    assert before is not None
    assert [getattr(result, "state", None) for name, result, _ in before if name == "task"] == ["pending"] * 2
    (outcome,) = received
    assert outcome is not None
    assert [name for name, *_ in outcome].count("task") == 1
    assert [name for name, *_ in outcome].count("event") == 2
    for follower in (one, two):
        follower.close()
    some.close()


async def test_a_look_that_failed_is_made_again_and_nothing_is_lost(writer: Any, context: ApiContext) -> None:
    writer.campaign("c-one", tasks=1)
    store = Store(context.home.store)
    store.events = events = GatedEvents(store.database)
    some = feeds.Feeds(lambda: store, lambda: False)
    follower = await some.follow("c-one", None)
    assert follower is not None
    await follower.next_events()
    with trio.fail_after(TIMEOUT_S):
        events.broken = True
        writer.fail("c-one/1")
        writer.store.campaigns.end("c-one")
        with pytest.raises(ResourceError):
            await follower.next_events()
        events.broken = False
        result = await follower.next_events()
        assert result is not None
        assert [name for name, *_ in result][:2] == ["campaign", "task"]
        ended = await follower.next_events()
        assert ended is not None
        assert ended[0][0] == "end"
    follower.close()
    some.close()


async def test_many_readers_share_one_look_and_nothing_of_them_is_left(
    served: httpx.AsyncClient, writer: Any, context: ApiContext
) -> None:
    writer.campaign("c-one", tasks=1)
    async with listening(served, "c-one") as one, listening(served, "c-one") as two:
        await one.until("task")
        await two.until("task")
        assert context.feeds.followers == 2
        look = context.feeds.revision
        writer.begin("c-one/1")
        assert (await one.until("task"))[0]["state"] != "pending"
        assert (await two.until("task"))[0]["state"] != "pending"
        assert context.feeds.revision - look <= 2  # two writes, and each look may see only one
    with trio.fail_after(TIMEOUT_S):
        while context.feeds.followers:
            await trio.sleep(0.01)
    assert not context.feeds._feeds


async def test_readers_above_the_limit_are_refused(
    served: httpx.AsyncClient, writer: Any, context: ApiContext
) -> None:
    writer.campaign("c-one", tasks=1)
    context.feeds.followers = feeds.MAX_FOLLOWERS
    answer = await served.get(f"{BASE}/c-one/events", headers={"Accept": "text/event-stream"})
    assert answer.status_code == HTTPStatus.TOO_MANY_REQUESTS
    assert context.feeds.followers == feeds.MAX_FOLLOWERS


async def test_a_stream_of_no_campaign_is_refused(served: httpx.AsyncClient, context: ApiContext) -> None:
    answer = await served.get(f"{BASE}/c-none/events", headers={"Accept": "text/event-stream"})
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert not context.feeds.followers
