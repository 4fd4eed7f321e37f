"""Results: rows for programs a page at a time, files for sheets and for who makes the numbers again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import trio
from fastapi import APIRouter, Query, Response
from starlette.responses import StreamingResponse

from results.export.columnar import jsonl_lines, parquet_bytes
from results.export.raw import RawResult, csv_lines, json_lines
from results.row.form import JsonModel
from results.row.row import Row
from scheduler.store.results import campaign_rows, raw_results
from scheduler.store.rows import ResultRow
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parts import NOT_FOUND, PAGE, After, CampaignId, Limit, found

T = TypeVar("T")

REPLICAS: Final = 16
"""The most there are of one task: they stand side by side, and a row's agreement is found by looking at all of them."""
AT_ONCE: Final = 50
"""Tasks whose raw samples are held at a time while a file is sent."""


class ResultPage(JsonModel):
    """Rows of tasks that have ended, in the order of the campaign; their fields are the columns of the CSV (docs/columns.md)."""

    campaign: str
    count: int
    results: tuple[Row, ...]
    next: int | None
    """What to give as `after` for the page that follows; null: this is the last one."""


class ResultFormat(StrEnum):
    """How results are wanted."""

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
_FILES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of rows, or with `format` the whole file.",
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


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["results"])
    whole_files = trio.Semaphore(1)  # a file that is made whole, with all samples, is held: one at a time

    @v1.get(
        "/campaigns/{campaign}/results",
        operation_id="listResults",
        response_model=ResultPage,
        responses=_FILES | NOT_FOUND,
    )
    async def results(
        campaign: CampaignId,
        limit: Limit = PAGE,
        after: After = 0,
        format: Annotated[
            ResultFormat,
            Query(
                description="json: a page of rows. The others are files with all of them: csv, jsonl (rows with their samples), "
                "parquet, raw (samples and signed records: what `sark-node verify` reads)."
            ),
        ] = ResultFormat.JSON,
    ) -> ResultPage | Response:
        """What came of the tasks that have ended: rows a page at a time, or a file with all of them."""
        if format is ResultFormat.JSON:
            return await desk.store(partial(_page, campaign=campaign, limit=limit, after=after))
        await desk.store(lambda store: found(store, campaign))
        name = f"{campaign}-raw.json" if format is ResultFormat.RAW else f"{campaign}.{format}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        if format is ResultFormat.PARQUET:
            async with whole_files:
                whole = await desk.store(lambda store: raw_results(store.rows(campaign)))
                content = await trio.to_thread.run_sync(parquet_bytes, campaign, whole)
            return Response(content, media_type=_TYPES[format], headers=headers)
        sent = pieces(desk, partial(_lines, campaign, format))
        return StreamingResponse(sent, media_type=_TYPES[format], headers=headers)

    return v1


def _page(store: Store, *, campaign: str, limit: int, after: int) -> ResultPage:
    found(store, campaign)
    numbers = store.ended_numbers(campaign, limit=limit + 1, after=after)
    shown = frozenset(numbers[:limit])
    rows = rows_of(store, campaign, min(shown), max(shown)) if shown else []
    return ResultPage(
        campaign=campaign,
        count=len(rows),
        results=tuple(rows),
        next=max(shown) if len(numbers) > limit else None,
    )


def _number(row: Row) -> int:
    return int(row.job_id.rpartition("/")[2])


def _raw(store: Store, campaign: str, low: int, high: int) -> list[RawResult]:
    """The raw results of the ended tasks with these numbers."""
    return [raw for raw in raw_results(_near(store, campaign, low, high)) if low <= _number(raw.row) <= high]


def rows_of(store: Store, campaign: str, low: int, high: int) -> list[Row]:
    """The rows of the ended tasks with these numbers."""
    return [row for row in campaign_rows(_near(store, campaign, low, high)) if low <= _number(row) <= high]


def _near(store: Store, campaign: str, low: int, high: int) -> Sequence[ResultRow]:
    return store.rows(campaign, low - REPLICAS, high + REPLICAS)


def walk(store: Store, campaign: str, read: Callable[[Store, str, int, int], list[T]]) -> Iterator[T]:
    """All that has ended, a few tasks at a time."""
    last = 0
    while numbers := store.ended_numbers(campaign, limit=AT_ONCE, after=last):
        last = numbers[-1]
        yield from read(store, campaign, numbers[0], last)


def _lines(campaign: str, wanted: ResultFormat, store: Store) -> Iterator[str]:
    """A file's lines, made as they are taken."""
    match wanted:
        case ResultFormat.CSV:
            return iter(csv_lines(walk(store, campaign, rows_of)))
        case ResultFormat.JSONL:
            return jsonl_lines(walk(store, campaign, _raw))
        case _:
            return iter(json_lines(campaign, walk(store, campaign, _raw)))


async def pieces(desk: ApiContext, make: Callable[[Store], Iterator[str]]) -> AsyncIterator[str]:
    """A file in pieces, each made when the one before has been sent: never the whole of it is held, nor the store."""
    lines = await desk.store(make)
    while piece := await desk.store(lambda store: "".join(islice(lines, AT_ONCE))):
        yield piece
