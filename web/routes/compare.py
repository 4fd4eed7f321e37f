"""Results of this home beside each other: which is faster and how sure that is, and model × device × unit in one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Query

from protocol.errors import CampaignError
from results.analysis.prices import Price
from results.export.raw import ResultSource
from results.row.form import JsonModel
from results.row.row import Row
from scheduler.output.comparisons import ComparisonTable, ResultMatrix, compare_sources, matrix_of
from scheduler.output.sources import merged, one_device, stored_source
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parts import problems
from web.http.problems import InvalidField

MAX_NAMES: Final = 12
"""Results that are put beside each other at a time."""
MAX_ROWS: Final = 1000
"""Rows of either side: each pair takes some milliseconds."""

Name = Annotated[str, Query(max_length=100)]
Names = Annotated[list[Annotated[str, Query(max_length=100)]], Query(min_length=1, max_length=MAX_NAMES)]


class By(StrEnum):
    """What is compared."""

    RESULTS = "results"
    DEVICE = "device"


class CompareReply(JsonModel):
    """A with each of the others beside it."""

    a: str
    comparisons: tuple[ComparisonTable, ...]


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(
        prefix="/api/v1",
        tags=["compare"],
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )

    busy = trio.CapacityLimiter(1)  # seconds of a processor, at most: one after the other

    @v1.get("/compare", operation_id="compare")
    async def compare(
        a: Annotated[
            str, Query(max_length=100, description="A campaign, a task of it (c-ab23cd45/3), or a device.")
        ],
        b: Annotated[Names, Query(description="The same; what is told is how B is beside A. Repeatable.")],
        by: By = By.RESULTS,
        of: Annotated[
            list[str] | None,
            Query(
                max_length=MAX_NAMES,
                description="With by=device: whose results. Left out: the latest campaign's.",
            ),
        ] = None,
        reference: Annotated[
            str,
            Query(
                max_length=200,
                description="A model by whose time each time is divided, so that devices can differ.",
            ),
        ] = "",
        seed: Annotated[int, Query(ge=0, le=2**53, description="Of the bootstrap.")] = 0,
    ) -> CompareReply:
        """FASTER, SLOWER, SAME or AMBIGUOUS, with the ratio of the medians and its 95 % interval, for each pair of rows."""
        if of and by is not By.DEVICE:
            raise InvalidField(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "of goes with by=device",
                hint="name what is compared as a and b",
            )

        def read(store: Store) -> list[ResultSource]:
            if by is By.RESULTS:
                return [_source(store, name) for name in (a, *b)]
            whole = _joined([_source(store, name) for name in of or [""]])
            return [_device(whole, name) for name in (a, *b)]

        one, *others = await desk.store(read)

        def compared() -> CompareReply:
            return CompareReply(
                a=one.name,
                comparisons=tuple(
                    compare_sources(
                        one, other, across_devices=by is By.DEVICE, reference=reference, seed=seed
                    )[0]
                    for other in others
                ),
            )

        return await trio.to_thread.run_sync(compared, limiter=busy)

    @v1.get("/matrix", operation_id="matrix")
    async def matrix(
        of: Annotated[Names, Query(description="Campaigns or tasks whose results are put together.")],
        base: Annotated[
            str, Query(max_length=200, description="A device, unit, model or variant that ratios are to.")
        ] = "",
        model: Annotated[list[str] | None, Query(max_length=100, description="Only these models.")] = None,
        price: Annotated[
            list[str] | None,
            Query(
                max_length=100,
                description="NAME:NUMBER, what an hour of a device or chip costs.",
                examples=["mini:0.12"],
            ),
        ] = None,
        currency: Annotated[str, Query(max_length=16)] = "",
    ) -> ResultMatrix:
        """Model × device × unit: medians with their intervals, ratios to a base, and what no other beats in time and something else."""
        prices = {name: Price(number, currency) for name, number in map(_price, price or ())}

        def rows(store: Store) -> list[Row]:
            return [entry.row for entry in merged([_source(store, name) for name in of])]

        found = [row for row in await desk.store(rows) if not model or row.file_name in model]
        try:
            return await trio.to_thread.run_sync(
                lambda: matrix_of(found, base=base, prices=prices), limiter=busy
            )
        except ValueError as exc:
            raise InvalidField(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                str(exc),
                hint="write it as it stands in the matrix without a base",
            ) from None

    return v1


def _source(store: Store, name: str) -> ResultSource:
    """Results by name, out of the store alone: a client names no files. Raises `InvalidField`."""
    try:
        source = stored_source(store, name)
    except CampaignError as exc:
        raise InvalidField(HTTPStatus.NOT_FOUND, exc.what, hint=exc.hint) from None
    if len(source.results) > MAX_ROWS:
        raise InvalidField(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{name} has {len(source.results)} rows; {MAX_ROWS} are compared at a time",
            hint="name tasks of it, such as c-ab23cd45/3, or compare files: sark-node compare",
        )
    return source


def _joined(sources: Sequence[ResultSource]) -> ResultSource:
    first = sources[0]
    if len(sources) == 1:
        return first
    return ResultSource(
        " + ".join(source.name for source in sources),
        first.campaign,
        tuple(result for source in sources for result in source.results),
    )


def _device(source: ResultSource, name: str) -> ResultSource:
    try:
        return one_device(source, name)
    except CampaignError as exc:
        raise InvalidField(HTTPStatus.NOT_FOUND, exc.what, hint=exc.hint) from None


def _price(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not 0 <= value < 1e9:
        raise InvalidField(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"price: {text!r} is none",
            hint="write NAME:NUMBER, such as mini:0.12",
        )
    return name, value
