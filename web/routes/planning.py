"""Before and during a campaign: validate it, plan it on the current devices, explain its state."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query

from scheduler.campaign.load import parse_campaign
from scheduler.campaign.text import campaign_schema
from scheduler.models.describe import describe_models
from scheduler.models.uploads import placed
from scheduler.preview.look import explain_campaign, plan_campaign
from scheduler.preview.plan import LivePlan
from scheduler.preview.plan_table import save_plan
from scheduler.preview.validate import ValidationReport, check
from scheduler.preview.why import WhyReport
from scheduler.store.store import Store
from web.http.context import ApiContext, Context
from web.http.parameters import CampaignId, Number, require_campaign, require_task
from web.http.problems import errors
from web.routes.campaigns import CAMPAIGN_BODY, CampaignText

api = APIRouter(prefix="/api/v1", tags=["planning"])


@api.post("/validate", responses=errors(415, 422), openapi_extra=CAMPAIGN_BODY)
async def validate_campaign(
    context: Context,
    text: CampaignText,
    models: Annotated[bool, Query(description="Also check its models, which fetches those by URL.")] = True,
) -> ValidationReport:
    """Validate a campaign's text: all errors with line and hint, or what the campaign would measure."""
    place = partial(placed, uploads=context.uploads, allow_paths=context.allow_paths)
    describe = partial(describe_models, base_dir=context.uploads.folder, fetch=context.fetch_model())
    return await context.isolated(
        lambda store: check(*text, place, describe if models else None), fetching=True
    )


@api.post("/plan", responses=errors(415, 422), openapi_extra=CAMPAIGN_BODY)
async def plan_campaign_(context: Context, text: CampaignText) -> LivePlan:
    """Plan a campaign on the current devices: where, when, how long, and why not. Commits nothing."""

    def make(store: Store) -> LivePlan:
        campaign = placed(parse_campaign(*text), context.uploads, allow_paths=context.allow_paths)
        models = describe_models(campaign, context.uploads.folder, context.fetch_model())
        made = plan_campaign(context.home, campaign, models, context.gates())
        with contextlib.suppress(OSError):  # the plan is useful even if it cannot be stored
            save_plan(context.home, made)
        return made

    return await context.isolated(make, fetching=True)


@api.get("/explain/{campaign}", responses=errors(404))
async def explain_campaign_(context: Context, campaign: CampaignId) -> WhyReport:
    """Explain a campaign's state: what its tasks wait for, what was tried, who refused, what would help."""
    return await context.isolated(lambda store: _explain(context, store, campaign, None))


@api.get("/explain/{campaign}/{n}", responses=errors(404))
async def explain_task(context: Context, campaign: CampaignId, n: Number) -> WhyReport:
    """Explain a task's state."""
    return await context.isolated(lambda store: _explain(context, store, campaign, n))


@api.get("/campaign-schema")
async def campaign_schema_() -> dict[str, Any]:
    """Get the JSON Schema of a campaign, for editors."""
    return campaign_schema()


def _explain(context: ApiContext, store: Store, campaign: str, n: int | None) -> WhyReport:
    require_campaign(store, campaign) if n is None else require_task(store, campaign, n)
    return explain_campaign(context.home, store, campaign, "" if n is None else str(n), context.gates())
