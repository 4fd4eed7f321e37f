"""`report`, `chart` and `results --jsonl` or `--parquet`, as typed: the file they write, what they print, and their exit codes."""

from __future__ import annotations

import hashlib
import json

import pyarrow.parquet
import pytest

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.record import record_body, record_message
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.core.commands import CommitTo, RecordGrant
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from tests.cli.conftest import Typed
from tests.scheduler.report_parts import WORKERS, a_record

CAMPAIGN = "c-ab23cd45"


@pytest.fixture
def measured(typed: Typed) -> Typed:
    """A home with a campaign of two completed tasks."""
    tasks = [
        Task(
            campaign=CAMPAIGN,
            task=f"{CAMPAIGN}/{number}",
            scheduler=WORKERS[3].peer_id,
            model=Model(name="net.onnx", sha256="ab" * 32, size=7),
            unit="CPU (ONNX)",
            requirement=Requirement(),
            measure=Measure(runs=102),
            timeouts=Timeouts(),
        )
        for number in (1, 2)
    ]
    with Store(Home.at(typed.home).store) as store:
        new = NewCampaign(CAMPAIGN, "edge", WORKERS[3].peer_id, "{}")
        store.campaigns.create(new, [NewModel("net.onnx", "ab" * 32, 7)], tasks)
        for device, task in enumerate(tasks):
            body = record_body(a_record(task, device=device, ms=10.0 * (device + 1)))
            peer, fence = WORKERS[device].peer_id, Fence(incarnation=1, number=1)
            store.attempts.begin([CommitTo(task.task, 1, f"key {task.task}", peer, f"lab-{device}", 1)])
            store.attempts.record_grant(
                RecordGrant(task.task, 1, lease=f"l-{device}", fence=fence, queued=False)
            )
            store.attempts.record_result(
                task=task.task, attempt=1, fence=fence, worker=peer, sha256=hashlib.sha256(body).hexdigest(), body=body,
                signature=WORKERS[device].sign(record_message(body)), event=TaskEvent.SUCCEED,
            )  # fmt: skip
        store.campaigns.end(CAMPAIGN)
    return typed


def test_a_report_is_named_by_its_campaign_or_written_where_one_says(
    measured: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(measured.folder)
    done = measured("report")
    assert (done.code, done.out, done.err) == (0, "", f"wrote the report of edge to {CAMPAIGN}.html\n")
    text = (measured.folder / f"{CAMPAIGN}.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "2 results had a worker&#x27;s valid signature" in text
    assert measured("report", "c-ab", "-o", "r.md").code == 0
    assert (measured.folder / "r.md").read_text("utf-8").startswith("# `edge`")
    assert measured("report", "--format", "md").code == 0
    unknown = measured("report", "-o", "r.pdf")
    assert unknown.code == 2
    assert "a report is HTML or Markdown, not .pdf" in unknown.err
    assert not (measured.folder / "r.pdf").exists()
    assert (measured.folder / f"{CAMPAIGN}.md").exists()


def test_a_report_goes_to_standard_output_of_a_task_and_of_a_file_and_beside_others(measured: Typed) -> None:
    raw = measured.folder / "raw.json"
    assert measured("results", "--raw", raw).code == 0
    one = measured("report", f"{CAMPAIGN}/2", "-o", "-", "--format", "md")
    assert "lab-1" in one.out
    assert "lab-0" not in one.out
    both = measured("report", "--against", raw, "-o", "-")
    assert "Compared with <bdi>raw.json</bdi>" in both.out
    alone = measured("report", raw, "-o", "-", "--format", "md")
    assert hashlib.sha256(raw.read_bytes()).hexdigest() in alone.out


def test_where_a_campaign_is_needed_a_task_is_named_as_one(measured: Typed) -> None:
    for command in ("results", "retry"):
        done = measured(command, f"{CAMPAIGN}/2")
        assert done.code == 2
        assert f"'{CAMPAIGN}/2' is a task, but a whole campaign is needed here" in done.err
        assert f"write its id: {CAMPAIGN}" in done.err
    assert "no campaign 'c-nope/2' on this home" in measured("results", "c-nope/2").err


@pytest.mark.parametrize("kind", ["bars", "distribution", "pareto"])
def test_a_chart_is_svg_or_png_by_its_name(measured: Typed, kind: str) -> None:
    for name, begins in (("x.svg", b"<svg "), ("x.PNG", b"\x89PNG")):
        path = measured.folder / name
        done = measured("chart", CAMPAIGN, "-o", path, "--kind", kind, "--size", "4:3", "--dark")
        assert (done.code, done.err) == (0, f"wrote the chart of edge to {path}\n")
        assert path.read_bytes().startswith(begins)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "--format", "pdf"], "'pdf' is not one of 'html', 'md'"),
        (["report", "c-none"], "no campaign 'c-none'"),
        (["report", "--against", "nothing.json"], "there is no file nothing.json"),
        (["chart", "-o", "x.gif"], "a chart file needs the suffix .svg or .png"),
        (["chart", "--kind", "pie"], "'pie' is not one of 'bars'"),
        (["chart", "--size", "9:16"], "'9:16' is not one of '16:9'"),
        (["chart", "--kind", "pareto", "--axis", "energy"], "fewer than two tasks have both figures"),
        (["chart", "-o", "none/x.svg"], "there is no folder"),
        (["report", "-o", "none/x.html"], "there is no folder"),
    ],
)
def test_what_cannot_be_made_is_a_one_line_error_with_a_hint(
    measured: Typed, words: list[str], message: str
) -> None:
    done = measured(*words)
    assert done.code in (2, 6)
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_results_go_out_as_json_lines_and_as_parquet(measured: Typed) -> None:
    lines = [json.loads(line) for line in measured("results", "--jsonl", "-").out.splitlines()]
    assert [line["DeviceName"] for line in lines] == ["lab-0", "lab-1"]
    files = measured.folder / "r.jsonl", measured.folder / "r.parquet"
    done = measured("results", "--jsonl", files[0], "--parquet", files[1])
    assert done.out == ""
    assert done.err.splitlines() == [f"wrote 2 lines to {files[0]}", f"wrote 2 rows to {files[1]}"]
    table = pyarrow.parquet.read_table(files[1])
    assert table["InferencesNs"].to_pylist() == [line["InferencesNs"] for line in lines]
    twice = measured("results", "--jsonl", "-", "--csv", "-")
    assert twice.code == 2
    assert "only one of --csv, --jsonl, --raw and --json" in twice.err
