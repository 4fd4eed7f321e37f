"""Path and query parameters that several routes share, pages of a list, and the campaign that a path names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Path, Query

from protocol.errors import CampaignError
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from web.http.problems import HttpProblem

PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_NUMBER: Final = 2**53
AFTER: Final = "`next` of the previous page."

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of items on the page.")]
After = Annotated[int, Query(ge=0, le=MAX_NUMBER, description=f"Number after which to start: {AFTER}")]
AfterName = Annotated[str, Query(max_length=100, description=AFTER)]
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

T = TypeVar("T")
K = TypeVar("K")


def page_of(items: Sequence[T], limit: int, key: Callable[[T], K]) -> tuple[Sequence[T], K | None]:
    """The first `limit` of `items`, and the value to pass as `after`; None: there are no more items."""
    return items[:limit], key(items[limit - 1]) if len(items) > limit else None


def require_campaign(store: Store, campaign: str) -> CampaignRow:
    """The campaign's row. Raises `HttpProblem` 404."""
    row = store.campaigns.get(campaign)
    if row is None:
        raise no_campaign(campaign)
    return row


def require_task(store: Store, campaign: str, n: int) -> None:
    """Raise `HttpProblem` 404 unless the campaign, which must exist, has that task."""
    if store.tasks.get(f"{campaign}/{n}") is None:
        hint = f"list tasks: /api/v1/campaigns/{campaign}/tasks"
        raise HttpProblem(404, f"{campaign} has no task {n}", hint=hint)


def no_campaign(campaign: str) -> HttpProblem:
    """The problem that this home has no campaign with that id."""
    return HttpProblem(
        404, f"no campaign {campaign!r} on this home", hint="list campaigns: /api/v1/campaigns"
    )


def conflict(error: CampaignError) -> HttpProblem:
    """The problem that a valid request conflicts with the current state."""
    return HttpProblem(409, error.what, hint=error.hint)
