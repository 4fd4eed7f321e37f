"""The server's own endpoints: health, version, metrics; and its document, which must equal the one checked in."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio
import trio.testing

import sark
from protocol.errors import SettingsError
from scheduler.experiments.schedule import Schedules
from scheduler.experiments.service import accept_devices
from scheduler.models.describe import no_fetch
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from web.http.context import MAX_FETCHING, ApiContext

DOCUMENT = Path(__file__).parents[3] / "docs" / "openapi.json"


async def test_health_and_version_are_served(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    assert (await client.get("/api/v1/health")).json() == {
        "status": "ok",
        "scheduling": False,
        "unfinished": 1,
    }
    assert (await client.get("/api/v1/version")).json()["name"] == "sark-node"


async def test_while_a_campaign_goes_on_a_scheduler_process_that_is_gone_is_started_again(
    context: ApiContext, writer: Any, woken: Any
) -> None:
    writer.campaign("c-one")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            with lock_folder(context.home.folder("scheduler")):  # a scheduler runs
                nursery.start_soon(context.keep_scheduler_alive, 0.01)
                looks = 0
                while looks < 5:
                    await context.store(lambda store: None)  # in turn with the checks
                    await trio.sleep(0.01)
                    looks += 1
                assert woken.times == 0
            while not woken.times:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_settings_that_are_wrong_for_a_while_end_no_server(tmp_path: Path, writer: Any) -> None:
    """The server still runs when the user repairs the file. With `join --serve`, a worker would otherwise end with it."""
    writer.campaign("c-one")
    times = 0

    def keep_alive() -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise SettingsError("config.toml: gates: no list")

    context = ApiContext(Home.at(tmp_path / "home"), gates=tuple, start_scheduler=keep_alive)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(context.keep_scheduler_alive, 0.01)
            while times < 2:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    context.close()


async def test_experiments_are_seen_to_again_after_settings_were_wrong(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    times = 0
    again = trio.Event()

    def open_store() -> Store:
        nonlocal times
        times += 1
        if times == 2:
            trio.from_thread.run_sync(again.set)
        raise SettingsError("config.toml: store: no URL")

    schedules = Schedules(Home.at(tmp_path / "home"), open_store, no_fetch, accept_devices)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(schedules.run, trio.lowlevel.checkpoint)
        await again.wait()
        nursery.cancel_scope.cancel()


async def test_models_that_are_being_fetched_are_in_the_way_of_nothing_else(
    client: httpx.AsyncClient, context: ApiContext, writer: Any
) -> None:
    writer.campaign("c-one")
    go = threading.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_FETCHING):
                nursery.start_soon(
                    partial(context.isolated, lambda store: go.wait(20), limiter=context.fetching)
                )
            while context.fetching.available_tokens:
                await trio.sleep(0.01)
            assert await context.isolated(lambda store: store.campaigns.get("c-one")) is not None
            go.set()


async def test_metrics_count_campaigns_tasks_and_requests_by_their_route(
    served: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one", tasks=3)
    writer.succeed("c-one/1")
    await served.get("/api/v1/campaigns/c-one")
    await served.get("/api/v1/campaigns/c-none")
    await served.get("/no/such/<path>")
    await served.get("/api/v1/version", headers={"Host": "evil.example"})
    text = (await served.get("/api/v1/metrics")).text
    lines = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    assert lines['sark_campaigns{state="running"}'] == "1.0"
    assert lines['sark_tasks{state="succeeded"}'] == "1.0"
    assert lines['sark_attempts{state="succeeded"}'] == "1.0"
    route = 'method="GET",route="/api/v1/campaigns/{campaign}"'
    assert lines[f'sark_api_requests_total{{{route},status="200"}}'] == "1.0"
    assert lines[f'sark_api_requests_total{{{route},status="404"}}'] == "1.0"
    assert lines['sark_api_requests_total{method="GET",route="(none)",status="404"}'] == "1.0"
    assert lines['sark_api_requests_total{method="GET",route="(none)",status="421"}'] == "1.0"
    assert "<path>" not in text
    assert float(lines[f"sark_api_request_seconds_count{{{route}}}"]) == 2.0


def test_the_document_that_is_checked_in_is_the_one_that_is_served() -> None:
    assert sark.openapi_text() == DOCUMENT.read_text(encoding="utf-8"), "make spec"


async def test_every_operation_has_a_name_a_subject_a_summary_and_a_shape(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    names = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            names.append(operation["operationId"])
            assert re.fullmatch(r"[a-z][A-Za-z]+", operation["operationId"]), where
            assert operation["tags"], where
            assert operation["summary"], where
            assert operation["responses"]["default"]["content"].keys() == {"application/problem+json"}, where
            good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            assert good, where
            for answer in good:
                for kind, content in answer.get("content", {}).items():
                    assert kind != "application/json" or content.get("schema"), where
    assert len(names) == len(set(names))
