"""Submitting over HTTP: in each format, once per key, and without naming any of the server's own files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import trio

from protocol.errors import ResourceError, SettingsError
from scheduler.models.uploads import Uploads
from swarm.base.home import Home
from tests.tiny_onnx import tiny_onnx
from web.app import make_open_app
from web.http.context import ApiContext
from web.http.idempotency import KEEP_S, IdempotencyStore
from web.http.problems import HttpProblem

CAMPAIGNS = "/api/v1/campaigns"
MODELS = "/api/v1/models"
MODEL = tiny_onnx()
SHA = hashlib.sha256(MODEL).hexdigest()
NAMED = {
    "campaign": "vision",
    "models": [f"sha256:{SHA}"],
    "units": ["CPU (ONNX)"],
    "devices": {"spread": "any"},
}


@pytest.fixture
async def sent(client: httpx.AsyncClient) -> str:
    """An uploaded model, as campaigns name it."""
    answer = await client.post(MODELS, params={"name": "net.onnx"}, content=MODEL)
    assert answer.status_code == HTTPStatus.CREATED
    return f"sha256:{answer.json()['sha256']}"


async def test_a_model_is_sent_listed_named_and_removed(
    client: httpx.AsyncClient, context: ApiContext
) -> None:
    answer = await client.post(MODELS, params={"name": "net.onnx"}, content=MODEL)
    assert answer.json()["sha256"] == SHA
    assert answer.headers["location"] == f"{MODELS}/{SHA}"
    page = (await client.get(MODELS)).json()
    assert [(item["name"], item["size"]) for item in page["models"]] == [("net.onnx", len(MODEL))]
    assert (await client.get(f"{MODELS}/{SHA}")).json() == page["models"][0]
    assert (await client.delete(f"{MODELS}/{SHA}")).status_code == HTTPStatus.NO_CONTENT
    assert (await client.delete(f"{MODELS}/{SHA}")).status_code == HTTPStatus.NOT_FOUND
    assert (await client.get(f"{MODELS}/{SHA}")).status_code == HTTPStatus.NOT_FOUND
    assert list(Uploads(context.home).folder.iterdir()) == []


async def test_models_are_listed_a_page_at_a_time(client: httpx.AsyncClient) -> None:
    for n in range(3):
        await client.post(MODELS, params={"name": f"{n}.onnx"}, content=bytes([n]))
    first = (await client.get(MODELS, params={"limit": 2})).json()
    rest = (await client.get(MODELS, params={"limit": 2, "after": first["next"]})).json()
    assert (first["count"], rest["count"], rest["next"]) == (2, 1, None)


@pytest.mark.parametrize("name", ["../x.onnx", "a/b", "", "x" * 101, "a\u202eb", "a\x00", "..\\x"])
async def test_a_name_that_is_no_file_s_is_refused(
    client: httpx.AsyncClient, context: ApiContext, name: str
) -> None:
    answer = await client.post(MODELS, params={"name": name}, content=MODEL)
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert Uploads(context.home).all() == []


async def test_an_empty_model_leaves_nothing(client: httpx.AsyncClient, context: ApiContext) -> None:
    answer = await client.post(MODELS, params={"name": "x.onnx"}, content=b"")
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert list(Uploads(context.home).folder.iterdir()) == []


async def test_a_campaign_of_a_model_that_was_sent_is_stored_and_woken(
    client: httpx.AsyncClient, writer: Any, woken: Any, sent: str, context: ApiContext
) -> None:
    answer = await client.post(CAMPAIGNS, json=NAMED)
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    document = answer.json()
    assert answer.headers["location"] == f"{CAMPAIGNS}/{document['campaign_id']}"
    assert (document["status"], document["total_tasks"]) == ("running", 1)
    assert woken.times == 1
    task = writer.store.tasks.all(document["campaign_id"])[0]
    assert (task.model, task.sha256) == ("net.onnx", SHA)
    assert (context.home.spool / SHA).read_bytes() == MODEL


async def test_yaml_and_the_plain_form_are_read_as_well(
    client: httpx.AsyncClient, writer: Any, sent: str
) -> None:
    yaml = f"campaign: y\nmodels:\n  - {{name: a.onnx, path: '{sent}'}}\nunits: [CPU (ONNX)]\n"
    yaml += "devices: {spread: any}\n"
    for kind in ("text/yaml", "application/yaml; charset=utf-8"):
        answer = await client.post(CAMPAIGNS, content=yaml, headers={"Content-Type": kind})
        assert answer.status_code == HTTPStatus.CREATED, answer.text
        assert writer.store.tasks.all(answer.json()["campaign_id"])[0].model == "a.onnx"


async def test_without_its_content_type_a_campaign_is_not_read(client: httpx.AsyncClient, sent: str) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}):
        answer = await client.post(CAMPAIGNS, content=json.dumps(NAMED), headers=headers)
        assert answer.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


@pytest.fixture
def folder_of_ours(tmp_path: Path) -> Iterator[None]:
    """A folder on Python's path, as when the server is started with `python -m`."""
    (tmp_path / "here" / "a_folder_of_ours").mkdir(parents=True)
    (tmp_path / "here" / "a_folder_of_ours" / "x.onnx").write_bytes(MODEL)
    sys.path.append(str(tmp_path / "here"))
    sys.modules["a_module_of_ours"] = ModuleType(
        "a_module_of_ours"
    )  # like `__main__` in an installed program
    yield
    del sys.modules["a_module_of_ours"]
    sys.path.remove(str(tmp_path / "here"))


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("/etc/hostname", "cannot name files on the server"),
        ("m.onnx", "cannot name files on the server"),
        ("file:///etc/hostname", "cannot name files on the server"),
        ({"path": "../../keys/scheduler.key"}, "cannot name files on the server"),
        ({"name": "x", "path": "/etc/hostname", "sha256": "ab" * 32}, "cannot name files on the server"),
        ("sha256:" + "ef" * 32, "was uploaded here"),
        ("sha256:../../keys/scheduler.key", "was uploaded here"),
        ("http://127.0.0.1:1/x.onnx", "fetched"),
        ("https://169.254.169.254/latest/x.onnx", "169.254"),
        ({"package": "magika", "path": "../../../etc/hostname"}, "leaves the package"),
        ({"url": "http://192.168.1.1/x.onnx", "sha256": "ab" * 32, "size": 7}, "fetched"),
        ({"url": "https://10.0.0.1/x.onnx", "sha256": "ab" * 32, "size": 7}, "10.0.0.1"),
        ({"url": "https://printer.lan/x.onnx", "sha256": "ab" * 32, "size": 7}, "printer.lan"),
        ({"url": "https://127.0.0.1/x.onnx", "path": f"sha256:{SHA}"}, "127.0.0.1"),
        ({"package": "a_folder_of_ours", "path": "x.onnx"}, "not a package"),
        ({"package": "a_module_of_ours", "path": "x.onnx"}, "not installed"),
    ],
)
async def test_what_is_the_server_s_own_cannot_be_named(
    client: httpx.AsyncClient, writer: Any, sent: str, folder_of_ours: None, model: object, word: str
) -> None:
    answer = await client.post(CAMPAIGNS, json={**NAMED, "models": [model]})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert word in answer.json()["detail"]
    assert writer.store.campaigns.summaries() == ()


async def test_with_leave_files_of_the_machine_may_be_named_by_their_whole_path(
    client: httpx.AsyncClient, writer: Any, context: ApiContext, tmp_path: Path
) -> None:
    context.allow_paths = True
    (tmp_path / "own.onnx").write_bytes(MODEL)
    bad = await client.post(CAMPAIGNS, json={**NAMED, "models": ["own.onnx"]})
    assert "relative" in bad.json()["detail"]
    good = await client.post(CAMPAIGNS, json={**NAMED, "models": [str(tmp_path / "own.onnx")]})
    assert good.status_code == HTTPStatus.CREATED
    plain = {"model_url": str(tmp_path / "own.onnx"), "jobs": [{"compute_unit": "CPU (ONNX)"}]}
    assert (await client.post(CAMPAIGNS, json=plain)).status_code == HTTPStatus.CREATED


async def test_two_models_of_one_name_are_refused_before_anything_is_stored(
    client: httpx.AsyncClient, writer: Any, sent: str
) -> None:
    other = (await client.post(MODELS, params={"name": "net.onnx"}, content=tiny_onnx("2"))).json()["sha256"]
    answer = await client.post(CAMPAIGNS, json={**NAMED, "models": [sent, f"sha256:{other}"]})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "two models are called" in answer.json()["detail"]


async def test_an_error_is_reported_with_its_line(client: httpx.AsyncClient) -> None:
    bad = "campaign: x\nmodels: [https://example.org/m.onnx]\nunits: [CPU]\n"
    answer = await client.post(CAMPAIGNS, content=bad, headers={"Content-Type": "text/yaml"})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert answer.json()["detail"].startswith("campaign.yaml:3: unknown compute unit")
    wait = await client.post(CAMPAIGNS, params={"wait": "soon"}, json=NAMED)
    assert wait.json()["detail"].startswith("wait: ")


# -- idempotency keys ----------------------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_make_one_campaign_and_the_same_answer(
    client: httpx.AsyncClient, writer: Any, sent: str, context: ApiContext
) -> None:
    headers = {"Idempotency-Key": "3f0c"}
    first = await client.post(CAMPAIGNS, json=NAMED, headers=headers)
    writer.store.campaigns.request_cancel(first.json()["campaign_id"])
    second = await client.post(CAMPAIGNS, json=NAMED, headers=headers)
    assert second.status_code == HTTPStatus.CREATED
    assert second.json() == first.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert len(writer.store.campaigns.summaries()) == 1
    other = await client.post(CAMPAIGNS, json={**NAMED, "campaign": "other"}, headers=headers)
    assert other.status_code == HTTPStatus.CONFLICT
    assert len(writer.store.campaigns.summaries()) == 1


async def test_a_key_whose_request_was_wrong_is_free_for_a_better_one(
    client: httpx.AsyncClient, writer: Any, sent: str
) -> None:
    headers = {"Idempotency-Key": "k"}
    wrong = await client.post(CAMPAIGNS, json={**NAMED, "units": ["X"]}, headers=headers)
    assert wrong.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert (await client.post(CAMPAIGNS, json=NAMED, headers=headers)).status_code == HTTPStatus.CREATED


async def test_a_server_killed_before_it_answered_finds_the_campaign_by_its_key(
    client: httpx.AsyncClient, writer: Any, sent: str, context: ApiContext
) -> None:
    headers = {"Idempotency-Key": "k"}
    first = (await client.post(CAMPAIGNS, json=NAMED, headers=headers)).json()
    (note,) = (context.home.folder("scheduler") / "idempotency").glob("*.json")
    claim = json.loads(note.read_text())
    note.write_text(json.dumps({**claim, "answer": None}))  # as before the answer was stored
    second = (await client.post(CAMPAIGNS, json=NAMED, headers=headers)).json()
    assert second["campaign_id"] == first["campaign_id"]
    assert len(writer.store.campaigns.summaries()) == 1


async def test_servers_on_two_machines_give_a_repeated_request_the_same_campaign(tmp_path: Path) -> None:
    one, two = (IdempotencyStore(tmp_path / name, b"of their store") for name in ("one", "two"))
    elsewhere = IdempotencyStore(tmp_path / "elsewhere", b"of another store")

    async def make(campaign: str) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"campaign": campaign}

    async def asked(server: IdempotencyStore, key: str | None, request: bytes = b"r") -> str:
        return (await server.run(key, request, make))[1]

    first = await asked(one, "k")
    assert await asked(two, "k") == first
    others = [await asked(elsewhere, "k"), await asked(two, "j"), await asked(two, "i", b"another request")]
    assert len({first, *others, await asked(one, None), await asked(one, None)}) == 6


async def test_a_key_is_kept_for_a_day_and_in_use_by_one_at_a_time(tmp_path: Path) -> None:
    now = [1e9]
    once = IdempotencyStore(tmp_path, wall=lambda: now[0])
    made: list[str] = []
    began, go = trio.Event(), trio.Event()

    async def make(campaign: str) -> dict[str, Any]:
        made.append(campaign)
        began.set()
        await go.wait()
        return {"campaign": campaign}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(once.run, "k", b"body", make)
        await began.wait()
        with pytest.raises(HttpProblem, match="is in progress"):
            await once.run("k", b"body", make)
        go.set()
    now[0] += KEEP_S - 1
    assert (await once.run("k", b"body", make))[2]
    now[0] += 2
    assert not (await once.run("k", b"other", make))[2]
    assert len(made) == 2


async def test_a_store_that_was_gone_when_it_should_have_answered_makes_no_second_campaign(
    tmp_path: Path,
) -> None:
    once = IdempotencyStore(tmp_path)
    campaigns: list[str] = []

    async def stored_and_gone(campaign: str) -> dict[str, Any]:
        campaigns.append(campaign)
        if len(campaigns) == 1:
            raise ResourceError("the server does not answer")
        return {"campaign": campaign}

    with pytest.raises(ResourceError):
        await once.run("k", b"body", stored_and_gone)
    assert await once.run("k", b"body", stored_and_gone) == ({"campaign": campaigns[0]}, campaigns[0], False)
    assert campaigns[0] == campaigns[1]


OTHER = """
import sys
from pathlib import Path
from swarm.base.locks import try_lock
Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
with try_lock(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


NAME = f"{hashlib.sha256(b'k').hexdigest()}.lock"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is about to answer the key `k`."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path / "once" / NAME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


async def test_a_key_that_another_server_of_the_home_answers_to_is_free_when_that_one_is_gone(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    once = IdempotencyStore(tmp_path / "once")

    async def make(campaign: str) -> dict[str, Any]:
        return {"campaign": campaign}

    with pytest.raises(HttpProblem, match="is in progress"):
        await once.run("k", b"body", make)
    assert not (await once.run("another", b"body", make))[2]
    with pytest.raises(HttpProblem, match="is in progress"):  # the other key did not release the first
        await once.run("k", b"body", make)
    other.kill()
    await trio.to_thread.run_sync(other.wait)
    assert not (await once.run("k", b"body", make))[2]


@pytest.mark.parametrize("key", ["", "x" * 201, "with space"])
async def test_a_key_that_is_none_is_refused(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post(CAMPAIGNS, json=NAMED, headers={"Idempotency-Key": key})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY


async def test_a_stored_campaign_is_reported_as_stored_though_no_scheduler_can_be_started_now(
    tmp_path: Path, writer: Any
) -> None:
    """After an error the client would submit it again, and have it twice."""

    def keep_alive() -> None:
        raise SettingsError("config.toml: gates: no list")

    context = ApiContext(Home.at(tmp_path / "home"), gates=tuple, start_scheduler=keep_alive)
    transport = httpx.ASGITransport(make_open_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:5000") as client:
        assert (await client.post(f"{MODELS}?name=m.onnx", content=MODEL)).status_code == HTTPStatus.CREATED
        made = await client.post(CAMPAIGNS, json=NAMED)
        assert made.status_code == HTTPStatus.CREATED, made.text
        (item,) = writer.store.campaigns.summaries()
        assert made.json()["campaign_id"] == item.campaign.id
        gone = await client.post(f"{CAMPAIGNS}/{item.campaign.id}/cancel")
        assert gone.status_code == HTTPStatus.ACCEPTED, gone.text
    context.close()


# -- retries --------------------------------------------------------------------------------------------------------------------


async def test_what_failed_runs_again_as_a_new_campaign_once_for_each_key(
    client: httpx.AsyncClient, writer: Any, sent: str, context: ApiContext, woken: Any
) -> None:
    old = (await client.post(CAMPAIGNS, json=NAMED)).json()["campaign_id"]
    early = await client.post(f"{CAMPAIGNS}/{old}/retry")
    assert (early.status_code, early.json()["hint"] != "") == (HTTPStatus.CONFLICT, True)
    writer.fail(f"{old}/1")
    writer.store.campaigns.end(old)
    (context.home.spool / SHA).unlink()  # removed since, but the upload is still there
    first = await client.post(f"{CAMPAIGNS}/{old}/retry", headers={"Idempotency-Key": "again"})
    assert first.status_code == HTTPStatus.CREATED, first.text
    assert first.json()["tasks"] == 1
    second = await client.post(f"{CAMPAIGNS}/{old}/retry", headers={"Idempotency-Key": "again"})
    assert second.json() == first.json()
    assert len(writer.store.campaigns.summaries()) == 2
    assert (await client.post(f"{CAMPAIGNS}/c-none/retry")).status_code == HTTPStatus.NOT_FOUND


async def test_this_machine_writes_no_results_where_somebody_over_http_says(
    client: httpx.AsyncClient, sent: str
) -> None:
    answer = await client.post(CAMPAIGNS, json=NAMED | {"results": "s3://bucket/prefix"})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "results: a URL cannot be set over HTTP" in answer.json()["detail"]
