"""One task over HTTP: all its details, its charts, its signed result as a file; and several tasks side by side."""

from __future__ import annotations

import hashlib
import math
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.operators import OperatorUse
from protocol.values.record import (
    DeviceFacts,
    HostLoad,
    LoadSample,
    Record,
    RunFacts,
    StageTime,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.task import task_body
from protocol.words import RunOutcome
from results.analysis.sittings import IntervalCoverage
from results.analysis.verify import check_results
from results.export.raw import read_raw
from scheduler.core.commands import CommitTo, RecordGrant
from swarm.net.identity import Identity
from web.http.context import ApiContext
from web.http.coverage import CoverageView

BASE = "/api/v1/campaigns"
WORKER = Identity.from_seed("worker")
HOSTILE = "<img src=x onerror=alert(1)>=cmd()"
TURNED = "\u202etxt.exe \x1b[31m"


def timing(ns: int, samples: int, launch: int) -> Timing:
    times = [ns + 1000 * ((place * 7 + launch) % 5) for place in range(samples)]
    blocks = [samples, sum(times), sum(times), 1 + sum(times) // 50, 3]
    return Timing(
        samples=pack_samples(times),
        warmup=pack_samples([3 * ns, ns]),
        began_s=float(launch),
        blocks=pack_samples(blocks),
        host=HostLoad(others=0.01, clock_mhz=2000.0),
        cpu_s=1.0,
        wall_s=2.0,
    )


def record(
    writer: Any, campaign: str, n: int, fence: Fence, *, ns: int, samples: int = 100, device: str = "laptop-7"
) -> Record:
    """The record that a worker would sign for that task: six launches of about `ns` each."""
    task = writer.task(campaign, n)
    return Record(
        campaign=campaign,
        task=task.task,
        attempt=1,
        fence=fence,
        worker=WORKER.peer_id,
        task_sha256=hashlib.sha256(task_body(task)).hexdigest(),
        model_sha256=task.model.sha256,
        outcome=RunOutcome.COMPLETE,
        device=DeviceFacts(device=f"d-{device}", name=device, soc=HOSTILE, cores=8),
        ran=RunFacts(
            unit=task.unit,
            driver="onnx",
            runtime=HOSTILE,
            agrees=True,
            shapes={"x": (1, 3)},
            threads=1,
            notes=(TURNED,),
            operators=(
                OperatorUse(op=HOSTILE, provider="CPUExecutionProvider", nodes=2, ran=1, ns=5_000_000),
            ),
        ),
        loads=tuple(LoadSample(ns=10**6 + launch) for launch in range(6)),
        timings=tuple(timing(ns, samples // 6 + (launch < samples % 6), launch) for launch in range(6)),
        stages=(StageTime(stage="run", seconds=1.5),),
    )


def measure(writer: Any, campaign: str, n: int, **options: Any) -> None:
    """Complete the task with a record that its worker signed."""
    task, device = f"{campaign}/{n}", str(options.get("device", "laptop-7"))
    fence = Fence(incarnation=1, number=n)
    writer.store.attempts.begin([CommitTo(task, 1, f"key of {task}", WORKER.peer_id, device, 1)])
    writer.store.attempts.record_grant(
        RecordGrant(task, 1, lease=f"lease of {task}", fence=fence, queued=False)
    )
    body = record_body(record(writer, campaign, n, fence, **options))
    writer.store.attempts.record_result(
        task=task, attempt=1, fence=fence, worker=WORKER.peer_id, sha256=hashlib.sha256(body).hexdigest(),
        body=body, signature=WORKER.sign(record_message(body)), event=TaskEvent.SUCCEED,
    )  # fmt: skip


async def test_a_task_has_how_often_intervals_hold_on_its_device(
    context: ApiContext, client: httpx.AsyncClient, writer: Any
) -> None:
    device = f"d-laptop-7 {WORKER.peer_id}"

    async def read() -> dict[str, IntervalCoverage]:
        return {device: IntervalCoverage(19, 20, (math.log(1.1),))}

    context.coverage = CoverageView(read)
    writer.campaign("c-one", tasks=2)
    measure(writer, "c-one", 1, ns=2_000_000)
    one, other = [(await client.get(f"{BASE}/c-one/tasks/{n}")).json() for n in (1, 2)]
    margin = pytest.approx(10)
    assert one["coverage"] == {"share": 0.95, "held": 19, "sittings": 20, "margin_percent": margin}
    low, high = one["row"]["InferenceMsMedianLow"], one["row"]["InferenceMsMedianHigh"]
    assert one["device_interval_ms"] == pytest.approx([low / 1.1, high * 1.1])
    assert other["coverage"] is other["device_interval_ms"] is None


async def test_a_task_with_everything_that_is_known_of_it(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    measure(writer, "c-one", 1, ns=2_000_000)
    document = (await client.get(f"{BASE}/c-one/tasks/1")).json()
    assert document["task"]["state"] == "succeeded"
    assert document["row"]["InferenceMsMedian"] == pytest.approx(2.002, abs=0.001)
    assert document["csv"].splitlines()[0].startswith("Status,JobId")
    assert document["judgement"]["verdict"] == document["row"]["Verdict"] == "valid"
    assert document["judgement"]["reasons"][0]["means"]
    assert [(one["attempt"], one["state"]) for one in document["attempts"]] == [(1, "succeeded")]
    assert [one["name"] for one in document["happened"]][-1] == "task.succeeded"
    assert document["record"]["device"]["soc"] == HOSTILE  # sent unchanged: escaping is up to the client
    assert document["record"]["ran"]["notes"] == [TURNED]
    assert document["record"]["worker"] == WORKER.peer_id
    assert document["launches"][0]["blocks"][0]["switches"] == 2
    assert document["launches"][0]["blocks"][0]["stall_percent"] == pytest.approx(2, abs=0.1)
    assert document["needs"] == ["ram >= 1 GiB"]
    assert [(one["op"], one["ms"]) for one in document["operators"]["lines"]] == [(HOSTILE, 5.0)]


async def test_each_reason_of_a_verdict_is_explained(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    task = writer.task("c-one", 1)
    fence = writer.begin("c-one/1")
    result = record(writer, "c-one", 1, fence, ns=2_000_000)
    assert result.ran is not None
    few = result.model_copy(
        update={"timings": result.timings[:2], "ran": result.ran.model_copy(update={"agrees": None})}
    )
    writer.store.attempts.record_result(
        task=task.task, attempt=1, fence=fence, worker=WORKER.peer_id, sha256="cd" * 32,
        body=record_body(few), signature=b"s" * 64, event=TaskEvent.SUCCEED,
    )  # fmt: skip
    document = (await client.get(f"{BASE}/c-one/tasks/1")).json()["judgement"]
    assert [reason["verdict"] for reason in document["reasons"]] == ["unchecked", "few-runs"]
    assert all(reason["means"] and reason["help"] for reason in document["reasons"])


async def test_a_task_that_has_not_ended_and_one_that_failed_have_no_numbers(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one")
    writer.fail("c-one/2", detail="0 of 3 devices fit\n  ram >= 1 GiB")
    waiting = (await client.get(f"{BASE}/c-one/tasks/1")).json()
    assert (waiting["row"], waiting["judgement"], waiting["record"], waiting["csv"]) == (None, None, None, "")
    failed = (await client.get(f"{BASE}/c-one/tasks/2")).json()
    assert failed["row"]["Status"] == "Failed"
    assert failed["judgement"] is None
    for path in (
        "tasks/1/chart?kind=trace",
        "tasks/2/chart?kind=host",
        "tasks/1/raw",
        "tasks/9",
        "tasks/9/verify",
    ):
        answer = await client.get(f"{BASE}/c-one/{path}")
        assert answer.status_code == HTTPStatus.NOT_FOUND
        assert answer.json()["hint"]


async def test_an_unreadable_record_is_reported_and_breaks_nothing(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one")
    writer.succeed("c-one/1")
    document = (await client.get(f"{BASE}/c-one/tasks/1")).json()
    assert document["unreadable"]
    assert (await client.get(f"{BASE}/c-one/tasks/1/chart?kind=trace")).status_code == HTTPStatus.CONFLICT


@pytest.mark.parametrize("kind", ["histogram", "distribution", "trace", "host", "stages"])
async def test_charts_of_a_task_are_drawn_from_all_samples(
    client: httpx.AsyncClient, writer: Any, kind: str
) -> None:
    writer.campaign("c-one")
    measure(writer, "c-one", 1, ns=2_000_000, samples=6000)
    url = f"{BASE}/c-one/tasks/1/chart"
    pages = {
        theme: await client.get(url, params={"kind": kind, "theme": theme})
        for theme in ("light", "dark", "page")
    }
    assert {answer.headers["content-type"] for answer in pages.values()} == {"image/svg+xml"}
    assert len({answer.text for answer in pages.values()}) == 3
    svg = ElementTree.fromstring(pages["page"].text)  # noqa: S314  (our own)
    assert f'id="{kind}-t"' in pages["page"].text
    assert "style" not in {name for element in svg.iter() for name in element.attrib}  # the page's policy
    titles = [element.text or "" for element in svg.iter() if element.tag.endswith("title")]
    if kind == "histogram":
        counts = [int(match[1]) for title in titles if (match := re.search(r": (\d+) samples?,", title))]
        assert sum(counts) == 6000
    for theme, status in (("pink", 422), ("light", 200)):
        assert (await client.get(url, params={"kind": kind, "theme": theme})).status_code == status


async def test_charts_of_comparisons_are_drawn(client: httpx.AsyncClient, writer: Any) -> None:
    for campaign, ns in (("c-one", 2_000_000), ("c-two", 3_000_000)):
        writer.campaign(campaign)
        for n in (1, 2):
            measure(writer, campaign, n, ns=ns * n)
    ratios = await client.get("/api/v1/compare/chart", params={"a": "c-one", "b": "c-two"})
    assert (ratios.status_code, ratios.headers["content-type"]) == (HTTPStatus.OK, "image/svg+xml")
    assert "SLOWER" in ratios.text
    of = {"of": ["c-one", "c-two"]}
    assert (await client.get("/api/v1/matrix/chart", params=of)).status_code == HTTPStatus.NO_CONTENT
    priced = await client.get("/api/v1/matrix/chart", params={**of, "axis": "price"})
    assert priced.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "energy" in priced.json()["hint"]


async def test_the_signed_result_is_a_file_that_verify_takes(client: httpx.AsyncClient, writer: Any) -> None:
    writer.campaign("c-one")
    measure(writer, "c-one", 1, ns=2_000_000)
    answer = await client.get(f"{BASE}/c-one/tasks/1/raw")
    assert 'filename="c-one-1.json"' in answer.headers["content-disposition"]
    findings = check_results("c-one", read_raw(answer.content), text=answer.text)
    assert [(finding.task, finding.worker, finding.wrong) for finding in findings] == [
        ("c-one/1", WORKER.peer_id, ())
    ]
    document = (await client.get(f"{BASE}/c-one/tasks/1/verify")).json()
    assert (document["task"], document["holds"]) == ("c-one/1", True)


async def test_results_beside_each_other_over_http_are_those_of_the_command_line(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one")
    writer.campaign("c-two")
    for n in (1, 2):
        measure(writer, "c-one", n, ns=4_000_000, device=f"dev-{n}")
        measure(writer, "c-two", n, ns=2_000_000 if n == 1 else 4_000_000, device=f"dev-{n}")
    parsed = (await client.get("/api/v1/compare", params={"a": "c-one", "b": ["c-two", "c-one/2"]})).json()
    assert [one["b"] for one in parsed["comparisons"]] == ["c-two", "c-one/2"]
    assert [pair["verdict"] for pair in parsed["comparisons"][0]["pairs"]] == ["FASTER", "SAME"]
    first = parsed["comparisons"][0]["pairs"][0]
    assert first["ratio"] == pytest.approx(0.5, abs=0.01)
    assert first["ratio_low"] <= first["ratio"] <= first["ratio_high"]
    devices = {"by": "device", "a": "dev-1", "b": "dev-2", "of": "c-two"}
    document = (await client.get("/api/v1/compare", params=devices)).json()
    assert document["comparisons"][0]["pairs"][0]["verdict"] == "SLOWER"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"a": "c-none", "b": "c-one"}, 404),
        ({"a": "c-one", "b": "c-one/7"}, 404),
        ({"a": "/etc/passwd", "b": "c-one"}, 404),
        ({"a": "c-one"}, 422),
        ({"a": "c-one", "b": "c-one", "of": "c-one"}, 422),
        ({"a": "x", "b": "y", "by": "device", "of": "c-one"}, 404),
        ({"a": "\x00", "b": "%"}, 404),
    ],
)
async def test_what_cannot_be_compared_is_refused_with_a_hint(
    client: httpx.AsyncClient, writer: Any, options: dict[str, str], status: int
) -> None:
    writer.campaign("c-one")
    answer = await client.get("/api/v1/compare", params=options)
    assert answer.status_code == status
    assert answer.json()["hint"]


async def test_a_client_names_no_files(client: httpx.AsyncClient, writer: Any, tmp_path: Path) -> None:
    writer.campaign("c-one")
    measure(writer, "c-one", 1, ns=2_000_000)
    file = tmp_path / "raw.json"
    file.write_bytes((await client.get(f"{BASE}/c-one/tasks/1/raw")).content)
    for expected in ({"a": str(file), "b": "c-one"}, {"a": "c-one", "b": str(file)}):
        assert (await client.get("/api/v1/compare", params=expected)).status_code == HTTPStatus.NOT_FOUND
    assert (await client.get("/api/v1/matrix", params={"of": str(file)})).status_code == HTTPStatus.NOT_FOUND


async def test_the_matrix_has_ratios_to_a_base_prices_and_fronts(
    client: httpx.AsyncClient, writer: Any
) -> None:
    writer.campaign("c-one")
    measure(writer, "c-one", 1, ns=4_000_000, device="slow")
    measure(writer, "c-one", 2, ns=2_000_000, device="quick")
    document = (
        await client.get(
            "/api/v1/matrix", params={"of": "c-one", "base": "slow", "price": "quick:3.6", "currency": "EUR"}
        )
    ).json()
    quick, slow = document["cells"]
    assert (slow["ratio"], quick["ratio"]) == (1.0, pytest.approx(0.5, abs=0.01))
    assert quick["per_million"] == pytest.approx(2, abs=0.01)
    assert document["fronts"]["size"] == ["c-one/2"]
    for expected in ({"of": "c-one", "base": "nobody"}, {"of": "c-one", "price": "3"}, {}):
        assert (await client.get("/api/v1/matrix", params=expected)).status_code == 422
