"""The predecessor's endpoints for campaigns, jobs, results and files: the formats of its README, from this home's own store."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from protocol.values.attempt import TaskEvent, TaskState
from protocol.words import Reason
from results.row.row import COLUMNS, CONTRACT
from scheduler.core.commands import EndPending
from tests.tiny_onnx import tiny_onnx
from web.compat.campaigns import JOB, job_id_of, task_of
from web.http.context import ApiContext

MODEL: Final = tiny_onnx()
CONTRACT_COLUMNS: Final = (
    "Status", "JobId", "FileName", "FileSize", "ComputeUnits", "DeviceName", "Soc", "Ram", "DeviceOs", "LoadMsMedian", "LoadMsAverage",
    "LoadMsStdDev", "PeakLoadRamUsage", "InferenceMsMedian", "InferenceMsAverage", "InferenceMsStdDev", "PeakInferenceRamUsage",
)  # fmt: skip
"""The columns that the predecessor's README lists."""


@pytest.fixture
def model(context: ApiContext, tmp_path: Path) -> str:
    """A model file that campaigns over HTTP may name in this test."""
    context.allow_paths = True
    path = tmp_path / "net.onnx"
    path.write_bytes(MODEL)
    return str(path)


def plain(model: str, *units: str) -> dict[str, Any]:
    return {"model_url": model, "jobs": [{"compute_unit": unit, "num_inference_runs": 10} for unit in units]}


async def test_a_campaign_is_made_and_answered_as_documented(
    client: httpx.AsyncClient, model: str, woken: Any
) -> None:
    answer = await client.post("/api/campaigns", json=plain(model, "CPU (ONNX)", "GPU (CoreML)"))
    document = answer.json()
    assert answer.status_code == HTTPStatus.CREATED
    campaign = document["campaign_id"]
    assert set(document) == {"campaign_id", "total_jobs", "status", "jobs"}
    assert (document["total_jobs"], document["status"]) == (2, "running")
    assert [(job["job_id"], job["compute_unit"], job["status"]) for job in document["jobs"]] == [
        (f"{campaign}-job-0", "CPU (ONNX)", "pending"),
        (f"{campaign}-job-1", "GPU (CoreML)", "pending"),
    ]
    assert answer.headers["location"] == f"/api/campaigns/{campaign}"
    assert woken.times == 1


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
async def test_curl_sends_json_with_another_content_type_or_none(
    client: httpx.AsyncClient, model: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    body = json.dumps(plain(model, "CPU (ONNX)")).encode()
    answer = await client.post("/api/campaigns", content=body, headers=headers)
    assert answer.status_code == HTTPStatus.CREATED, answer.text


async def test_the_same_unit_several_times_is_as_many_jobs(client: httpx.AsyncClient, model: str) -> None:
    jobs = [{"compute_unit": unit} for unit in ("CPU (ONNX)", "CPU (ONNX)", "GPU (CoreML)", "GPU (CoreML)")]
    document = (await client.post("/api/campaigns", json={"model_url": model, "jobs": jobs})).json()
    assert [job["compute_unit"] for job in document["jobs"]] == [job["compute_unit"] for job in jobs]


async def test_the_same_key_makes_one_campaign(client: httpx.AsyncClient, model: str) -> None:
    ids = set()
    for _ in range(2):
        headers = {"Idempotency-Key": "once"}
        answer = await client.post("/api/campaigns", json=plain(model, "CPU (ONNX)"), headers=headers)
        ids.add(answer.json()["campaign_id"])
    assert len(ids) == 1


NONSENSE: Final = (b"", b"{...}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000)
NO_CAMPAIGN: Final = (
    b'{"model_url": "https://example.org/a.onnx"}',
    b'{"model_url": "https://example.org/a.onnx", "jobs": []}',
    b'{"model_url": "https://example.org/a.onnx", "jobs": [{"compute_unit": 7}]}',
    b'{"model_url": "/etc/passwd", "jobs": [{"compute_unit": "CPU (ONNX)"}]}',
    b'{"model_url": "http://127.0.0.1:1/a.onnx", "jobs": [{"compute_unit": "CPU (ONNX)"}]}',
)


@pytest.mark.parametrize("path", ["campaigns", "register"])
async def test_a_body_that_makes_no_sense_is_refused_with_an_error(
    client: httpx.AsyncClient, path: str
) -> None:
    for body in NONSENSE + (NO_CAMPAIGN if path == "campaigns" else ()):
        answer = await client.post(f"/api/{path}", content=body)
        assert HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, body[:80]
        assert answer.json()["error"]


async def test_a_campaign_is_shown_with_its_jobs_counted(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one", tasks=4)
    writer.succeed("c-one/1")
    writer.fail("c-one/2")
    writer.begin("c-one/3")
    document = (await client.get("/api/campaigns/c-one")).json()
    documented = {"campaign_id", "model_url", "status", "total_jobs", "completed_jobs", "job_breakdown"}
    assert documented <= set(document)
    assert (document["model_url"], document["status"], document["total_jobs"], document["completed_jobs"]) == (
        "m.onnx", "running", 4, 1,
    )  # fmt: skip
    assert document["job_breakdown"] == {
        "pending": 1,
        "running": 1,
        "complete": 1,
        "failed": 1,
        "cancelled": 0,
    }
    every = (await client.get("/api/campaigns")).json()
    assert every == {"count": 1, "campaigns": [document]}


@pytest.mark.parametrize(
    ("done", "word"),
    [((1, 2, 3), "completed"), ((1,), "completed"), ((), "failed")],
    ids=("all", "some", "none"),
)
async def test_a_campaign_that_is_over_is_completed_if_anything_came_of_it(
    client: httpx.AsyncClient, writer: Any, done: tuple[int, ...], word: str
) -> None:
    writer.campaign("c-one")
    for n in done:
        writer.succeed(f"c-one/{n}")
    writer.fail(*(f"c-one/{n}" for n in range(1, 4) if n not in done))
    writer.store.campaigns.end("c-one")
    document = (await client.get("/api/campaigns/c-one")).json()
    assert (document["status"], document["completed_jobs"]) == (word, len(done))


async def test_a_cancelled_campaign_says_so(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one", tasks=1)
    writer.store.campaigns.request_cancel("c-one")
    assert (await client.get("/api/campaigns/c-one")).json()["status"] == "running"
    writer.store.attempts.end_pending(
        EndPending(["c-one/1"], TaskEvent.CANCEL, reason=Reason.CANCELLED, detail="")
    )
    writer.store.campaigns.end("c-one")
    assert (await client.get("/api/campaigns/c-one")).json()["status"] == "cancelled"


async def test_a_job_and_its_result(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    writer.fail("c-one/2", detail="no device has it")
    over = (await client.get("/api/jobs/c-one-job-0")).json()
    assert {"job_id", "campaign_id", "compute_unit", "status"} <= set(over["job"])
    assert (over["job"]["status"], over["job"]["job_id"]) == ("complete", "c-one-job-0")
    assert {"status", "LoadMsMedian", "InferenceMsMedian", "PeakInferenceRamUsage"} <= set(over["result"])
    assert (over["result"]["status"], over["result"]["JobId"]) == ("Complete", "c-one-job-0")
    failed = (await client.get("/api/jobs/c-one-job-1")).json()
    assert (failed["job"]["status"], failed["job"]["error"]) == ("failed", "no device has it")
    assert failed["result"]["status"] == "Failed"
    assert failed["result"]["InferenceMsMedian"] is None
    waits = (await client.get("/api/jobs/c-one-job-2")).json()
    assert (waits["job"]["status"], waits["result"]) == ("pending", None)


def test_a_job_is_a_task_counted_from_0() -> None:
    for campaign in ("c-ab23cd45", "c-job-7", "a-job-1-job-2"):
        for n in (1, 2, 11):
            assert task_of(job_id_of(f"{campaign}/{n}")) == (campaign, n)
    assert set(JOB) == set(TaskState)


async def test_results_are_the_csv_with_the_columns_of_the_readme_first(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    writer.fail("c-one/2", detail="=cmd()")
    answer = await client.get("/api/campaigns/c-one/results")
    assert answer.headers["content-type"].startswith("text/csv")
    head, *rows = csv.reader(io.StringIO(answer.text))
    assert tuple(head) == COLUMNS
    assert tuple(head[:CONTRACT]) == CONTRACT_COLUMNS
    assert [row[:2] for row in rows] == [["Complete", "c-one-job-0"], ["Failed", "c-one-job-1"]]
    assert ",'=cmd()," in answer.text


async def test_a_file_for_each_campaign_that_is_over(client: httpx.AsyncClient, writer: Any) -> None:
    for name in ("c-one", "c-two", "c-runs"):
        writer.campaign(name, tasks=1)
    for name in ("c-one", "c-two"):
        writer.fail(f"{name}/1")
        writer.store.campaigns.end(name)
    document = (await client.get("/api/results/files")).json()
    assert (document["count"], document["next"]) == (2, None)
    assert [item["campaign_id"] for item in document["files"]] == ["c-two", "c-one"]
    for item in document["files"]:
        assert {"filename", "size_mb", "modified"} <= set(item)
        ended = datetime.fromisoformat(item["modified"]).astimezone(UTC)
        assert item["filename"] == f"{item['campaign_id']}_{ended:%Y%m%d_%H%M%S}_results.csv"
        file = await client.get(f"/api/results/download/{item['filename']}")
        whole = await client.get(f"/api/campaigns/{item['campaign_id']}/results")
        assert file.content == whole.content
        assert item["size_mb"] == pytest.approx(len(file.content) / 1024**2, abs=1e-4)
        assert file.headers["content-disposition"] == f'attachment; filename="{item["filename"]}"'
    other = await client.get("/api/results/download/c-one_20250109_143022_results.csv")  # not in the list
    assert other.status_code == HTTPStatus.NOT_FOUND
    runs = await client.get("/api/results/download/c-runs_20250109_143022_results.csv")
    assert runs.status_code == HTTPStatus.NOT_FOUND
    one = (await client.get("/api/results/files", params={"limit": 1})).json()
    rest = (await client.get("/api/results/files", params={"limit": 1, "after": one["next"]})).json()
    assert [item["campaign_id"] for item in one["files"] + rest["files"]] == ["c-two", "c-one"]
    assert rest["next"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "campaigns/c-none",
        "campaigns/c-none/results",
        "campaigns/..%2f..%2fetc%2fpasswd/results",
        "jobs/c-one",
        "jobs/c-one-job-",
        "jobs/c-one-job-3",
        "jobs/c-one-job-01",
        "jobs/c-one-job--1",
        "jobs/c-one-job-99999999999999999999",
        "jobs/c-one-job-٣",
        "jobs/%00",
        "jobs/<script>",
        "results/download/results.csv",
        "results/download/c-one_20250109_143022_results.csv",
        "results/download/c-one_99999999_999999_results.csv",
        "results/download/..%2f..%2fstore.db",
        "results/download/%2e%2e%2fscheduler%2fkey",
        "results/download/../../../etc/passwd",
        "results/download/..\\store.db",
        "results/download/%00",
        "results/download/c-one",
        "results/files?limit=0",
        "results/files?after=nothing",
        "nothing",
    ],
)
async def test_what_is_not_there_is_an_error_and_no_path_is_followed(
    client: httpx.AsyncClient, writer: Any, path: str
) -> None:
    writer.campaign("c-one")
    answer = await client.get(f"/api/{path}")
    assert answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
    assert answer.json()["error"]
