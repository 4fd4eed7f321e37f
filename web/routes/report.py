"""A campaign's report and charts, as the commands write them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final

import trio
from fastapi import APIRouter, Query, Response

from results.analysis.pareto import Axis
from results.export.raw import ResultSource
from results.report.charts import ChartKind
from results.report.html import policy
from scheduler.output.render import SIZES, ReportFormat, chart, find_stored, make_report, picture, render
from scheduler.store.results import raw_results
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parameters import NOT_FOUND, CampaignId, require_campaign

_TYPES: Final = {
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.MD: "text/markdown; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}


def router(context: ApiContext, wall: Callable[[], float] = time.time) -> APIRouter:
    """Reports and charts. `wall`: seconds since 1970."""
    api = APIRouter(prefix="/api/v1/campaigns/{campaign}", tags=["report"])
    limiter = trio.CapacityLimiter(1)  # each may take seconds of CPU time

    @api.get(
        "/report",
        operation_id="getReport",
        response_class=Response,
        responses=NOT_FOUND
        | {200: {"content": {_TYPES[ReportFormat.HTML]: {}, _TYPES[ReportFormat.MD]: {}}}},
    )
    async def report(
        campaign: CampaignId,
        form: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.HTML,
        against: Annotated[str, Query(description="Another campaign's full id.", max_length=64)] = "",
    ) -> Response:
        """Get a report of the results so far: a self-contained HTML file, or Markdown."""
        source = await context.store(lambda store: _source(store, campaign))
        other = await context.store(lambda store: _source(store, against)) if against else None
        stored = await context.store(lambda store: find_stored(store, source))

        def make() -> Response:
            text = render(make_report(source, stored, wall(), other), form)
            csp = {"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'; sandbox"}
            return Response(text, media_type=_TYPES[form], headers=csp if form is ReportFormat.HTML else {})

        return await trio.to_thread.run_sync(make, limiter=limiter)

    @api.get(
        "/chart",
        operation_id="getChart",
        response_class=Response,
        responses=NOT_FOUND | {200: {"content": {_TYPES["svg"]: {}, _TYPES["png"]: {}}}},
    )
    async def draw(
        campaign: CampaignId,
        kind: ChartKind = ChartKind.BARS,
        form: Annotated[str, Query(alias="format", pattern="^(svg|png)$")] = "svg",
        size: Annotated[str, Query(pattern=f"^({'|'.join(SIZES)})$")] = "16:9",
        axis: Annotated[Axis | None, Query(description="With kind=pareto.")] = None,
        dark: bool = False,
    ) -> Response:
        """Get a chart for a slide."""
        source = await context.store(lambda store: _source(store, campaign))
        stored = await context.store(lambda store: store.campaigns.get(campaign))

        def make() -> Response:
            title = stored.name if stored is not None else campaign
            data = picture(chart(source.results, kind, size, title, axis), f".{form}", dark=dark)
            return Response(data, media_type=_TYPES[form])

        return await trio.to_thread.run_sync(make, limiter=limiter)

    return api


def _source(store: Store, campaign: str) -> ResultSource:
    require_campaign(store, campaign)
    results = tuple(raw_results(store.results.rows(campaign)))
    return ResultSource(campaign, campaign, results, whole=results)
