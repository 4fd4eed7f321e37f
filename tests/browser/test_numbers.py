"""A campaign defined by form, planned and submitted, its task inspected and two campaigns compared, as a careful user would."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from results.analysis.verify import check_results
from results.export.raw import read_raw
from tests.browser.site import HOSTILE, Open, Site, indented, network

SERIOUS = ("serious", "critical")
MEASURE = {"runs": 120, "loads": 6}


@pytest.fixture(scope="session")
def measured(site: Site) -> str:
    """A campaign with enough launches for an interval. One of its models has a hostile name."""
    campaign = site.submit("measured", "small.onnx", HOSTILE, measure=MEASURE)
    assert site.ended(campaign) == "succeeded"
    return campaign


@pytest.fixture(scope="session")
def again(site: Site, measured: str) -> str:
    """The same campaign again."""
    campaign = site.submit("again", "small.onnx", HOSTILE, measure=MEASURE)
    assert site.ended(campaign) == "succeeded"
    return campaign


def test_a_campaign_is_defined_by_form_planned_and_submitted(site: Site, visit: Open, tmp_path: Path) -> None:
    page = visit(site.url, "#/submit")
    submit = page.get_by_role("button", name=re.compile("^Submit"))
    expect(page.get_by_text("models must not be empty")).to_be_visible()
    expect(submit).to_be_disabled()
    page.get_by_label("Upload a file").set_input_files(network(tmp_path, "by-form.onnx", 24))
    expect(page.get_by_text("by-form.onnx is uploaded.")).to_be_visible()
    expect(page.get_by_role("checkbox", name=re.compile(r"^\s*CPU \(ONNX\)"))).to_be_checked()
    change(page, "Name", "by form")
    change(page, "inferences", "30")
    change(page, "Threads, one task each", "1, 2")
    text = page.get_by_label("The campaign as YAML")
    expect(text).to_have_value(
        re.compile(r"campaign: by form\nmodels:\n  - name: by-form.onnx\n    path: \"sha256:")
    )
    expect(text).to_have_value(re.compile(r"  runs: 30   # timed inferences"))  # comments stay
    expect(text).to_have_value(re.compile(r"  threads: \[1, 2\]"))
    plan = page.get_by_role("region", name="Plan").first
    expect(plan).to_contain_text("2 of 2 cells covered")
    expect(plan).to_contain_text("by-form.onnx")
    expect(submit).to_be_enabled()

    text.fill(text.input_value().replace("runs:", "rums:"))  # the text was edited, so the plan is out of date
    expect(submit).to_be_disabled()
    expect(page.get_by_text("unknown key 'rums'")).to_be_visible()
    page.get_by_role("button", name="Line 7").click()
    expect(text).to_be_focused()
    assert "rums" in page.evaluate("getSelection().toString()")
    text.fill(text.input_value().replace("rums:", "runs:"))
    expect(page.get_by_role("button", name="Submit 2 tasks")).to_be_enabled()
    page.get_by_role("button", name="Submit 2 tasks").click()
    page.wait_for_url(re.compile("#/campaigns/c-"))
    campaign = page.url.rpartition("/")[2]
    expect(page.get_by_role("heading", level=1)).to_have_text("by form")
    assert site.ended(campaign) == "succeeded"
    tasks = site.get(f"api/v1/campaigns/{campaign}/tasks")["tasks"]
    assert [task["model"] for task in tasks] == ["by-form.onnx"] * 2


def change(page: Page, label: str, value: str) -> None:
    """Fill a field and leave it."""
    page.get_by_label(label, exact=True).fill(value)
    page.get_by_label(label, exact=True).press("Tab")


def test_what_no_device_can_run_is_reported_with_the_smallest_change_before_it_is_submitted(
    site: Site, visit: Open
) -> None:
    page = visit(site.url, "#/submit")
    page.get_by_label("The campaign as YAML").fill(
        f'campaign: too much\nmodels: ["sha256:{site.shas["small.onnx"]}"]\nunits: [CPU (ONNX), GPU (ONNX)]\n'
    )
    plan = page.get_by_role("region", name="Plan").first
    expect(plan).to_contain_text("1 of 2 cells covered")
    expect(page.get_by_text("Smallest change: without units has GPU (ONNX)")).to_be_visible()
    expect(page.get_by_role("button", name="Submit anyway: 1 of 2 cells have a device now")).to_be_enabled()


def test_a_campaign_shows_what_is_doubtful_beside_its_median(site: Site, visit: Open) -> None:
    campaign = site.submit("doubtful", "small.onnx", measure={"runs": 8, "loads": 1})
    assert site.ended(campaign) == "succeeded"
    row = site.get(f"api/v1/campaigns/{campaign}/tasks/1")["row"]
    assert row["Verdict"] not in ("", "valid"), "one launch tells too little"
    page = visit(site.url, f"#/campaigns/{campaign}")
    expect(page.locator(".cell.state.succeeded")).to_contain_text(f"⚠ {row['Verdict']}")
    page.get_by_role("button", name="List").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text(f"⚠ {row['Verdict']}")


def test_a_task_is_shown_with_every_sample_and_its_signed_record_holds(
    site: Site, measured: str, visit: Open
) -> None:
    row = site.get(f"api/v1/campaigns/{measured}/tasks/1")["row"]
    page = visit(site.url, f"#/tasks/{measured}/1")
    expect(page.locator(".headline")).to_contain_text("median per inference")
    expect(page.locator("main")).to_contain_text("The 95 % confidence interval of the median is")
    expect(page.get_by_role("region", name="Verdict")).to_contain_text(row["Verdict"])
    expect(page.get_by_role("heading", name="Distribution")).to_be_visible()
    histogram = page.locator("figure").filter(has_text="All 120 timed samples").locator("svg")
    expect(histogram).to_be_visible()
    counts = [
        int(match[1])
        for title in histogram.locator("title").all_text_contents()
        if (match := re.search(r": (\d+) samples?,", title))
    ]
    assert sum(counts) == 120
    for caption in ("Samples by launch", "Every inference in order", "Where the time went"):
        drawing = page.locator("figure").filter(has_text=caption).locator("svg")
        expect(drawing).to_be_visible()
        assert drawing.locator("desc").text_content()
    ids = page.locator("svg title[id], svg desc[id]").evaluate_all("all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    expect(page.get_by_role("region", name="Launches").locator("tbody tr")).to_have_count(6)
    expect(page.locator("pre.csv")).to_contain_text(f"Complete,{measured}/1,small.onnx")
    page.get_by_role("button", name="Verify here").click()
    expect(page.get_by_text("✓ Verified")).to_be_visible()
    with page.expect_download() as file:
        page.get_by_role("button", name="Download the signed record").click()
    findings = check_results(measured, read_raw(file.value.path().read_bytes()))
    assert [(one.task, one.wrong) for one in findings] == [(f"{measured}/1", ())]


def test_two_campaigns_and_two_models_are_put_beside_each_other(
    site: Site, measured: str, again: str, visit: Open
) -> None:
    page = visit(site.url, f"#/tasks/{measured}/1")
    page.get_by_role("link", name="Compare with …").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    page.get_by_label("B", exact=True).select_option(f"{again}/1") if page.get_by_label(
        "B", exact=True
    ).locator(f'option[value="{again}/1"]').count() else page.goto(
        f"{site.url}#/compare?a={measured}/1&b={again}/1"
    )
    result = site.get(f"api/v1/compare?a={measured}/1&b={again}/1")["comparisons"][0]["pairs"][0]
    expect(page.get_by_role("heading", name=f"{again}/1 compared with {measured}/1")).to_be_visible()
    expect(page.locator(".comparison svg")).to_contain_text(result["verdict"])
    page.goto(f"{site.url}#/compare?a={measured}&b={again}")
    expect(page.locator(".comparison tbody tr")).to_have_count(2)
    expect(page.get_by_role("heading", name="Matrix")).to_be_visible()
    page.get_by_label("Ratios to").select_option("small.onnx")
    page.wait_for_url(re.compile("base=small.onnx"))
    expect(page.get_by_role("region", name="Matrix").locator(".square").first).to_be_visible()
    page.get_by_role("combobox", name="Time against").select_option("size")
    pareto = page.locator("figure").last.locator("svg")
    expect(pareto).to_contain_text("model size")
    dots = [title for title in pareto.locator("title").all_text_contents() if " ms, " in title]
    assert len(dots) == 4
    expect(page.get_by_text("On the front, fastest first:")).to_be_visible()
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0


def test_devices_are_compared_by_name(site: Site, measured: str, visit: Open) -> None:
    page = visit(site.url, f"#/compare?by=device&of={measured}")
    expect(page.get_by_text("Choose two devices above")).to_be_visible()
    offered = page.get_by_label("A, the base").locator("option").all_inner_texts()
    assert set(offered[1:]) <= {"one", "two"}
    assert len(offered) > 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_numbers_are_accessible_and_fit_a_narrow_screen(
    site: Site, measured: str, again: str, visit: Open, scheme: str
) -> None:
    wide, narrow = visit(site.url, scheme=scheme, calm=True), visit(site.url, scheme=scheme, width=360)
    for path, ready in (
        (f"#/tasks/{measured}/2", "Distribution"),
        (f"#/compare?a={measured}&b={again}", "Matrix"),
        ("#/submit", "Plan"),
    ):
        for page in (wide, narrow):
            page.goto(site.url + path)
            expect(page.get_by_role("heading", name=ready)).to_be_visible()
        results = [
            {
                "path": path,
                "id": one["id"],
                "help": one["help"],
                "nodes": [n["html"] for n in one["nodes"]][:3],
            }
            for one in Axe().run(wide).response["violations"]
            if one["impact"] in SERIOUS
        ]
        assert results == [], indented(results)
        assert narrow.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path


def test_the_text_keeps_every_letter_that_the_form_does_not_change(site: Site, visit: Open) -> None:
    page = visit(site.url, "#/submit")

    def put(text: str, key: str, value: Any) -> str:
        return str(
            page.evaluate(
                "async ([text, key, value]) => (await import('/static/yamltext.js')).put(text, key, value ?? undefined)",
                [text, key, value],
            )
        )

    text = "# head\ncampaign: x  # name\n\n# the models\nmodels:\n  - a.onnx\n  # two\n  - b\n\nunits: [CPU (ONNX)]\n"
    assert put(text, "campaign", "y: #z") == text.replace("campaign: x  # name", 'campaign: "y: #z"')
    assert put(text, "units", None) == text.replace("\nunits: [CPU (ONNX)]", "")
    assert put(text, "priority", 7) == text + "priority: 7\n"
    nested = text + "measure:\n  runs: 5   # few\n  # of them\n  loads: 6\n"
    assert put(nested, "measure", {"runs": 5, "loads": 7, "check": "none"}) == nested.replace(
        "loads: 6", "loads: 7\n  check: none"
    )
    assert put(nested, "measure", {"loads": 6}) == nested.replace("  runs: 5   # few\n", "")
    for word in ("true", "1e3", "-", "a #b", "~", "", "x: y", "\u202e<b>", '"', "no: *a", "%d", "2%", "1"):
        written = put("campaign: x\n", "models", [word])
        checked = site.post("api/v1/validate?models=false", content=written.encode(), headers=YAML)
        assert checked["given"]["models"] == [word], json.dumps(written)


YAML = {"Content-Type": "text/yaml"}
