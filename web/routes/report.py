"""A campaign's report and its charts over HTTP: the same text and pictures as the commands write."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Path, Query, Response

from results.analysis.pareto import Axis
from results.export.raw import ResultSource
from results.report.charts import ChartKind
from results.report.facts import Report
from results.report.html import policy
from scheduler.output.render import SIZES, ReportFormat, chart, find_stored, make_report, picture, render
from scheduler.store.results import raw_results
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.problems import InvalidField

CampaignId = Annotated[str, Path(description="A campaign's whole id.", max_length=128)]
_TYPES: Final = {
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.MD: "text/markdown; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}


def router(desk: ApiContext, wall: Callable[[], float] = time.time) -> APIRouter:
    """Endpoints over `desk`. `wall`: seconds since 1970."""
    api = APIRouter(prefix="/api/v1/campaigns/{campaign}", tags=["report"])
    busy = trio.CapacityLimiter(1)  # a large report takes a processor for seconds: one after the other

    @api.get(
        "/report",
        operation_id="getReport",
        response_class=Response,
        responses={200: {"content": {_TYPES[ReportFormat.HTML]: {}, _TYPES[ReportFormat.MD]: {}}}},
    )
    async def report(
        campaign: CampaignId,
        form: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.HTML,
        against: Annotated[str, Query(description="Another campaign's whole id.", max_length=128)] = "",
    ) -> Response:
        """The report of what there is so far: one HTML file that needs nothing else, or Markdown."""
        source = await desk.store(lambda store: _source(store, campaign))
        other = await desk.store(lambda store: _source(store, against)) if against else None
        stored = await desk.store(lambda store: find_stored(store, source))

        def made() -> Response:
            return _answer(make_report(source, stored, wall(), other), form)

        return await trio.to_thread.run_sync(made, limiter=busy)

    @api.get(
        "/chart",
        operation_id="getChart",
        response_class=Response,
        responses={200: {"content": {_TYPES["svg"]: {}, _TYPES["png"]: {}}}},
    )
    async def draw(
        campaign: CampaignId,
        kind: ChartKind = ChartKind.BARS,
        form: Annotated[str, Query(alias="format", pattern="^(svg|png)$")] = "svg",
        size: Annotated[str, Query(pattern=f"^({'|'.join(SIZES)})$")] = "16:9",
        against: Annotated[Axis | None, Query(description="With kind=pareto.")] = None,
        dark: bool = False,
    ) -> Response:
        """A picture for a slide."""
        source = await desk.store(lambda store: _source(store, campaign))
        stored = await desk.store(lambda store: store.campaign(campaign))

        def drawn() -> Response:
            title = stored.name if stored is not None else campaign
            data = picture(chart(source.results, kind, size, title, against), f".{form}", dark=dark)
            return Response(data, media_type=_TYPES[form])

        return await trio.to_thread.run_sync(drawn, limiter=busy)

    return api


def _source(store: Store, campaign: str) -> ResultSource:
    if store.campaign(campaign) is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND, "no such campaign on this home", hint="list them: GET /api/v1/campaigns"
        )
    results = tuple(raw_results(store.rows(campaign)))
    return ResultSource(campaign, campaign, results, whole=results)


def _answer(made: Report, form: ReportFormat) -> Response:
    headers = (
        {"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'; sandbox"}
        if form is ReportFormat.HTML
        else {}
    )
    return Response(render(made, form), media_type=_TYPES[form], headers=headers)
