"""The dashboard against a real swarm: watching, cancelling, filtering and pausing as a user would."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import HOSTILE, Open, Site, served

LONG = {"measure": {"runs": 1_000_000, "loads": 1}, "timeouts": {"run": "1h"}}
"""Runs longer than any test observes it."""


@pytest.mark.smoke
def test_a_campaign_is_watched_from_its_submission_to_its_end_without_a_reload(
    site: Site, visit: Open
) -> None:
    # long enough to be observed even on the fastest machine
    campaign = site.submit("watched", "small.onnx", "large.onnx", measure={"runs": 400, "loads": 20})
    page = visit(site.url)
    page.get_by_role("link", name="watched").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("watched")
    observed: set[str] = set()
    page.expose_function("noted", lambda text: observed.add(text))
    page.evaluate(
        """new MutationObserver(() => {
          for (const cell of document.querySelectorAll('.matrix .cell span:not(.bar, .full)')) noted(cell.textContent);
        }).observe(document.querySelector('main'), { subtree: true, childList: true, characterData: true })"""
    )
    page.evaluate("document.body.dataset.same = 'yes'")
    expect(page.get_by_text("2 tasks: 2 done")).to_be_visible()
    expect(page.locator(".line .state.succeeded")).to_be_visible()
    expect(page.locator(".matrix .cell.succeeded")).to_have_count(2)
    measured = re.compile(r"done, [\d.]+ .?s")
    expect(page.locator(".matrix .cell")).to_contain_text([measured, measured])
    assert page.evaluate("document.body.dataset.same") == "yes"
    phases = {re.split(r"[ ,;]", text)[0] for text in observed}
    assert phases & {"queued", "fetch", "load", "warm-up", "run", "check"}, observed
    expect(page.get_by_role("button", name="Cancel campaign")).to_be_hidden()
    with page.expect_download() as csv:
        page.get_by_role("button", name="CSV").click()
    assert csv.value.suggested_filename == f"{campaign}.csv"
    assert "large.onnx" in csv.value.path().read_text(encoding="utf-8")


def test_a_campaign_and_a_task_are_cancelled_by_keyboard_alone_and_only_when_confirmed(
    site: Site, visit: Open
) -> None:
    campaign = site.submit("too long", "small.onnx", "large.onnx", **LONG)
    page = visit(site.url, f"#/campaigns/{campaign}")
    expect(page.locator(".matrix .cell")).to_have_count(2)
    tab_to(page, "List")
    page.keyboard.press("Enter")
    tab_to(page, "Cancel task 1")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel task 1?")
    expect(dialog.get_by_role("button", name="Back")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel task 1")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".long .state.cancelled")).to_have_count(1)
    assert not site.get(f"api/v1/campaigns/{campaign}")["ended"]  # the other task goes on

    page.keyboard.press("Home")
    tab_to(page, "Cancel campaign …", backwards=True)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".line .state.cancelled").first).to_be_visible()
    expect(page.get_by_text("2 tasks: 2 cancelled")).to_be_visible()

    page.get_by_role("button", name="Retry failed tasks").click()
    page.get_by_role("button", name="Retry", exact=True).click()
    page.wait_for_url(lambda url: campaign not in url)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    again = page.url.rpartition("/")[2]
    site.post(f"api/v1/campaigns/{again}/cancel")
    expect(page.locator(".line .state.cancelled").first).to_be_visible()


def tab_to(page: Page, name: str, *, backwards: bool = False) -> None:
    """Press Tab until the element with this name has the focus, and check that its focus is visible."""
    for _ in range(60):
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
        here = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
                 return [e.getAttribute('aria-label') || e.textContent, s.outlineStyle] }"""
        )
        if here[0].strip() == name:
            assert here[1] != "none", f"{name} has the focus and does not show it"
            return
    raise AssertionError(f"{name} cannot be reached by Tab")


def test_the_keyboard_leads_past_the_head_to_every_page(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for name, heading in (("Fleet", "Fleet"), ("Gate", "Gate and worker"), ("Campaigns", "Campaigns")):
        tab_to(page, name, backwards=True)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(page.locator("main")).to_be_focused()
        expect(page.locator("nav a[aria-current=page]")).to_have_text(name)


def test_the_fleet_is_shown_live_and_says_why_nothing_fits(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, "#/fleet", noted="422")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    for name in ("one", "two"):
        row = rows.filter(has_text=re.compile(rf"^{name} "))
        expect(row).to_contain_text("CPU (ONNX)")
        expect(row).to_contain_text("direct")
        expect(row).to_contain_text("GiB")
    warm = " ".join(rows.all_inner_texts())
    assert "small.onnx" in warm or HOSTILE in warm  # measured models stay in the worker's cache

    page.get_by_label("Filter", exact=True).fill("ram >= 900 TiB; units has CPU (ONNX)")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Why devices match or not")).to_contain_text("0 of 1 device fit")
    expect(page.get_by_text(re.compile("^2 workers on 1 device, 0 match"))).to_be_visible()
    expect(rows.first).to_contain_text("ram: has")

    page.get_by_label("Filter", exact=True).fill("rma >= 8 GiB")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'ram'?")
    assert page.evaluate("location.hash").startswith("#/fleet?where=rma")


def test_what_a_worker_runs_is_seen_in_the_fleet(site: Site, visit: Open) -> None:
    page = visit(site.url, "#/fleet")
    campaign = site.submit("seen", "large.onnx", **LONG)
    link = page.get_by_role("link", name=re.compile(r"^large\.onnx: "))
    expect(link).to_be_visible()
    assert link.get_attribute("href") == f"#/tasks/{campaign}/1"
    expect(page.locator("tbody tr").filter(has=link)).to_contain_text(
        re.compile(r"CPU \d+ %Memory [\d.]+ GiB")
    )
    site.post(f"api/v1/campaigns/{campaign}/cancel")
    expect(link).to_have_count(0)


def test_the_gate_tells_its_operator_how_it_stands(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, "#/gate")
    gate = page.get_by_role("region", name="Gates")
    expect(gate.locator(".state")).to_have_text("up")
    for words in ("Up for", "Reservations", "Circuits", "Index", "2 devices", "Refused", "Peers ("):
        expect(gate).to_contain_text(words)
    worker = page.get_by_role("region", name="Worker")
    expect(worker).to_contain_text("no worker of this home is running; start it: sark-node join")


def test_a_worker_is_paused_and_resumed_from_its_own_page(site: Site, visit: Open) -> None:
    with served(site.lab, "one") as url:
        page = visit(url, "#/gate")
        worker = page.get_by_role("region", name="Worker")
        expect(worker.locator(".state")).to_have_text("active")
        worker.get_by_role("button", name="Pause").click()
        page.keyboard.press("Escape")
        expect(worker.locator(".state")).to_have_text("active")  # nobody confirmed
        worker.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(worker).to_contain_text("paused by its owner")
        expect(worker.get_by_role("button", name="Drain")).to_be_hidden()
        worker.get_by_role("button", name="Resume").click()
        expect(worker.locator(".state")).to_have_text("active")


@pytest.mark.parametrize("name", ["campaigns", "campaign", "list", "task"])
def test_hostile_names_are_shown_as_what_they_are(site: Site, done: str, visit: Open, name: str) -> None:
    numbers = {task["model"]: task["n"] for task in site.get(f"api/v1/campaigns/{done}/tasks")["tasks"]}
    paths = {
        "campaigns": "",
        "campaign": f"#/campaigns/{done}",
        "list": f"#/campaigns/{done}?view=list",
        "task": f"#/tasks/{done}/{numbers[HOSTILE]}",
    }
    page = visit(site.url, paths[name])
    if name != "campaigns":
        expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0


def test_what_turns_writing_round_or_hides_is_shown_as_its_code(site: Site, done: str, visit: Open) -> None:
    bad = "a\u202egpj.exe\u200b<script>alert(1)</script>\x1b[31m"

    def poisoned(value: object) -> object:
        match value:
            case dict():
                remaining = (
                    "campaign_id",
                    "created",
                    "ended",
                    "status",
                    "peer",
                    "state",
                    "path",
                    "at",
                    "datetime",
                )
                return {k: v if k in remaining else poisoned(v) for k, v in value.items()}
            case list():
                return [poisoned(item) for item in value]
            case str():
                return bad
        return value

    page = visit(site.url, "#/gate")
    page.route("**/api/v1/campaigns?*", lambda route: route.fulfill(json=poisoned(route.fetch().json())))
    page.route("**/api/v1/gate", lambda route: route.fulfill(json=poisoned(route.fetch().json())))
    for hash_ in ("#/", "#/gate"):
        page.evaluate("to => { location.hash = to }", hash_)
        expect(page.locator("main")).to_contain_text(
            "a\\u202egpj.exe\\u200b<script>alert(1)</script>\\u001b[31m"
        )
        text = page.locator("main").inner_text()
        assert not set(text) & {"\u202e", "\u200b", "\x1b"}
        assert page.locator("main script").count() == 0


def test_a_server_that_stops_and_comes_back_is_noticed(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, noted="ERR_FAILED")
    expect(page.get_by_role("link", name="all done")).to_be_visible()
    page.route("**/api/v1/**", lambda route: route.abort())
    expect(page.get_by_text("The server does not answer")).to_be_visible()
    expect(page.get_by_role("link", name="all done")).to_be_visible()
    page.unroute("**/api/v1/**")
    expect(page.get_by_text("The server does not answer")).to_be_hidden()
