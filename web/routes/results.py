"""Results of a campaign: rows a page at a time, or whole files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query, Response
from starlette.responses import StreamingResponse

from protocol.errors import CampaignError
from results.export.columnar import jsonl_lines, parquet_bytes
from results.export.csv import csv_lines
from results.export.raw import json_lines
from results.row.form import JsonModel
from results.row.row import Row
from results.scoring.scorer import Scorer
from scheduler.output.rescoring import Rescoring, rescore_campaign
from scheduler.store.readers import RowReader, raw_results
from scheduler.store.store import Store
from web.http.context import ApiContext, Context
from web.http.parameters import PAGE, After, CampaignId, Limit, conflict, page_of, require_campaign
from web.http.problems import errors

T = TypeVar("T")

CHUNK_TASKS: Final = 50
"""Tasks whose raw samples are in memory at the same time while a file is sent."""


class ResultPage(JsonModel):
    """Rows of ended tasks, in the order of the campaign. Their fields are the columns of the CSV (docs/columns.md)."""

    campaign: str
    count: int
    results: tuple[Row, ...]
    next: int | None
    """Pass as `after` for the next page; null on the last."""


class ResultFormat(StrEnum):
    """Format of the results."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    RAW = "raw"


_TYPES: Final[dict[ResultFormat, str]] = {
    ResultFormat.CSV: "text/csv; charset=utf-8; header=present",
    ResultFormat.JSONL: "application/x-ndjson",
    ResultFormat.PARQUET: "application/vnd.apache.parquet",
    ResultFormat.RAW: "application/json",
}
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of rows, or with `format` a whole file.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/ResultPage"},
                        {"type": "object", "title": "Raw", "required": ["format", "campaign", "results"]},
                    ]
                }
            },
            "text/csv": {"schema": {"type": "string"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


api = APIRouter(prefix="/api/v1", tags=["results"])


@api.get("/campaigns/{campaign}/results", response_model=ResultPage, responses=_RESPONSES | errors(404))
async def list_results(
    context: Context,
    campaign: CampaignId,
    limit: Limit = PAGE,
    after: After = 0,
    format: Annotated[
        ResultFormat,
        Query(
            description="json: a page of rows. All others are whole files: csv, jsonl (rows with samples), parquet, "
            "raw (samples and signed records, for `sark-node verify`)."
        ),
    ] = ResultFormat.JSON,
) -> ResultPage | Response:
    """Get the results of the tasks that have ended: a page of rows, or a file with all of them."""
    if format is ResultFormat.JSON:
        return await context.store(partial(_page, campaign=campaign, limit=limit, after=after))
    await context.store(lambda store: require_campaign(store, campaign))
    name = f"{campaign}-raw.json" if format is ResultFormat.RAW else f"{campaign}.{format}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if format is ResultFormat.PARQUET:
        stored = await context.store(lambda store: store.results.rows(campaign))
        content = await context.compute(lambda: parquet_bytes(campaign, raw_results(stored)))
        return Response(content, media_type=_TYPES[format], headers=headers)
    lines = stream_lines(context, partial(_lines, campaign, format))
    return StreamingResponse(lines, media_type=_TYPES[format], headers=headers)


@api.post("/campaigns/{campaign}/score", responses=errors(404, 409))
async def score_campaign(context: Context, campaign: CampaignId) -> Rescoring:
    """Score a campaign's stored answers again, with the metrics that are installed on the server now.

    No device is asked. If a new score would be missing, the earlier scores are kept. The response is sent once all answers
    are scored, which takes as long as the metrics do. Scoring continues if the client leaves, and the events say what changed.
    """

    def score(store: Store) -> Rescoring:
        require_campaign(store, campaign)
        with Scorer(check_steady=True) as scorer:
            try:
                return rescore_campaign(store, campaign, scorer)
            except CampaignError as exc:
                raise conflict(exc) from None

    return await context.isolated(score, limiter=context.scoring)


def _page(store: Store, *, campaign: str, limit: int, after: int) -> ResultPage:
    require_campaign(store, campaign)
    numbers = store.tasks.ended_numbers(campaign, limit=limit + 1, after=after)
    page, more = page_of(numbers, limit, int)
    rows = RowReader(store, campaign).rows(page[0], page[-1]) if page else []
    return ResultPage(campaign=campaign, count=len(rows), results=tuple(rows), next=more)


def _lines(campaign: str, format: ResultFormat, store: Store) -> Iterator[str]:
    reader = RowReader(store, campaign)
    if format is ResultFormat.CSV:
        return iter(csv_lines(reader.each_row()))
    raw = reader.each_raw()
    return jsonl_lines(raw) if format is ResultFormat.JSONL else iter(json_lines(campaign, raw))


async def stream_lines(context: ApiContext, make: Callable[[Store], Iterator[str]]) -> AsyncIterator[str]:
    """A file in chunks. Each chunk is made after the previous one was sent; the store is free in between."""
    lines = await context.store(make)
    while chunk := await context.store(lambda store: "".join(islice(lines, CHUNK_TASKS))):
        yield chunk
