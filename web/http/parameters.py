"""Path and query parameters that several routes share, and the campaign that a path names."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Path, Query

from protocol.errors import CampaignError
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from web.http.problems import HttpProblem, Problem

PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_NUMBER: Final = 2**53

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of items on the page.")]
After = Annotated[
    int, Query(ge=0, le=MAX_NUMBER, description="Start after this number: `next` of the previous page.")
]
CampaignId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="A campaign's full id.",
        examples=["c-ab23cd45"],
    ),
]
Number = Annotated[
    int, Path(ge=1, le=MAX_NUMBER, description="A task's number in its campaign.", examples=[1])
]


def problems(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint: the error statuses that are specific to it."""
    return {
        int(status): {
            "model": Problem,
            "description": status.description or status.phrase,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


NOT_FOUND: Final = problems(HTTPStatus.NOT_FOUND)


def require_campaign(store: Store, campaign: str) -> CampaignRow:
    """The campaign's row. Raises `HttpProblem` 404."""
    row = store.campaigns.get(campaign)
    if row is None:
        raise no_campaign(campaign)
    return row


def no_campaign(campaign: str) -> HttpProblem:
    """This home has no campaign of that id."""
    return HttpProblem(
        HTTPStatus.NOT_FOUND,
        f"no campaign {campaign!r} on this home",
        hint="list campaigns: /api/v1/campaigns",
    )


def no_task(campaign: str, n: int | str) -> HttpProblem:
    """The campaign exists, the task does not."""
    return HttpProblem(
        HTTPStatus.NOT_FOUND,
        f"{campaign} has no task {n}",
        hint=f"list tasks: /api/v1/campaigns/{campaign}/tasks",
    )


def conflict(error: CampaignError) -> HttpProblem:
    """The request is valid, but the current state does not allow it."""
    return HttpProblem(HTTPStatus.CONFLICT, error.what, hint=error.hint)
