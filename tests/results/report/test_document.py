"""A report: one self-contained file that says what was and was not measured, and never acts on a hostile name."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from markdown_it import MarkdownIt

from protocol.words import Reason
from results.analysis.sittings import pool_sittings
from results.export.raw import RawResult, ResultSource, json_lines
from results.report import facts
from results.report.drawing import DARK, LIGHT, digits
from results.report.facts import Report
from results.report.html import policy, style
from results.report.measurements import MAX_CHARTS, medians
from results.report.page import Table
from scheduler.output.render import ReportFormat, make_report, render
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary
from tests.scheduler.report_parts import WORKERS, complete, failed, launches_at, unplaced

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>|`*_[x](javascript:alert(3))\u202eetad\u009b31m@someone https://evil.example\x07"
NOW = 1_795_300_000.0
STORED = CampaignRow(
    id="c-ab23cd45", name="vision on the edge", scheduler=WORKERS[3].peer_id, spec="{}", attempts=3, backoff_s=5, wait_s=60,
    limit_s=None, priority=50, epoch=1, planned=True, cancel=False, created=NOW - 500, ended=NOW - 349, outcome=CampaignStatus.FAILED,
    detail="",
)  # fmt: skip


class Document(HTMLParser):
    """Elements with their attributes and text. Every element must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.cells: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        self.text.setdefault(tag, []).append("")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.text[tag][-1] += data
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


def a_report(*results: RawResult, stored: CampaignRow | None = STORED, **more: Any) -> Report:
    return Report(
        results,
        campaign="c-ab23cd45",
        title="vision on the edge",
        written=NOW,
        version="0.1.0",
        stored=stored,
        **more,
    )


def html_of(*results: RawResult, **more: Any) -> str:
    return render(a_report(*results, **more), ReportFormat.HTML)


RESULTS = (
    complete(1, ms=10),
    complete(2, device=1, ms=20),
    complete(3, model="other.onnx", device=1, ms=5, energy_j=0.25),
    failed(4, device=2, model="other.onnx"),
    unplaced(5),
)


@pytest.fixture(scope="module")
def html() -> str:
    return html_of(*RESULTS)


@pytest.fixture(scope="module")
def document(html: str) -> Document:
    return Document(html)


@pytest.fixture(scope="module")
def markdown() -> str:
    return render(a_report(*RESULTS), ReportFormat.MD)


# -- the file ----------------------------------------------------------------------------------------------------------------------


def test_it_needs_nothing_else_and_its_own_policy_lets_nothing_else_in(html: str, document: Document) -> None:
    outcome = next(
        item for item in document.all("meta") if item.get("http-equiv") == "Content-Security-Policy"
    )
    (sheet,) = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert outcome["content"] == policy()
    assert policy().startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy()
    assert "unsafe" not in policy()
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in document.elements}
    assert "url(" not in sheet
    assert "@import" not in sheet
    for tag, attrs in document.elements:
        assert "style" not in attrs, tag
        assert "src" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        assert (attrs.get("href") or "#").startswith("#"), tag
        assert attrs.get("xmlns", "http://www.w3.org/2000/svg") == "http://www.w3.org/2000/svg"
    assert set(re.findall(r"https?://[^\s\"<]+", html)) == {"http://www.w3.org/2000/svg"}


def test_the_same_results_at_the_same_time_make_the_same_file(html: str, markdown: str) -> None:
    assert html_of(*RESULTS) == html
    assert render(a_report(*RESULTS), ReportFormat.MD) == markdown


def test_the_style_has_a_colour_for_each_tone_by_day_and_by_night_prints_and_folds() -> None:
    day, night = style().split("prefers-color-scheme:dark", 1)
    for tone, colour in LIGHT.items():
        assert f"--{tone}:{colour}" in day
        assert f"--{tone}:{DARK[tone]}" in night
        assert f".f-{tone}" in style()
    assert "@media print" in style()
    assert "max-width:46rem" in style()


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "#ffffff"), (DARK, "#12161d")], ids=["day", "night"])
def test_every_colour_of_words_can_be_read_on_its_paper(colours: dict[str, str], paper: str) -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for tone, colour in colours.items():
        if tone in ("paper", "grid"):
            continue
        low, high = sorted((light(colour), light(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, tone


# -- accessibility -----------------------------------------------------------------------------------------------------------------


def test_headings_are_in_order_sections_are_named_and_the_list_leads_to_each(document: Document) -> None:
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {item["href"] for item in document.all("a")} == {
        f"#{item['id']}" for item in document.all("section")
    }
    assert all(item["aria-labelledby"] in ids for item in document.all("section"))
    assert document.all("html")[0]["lang"] == "en"


def test_each_table_has_a_caption_headers_for_columns_and_rows_and_labels_for_narrow_pages(
    document: Document,
) -> None:
    assert len(document.text["caption"]) == len(document.all("table")) > 5
    heads = document.all("th")
    assert all(item["scope"] in ("col", "row") for item in heads)
    assert all(item["role"] in ("columnheader", "rowheader") for item in heads)
    assert all(item["data-label"] for item in document.all("td"))
    assert all(item["role"] == "cell" for item in document.all("td"))


def test_each_picture_has_a_text_alternative(document: Document) -> None:
    pictures = document.all("svg")
    assert len(pictures) >= 3 * 2 + 2  # two for each measured task, medians, ratios
    titles = [title for title in document.all("title") if title.get("id")]
    assert len(document.text["desc"]) == len(titles) == len(pictures)
    assert all(document.text["desc"])
    ids = {attrs.get("id") for _, attrs in document.elements}
    for picture in pictures:
        assert picture["role"] == "img"
        assert set((picture["aria-labelledby"] or "").split()) <= ids


# -- contents ----------------------------------------------------------------------------------------------------------------------


def test_it_begins_with_what_when_who_and_which_devices(document: Document) -> None:
    assert document.text["h1"] == ["vision on the edge"]
    facts = dict(zip(document.text["dt"], document.text["dd"], strict=True))
    assert facts["campaign"] == "c-ab23cd45"
    assert facts["submitted"].endswith("UTC, took 2 min 31 s")
    assert facts["status"] == "failed"
    assert facts["submitted by"] == WORKERS[3].peer_id
    assert facts["devices"] == "lab-0, lab-1 and lab-2"


def test_the_summary_is_in_plain_sentences_and_claims_no_more_than_was_measured(document: Document) -> None:
    message = "\n".join(document.text["li"])
    row, other = RESULTS[0].row, RESULTS[1].row
    assert "5 tasks: 3 complete, 2 failed." in message
    assert "2 models (net.onnx and other.onnx) on 2 devices (lab-0 and lab-1)" in message
    times = (other.inference_ms_median or 0) / (row.inference_ms_median or 1)
    assert f"net.onnx: the lowest median is {digits(row.inference_ms_median or 0)} ms" in message
    assert f"is {times:.2f} times that (SLOWER)" in message
    assert "All 3 measurements are valid" in message
    assert "4 results had a worker's valid signature" in message


def test_every_figure_of_a_row_stands_in_the_table_of_its_model(document: Document) -> None:
    row = RESULTS[0].row
    line = next(cells for cells in document.cells if cells[0] == "lab-0 · CPU (ONNX) · 4 threads")
    assert line[1] == digits(row.inference_ms_median or 0)
    assert (
        line[2] == f"{digits(row.inference_ms_median_low or 0)} – {digits(row.inference_ms_median_high or 0)}"
    )
    assert line[3] == f"{row.half_width_percent:.1f} %"
    assert line[4] == "1.00"
    assert line[-1] == "valid"
    assert "0.2500" in next(
        cells for cells in document.cells if cells[0].startswith("lab-1") and "0.2500" in cells
    )


def test_where_operators_ran_is_shown_with_what_fell_back_first_and_why() -> None:
    fallen = complete(2)
    assert fallen.ran is not None
    cuda = fallen.ran.model_copy(update={"providers": ("CUDAExecutionProvider",)})
    html = html_of(complete(1, device=1), fallen.model_copy(update={"ran": cuda}))
    section = html.partition('id="operators"')[2].partition("</section>")[0]
    text = re.sub("<[^>]+>", "", section)
    assert "Gelu fell back to CPU: the runtime gives no reason" in text
    assert text.index("fell back") < text.index("All 30 operators ran on CPU")
    assert section.count("<svg") == 2
    assert ["com.microsoft.Gelu", "CPU", "4", "4", "2.000", "25.0%"] in Document(html).cells


def test_what_failed_says_why(document: Document, markdown: str) -> None:
    lines = [cells for cells in document.cells if "failed" in cells]
    assert [
        "4",
        "other.onnx",
        "CPU (ONNX)",
        "lab-2",
        "failed",
        "crashed: the process ended by signal 11",
    ] in lines
    assert ["5", "huge.onnx", "GPU (CoreML)", "none", "failed", "nothing-fits: no device has 64 GiB"] in lines
    assert "`crashed: the process ended by signal 11`" in markdown
    assert "sark-node explain c-ab23cd45" in markdown


def test_fingerprints_name_hardware_runtime_model_and_signature(html: str, markdown: str) -> None:
    for result in RESULTS[:3]:
        row = result.row
        for outcome in (
            row.model_sha256,
            row.worker_id,
            row.device_id,
            row.fingerprint,
            row.task_sha256,
            result.signature[:32],
        ):
            assert outcome
            assert outcome in html
            assert outcome in markdown
    assert "onnxruntime 1.31.1" in html
    assert "102, divided among 6 launches" in html


def test_it_tells_how_to_verify_it_with_the_hash_of_the_very_file(html: str, markdown: str) -> None:
    digest = hashlib.sha256("".join(json_lines("c-ab23cd45", RESULTS)).encode()).hexdigest()
    for text in (html, markdown):
        assert "sark-node verify raw.json --model MODEL_FILE" in text
        assert "sark-node results c-ab23cd45 --raw raw.json" in text
        assert digest in text


def test_a_result_that_does_not_hold_is_reported_where_it_is_read_first() -> None:
    wrong = RESULTS[0].model_copy(update={"signature": "00" * 64})
    text = html_of(wrong, *RESULTS[1:])
    document = Document(text)
    assert any("1 result failed verification" in item for item in document.text["li"])
    assert "1 failed verification when this was written" in text
    assert "is not signed by the worker" in text


def test_figures_of_the_simulated_unit_are_called_no_results() -> None:
    assert "are not results" in html_of(complete(1, unit="Fake (Simulation)"))
    assert "are not results" not in html_of(*RESULTS)


def test_what_is_not_valid_is_flagged_with_its_reasons() -> None:
    few = complete(1, launches=launches_at(10.0, count=3))
    text = html_of(few, RESULTS[1])
    assert "1 of 2 measurements are valid" in text
    assert ">few-runs<" in text.replace("<bdi>", "").replace("</bdi>", "")
    assert "51 timed inferences in 3 launches, 6 launches are needed for an interval" in text


def test_a_campaign_that_goes_on_says_so() -> None:
    running = dataclasses.replace(STORED, ended=None, outcome=None)
    text = html_of(RESULTS[0], stored=running, all_tasks=4)
    assert "4 tasks: 1 complete; 3 not ended yet. The campaign has not ended" in text
    assert "Nothing was measured." in html_of(stored=running, all_tasks=4)


def test_beside_other_results_it_shows_each_ratio() -> None:
    then = [result.entry() for result in (complete(1, ms=20), complete(2, device=1, ms=20))]
    text = html_of(*RESULTS[:2], other=then, other_name="c-older")
    document = Document(text)
    lines = [cells for cells in document.cells if cells[1:2] == ["FASTER"]]
    assert [cells[0] for cells in lines] == ["net.onnx · lab-0"]
    assert float(lines[0][2]) == pytest.approx(0.5, abs=0.02)
    assert any("Compared with c-older: 1 FASTER" in item for item in document.text["li"])
    assert "Within this campaign" in text
    assert "Compared with" not in "".join(Document(html_of(*RESULTS)).text["h3"])


def test_of_very_many_tasks_some_are_drawn_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "MAX_VERIFIED", 10)
    one = RESULTS[0]
    many = [
        one.model_copy(update={"row": one.row.model_copy(update={"job_id": f"c-1/{n}", "threads": n})})
        for n in range(1, MAX_CHARTS + 4)
    ]
    text = render(Report(many, campaign="c-1", title="t", written=NOW, version="0"), ReportFormat.HTML)
    assert text.count("Distribution of the timed inferences") == MAX_CHARTS
    assert "3 more tasks are not drawn here" in text
    assert "too large to verify" in text


def test_a_file_tells_no_time_and_a_csv_is_refused() -> None:
    source = ResultSource("sent by mail", "c-ab23cd45", RESULTS[:1], text="{}", whole=())
    text = render(make_report(source, None, NOW), ReportFormat.MD)
    assert "- begun" not in text
    assert "sark-node verify 'sent by mail' --model MODEL_FILE" in text
    assert "sark-node results" not in text
    with pytest.raises(Exception, match="is a CSV"):
        make_report(ResultSource("x.csv", "", (), "…", (RESULTS[0].row,)), None, NOW)


def test_a_report_of_one_task_is_verified_with_its_campaign() -> None:
    source = ResultSource("c-ab23cd45/2", "c-ab23cd45", RESULTS[1:2], whole=RESULTS)
    report = make_report(source, CampaignSummary(STORED, {}), NOW)
    assert report.findings is not None
    assert [finding.task for finding in report.findings] == ["c-ab23cd45/2"]
    assert report.source == "c-ab23cd45/2"
    assert (
        report.raw_sha256 == hashlib.sha256("".join(json_lines("c-ab23cd45", RESULTS)).encode()).hexdigest()
    )


# -- hostile names -----------------------------------------------------------------------------------------------------------------


def hostile() -> list[RawResult]:
    fields = ("file_name", "device_name", "soc", "device_os", "compute_units", "runtime", "providers", "driver", "notes",
              "verdict", "verdict_reason", "fingerprint", "worker_id", "device_id", "model_sha256", "task_sha256", "accelerator",
              "gpu_throttled", "arch", "node_version", "job_id", "shapes")  # fmt: skip
    bad = complete(1).model_copy(update={"signature": HOSTILE})
    bad = bad.model_copy(update={"row": bad.row.model_copy(update=dict.fromkeys(fields, HOSTILE))})
    return [bad, RESULTS[1], failed(4, reason=Reason.CRASHED, detail=HOSTILE, model="=cmd|' &lt;b>.onnx")]


def hostile_report(form: ReportFormat) -> str:
    named = Report(
        hostile(), campaign=HOSTILE, title=HOSTILE, written=NOW, version="0", other=[], other_name=HOSTILE
    )
    return render(named, form)


def test_nothing_that_others_named_does_anything_in_html() -> None:
    text = hostile_report(ReportFormat.HTML)
    document = Document(text)
    known = {"html", "head", "meta", "title", "style", "body", "header", "h1", "dl", "div", "dt", "dd", "nav", "ul", "li", "a", "main",
             "section", "h2", "h3", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "bdi", "code", "pre",
             "figure", "figcaption", "svg", "desc", "path", "rect", "text", "footer"}  # fmt: skip
    assert {tag for tag, _ in document.elements} <= known
    for _, attrs in document.elements:
        assert not {"onerror", "src", "style"} & set(attrs)
        assert (attrs.get("href") or "#").startswith("#")
    assert not any(char in text for char in "\u202e\u009b\x07")
    assert "alert(1)" in text  # shown as text


def test_nothing_that_others_named_does_anything_in_markdown() -> None:
    text = hostile_report(ReportFormat.MD)
    assert not any(char in text for char in "\u202e\u009b\x07")
    fenced, before = False, 0
    for line in text.splitlines():
        if line == "```":
            fenced = not fenced
            continue
        if fenced:
            continue
        bare = re.sub(r"`[^`]*`", "", line)  # all but code spans
        assert "`" not in bare.replace("\\`", ""), line
        assert not re.search(r"(?<!\\)[<\[]|https?://|@someone", bare), line
        columns = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert columns == before or not before or not columns, line  # no name ends a cell
        before = columns
    assert not fenced


def test_a_reader_of_markdown_sees_tables_and_code_and_no_markup_of_others() -> None:
    shown = (
        MarkdownIt("commonmark", {"html": True})
        .enable(["table", "strikethrough"])
        .render(hostile_report(ReportFormat.MD))
    )
    document = Document(shown)
    known = {
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "hr",
        "strong",
    }
    assert {tag for tag, _ in document.elements} <= known
    assert len(document.all("table")) >= 5
    assert "alert(1)" in document.text["h1"][0]


def test_a_table_has_the_shape_of_its_rows_once_or_each_its_own() -> None:
    one, other = complete(1, ms=10), complete(2, device=1, ms=20)
    wide = other.row.model_copy(update={"shapes": "x 2x7"})
    alike = one.row.model_copy(update={"shapes": "x 1x7"})
    same = html_of(one.model_copy(update={"row": alike}))
    assert "(<bdi>1×7</bdi>), lowest first" in same
    apart = html_of(one.model_copy(update={"row": alike}), other.model_copy(update={"row": wide}))
    assert "· <bdi>1×7</bdi>" in apart
    assert "· <bdi>2×7</bdi>" in apart
    assert ", lowest first" in apart
    assert "×7</bdi>), lowest first" not in apart
    renamed = other.row.model_copy(update={"shapes": "args_0 1x7"})
    together = html_of(one.model_copy(update={"row": alike}), other.model_copy(update={"row": renamed}))
    assert "(<bdi>1×7</bdi>), lowest first" in together
    assert "The input shapes differ" not in together


def test_sittings_are_one_line_of_the_table_and_are_not_compared_with_each_other() -> None:
    def sitting(n: int, ms: float) -> RawResult:
        changes = {"sitting": n, "first_sitting": "c-ab23cd45/1", "ended_at": f"2026-11-2{n}T10:00:00+00:00"}
        result = complete(n, ms=ms)
        return result.model_copy(
            update={"row": result.row.model_copy(update={**changes, "fingerprint": "f"})}
        )

    results = [sitting(n, ms) for n, ms in ((1, 10.0), (2, 10.4), (3, 10.8))]
    rows = pool_sittings([result.row for result in results])
    pooled = [result.model_copy(update={"row": row}) for result, row in zip(results, rows, strict=True)]
    report = Report(pooled, "c-ab23cd45", "t", NOW, "1")
    (row,) = report.compared
    assert (len(report.done), report.within, report.left_out) == (3, [], 0)
    (table,) = (block for block in medians(report).blocks if isinstance(block, Table))
    ((configuration, median, *_),) = table.rows
    assert "3 sittings" in str(configuration)
    assert median == digits(row.pooled_ms_median or 0.0)
    (one,) = Report(pooled[:1], "c-ab23cd45", "t", NOW, "1", checked=pooled).compared
    assert one.inference_ms_median == pooled[0].row.inference_ms_median, "a report of one task is of that one"
