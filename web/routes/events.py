"""Events of a campaign: a page at a time, or live as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Response

from results.row.form import JsonModel
from scheduler.output.schemas import EventInfo, event_info
from scheduler.store.store import Store
from web.http.context import Context
from web.http.parameters import MAX_NUMBER, PAGE, CampaignId, Limit, no_campaign, page_of, require_campaign
from web.http.problems import errors
from web.http.sse import MEDIA_TYPE, EventStream

api = APIRouter(prefix="/api/v1", tags=["events"])


class EventPage(JsonModel):
    """Events in the order in which they were stored."""

    campaign: str
    count: int
    events: tuple[EventInfo, ...]
    next: int | None
    """Pass as `after` for the next page; null if there are no more yet."""


_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of events, or with `Accept: text/event-stream` a stream.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/EventPage"}},
            MEDIA_TYPE: {},
        },
    },
    204: {"description": "For a client that reconnects: the campaign has ended and all events were sent."},
}


@api.get("/campaigns/{campaign}/events", response_model=EventPage, responses=_RESPONSES | errors(404, 429))
async def list_events(
    context: Context,
    campaign: CampaignId,
    limit: Limit = PAGE,
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=MAX_NUMBER,
            description="Number of the event after which to start. Without it, a stream sends only new events.",
        ),
    ] = None,
    accept: Annotated[str | None, Header(max_length=500, examples=[MEDIA_TYPE])] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            max_length=20, description="Id of the last event received, to resume a stream. Replaces `after`."
        ),
    ] = None,
) -> EventPage | Response:
    """Get a page of events, or follow them live.

    A stream first sends the campaign and all its tasks, then changes: `campaign` as in the list of campaigns, `task` as in the list of
    tasks, `event` as here; `end` when the campaign has ended, `problem` when the server fails.
    """
    if MEDIA_TYPE not in (accept or "").lower():
        return await context.store(lambda store: _page(store, campaign, limit, after or 0))
    resumes = last_event_id is not None and last_event_id.isascii() and last_event_id.isdecimal()
    start = int(last_event_id or 0) if resumes else after
    follower = await context.feeds.follow(campaign, start)
    if follower is None:
        raise no_campaign(campaign)
    if last_event_id and start is not None and follower.is_complete(start):
        follower.close()
        return Response(status_code=204)
    return EventStream(follower.send_all)


def _page(store: Store, campaign: str, limit: int, after: int) -> EventPage:
    require_campaign(store, campaign)
    page, more = page_of(store.events.since(campaign, after, limit=limit + 1), limit, lambda event: event.seq)
    return EventPage(campaign=campaign, count=len(page), events=tuple(map(event_info, page)), next=more)
