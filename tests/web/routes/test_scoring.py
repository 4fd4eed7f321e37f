"""Stored answers scored again over HTTP, with the metrics that are installed where the server runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
import trio

from protocol.values.attempt import TaskEvent
from protocol.values.record import record_body, record_message
from protocol.values.task import Task
from results.row.scores import Scores
from scheduler.store.rows import NewCampaign, NewModel
from swarm.net.identity import Identity
from tests.plug_ins import install_package
from tests.results.analysis.test_verify import record
from tests.results.analysis.test_verify_scores import ACCOUNT, ANSWERS, EXAMPLES
from tests.web.conftest import SCHEDULER, SPEC, StoreWriter
from web.http.context import ApiContext

ONE = "/api/v1/campaigns/c-one"
WORKER = Identity.from_seed("worker")
MISSING = "there is no metric 'mine'"
URL = "s3://results/lab"

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    folder = tmp_path / "packages"
    folder.mkdir()

    def put(score: str) -> None:
        source = f"import os, time\nclass Mine:\n name = 'mine'\n def score(self, answers):\n  {score}\n"
        install_package(folder, monkeypatch, "mines", "mine = mines_module:Mine", source, version="1.2")

    return put


@pytest.fixture
def answered(writer: StoreWriter) -> None:
    """A campaign with an answered task that was scored without the metric `mine`, and whose results were sent."""
    task = Task.model_validate(writer.task("c-one", 1).model_dump() | {"examples": EXAMPLES})
    account = ACCOUNT.model_copy(update={"metrics": ("accuracy", "mine")}).model_dump_json()
    spec = SPEC.model_copy(update={"results": URL}).model_dump_json()
    writer.store.campaigns.create(
        NewCampaign("c-one", "digits", SCHEDULER, spec),
        [NewModel("e", EXAMPLES.sha256, EXAMPLES.size, facts=EXAMPLES.name, evaluation=account)],
        [task],
    )
    fence = writer.begin(task.task)
    body = record_body(record(task, answers=ANSWERS, fence=fence))
    writer.store.attempts.record_result(
        task=task.task, attempt=1, fence=fence, worker=WORKER.peer_id,
        sha256=hashlib.sha256(body).hexdigest(), body=body, signature=WORKER.sign(record_message(body)),
        event=TaskEvent.SUCCEED,
    )  # fmt: skip
    writer.store.scores.set(task.task, 1, Scores(scores={"accuracy": 0.5}, why=MISSING))
    writer.store.sendings.settle("c-one", URL)


@pytest.mark.usefixtures("answered")
async def test_a_metric_that_was_installed_since_scores_the_stored_answers(
    client: httpx.AsyncClient, install: Install
) -> None:
    before = (await client.get(f"{ONE}/results")).json()["results"][0]
    assert (before["Scores"], before["ScoresWhy"]) == ("accuracy=0.5", MISSING)
    install("return {'mine': 0.25}")
    answer = await client.post(f"{ONE}/score")
    assert answer.status_code == HTTPStatus.OK
    made = answer.json()
    assert (made["campaign"], made["changed"], made["outdated"]) == ("c-one", 1, f"{URL}/c-one")
    assert [task["words"] for task in made["tasks"]] == ["task 1: mine none → 0.25 (mine none → mines 1.2)"]
    after = (await client.get(f"{ONE}/results")).json()["results"][0]
    assert (after["Scores"], after["ScoresWhy"]) == ("accuracy=0.5; mine=0.25", "")
    again = (await client.post(f"{ONE}/score")).json()
    assert (again["changed"], again["outdated"], again["tasks"][0]["changed"]) == (0, "", False)


async def test_a_campaign_without_answers_is_refused(client: httpx.AsyncClient, writer: StoreWriter) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    answer = await client.post(f"{ONE}/score")
    assert answer.status_code == HTTPStatus.CONFLICT
    assert answer.json()["detail"] == "c-one has no answers to score"
    assert "evaluate" in answer.json()["hint"]
    assert (await client.post("/api/v1/campaigns/c-none/score")).status_code == HTTPStatus.NOT_FOUND


@pytest.mark.usefixtures("answered")
async def test_it_goes_on_when_the_client_has_left_and_the_next_one_waits_for_it(
    client: httpx.AsyncClient, context: ApiContext, install: Install, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    install(f"open({str(begun)!r}, 'w').close()\n  {wait}\n  return {{'mine': 0.25}}")
    async with trio.open_nursery() as leaving:
        leaving.start_soon(client.post, f"{ONE}/score")
        while not begun.exists():
            await trio.lowlevel.checkpoint()
        leaving.cancel_scope.cancel()
    assert context.scoring.borrowed_tokens == 1
    gate.touch()
    made = (await client.post(f"{ONE}/score")).json()
    assert (made["changed"], made["tasks"][0]["before"]) == (0, {"accuracy": 0.5, "mine": 0.25})
