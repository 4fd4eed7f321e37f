"""A campaign's report and charts, as the commands write them."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from results.analysis.matrix import Axis
from results.export.raw import ResultSource
from results.report.charts import ChartKind
from results.report.html import policy
from scheduler.output.render import SIZES, ReportFormat, chart, make_report, picture, render
from scheduler.store.readers import raw_results
from scheduler.store.store import Store
from web.http.context import Context
from web.http.parameters import CampaignId, require_campaign
from web.http.problems import errors, file_of

_TYPES: Final = {
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.MD: "text/markdown; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}

api = APIRouter(prefix="/api/v1/campaigns/{campaign}", tags=["report"])


@api.get(
    "/report",
    response_class=Response,
    responses=errors(404) | file_of(_TYPES[ReportFormat.HTML], _TYPES[ReportFormat.MD]),
)
async def get_report(
    context: Context,
    campaign: CampaignId,
    form: Annotated[ReportFormat, Query(alias="format")] = ReportFormat.HTML,
    against: Annotated[str, Query(description="Another campaign's full id.", max_length=64)] = "",
) -> Response:
    """Get a report of the results so far: a self-contained HTML file, or Markdown."""
    source = await context.store(lambda store: _source(store, campaign))
    other = await context.store(lambda store: _source(store, against)) if against else None
    stored = await context.store(lambda store: store.campaigns.summary(campaign))

    def make() -> Response:
        text = render(make_report(source, stored, time.time(), other), form)
        csp = {"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'; sandbox"}
        return Response(text, media_type=_TYPES[form], headers=csp if form is ReportFormat.HTML else {})

    return await context.compute(make)


@api.get("/chart", response_class=Response, responses=errors(404) | file_of(_TYPES["svg"], _TYPES["png"]))
async def get_chart(
    context: Context,
    campaign: CampaignId,
    kind: ChartKind = ChartKind.BARS,
    form: Annotated[str, Query(alias="format", pattern="^(svg|png)$")] = "svg",
    size: Annotated[str, Query(pattern=f"^({'|'.join(SIZES)})$")] = "16:9",
    axis: Annotated[
        Axis | None,
        Query(
            description="With kind=pareto, the property to plot against time. Default: energy if measured, else memory."
        ),
    ] = None,
    dark: bool = False,
) -> Response:
    """Get a chart for a slide."""
    source = await context.store(lambda store: _source(store, campaign))
    row = await context.store(lambda store: require_campaign(store, campaign))

    def make() -> Response:
        data = picture(chart(source.results, kind, size, row.name, axis), f".{form}", dark=dark)
        return Response(data, media_type=_TYPES[form])

    return await context.compute(make)


def _source(store: Store, campaign: str) -> ResultSource:
    require_campaign(store, campaign)
    results = tuple(raw_results(store.results.rows(campaign), store.campaigns.evaluations(campaign)))
    return ResultSource(campaign, campaign, results, whole=results)
