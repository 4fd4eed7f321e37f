"""What the routers share: pages of a list, and finding what a path names."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Path, Query

from protocol.errors import CampaignError
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from web.http.problems import InvalidField, Problem

PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_NUMBER: Final = 2**53

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="At most so many on this page.")]
After = Annotated[
    int, Query(ge=0, le=MAX_NUMBER, description="Begin after this number: `next` of the page before.")
]
CampaignId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="A campaign's whole id.",
        examples=["c-ab23cd45"],
    ),
]
Number = Annotated[
    int, Path(ge=1, le=MAX_NUMBER, description="A task's number in its campaign.", examples=[1])
]


def problems(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: the answers beside the good one and those that any request can get."""
    return {
        int(status): {
            "model": Problem,
            "description": status.description or status.phrase,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


NOT_FOUND: Final = problems(HTTPStatus.NOT_FOUND)


def found(store: Store, campaign: str) -> CampaignRow:
    """The campaign, or `InvalidField`."""
    row = store.campaign(campaign)
    if row is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"no campaign {campaign!r} on this home",
            hint="list them: /api/v1/campaigns",
        )
    return row


def conflict(error: CampaignError) -> InvalidField:
    """What cannot be done as things stand, though the request is well written."""
    return InvalidField(HTTPStatus.CONFLICT, error.what, hint=error.hint)
