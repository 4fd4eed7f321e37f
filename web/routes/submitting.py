"""New campaigns over HTTP: submitted, or what failed of an old one once more."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict

from protocol.errors import CampaignError
from results.row.form import JsonModel
from scheduler.campaign.fields import MAX_DURATION_S
from scheduler.campaign.load import parse_campaign
from scheduler.models.describe import describe_models
from scheduler.models.fetch import downloader
from scheduler.models.uploads import Uploads, placed
from scheduler.output.schemas import CampaignInfo, campaign_info
from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from scheduler.submit.retry import retry_campaign
from scheduler.submit.submit import store_campaign
from swarm.base.units import DurationError, parse_duration
from web.http.context import ApiContext
from web.http.idempotency import Key
from web.http.parts import CampaignId, conflict, found, problems
from web.http.problems import InvalidField

FILES: Final = {
    "application/json": "campaign.json",
    "text/yaml": "campaign.yaml",
    "application/yaml": "campaign.yaml",
    "application/x-yaml": "campaign.yaml",
}
"""Content types of a campaign, and how what is wrong with it names it."""

EXAMPLE: Final = {
    "campaign": "vision",
    "models": ["https://example.org/mobilenet.onnx"],
    "units": ["CPU (ONNX)"],
    "measure": {"runs": 100},
}
CAMPAIGN_BODY: Final[dict[str, Any]] = {  # for every request that brings a campaign
    "requestBody": {
        "required": True,
        "description": "A campaign in the form of campaign.yaml, or in the plain form (`model_url` with `jobs`).",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/Campaign"},
                        {"$ref": "#/components/schemas/PlainCampaign"},
                    ]
                },
                "example": EXAMPLE,
            },
            "text/yaml": {"schema": {"type": "string"}},
        },
    }
}


class RetryReply(JsonModel):
    """A new campaign with the tasks of an old one that did not succeed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"campaign": "c-ab23cd45", "tasks": 2}]})

    campaign: str
    tasks: int


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["campaigns"])
    uploads = Uploads(desk.home)

    @v1.post(
        "/campaigns",
        operation_id="createCampaign",
        status_code=HTTPStatus.CREATED,
        response_model=CampaignInfo,
        responses=problems(
            HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        ),
        openapi_extra=CAMPAIGN_BODY,
    )
    async def create(
        request: Request,
        response: Response,
        wait: Annotated[
            str,
            Query(
                max_length=20,
                description="How long a device that fits is looked for before a task fails, such as 90s or 10m.",
            ),
        ] = "60s",
        key: Key = None,
    ) -> dict[str, Any]:
        """Submit a campaign. Once it is answered it is safe on disk, and goes on by itself.

        A model is an `https://` or `hf://` URL, or one that was sent to `/api/v1/models`, named `sha256:…` in place of a path.
        """
        wait_s = _wait_seconds(wait)
        file = file_of(request.headers.get("content-type", ""))
        body = await request.body()
        asked = b"\0".join([b"create", file.encode(), wait.encode(), body])
        told, again = await desk.once.do(
            key, asked, lambda new: create_campaign(desk, uploads, body, file, wait_s=wait_s, new=new)
        )
        await desk.go_on()
        _mark(response, told["campaign_id"], again=again)
        return told

    @v1.post(
        "/campaigns/{campaign}/retry",
        operation_id="retryCampaign",
        status_code=HTTPStatus.CREATED,
        response_model=RetryReply,
        responses=problems(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    )
    async def retry(campaign: CampaignId, response: Response, key: Key = None) -> dict[str, Any]:
        """Run again what failed or was cancelled, as a new campaign. The old one stays as it is."""
        told, again = await desk.once.do(
            key, f"retry\0{campaign}".encode(), lambda new: _retry(desk, uploads, campaign, new)
        )
        await desk.go_on()
        _mark(response, told["campaign"], again=again)
        return told

    return v1


def _wait_seconds(text: str) -> float:
    try:
        return parse_duration(text, units="ms s m h d", max_s=MAX_DURATION_S)
    except DurationError as exc:
        raise InvalidField(HTTPStatus.UNPROCESSABLE_ENTITY, f"wait: {exc.what}", hint=exc.hint) from None


def file_of(content_type: str) -> str:
    """How what is wrong with a campaign of this content type names it. Raises `InvalidField`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in FILES:
        raise InvalidField(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "a campaign is sent as JSON or as YAML",
            hint="with Content-Type: application/json, or text/yaml",
        )
    return FILES[kind]


def _mark(response: Response, campaign: str, *, again: bool) -> None:
    response.headers["Location"] = f"/api/v1/campaigns/{campaign}"
    if again:
        response.headers["Idempotency-Replayed"] = "true"


async def create_campaign(
    desk: ApiContext, uploads: Uploads, body: bytes, file: str, *, wait_s: float, new: str
) -> dict[str, Any]:
    def work(store: Store) -> CampaignInfo:
        if store.campaign(new) is None:
            campaign = placed(parse_campaign(body, file), uploads, allow_paths=desk.allow_paths)
            fetch = downloader(desk.home, lambda name, done, total: None, reach=desk.reach)
            models = describe_models(campaign, uploads.folder, fetch)
            store_campaign(
                desk.home,
                store,
                campaign,
                models,
                folder=str(uploads.folder),
                wait_s=wait_s,
                campaign_id=new,
            )
        item = store.summary(new)
        assert item is not None, "it was stored"
        return campaign_info(item, scheduling=is_running(desk.home))

    return (await desk.apart(work, fetching=True)).model_dump(mode="json")


async def _retry(desk: ApiContext, uploads: Uploads, campaign: str, new: str) -> dict[str, Any]:
    def work(store: Store) -> RetryReply:
        found(store, campaign)
        known = store.summary(new)
        if known is not None:
            return RetryReply(campaign=new, tasks=known.tasks)
        fetch = downloader(desk.home, lambda name, done, total: None, reach=desk.reach)
        try:
            made, tasks = retry_campaign(
                desk.home, store, campaign, uploads.folder, campaign_id=new, fetch=fetch
            )
        except CampaignError as exc:
            raise conflict(exc) from None
        return RetryReply(campaign=made, tasks=tasks)

    return (await desk.apart(work, fetching=True)).model_dump(mode="json")
