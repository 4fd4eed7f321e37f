"""Comparisons of this home's results: which is faster and with what certainty, and the matrix of model × device × unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response

from protocol.errors import CampaignError
from results.analysis.matrix import Axis, Price
from results.export.raw import ResultSource
from results.report.charts import CHART_AXES, pareto, ratios
from results.report.drawing import Drawing, Theme
from results.row.form import JsonModel
from results.row.row import Row
from scheduler.output.comparisons import (
    ComparisonTable,
    ResultMatrix,
    compare_sources,
    matrix_of,
    merged,
    one_device,
    pair_name,
    stored_source,
)
from scheduler.store.store import Store
from web.http.context import Context
from web.http.problems import HttpProblem, errors
from web.routes.tasks import SVG, svg_response

MAX_NAMES: Final = 12
"""Most results in one comparison."""
MAX_ROWS: Final = 1000
"""Most rows of each result, because each pair takes milliseconds."""

Names = Annotated[list[Annotated[str, Query(max_length=100)]], Query(min_length=1, max_length=MAX_NAMES)]

api = APIRouter(prefix="/api/v1", tags=["compare"], responses=errors(404, 422))


class By(StrEnum):
    """What to compare."""

    RESULTS = "results"
    DEVICE = "device"


class CompareReply(JsonModel):
    """A compared with each B."""

    a: str
    comparisons: tuple[ComparisonTable, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """The base of a comparison, and the results compared with it."""

    sources: Sequence[ResultSource]
    across_devices: bool
    reference: str


async def _sides(
    context: Context,
    a: Annotated[
        str, Query(max_length=100, description="The base: a campaign, a task (c-ab23cd45/3), or a device.")
    ],
    b: Annotated[Names, Query(description="What to compare with the base. Repeatable.")],
    by: By = By.RESULTS,
    of: Annotated[
        list[str] | None,
        Query(
            max_length=MAX_NAMES,
            description="With by=device, the results to use. Default: those of the latest campaign.",
        ),
    ] = None,
    reference: Annotated[
        str,
        Query(
            max_length=200,
            description="Model by whose time on the same side each time is divided, to compare across devices.",
        ),
    ] = "",
) -> Sides:
    across = by is By.DEVICE
    if of and not across:
        raise HttpProblem(422, "of requires by=device", hint="name the results as a and b")

    def read(store: Store) -> list[ResultSource]:
        if not across:
            return [_source(store, name) for name in (a, *b)]
        joined = _joined([_source(store, name) for name in of or [""]])
        return [_device(joined, name) for name in (a, *b)]

    return Sides(await context.store(read), across, reference)


async def _rows(
    context: Context,
    of: Annotated[Names, Query(description="Campaigns or tasks whose results are combined.")],
) -> list[Row]:
    sources = await context.store(lambda store: [_source(store, name) for name in of])
    return [entry.row for entry in merged(sources)]


Compared = Annotated[Sides, Depends(_sides)]
Combined = Annotated[list[Row], Depends(_rows)]


@api.get("/compare")
async def compare(
    context: Context,
    sides: Compared,
    seed: Annotated[int, Query(ge=0, le=2**53, description="Seed of the bootstrap.")] = 0,
) -> CompareReply:
    """Compare results pair by pair: FASTER, SLOWER, SAME or AMBIGUOUS, with the ratio of the medians and its 95 % interval."""
    base, *others = sides.sources

    def run() -> CompareReply:
        tables = (
            compare_sources(
                base, other, across_devices=sides.across_devices, reference=sides.reference, seed=seed
            )[0]
            for other in others
        )
        return CompareReply(a=base.name, comparisons=tuple(tables))

    return await context.compute(run)


@api.get("/compare/chart", response_class=Response, responses=SVG)
async def get_compare_chart(context: Context, sides: Compared, theme: Theme = "light") -> Response:
    """Get the ratios of two results with their 95 % intervals as an SVG chart."""
    base, other, *_ = sides.sources

    def draw() -> Drawing | None:
        _, pairs = compare_sources(
            base, other, across_devices=sides.across_devices, reference=sides.reference
        )
        return ratios([(pair_name(pair), pair) for pair in pairs])

    return svg_response(await context.compute(draw), theme, "ratios")


@api.get("/matrix")
async def matrix(
    context: Context,
    rows: Combined,
    base: Annotated[
        str, Query(max_length=200, description="Base of the ratios: a device, unit, model or variant.")
    ] = "",
    model: Annotated[
        list[str] | None, Query(max_length=100, description="Models to include. Default: all.")
    ] = None,
    price: Annotated[
        list[str] | None,
        Query(
            max_length=100,
            description="Price of an hour of a device or chip, as NAME:NUMBER. Repeatable.",
            examples=["mini:0.12"],
        ),
    ] = None,
    currency: Annotated[str, Query(max_length=16)] = "",
) -> ResultMatrix:
    """Get model × device × unit: medians with intervals, ratios to a base, and Pareto fronts."""
    prices = {name: Price(number, currency) for name, number in map(_price, price or ())}
    rows = [row for row in rows if not model or row.file_name in model]
    try:
        return await context.compute(lambda: matrix_of(rows, base=base, prices=prices))
    except ValueError as exc:
        hint = "write the base as the matrix without a base shows it"
        raise HttpProblem(422, str(exc), hint=hint) from None


@api.get("/matrix/chart", response_class=Response, responses=SVG)
async def get_matrix_chart(
    context: Context,
    rows: Combined,
    axis: Annotated[
        Axis | None,
        Query(description="Property to plot against time. Default: energy if measured, else memory."),
    ] = None,
    theme: Theme = "light",
) -> Response:
    """Get time against another property as an SVG chart, with the Pareto front."""
    if axis is not None and axis not in CHART_AXES:
        raise HttpProblem(422, f"axis={axis} has no chart", hint=f"axis is one of {', '.join(CHART_AXES)}")
    return svg_response(await context.compute(lambda: pareto(rows, axis=axis)), theme, "pareto")


def _source(store: Store, name: str) -> ResultSource:
    """Stored results by name. Clients cannot name files. Raises `HttpProblem`."""
    try:
        source = stored_source(store, name)
    except CampaignError as exc:
        raise HttpProblem(404, exc.what, hint=exc.hint) from None
    if len(source.results) > MAX_ROWS:
        raise HttpProblem(
            422,
            f"{name} has {len(source.results)} rows; at most {MAX_ROWS} can be compared",
            hint="name tasks, such as c-ab23cd45/3, or compare files: sark-node compare",
        )
    return source


def _joined(sources: Sequence[ResultSource]) -> ResultSource:
    if len(sources) == 1:
        return sources[0]
    results = tuple(result for source in sources for result in source.results)
    return ResultSource(" + ".join(source.name for source in sources), sources[0].campaign, results)


def _device(source: ResultSource, name: str) -> ResultSource:
    try:
        return one_device(source, name)
    except CampaignError as exc:
        raise HttpProblem(404, exc.what, hint=exc.hint) from None


def _price(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not 0 <= value < 1e9:
        raise HttpProblem(422, f"price {text!r} is not NAME:NUMBER", hint="such as mini:0.12")
    return name, value
