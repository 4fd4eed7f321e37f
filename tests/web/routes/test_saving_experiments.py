"""Experiments saved, changed, scheduled and deleted over HTTP. They reach nothing that a campaign could not reach."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from scheduler.campaign.model import Schedule
from scheduler.experiments.service import set_schedule
from scheduler.store.store import Store
from tests.swarm.web_parts import web
from web.http.context import ApiContext

NIGHTLY = "/api/v1/experiments/nightly"
YAML = {"Content-Type": "text/yaml"}


@pytest.fixture
async def model(client: httpx.AsyncClient) -> str:
    """An uploaded model, as campaigns name it."""
    return await sent(client, b'{"latencies_ms": [1]}')


async def sent(client: httpx.AsyncClient, content: bytes) -> str:
    answer = await client.post("/api/v1/models", params={"name": "m.json"}, content=content)
    return f"sha256:{answer.json()['sha256']}"


def given(model: str, **more: Any) -> dict[str, Any]:
    return {"campaign": "sent", "models": [model], "units": ["Fake (Simulation)"], **more}


async def test_an_experiment_is_made_changed_run_and_deleted(client: httpx.AsyncClient, model: str) -> None:
    made = await client.put(NIGHTLY, json=given(model))
    assert made.status_code == HTTPStatus.CREATED
    assert (made.json()["experiment"], made.json()["version"], made.json()["new"]) == ("nightly", 1, True)
    same = await client.put(NIGHTLY, content=made.json()["campaign"], headers=YAML)
    assert same.status_code == HTTPStatus.OK, "what is shown can be sent again"
    assert (same.json()["version"], same.json()["new"]) == (1, False)
    changed = await client.put(NIGHTLY, json=given(model, measure={"runs": 7}))
    assert (changed.json()["version"], changed.json()["new"]) == (2, True)
    run = await client.post(f"{NIGHTLY}/run")
    assert (run.status_code, run.json()["version"]) == (HTTPStatus.CREATED, 2)
    assert (await client.delete(NIGHTLY)).status_code == HTTPStatus.NO_CONTENT
    assert (await client.get(NIGHTLY)).status_code == HTTPStatus.NOT_FOUND
    assert (await client.delete(NIGHTLY)).status_code == HTTPStatus.NOT_FOUND
    stays = await client.get(f"/api/v1/campaigns/{run.json()['campaign']}")
    assert stays.status_code == HTTPStatus.OK


async def test_a_model_that_an_experiment_needs_is_not_removed(client: httpx.AsyncClient, model: str) -> None:
    path = f"/api/v1/models/{model.removeprefix('sha256:')}"
    await client.put(NIGHTLY, json=given(model))
    refused = await client.delete(path)
    assert refused.status_code == HTTPStatus.CONFLICT
    assert refused.json()["detail"] == "the experiment nightly measures this model"
    await client.put(NIGHTLY, json=given(await sent(client, b'{"latencies_ms": [2]}')))
    assert (await client.delete(path)).status_code == HTTPStatus.NO_CONTENT, "an older version does not count"


async def test_a_schedule_is_set_and_removed_and_a_webhook_of_the_machine_itself_stays(
    client: httpx.AsyncClient, context: ApiContext, model: str
) -> None:
    await client.put(NIGHTLY, json=given(model))
    hook = "https://example.org/a-key"
    with Store(context.home.store) as store:
        set_schedule(store, "nightly", Schedule.model_validate({"every": "1d", "webhook": hook}), now=0.0)
    answer = await client.put(f"{NIGHTLY}/schedule", json={"every": "6h", "alarm": "5%"})
    assert answer.status_code == HTTPStatus.OK
    assert (answer.json()["schedule"], answer.json()["alarm"], answer.json()["webhook"]) == (
        "every 6 h",
        0.05,
        True,
    )
    in_file = await client.put(NIGHTLY, json=given(model, schedule={"every": "1d", "at": "03:00"}))
    assert in_file.status_code == HTTPStatus.OK
    shown = (await client.get(NIGHTLY)).json()
    assert (shown["schedule"], shown["webhook"]) == ("every day at 03:00 UTC", True)
    with Store(context.home.store) as store:
        row = store.experiments.get("nightly")
    assert row is not None
    assert row.webhook == hook
    off = await client.delete(f"{NIGHTLY}/schedule")
    assert (off.json()["schedule"], off.json()["due"]) == (None, None)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"every": "soon"}, "every: "),
        ({"every": "1d", "at": "25:00"}, "at: "),
        ({"every": "1d", "webhook": "https://example.org/x"}, "webhook: it is not set over HTTP"),
        ({"every": "1d", "webhook": "http://127.0.0.1:22/"}, "webhook: it is not set over HTTP"),
    ],
)
async def test_a_schedule_that_is_wrong_or_has_a_webhook_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, model: str, schedule: dict[str, str], words: str
) -> None:
    await client.put(NIGHTLY, json=given(model))
    before = (await client.get(NIGHTLY)).json()
    answers = [await client.put(f"{NIGHTLY}/schedule", json=schedule)]
    answers.append(await client.put(NIGHTLY, json=given(model, measure={"runs": 9}, schedule=schedule)))
    assert {answer.status_code for answer in answers} == {HTTPStatus.UNPROCESSABLE_ENTITY}
    assert words in answers[0].json()["detail"]
    assert (await client.get(NIGHTLY)).json() == before


async def test_files_of_the_server_and_addresses_of_its_networks_are_not_named_from_outside(
    client: httpx.AsyncClient,
) -> None:
    models: tuple[Any, ...] = (
        "/etc/passwd",
        "m.json",
        {"url": "http://127.0.0.1:9/m"},
        {"url": "http://169.254.169.254/m"},
    )
    for model in models:
        answer = await client.put(NIGHTLY, json=given("", models=[model]))
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, model
    assert (await client.get("/api/v1/experiments")).json()["count"] == 0


async def test_what_came_over_http_is_fetched_from_the_internet_only_also_when_the_owner_runs_it(
    client: httpx.AsyncClient, context: ApiContext, model: str
) -> None:
    """A host name may resolve to another address by the time of a run, so the run itself obeys the sender's limits."""
    await client.put(NIGHTLY, json=given(model))
    async with web() as site:
        site.file("/m.json", b'{"latencies_ms": [1]}')
        with Store(context.home.store) as store:
            (version,) = store.experiments.versions("nightly")
            spec = json.loads(version.spec)
            spec["models"][0] |= {"path": None, "url": f"http://127.0.0.1:{site.port}/m.json"}
            store.experiments.save_version(
                "nightly",
                digest="d",
                spec=json.dumps(spec),
                models=version.models,
                folder=version.folder,
                alarm=0.01,
            )
        refused = await client.post(f"{NIGHTLY}/run")
        assert refused.status_code == HTTPStatus.CONFLICT
        assert "cannot be fetched" in refused.json()["detail"]
        assert site.asked == []
