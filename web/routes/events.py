"""What happens in a campaign: as JSON, a page at a time, or live as server-sent events."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Response

from results.row.form import JsonModel
from scheduler.output.schemas import EventInfo, event_info
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parts import MAX_NUMBER, NOT_FOUND, PAGE, CampaignId, Limit, found, problems
from web.http.problems import InvalidField
from web.http.sse import MEDIA_TYPE, EventStream


class EventPage(JsonModel):
    """Events in the order in which they were stored."""

    campaign: str
    count: int
    events: tuple[EventInfo, ...]
    next: int | None
    """What to give as `after` for the page that follows; null: there are no more for now."""


_BOTH: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of events; or, where `Accept: text/event-stream` asks for it, a stream.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/EventPage"}},
            MEDIA_TYPE: {},
        },
    },
    204: {"description": "To who comes back to a stream: the campaign has ended, and all of it was told."},
}


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["events"])

    @v1.get(
        "/campaigns/{campaign}/events",
        operation_id="listEvents",
        response_model=EventPage,
        responses=_BOTH | NOT_FOUND | problems(HTTPStatus.TOO_MANY_REQUESTS),
    )
    async def events(
        campaign: CampaignId,
        limit: Limit = PAGE,
        after: Annotated[
            int | None,
            Query(
                ge=0,
                le=MAX_NUMBER,
                description="Begin after this event. A stream that is not told begins with those to come.",
            ),
        ] = None,
        accept: Annotated[str | None, Header(max_length=500, examples=[MEDIA_TYPE])] = None,
        last_event_id: Annotated[
            str | None,
            Header(max_length=20, description="Where a stream that was cut goes on, instead of `after`."),
        ] = None,
    ) -> EventPage | Response:
        """What happened; or what happens, live.

        A stream tells first how the campaign and all its tasks stand, then what changes: `campaign` as in the list of campaigns, `task` as
        in the list of tasks, `event` as here; `end` when the campaign has ended, `problem` when something is wrong with the server.
        """
        if MEDIA_TYPE not in (accept or "").lower():
            return await desk.store(lambda store: _page(store, campaign, limit, after or 0))
        start = int(last_event_id) if last_event_id and _is_number(last_event_id) else after
        follower = await desk.feeds.follow(campaign, start)
        if follower is None:
            await desk.store(lambda store: found(store, campaign))
            raise InvalidField(HTTPStatus.NOT_FOUND, f"no campaign {campaign!r} on this home")
        if last_event_id and start is not None and follower.all_told(start):
            follower.close()
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return EventStream(follower.tell_all)

    return v1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _page(store: Store, campaign: str, limit: int, after: int) -> EventPage:
    found(store, campaign)
    rows = store.events_since(campaign, after, limit=limit + 1)
    told = tuple(event_info(row) for row in rows[:limit])
    return EventPage(
        campaign=campaign, count=len(told), events=told, next=told[-1].seq if len(rows) > limit else None
    )
