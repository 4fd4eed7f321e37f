"""Campaigns and jobs for the first system's clients: as /api/v1 does it, told in its words."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response

from scheduler.models.uploads import Uploads
from scheduler.output.schemas import status_of
from scheduler.store.rows import CampaignSummary
from scheduler.store.store import Store
from web.compat.models import (
    CAMPAIGN,
    FirstCampaign,
    FirstCampaigns,
    FirstCreated,
    FirstJobDetail,
    first_campaign,
    first_job,
    first_result,
    task_of,
)
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parts import NOT_FOUND, CampaignId, found
from web.http.problems import InvalidField
from web.routes.results import rows_of
from web.routes.submitting import create_campaign

WAIT_S: Final = 60.0
"""How long a device that fits is looked for before a job fails: what /api/v1 does where nothing is said."""

JobId = Annotated[
    str, Path(max_length=100, description="A job's id.", examples=["c-ab23cd45-job-0"], pattern=r"^[!-~]+$")
]
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "A campaign. It is read as JSON, whatever its content type says: `curl -d` says another.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/PlainCampaign"},
                        {"$ref": "#/components/schemas/Campaign"},
                    ]
                },
                "example": {
                    "model_url": "https://example.org/mobilenet.onnx",
                    "jobs": [{"compute_unit": "CPU (ONNX)", "num_inference_runs": 10}],
                },
            }
        },
    }
}


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    first = APIRouter(prefix="/api", tags=["first"])
    uploads = Uploads(desk.home)

    @first.post(
        "/campaigns",
        operation_id="firstCreateCampaign",
        status_code=HTTPStatus.CREATED,
        openapi_extra=_BODY,
    )
    async def create(request: Request, response: Response, key: Key = None) -> FirstCreated:
        """Submit a campaign: `model_url` and `jobs`. Once it is answered it is safe on disk, and goes on by itself."""
        body = await request.body()
        told, _ = await desk.once.do(
            key,
            b"first\0" + body,
            lambda new: create_campaign(desk, uploads, body, "campaign.json", wait_s=WAIT_S, new=new),
        )
        await desk.go_on()
        campaign = str(told["campaign_id"])
        response.headers["Location"] = f"/api/campaigns/{campaign}"
        return await desk.store(lambda store: _created(store, campaign))

    @first.get("/campaigns", operation_id="firstListCampaigns")
    async def campaigns() -> FirstCampaigns:
        """All campaigns with their jobs counted, the newest first."""
        items = await desk.store(Store.summaries)
        return FirstCampaigns(count=len(items), campaigns=tuple(first_campaign(item) for item in items))

    @first.get("/campaigns/{campaign}", operation_id="firstGetCampaign", responses=NOT_FOUND)
    async def campaign_(campaign: CampaignId) -> FirstCampaign:
        """How a campaign stands, with its jobs counted."""
        return first_campaign(await desk.store(lambda store: _summary(store, campaign)))

    @first.get("/jobs/{job}", operation_id="firstGetJob", responses=NOT_FOUND)
    async def job_(job: JobId) -> FirstJobDetail:
        """How a job stands; once it is over, its row of the results."""
        return await desk.store(lambda store: _job(store, job))

    return first


def _summary(store: Store, campaign: str) -> CampaignSummary:
    found(store, campaign)
    item = store.summary(campaign)
    assert item is not None, "it was found"
    return item


def _created(store: Store, campaign: str) -> FirstCreated:
    jobs = tuple(first_job(task) for task in store.tasks(campaign))
    return FirstCreated(
        campaign_id=campaign,
        total_jobs=len(jobs),
        status=CAMPAIGN[status_of(found(store, campaign))],
        jobs=jobs,
    )


def _job(store: Store, job: str) -> FirstJobDetail:
    named = task_of(job)
    task = None if named is None else store.task(f"{named[0]}/{named[1]}")
    if named is None or task is None:
        raise InvalidField(
            HTTPStatus.NOT_FOUND,
            f"no job {job!r} on this home",
            hint="jobs are called CAMPAIGN-job-0, CAMPAIGN-job-1 and so on; campaigns: /api/campaigns",
        )
    if task.ended is None:
        return FirstJobDetail(job=first_job(task), result=None)
    (row,) = rows_of(store, named[0], named[1], named[1])
    return FirstJobDetail(job=first_job(task), result=first_result(row))
