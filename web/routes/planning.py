"""Before and during a campaign: validate it, plan it on the current devices, explain its state."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_schema
from scheduler.models.describe import Models, describe_models
from scheduler.models.uploads import Uploads, placed
from scheduler.preview.look import explain_campaign, plan_campaign
from scheduler.preview.plan import LivePlan
from scheduler.preview.plan_table import save_plan
from scheduler.preview.validate import ValidationReport, check
from scheduler.preview.why import WhyReport
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parameters import NOT_FOUND, CampaignId, Number, no_task, problems, require_campaign
from web.routes.campaigns import CAMPAIGN_BODY, fetcher, file_name_for


def router(context: ApiContext) -> APIRouter:
    """Validation, plans and explanations."""
    v1 = APIRouter(prefix="/api/v1", tags=["planning"])
    uploads = Uploads(context.home)
    invalid = problems(HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

    def place(campaign: Campaign) -> Campaign:
        return placed(campaign, uploads, allow_paths=context.allow_paths)

    def describe(campaign: Campaign) -> Models:
        return describe_models(campaign, uploads.folder, fetcher(context))

    @v1.post("/validate", operation_id="validateCampaign", responses=invalid, openapi_extra=CAMPAIGN_BODY)
    async def validate(
        request: Request,
        models: Annotated[
            bool, Query(description="Also check its models, which fetches those by URL.")
        ] = True,
    ) -> ValidationReport:
        """Validate a campaign's text: all errors with line and hint, or what the campaign would measure."""
        file, body = file_name_for(request.headers.get("content-type", "")), await request.body()
        return await context.isolated(
            lambda store: check(body, file, place, describe if models else None), fetching=True
        )

    @v1.post("/plan", operation_id="planCampaign", responses=invalid, openapi_extra=CAMPAIGN_BODY)
    async def plan(request: Request) -> LivePlan:
        """Plan a campaign on the current devices: where, when, how long, and why not. Commits nothing."""
        file, body = file_name_for(request.headers.get("content-type", "")), await request.body()

        def make(store: Store) -> LivePlan:
            campaign = place(parse_campaign(body, file))
            made = plan_campaign(context.home, campaign, describe(campaign), context.gates())
            with contextlib.suppress(OSError):  # the plan is useful even if it cannot be stored
                save_plan(context.home, made)
            return made

        return await context.isolated(make, fetching=True)

    @v1.get("/explain/{campaign}", operation_id="explainCampaign", responses=NOT_FOUND)
    async def explain(campaign: CampaignId) -> WhyReport:
        """Explain a campaign's state: what its tasks wait for, what was tried, who refused, what would help."""
        return await context.isolated(lambda store: _explain(context, store, campaign, None))

    @v1.get("/explain/{campaign}/{n}", operation_id="explainTask", responses=NOT_FOUND)
    async def explain_task(campaign: CampaignId, n: Number) -> WhyReport:
        """Explain a task's state."""
        return await context.isolated(lambda store: _explain(context, store, campaign, n))

    @v1.get("/campaign-schema", operation_id="campaignSchema")
    async def schema() -> dict[str, Any]:
        """Get the JSON Schema of a campaign, for editors."""
        return campaign_schema()

    return v1


def _explain(context: ApiContext, store: Store, campaign: str, n: int | None) -> WhyReport:
    require_campaign(store, campaign)
    if n is not None and store.tasks.get(f"{campaign}/{n}") is None:
        raise no_task(campaign, n)
    return explain_campaign(context.home, store, campaign, "" if n is None else str(n), context.gates())
