"""A campaign over HTTP before it is submitted and while it runs: its mistakes, its plan, and why it stands as it does."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from scheduler.campaign.text import SCHEMA_FILE
from tests.tiny_onnx import tiny_onnx

YAML = {"Content-Type": "text/yaml"}
GOOD = (
    b"campaign: x\nmodels: [https://example.org/a.onnx, https://example.org/b.onnx]\nunits: [CPU (ONNX)]\n"
    b"devices: {spread: any}\nmeasure: {threads: [1, 2]}\n"
)


async def test_every_mistake_is_reported_at_its_line_with_a_hint(client: httpx.AsyncClient) -> None:
    text = b"campaign: x\nmodels: [a.onnx]\nunits: [CPU (ONNX)]\nmeasur: {}\nmeasure:\n  runs: 0\n"
    document = (await client.post("/api/v1/validate", content=text, headers=YAML)).json()
    assert document["valid"] is False
    assert [(one["line"], one["what"]) for one in document["mistakes"]] == [
        (4, "unknown key 'measur'"),
        (6, "measure.runs must be at least 1, not 0"),
    ]
    assert document["mistakes"][0]["hint"].startswith("did you mean 'measure'?")
    assert "more error" not in document["mistakes"][0]["hint"]  # the other errors have entries of their own
    assert document["given"]["measure"] == {"runs": 0}
    assert document["found"] is None


async def test_a_valid_campaign_is_shown_with_its_defaults_and_its_tasks_counted(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/api/v1/validate?models=false", content=GOOD, headers=YAML)
    document = answer.json()
    assert (document["valid"], document["mistakes"], document["found"]["tasks"]) == (True, [], 4)
    assert document["found"]["models"] == {}  # models were not inspected
    assert document["found"]["campaign"]["measure"]["runs"] == 100
    assert "runs" not in document["given"]["measure"]


async def test_models_that_were_sent_are_looked_at(client: httpx.AsyncClient) -> None:
    sent = (
        await client.post("/api/v1/models", params={"name": "m.onnx"}, content=tiny_onnx("w" * 600))
    ).json()
    campaign = {"campaign": "x", "models": [f"sha256:{sent['sha256']}"], "units": ["CPU (ONNX)"]}
    document = (await client.post("/api/v1/validate", json=campaign)).json()
    assert document["found"]["models"]["m.onnx"] == {key: sent[key] for key in ("name", "sha256", "size")}


@pytest.mark.parametrize(
    ("models", "units", "formats"),
    [
        (["https://e.org/a.onnx", "https://e.org/b.tflite"], ["CPU (ONNX)"], ["onnx", "tflite"]),
        ([{"name": "m", "files": {"gguf": "a.gguf", "onnx": "b.onnx"}}], [], ["gguf", "onnx"]),
        ([{"name": "m.pt2", "path": f"sha256:{'0' * 64}"}], ["CPU (ONNX)"], ["pt2"]),
        (["a.onnx", "b.bin"], ["CPU (ONNX)"], None),
        ([{"path": "a.onnx", "units": ["CPU (ONNX)"]}], [], None),
        ([], [], None),
        ("a.onnx", ["nope"], None),
    ],
)
async def test_the_formats_of_the_models_are_named_also_where_the_campaign_is_wrong(
    client: httpx.AsyncClient, models: object, units: list[str], formats: list[str] | None
) -> None:
    campaign = {"campaign": "x", "models": models, "units": units}
    assert (await client.post("/api/v1/validate?models=false", json=campaign)).json()["formats"] == formats


async def test_the_units_that_are_known_are_listed_with_their_formats(client: httpx.AsyncClient) -> None:
    units = {one["unit"]: one["formats"] for one in (await client.get("/api/v1/units")).json()["units"]}
    assert units["CPU (OpenVINO)"] == ["openvino", "onnx", "tflite"]
    assert units["API (OpenAI)"] is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", 1),
        (b"campaign: [", 1),
        (b"\xff\xfe\x00", 1),
        (b"- 1\n- 2", 1),
        (b"campaign: x\nmodels: [/etc/passwd]\nunits: [CPU (ONNX)]", 2),
        (b"campaign: x\nmodels: ['sha256:" + b"0" * 64 + b"']\nunits: [CPU (ONNX)]", 2),
        (b"campaign: x\nmodels: [a]\nunits: ['\xe2\x80\xaeCPU']", 3),
        (b"model_url: https://example.org/m.onnx\njobs: [{compute_unit: nope}]", 2),
    ],
)
async def test_whatever_stands_there_the_answer_says_what_is_wrong(
    client: httpx.AsyncClient, text: bytes, line: int
) -> None:
    answer = await client.post("/api/v1/validate", content=text, headers=YAML)
    assert answer.status_code == HTTPStatus.OK
    document = answer.json()
    assert document["mistakes"][0]["line"] == line
    assert "\u202e" not in document["mistakes"][0]["what"]
    refused = await client.post("/api/v1/plan", content=text, headers=YAML)
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert refused.json()["line"] == line


async def test_a_plan_without_a_swarm_says_so(client: httpx.AsyncClient) -> None:
    sent = (
        await client.post("/api/v1/models", params={"name": "m.onnx"}, content=tiny_onnx("w" * 600))
    ).json()
    campaign = {"campaign": "x", "models": [f"sha256:{sent['sha256']}"], "units": ["CPU (ONNX)"]}
    answer = await client.post("/api/v1/plan", json=campaign)
    assert answer.status_code == HTTPStatus.FAILED_DEPENDENCY
    assert answer.json()["hint"]
    assert (await client.post("/api/v1/plan", content=b"x")).status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


async def test_why_a_campaign_and_a_task_stand_as_they_do(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one", tasks=2)
    writer.fail("c-one/1", "c-one/2", detail="0 of 3 devices fit\n  ram >= 1 GiB  0 fit")
    writer.store.campaigns.end("c-one")
    whole = (await client.get("/api/v1/explain/c-one")).json()
    assert whole["stories"][0]["tasks"] == [1, 2]
    assert whole["stories"][0]["why"][0] == "nothing-fits: 0 of 3 devices fit"
    one = (await client.get("/api/v1/explain/c-one/2")).json()
    assert one["stories"][0]["tasks"] == [2]
    for path in ("c-none", "c-one/9", "c-none/1"):
        answer = await client.get(f"/api/v1/explain/{path}")
        assert answer.status_code == HTTPStatus.NOT_FOUND
        assert answer.json()["hint"]


async def test_the_schema_is_the_one_that_is_shipped(client: httpx.AsyncClient) -> None:
    document = (await client.get("/api/v1/campaign-schema")).json()
    assert document == json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
