"""Campaigns over HTTP: lists in pages, single campaigns with full details, cancelling."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from protocol.values.attempt import TaskState

BASE = "/api/v1/campaigns"


async def test_campaigns_come_a_page_at_a_time_the_newest_first(
    client: httpx.AsyncClient, writer: Any
) -> None:
    for name in ("c-a", "c-b", "c-c"):
        writer.campaign(name, tasks=1)
    first = (await client.get(BASE, params={"limit": 2})).json()
    assert [item["campaign_id"] for item in first["campaigns"]] == ["c-c", "c-b"]
    assert (first["count"], first["next"]) == (2, "c-b")
    writer.campaign("c-d", tasks=1)  # new campaigns do not shift the pages
    second = (await client.get(BASE, params={"limit": 2, "after": first["next"]})).json()
    assert [item["campaign_id"] for item in second["campaigns"]] == ["c-a"]
    assert second["next"] is None


async def test_only_those_that_are_asked_for(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-a", title="Edge 100%")
    writer.campaign("c-b", title="cloud")
    writer.fail("c-b/1", "c-b/2", "c-b/3")
    writer.store.campaigns.end("c-b")
    writer.campaign("c-c", title="edges")
    writer.store.campaigns.request_cancel("c-c")

    async def ids(**options: str) -> list[str]:
        answer = await client.get(BASE, params=options)
        return [item["campaign_id"] for item in answer.json()["campaigns"]]

    assert await ids(name="edge") == ["c-c", "c-a"]
    assert await ids(name="0%") == ["c-a"]
    assert await ids(name="_") == []
    assert await ids(status="failed") == ["c-b"]
    assert await ids(status="running") == ["c-a"]
    assert await ids(status="cancelling") == ["c-c"]
    assert await ids(status="running", name="cloud") == []


async def test_a_campaign_with_all_that_is_known_of_it(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    document = (await client.get(f"{BASE}/c-one")).json()
    assert document["status"] == "running"
    assert document["carried_on"] is False
    assert document["tasks"]["succeeded"] == 1
    assert document["total_tasks"] == 3
    assert document["models"] == [{"name": "m.onnx", "sha256": "ab" * 32, "size": 7}]
    assert document["spec"]["units"] == ["CPU (ONNX)"]
    assert document["last_event"] == len((await client.get(f"{BASE}/c-one/events")).json()["events"])


async def test_the_tasks_of_a_campaign_as_they_stand(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one", tasks=5)
    writer.begin("c-one/2", device="mini-7")
    page = (await client.get(f"{BASE}/c-one/tasks", params={"limit": 3})).json()
    assert [task["n"] for task in page["tasks"]] == [1, 2, 3]
    assert page["next"] == 3
    assert page["tasks"][1]["state"] == "leased"
    assert page["tasks"][1]["device"] == "mini-7"
    rest = (await client.get(f"{BASE}/c-one/tasks", params={"after": 3})).json()
    assert [task["n"] for task in rest["tasks"]] == [4, 5]
    assert rest["next"] is None
    some = (await client.get(f"{BASE}/c-one/tasks", params={"state": "leased"})).json()
    assert [task["n"] for task in some["tasks"]] == [2]


async def test_tasks_of_one_model_are_distinguished_by_threads_and_batch(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=3, batches=True)
    writer.campaign("c-two", tasks=1)
    rest = (await client.get(f"{BASE}/c-one/tasks", params={"after": 1})).json()["tasks"]
    assert [(task["threads"], task["batch"]) for task in rest] == [(2, 2), (2, 3)]
    plain = (await client.get(f"{BASE}/c-two/tasks/1")).json()["task"]
    assert (plain["threads"], plain["batch"]) == (None, None)
    assert (await client.get(f"{BASE}/c-one/tasks/3")).json()["task"]["batch"] == 3


async def test_cancelling_puts_the_wish_on_disk_and_wakes_the_scheduler(
    client: httpx.AsyncClient, writer: Any, woken: Any
) -> None:
    writer.campaign("c-one")
    one = await client.post(f"{BASE}/c-one/tasks/2/cancel")
    assert (one.status_code, one.json()) == (HTTPStatus.ACCEPTED, {"target": "c-one/2", "open_tasks": 1})
    assert writer.store.tasks.cancel_requests() == ("c-one/2",)
    assert woken.times == 1
    whole = await client.post(f"{BASE}/c-one/cancel")
    assert whole.json() == {"target": "c-one", "open_tasks": 3}
    assert writer.store.campaigns.get("c-one").cancel


async def test_what_has_ended_is_not_cancelled_again(
    client: httpx.AsyncClient, writer: Any, woken: Any
) -> None:
    writer.campaign("c-one")
    writer.fail("c-one/1", "c-one/2", "c-one/3")
    writer.store.campaigns.end("c-one")
    answer = await client.post(f"{BASE}/c-one/cancel")
    assert (answer.status_code, answer.json()["open_tasks"]) == (HTTPStatus.ACCEPTED, 0)
    assert woken.times == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/c-none"),
        ("GET", "/c-none/tasks"),
        ("GET", "/c-none/results"),
        ("GET", "/c-none/results?format=csv"),
        ("GET", "/c-none/events"),
        ("POST", "/c-none/cancel"),
        ("POST", "/c-none/tasks/1/cancel"),
        ("POST", "/c-one/tasks/9/cancel"),
    ],
)
async def test_what_is_not_there_is_reported_with_a_hint(
    client: httpx.AsyncClient, writer: Any, method: str, path: str
) -> None:
    writer.campaign("c-one")
    answer = await client.request(method, BASE + path)
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["hint"]


@pytest.mark.parametrize(
    "query",
    [
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?after=c-none",
        "?status=sleeping",
        "/c-one/tasks?after=-1",
        "/c-one/tasks?state=x",
        "/c-one/tasks?after=99999999999999999999999999",
        "/c-one/results?format=xls",
        "/..%2f..",
    ],
)
async def test_what_makes_no_sense_is_refused_in_a_line(
    client: httpx.AsyncClient, writer: Any, query: str
) -> None:
    writer.campaign("c-one")
    answer = await client.get(BASE + query)
    assert answer.status_code in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND)
    assert answer.json()["detail"]


async def test_results_come_as_rows_a_page_at_a_time_and_as_files(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=120)
    writer.fail(*(f"c-one/{n}" for n in range(1, 120) if n != 5), detail="=cmd()")
    writer.succeed("c-one/5")
    page = (await client.get(f"{BASE}/c-one/results", params={"limit": 4})).json()
    assert [row["JobId"] for row in page["results"]] == [f"c-one/{n}" for n in (1, 2, 3, 4)]
    assert page["next"] == 4
    rest = (await client.get(f"{BASE}/c-one/results", params={"limit": 1000, "after": 4})).json()
    assert (rest["count"], rest["next"]) == (115, None)
    assert rest["results"][0]["Status"] == "Complete"

    table = await client.get(f"{BASE}/c-one/results", params={"format": "csv"})
    assert table.headers["content-type"].startswith("text/csv")
    assert table.headers["content-disposition"] == 'attachment; filename="c-one.csv"'
    lines = table.text.split("\r\n")
    assert lines[0].startswith("Status,JobId,FileName")
    assert len(lines) == 1 + 119 + 1
    assert ",'=cmd()," in lines[1]

    raw = (await client.get(f"{BASE}/c-one/results", params={"format": "raw"})).json()
    assert raw["format"] == "sark results 1"
    assert len(raw["results"]) == 119
    flat = (await client.get(f"{BASE}/c-one/results", params={"format": "jsonl"})).text.splitlines()
    assert len(flat) == 119
    assert json.loads(flat[4])["JobId"] == "c-one/5"
    assert bytes.fromhex(raw["results"][4]["signature"]) == b"s" * 64


async def test_what_a_command_prints_as_json_is_what_is_answered(
    client: httpx.AsyncClient, writer: Any
) -> None:
    from scheduler.output.schemas import campaign_info

    writer.campaign("c-one")
    document = (await client.get(BASE)).json()["campaigns"]
    assert document == [
        campaign_info(item, scheduling=False).model_dump(mode="json")
        for item in writer.store.campaigns.summaries()
    ]
    assert set(document[0]["tasks"]) == {str(state) for state in TaskState}
