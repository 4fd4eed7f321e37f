"""Experiments over HTTP: listing and details, a run that begins once per key, and errors as problem documents."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import trio

from scheduler.experiments.service import begin, save
from scheduler.store.store import Store
from web.http.context import ApiContext

RUN = "/api/v1/experiments/nightly/run"


@pytest.fixture
def saved(context: ApiContext, tmp_path: Path) -> Path:
    """Save an experiment with one version. Returns the model's file."""
    model = tmp_path / "m.json"
    model.write_text('{"latencies_ms": [1]}')
    file = tmp_path / "campaign.yaml"
    content = {
        "campaign": "nightly",
        "models": ["m.json"],
        "units": ["Fake (Simulation)"],
        "schedule": {"every": "1d", "at": "03:00", "webhook": "https://example.org/a-key"},
    }
    file.write_text(json.dumps(content))
    with Store(context.home.store) as store:
        save(store, file)
    return model


async def test_experiments_are_listed_page_by_page_without_their_webhooks(
    client: httpx.AsyncClient, saved: Path, context: ApiContext
) -> None:
    with Store(context.home.store) as store:
        save(store, saved.parent / "campaign.yaml", name="other")
    first = (await client.get("/api/v1/experiments", params={"limit": 1})).json()
    assert (first["count"], first["next"], first["experiments"][0]["name"]) == (1, "nightly", "nightly")
    assert first["experiments"][0]["schedule"] == "every day at 03:00 UTC"
    rest = (await client.get("/api/v1/experiments", params={"after": first["next"]})).json()
    assert [item["name"] for item in rest["experiments"]] == ["other"]
    whole = await client.get("/api/v1/experiments/nightly")
    assert [version["version"] for version in whole.json()["versions"]] == [1]
    version = await client.get("/api/v1/experiments/nightly/versions/1")
    assert version.json()["campaign"].startswith("campaign: nightly")
    assert "a-key" not in whole.text + version.text + json.dumps(first)


async def test_a_run_begins_once_for_one_key_and_is_in_the_history(
    client: httpx.AsyncClient, saved: Path, context: ApiContext
) -> None:
    answers = [await client.post(RUN, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    campaign = answers[0].json()["campaign"]
    assert answers[0].headers["location"] == f"/api/v1/campaigns/{campaign}"
    history = (await client.get("/api/v1/experiments/nightly/history")).json()
    assert [(run["campaign"], run["finding"]) for run in history["runs"]] == [(campaign, None)]
    info = (await client.get(f"/api/v1/campaigns/{campaign}")).json()
    assert (info["experiment"], info["finding"]) == ("nightly@1", None)
    with Store(context.home.store) as store:
        started = begin(context.home, store, "nightly")
    assert started is not None
    page = (await client.get("/api/v1/experiments/nightly/history", params={"after": started[0]})).json()
    assert [run["campaign"] for run in page["runs"]] == [campaign]
    assert (page["count"], page["total"]) == (1, 2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/experiments/none", 404),
        ("GET", "/api/v1/experiments/none/history", 404),
        ("GET", "/api/v1/experiments/nightly/versions/9", 404),
        ("GET", "/api/v1/experiments/nightly@1", 422),
        ("GET", "/api/v1/experiments/a%1bb", 422),
        ("POST", "/api/v1/experiments/none/run", 404),
        ("POST", f"{RUN}?version=9", 404),
        ("POST", f"{RUN}?version=0", 422),
    ],
)
async def test_what_is_not_there_is_a_problem(
    client: httpx.AsyncClient, saved: Path, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_version_whose_model_has_changed_cannot_be_run_and_the_latest_makes_a_new_one(
    client: httpx.AsyncClient, saved: Path
) -> None:
    another = trio.Path(saved)
    await another.write_text('{"latencies_ms": [2]}')
    refused = await client.post(RUN, params={"version": 1})
    assert refused.status_code == 409
    assert "has changed" in refused.json()["detail"]
    assert (await client.post(RUN)).json()["version"] == 2
    await another.unlink()
    assert (await client.post(RUN)).status_code == 409


async def test_a_past_campaign_is_cloned_as_a_file_with_keys_changed_on_the_way(
    client: httpx.AsyncClient, saved: Path
) -> None:
    campaign = (await client.post(RUN)).json()["campaign"]
    path = f"/api/v1/campaigns/{campaign}/file"
    plain = await client.get(path)
    assert plain.headers["content-type"] == "text/yaml; charset=utf-8"
    assert plain.text.startswith(f"# From campaign {campaign}.\n")
    changed = await client.get(path, params={"set": ["measure.runs=7", "measure.threads=[1, 2]"]})
    assert "runs: 7" in changed.text
    assert (await client.get("/api/v1/campaigns/c-none/file")).status_code == 404
    refused = await client.get(path, params={"set": "measure.bach=[1]"})
    assert refused.status_code == 422
    assert "unknown key 'bach'" in refused.json()["detail"]


async def test_a_clone_of_what_was_sent_here_can_be_sent_again(client: httpx.AsyncClient) -> None:
    sent = await client.post("/api/v1/models", params={"name": "m.json"}, content=b'{"latencies_ms": [1]}')
    given = {
        "campaign": "sent",
        "models": [{"path": f"sha256:{sent.json()['sha256']}"}],
        "units": ["Fake (Simulation)"],
    }
    first = await client.post("/api/v1/campaigns", json=given)
    text = (await client.get(f"/api/v1/campaigns/{first.json()['campaign_id']}/file")).text
    again = await client.post("/api/v1/campaigns", content=text, headers={"Content-Type": "text/yaml"})
    assert again.status_code == 201
    assert again.json()["name"] == "sent"
