"""The predecessor's endpoints for the server itself: health, queues, monitoring, and reset, which must not destroy anything of use."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import trio

from protocol.values.lease import Fence
from scheduler.core.commands import CommitTo, RecordGrant
from scheduler.store.store import Store
from swarm.net.identity import Identity, load_or_create
from web.app import make_app
from web.http.context import ApiContext
from web.http.middleware import AccessRules

WORKER = Identity.from_seed("worker").peer_id


async def test_health_has_its_keys_and_says_that_there_is_no_redis(client: httpx.AsyncClient) -> None:
    document = (await client.get("/api/health")).json()
    assert {"status", "timestamp", "redis"} <= set(document)
    assert document["status"] == "healthy"
    assert datetime.fromisoformat(document["timestamp"])
    assert (document["redis"]["used"], document["redis"]["connected"]) == (False, False)
    assert "no Redis" in document["redis"]["note"]


async def test_queues_are_this_homes_jobs_that_wait(client: httpx.AsyncClient, writer: Any) -> None:
    empty = (await client.get("/api/queue/status")).json()
    assert empty == {"worker_queues": {}, "capability_queues": {}, "results_queue_size": 0}
    writer.campaign("c-one", tasks=6)
    writer.begin("c-one/1")
    for n in (2, 3):
        writer.store.attempts.begin([CommitTo(f"c-one/{n}", 1, f"key {n}", WORKER, "laptop-7", 1)])
        writer.store.attempts.record_grant(
            RecordGrant(f"c-one/{n}", 1, lease=f"l{n}", fence=Fence(incarnation=1, number=n), queued=True)
        )
    writer.fail("c-one/4")
    writer.campaign("c-over", tasks=1)
    writer.fail("c-over/1")
    writer.store.campaigns.end("c-over")
    document = (await client.get("/api/queue/status")).json()
    assert document["worker_queues"] == {WORKER: {"device_name": "laptop-7", "queue_size": 2}}
    assert document["capability_queues"] == {"CPU (ONNX)": 2}


async def test_reset_is_refused_while_a_campaign_runs(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-over", tasks=1)
    writer.fail("c-over/1")
    writer.store.campaigns.end("c-over")
    writer.campaign("c-runs")
    answer = await client.post("/api/reset")
    assert answer.status_code == HTTPStatus.CONFLICT
    assert "c-runs" in answer.json()["error"]
    assert answer.json()["hint"].endswith("POST /api/v1/campaigns/c-runs/cancel")
    assert (await client.get("/api/campaigns")).json()["count"] == 2


async def test_reset_clears_all_and_keeps_a_copy_and_the_keys(
    client: httpx.AsyncClient, context: ApiContext, writer: Any
) -> None:
    key = load_or_create(context.home.key("scheduler")).peer_id
    for name in ("c-one", "c-two"):
        writer.campaign(name, tasks=2)
        writer.succeed(f"{name}/1")
        writer.fail(f"{name}/2")
        writer.store.campaigns.end(name)
    writer.store.workers.save(WORKER, "laptop-7", ["/ip4/192.0.2.7/tcp/1"])
    document = (await client.post("/api/reset")).json()
    assert {"status", "message", "workers_cleared"} <= set(document)
    assert (document["status"], document["workers_cleared"]) == ("reset", True)
    assert (document["campaigns_cleared"], document["jobs_cleared"], document["results_cleared"]) == (2, 4, 4)
    assert (await client.get("/api/campaigns")).json() == {"count": 0, "campaigns": []}
    assert (await client.get("/api/results/files")).json()["count"] == 0
    assert writer.store.workers.all() == ()
    assert load_or_create(context.home.key("scheduler")).peer_id == key
    copy = Path(document["backup"])
    assert copy.parent == context.home.folder("scheduler")
    assert (await trio.Path(copy).stat()).st_mode & 0o077 == 0
    with Store(copy) as before:
        assert {item.campaign.id for item in before.campaigns.summaries()} == {"c-one", "c-two"}
        assert len(before.results.rows("c-one")) == 2


async def test_reset_of_what_is_empty_makes_no_copy(client: httpx.AsyncClient, context: ApiContext) -> None:
    document = (await client.post("/api/reset")).json()
    assert (document["campaigns_cleared"], document["backup"]) == (0, None)
    assert not list(context.home.folder("scheduler").glob("before-reset*"))


async def test_no_page_of_another_site_and_nobody_without_the_token_resets(
    context: ApiContext, writer: Any
) -> None:
    writer.campaign("c-one", tasks=1)
    writer.fail("c-one/1")
    writer.store.campaigns.end("c-one")
    for rules, headers, status in (
        (AccessRules(), {"Origin": "http://evil.example"}, HTTPStatus.FORBIDDEN),
        (AccessRules(), {"Sec-Fetch-Site": "cross-site"}, HTTPStatus.FORBIDDEN),
        (AccessRules(), {"Host": "evil.example"}, HTTPStatus.MISDIRECTED_REQUEST),
        (AccessRules(token="t" * 20), {}, HTTPStatus.UNAUTHORIZED),
    ):
        transport = httpx.ASGITransport(make_app(context, rules))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as asking:
            answer = await asking.post("/api/reset", headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]
    assert writer.store.campaigns.get("c-one") is not None
