"""Reports and charts over HTTP: the command's text under its own policy, images, and plain refusals."""

from __future__ import annotations

import base64
import hashlib
import re
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from protocol.values.record import record_body
from results.report.html import policy
from tests.scheduler.report_parts import a_record

BASE = "/api/v1/campaigns"


@pytest.fixture
def measured(writer: Any) -> str:
    """A campaign with two completed tasks and a failed one."""
    name: str = writer.campaign("c-one", title="<b>edge</b>")
    for number, ms in ((1, 10.0), (2, 20.0)):
        writer.succeed(f"c-one/{number}", body=record_body(a_record(writer.task(name, number), ms=ms)))
    writer.fail("c-one/3", detail="no device <i>fits</i>")
    return name


async def test_a_report_comes_as_html_under_the_policy_of_its_own_style(
    served: httpx.AsyncClient, measured: str
) -> None:
    answer = await served.get(f"{BASE}/{measured}/report")
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    result = answer.headers["content-security-policy"]
    assert result.startswith(policy())
    assert "script-src" not in result
    (sheet,) = re.findall(r"<style>(.*?)</style>", answer.text, flags=re.DOTALL)
    assert base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode() in result
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<b>edge" not in answer.text
    assert "&lt;b&gt;edge&lt;/b&gt;" in answer.text
    assert "3 tasks: 2 complete, 1 failed" in answer.text
    assert "2 results failed verification" in answer.text  # their signatures are made up


async def test_the_same_as_markdown(client: httpx.AsyncClient, measured: str) -> None:
    answer = await client.get(f"{BASE}/{measured}/report", params={"format": "md"})
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.text.startswith("# `<b>edge</b>`")


async def test_held_against_another_campaign(client: httpx.AsyncClient, writer: Any, measured: str) -> None:
    other = writer.campaign("c-two", tasks=1)
    writer.succeed("c-two/1", body=record_body(a_record(writer.task(other, 1), ms=10.0)))
    answer = await client.get(f"{BASE}/{measured}/report", params={"against": other})
    assert "Compared with <bdi>c-two</bdi>" in answer.text


@pytest.mark.parametrize(
    ("kind", "form", "begins"),
    [
        ("bars", "svg", b"<svg "),
        ("distribution", "svg", b"<svg "),
        ("pareto", "svg", b"<svg "),
        ("bars", "png", b"\x89PNG"),
    ],
)
async def test_a_chart_comes_as_svg_or_png(
    client: httpx.AsyncClient, measured: str, kind: str, form: str, begins: bytes
) -> None:
    answer = await client.get(f"{BASE}/{measured}/chart", params={"kind": kind, "format": form})
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["content-type"].startswith("image/")
    assert answer.content.startswith(begins)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("c-none/report", 404),
        ("c-none/chart", 404),
        ("c-one/report?against=c-none", 404),
        ("c-one/report?format=pdf", 422),
        ("c-one/chart?kind=pie", 422),
        ("c-one/chart?size=9:16", 422),
        ("c-one/chart?format=svg&kind=pareto&axis=luck", 422),
        ("c-one/chart?kind=pareto&axis=energy", 422),
    ],
)
async def test_what_is_not_there_is_a_problem_in_one_line(
    client: httpx.AsyncClient, measured: str, path: str, status: int
) -> None:
    answer = await client.get(f"{BASE}/{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert "\n" not in answer.json()["detail"]


async def test_a_campaign_that_has_just_begun_has_a_report_and_nothing_to_draw(
    client: httpx.AsyncClient, writer: Any
) -> None:
    name = writer.campaign("c-new")
    answer = await client.get(f"{BASE}/{name}/report")
    assert "3 tasks: none has ended; 3 not ended yet. The campaign has not ended" in answer.text
    assert (await client.get(f"{BASE}/{name}/chart")).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
