"""Before and while a campaign runs: is it written well, what would it do on the devices of now, and why does it stand as it does."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.schema import campaign_schema
from scheduler.models.describe import Models, describe_models
from scheduler.models.fetch import downloader
from scheduler.models.uploads import Uploads, placed
from scheduler.preview.ask_why import ask_why
from scheduler.preview.look import look_at
from scheduler.preview.plan import LivePlan
from scheduler.preview.plan_table import keep_plan
from scheduler.preview.validate import ValidationReport, check
from scheduler.preview.why import WhyReport
from scheduler.store.store import Store
from web.http.context import ApiContext
from web.http.parts import NOT_FOUND, CampaignId, Number, found, problems
from web.http.problems import InvalidField
from web.routes.submitting import CAMPAIGN_BODY, file_of


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["planning"])
    uploads = Uploads(desk.home)
    refusals = problems(HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

    def here(campaign: Campaign) -> Campaign:
        """Its uploads named by where they lie."""
        return placed(campaign, uploads, allow_paths=desk.allow_paths)

    def described(campaign: Campaign) -> Models:
        """The models of such a one, looked at as when it is submitted."""
        fetch = downloader(desk.home, lambda name, done, total: None, reach=desk.reach)
        return describe_models(campaign, uploads.folder, fetch)

    @v1.post("/validate", operation_id="validateCampaign", responses=refusals, openapi_extra=CAMPAIGN_BODY)
    async def validate(
        request: Request,
        models: Annotated[
            bool, Query(description="Look at its models too: those by URL are fetched.")
        ] = True,
    ) -> ValidationReport:
        """Everything that is wrong with a campaign's text, each with its line and what to do; or what it would measure."""
        file, body = file_of(request.headers.get("content-type", "")), await request.body()

        return await desk.apart(
            lambda store: check(body, file, here, described if models else None), fetching=True
        )

    @v1.post("/plan", operation_id="planCampaign", responses=refusals, openapi_extra=CAMPAIGN_BODY)
    async def plan(request: Request) -> LivePlan:
        """What a campaign would do on the devices that are there now: where, when, for how long, and why not. Commits nothing."""
        file, body = file_of(request.headers.get("content-type", "")), await request.body()

        def made(store: Store) -> LivePlan:
            campaign = here(parse_campaign(body, file))
            told = look_at(desk.home, campaign, described(campaign), desk.gates())
            with contextlib.suppress(OSError):  # a plan can be read though it cannot be kept
                keep_plan(desk.home, told)
            return told

        return await desk.apart(made, fetching=True)

    @v1.get("/explain/{campaign}", operation_id="explainCampaign", responses=NOT_FOUND)
    async def explain(campaign: CampaignId) -> WhyReport:
        """Why a campaign stands as it stands: what its tasks wait for, what was tried, who refused, what would help."""
        return await desk.apart(lambda store: _why(desk, store, campaign, None))

    @v1.get("/explain/{campaign}/{n}", operation_id="explainTask", responses=NOT_FOUND)
    async def explain_task(campaign: CampaignId, n: Number) -> WhyReport:
        """The same of one task."""
        return await desk.apart(lambda store: _why(desk, store, campaign, n))

    @v1.get("/campaign-schema", operation_id="campaignSchema")
    async def schema() -> dict[str, Any]:
        """The JSON Schema of a campaign, for editors that complete and check while one types."""
        return campaign_schema()

    return v1


def _why(desk: ApiContext, store: Store, campaign: str, n: int | None) -> WhyReport:
    found(store, campaign)
    if n is not None and store.task(f"{campaign}/{n}") is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"{campaign} has no task {n}",
            hint=f"list them: /api/v1/campaigns/{campaign}/tasks",
        )
    return ask_why(desk.home, store, campaign, "" if n is None else str(n), desk.gates())
