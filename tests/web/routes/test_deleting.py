"""Deleting over HTTP: access rules apply, running campaigns are refused, and the devices are asked to forget."""

from __future__ import annotations

from http import HTTPStatus

import httpx
import pytest

from scheduler.store.rows import NewCampaign, NewModel
from swarm.net.identity import load_or_create
from tests.web.conftest import SPEC, WORKER, StoreWriter, Woken
from web.app import make_app
from web.http.context import ApiContext
from web.http.middleware import AccessRules

ONE = "/api/v1/campaigns/c-one"
TOKEN = "a token of sixteen letters".replace(" ", "-")


def ended(context: ApiContext, writer: StoreWriter) -> None:
    """A campaign of this home with one task, completed by laptop-7."""
    me = load_or_create(context.home.key("scheduler")).peer_id
    task = writer.task("c-one", 1)
    new = NewCampaign("c-one", "vision", me, SPEC.model_dump_json())
    writer.store.campaigns.create(new, [NewModel("m.onnx", "ab" * 32, 7)], [task])
    writer.succeed(task.task)
    writer.store.campaigns.end("c-one")


async def test_an_ended_campaign_goes_and_its_devices_are_asked_to_forget_it(
    client: httpx.AsyncClient, context: ApiContext, writer: StoreWriter, woken: Woken
) -> None:
    ended(context, writer)
    answer = await client.delete(ONE)
    assert answer.status_code == HTTPStatus.OK
    assert answer.json() == {
        "campaign": "c-one",
        "tasks": 1,
        "records": 1,
        "files": 0,
        "size": 0,
        "devices": ["laptop-7"],
        "run_of": None,
    }
    assert [row.worker for row in writer.store.deletions.owed("c-one")] == [WORKER]
    assert woken.times == 1, "the scheduler process asks them"
    for path in (ONE, f"{ONE}/tasks", f"{ONE}/results", f"{ONE}/report"):
        assert (await client.get(path)).status_code == HTTPStatus.NOT_FOUND
    assert (await client.get("/api/v1/campaigns")).json()["count"] == 0
    assert (await client.delete(ONE)).status_code == HTTPStatus.NOT_FOUND


async def test_what_has_not_ended_stays_and_the_answer_says_what_to_do(
    client: httpx.AsyncClient, writer: StoreWriter, woken: Woken
) -> None:
    writer.campaign("c-one", 1)
    answer = await client.delete(ONE)
    assert answer.status_code == HTTPStatus.CONFLICT
    assert answer.json()["detail"] == "c-one has not ended"
    assert "cancel it first" in answer.json()["hint"]
    assert (await client.get(ONE)).status_code == HTTPStatus.OK
    assert woken.times == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": "Bearer another-token-of-some-length"}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.example"}, HTTPStatus.FORBIDDEN),
        ({"Authorization": f"Bearer {TOKEN}", "Sec-Fetch-Site": "cross-site"}, HTTPStatus.FORBIDDEN),
        ({"Authorization": f"Bearer {TOKEN}"}, HTTPStatus.OK),
    ],
)
async def test_only_who_has_the_token_deletes_and_no_page_of_another_site_does(
    context: ApiContext, writer: StoreWriter, headers: dict[str, str], status: HTTPStatus
) -> None:
    ended(context, writer)
    transport = httpx.ASGITransport(make_app(context, AccessRules(token=TOKEN)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as asking:
        assert (await asking.delete(ONE, headers=headers)).status_code == status
    assert (writer.store.campaigns.get("c-one") is None) is (status is HTTPStatus.OK)
