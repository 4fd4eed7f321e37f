"""Results for the first system's clients: the CSV of a campaign, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from starlette.responses import StreamingResponse

from results.export.raw import csv_lines
from results.row.form import utc
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store
from web.compat.models import FirstFile, FirstFiles, campaign_of, file_name, job_row
from web.http.context import ApiContext
from web.http.parts import NOT_FOUND, PAGE, CampaignId, Limit, found
from web.http.problems import InvalidField
from web.routes.results import pieces, rows_of, walk

CSV: Final = "text/csv; charset=utf-8; header=present"
MB: Final = 1024**2
SAMPLE: Final = 20
"""Rows that a file's size is reckoned from: to write each file for a list would read every record there is."""

_CSV: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The CSV.", "content": {"text/csv": {"schema": {"type": "string"}}}}
}


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    first = APIRouter(prefix="/api", tags=["first"])
    sizes: dict[str, float] = {}

    @first.get(
        "/campaigns/{campaign}/results",
        operation_id="firstGetResults",
        response_class=StreamingResponse,
        responses=_CSV | NOT_FOUND,
    )
    async def results(campaign: CampaignId) -> StreamingResponse:
        """The results as CSV: a row for each job that is over, also while others run."""
        await desk.store(lambda store: found(store, campaign))
        return _csv(desk, campaign, f"{campaign}_results.csv")

    @first.get("/results/files", operation_id="firstListFiles")
    async def files(
        limit: Limit = PAGE,
        after: Annotated[str, Query(max_length=100, description="`next` of the answer before.")] = "",
    ) -> FirstFiles:
        """A CSV for each campaign that has ended, the newest first."""
        return await desk.apart(lambda store: _files(store, sizes, limit, after))

    @first.get(
        "/results/download/{filename}",
        operation_id="firstDownloadFile",
        response_class=StreamingResponse,
        responses=_CSV | NOT_FOUND,
    )
    async def download(
        filename: Annotated[
            str,
            Path(max_length=200, description="As the list of files has it: no path, and none is looked for."),
        ],
    ) -> StreamingResponse:
        """One of them."""
        campaign = await desk.store(lambda store: _named(store, filename))
        return _csv(desk, campaign.id, file_name(campaign))

    return first


def _csv(desk: ApiContext, campaign: str, name: str) -> StreamingResponse:
    def lines(store: Store) -> Iterator[str]:
        return iter(csv_lines(job_row(row) for row in walk(store, campaign, rows_of)))

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(pieces(desk, lines), media_type=CSV, headers=headers)


def _named(store: Store, filename: str) -> CampaignRow:
    campaign = store.campaign(campaign_of(filename) or "")
    if campaign is None or campaign.ended is None or file_name(campaign) != filename:
        raise InvalidField(
            HTTPStatus.NOT_FOUND, f"no result file {filename!r}", hint="list them: /api/results/files"
        )
    return campaign


def _files(store: Store, sizes: dict[str, float], limit: int, after: str) -> FirstFiles:
    """`sizes`, by file: a campaign that has ended changes no more."""
    ended = [item for item in store.summaries() if item.campaign.ended is not None]
    names = [file_name(item.campaign) for item in ended]
    if after and after not in names:
        raise InvalidField(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"after: no result file {after!r}",
            hint="give the `next` of the answer before",
        )
    begin = names.index(after) + 1 if after else 0
    told = []
    for item, name in list(zip(ended, names, strict=True))[begin : begin + limit]:
        if name not in sizes:
            sizes[name] = _size_mb(store, item.campaign.id, item.tasks)
        told.append(
            FirstFile(
                filename=name,
                size_mb=sizes[name],
                modified=utc(item.campaign.ended) or "",
                campaign_id=item.campaign.id,
            )
        )
    more = begin + len(told) < len(names)
    return FirstFiles(count=len(told), files=tuple(told), next=told[-1].filename if more else None)


def _size_mb(store: Store, campaign: str, tasks: int) -> float:
    head, *lines = csv_lines(job_row(row) for row in rows_of(store, campaign, 1, SAMPLE))
    each = sum(len(line.encode()) for line in lines) / len(lines) if lines else 0.0
    return round((len(head) + each * tasks) / MB, 4)
