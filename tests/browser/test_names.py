"""Names chosen by strangers: devices, campaigns, models. The newer pages show them harmlessly, and mark simulations as such."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.site import HOSTILE, Open, Site
from tests.browser.test_walk import LONG
from tests.real.lab import until

BAD = "a\u202egpj.exe\u200b<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m=1+1"
SHOWN = "a\\u202egpj.exe\\u200b<script>alert(1)</script><img src=x onerror=alert(1)>\\u001b[31m=1+1"
NAMED = frozenset(
    {
        "name",
        "device",
        "soc",
        "os",
        "model",
        "unit",
        "a_device",
        "b_device",
        "a_model",
        "b_model",
        "why",
        "remark",
        "note",
    }
)
"""Fields that a stranger can influence."""


def changed(value: Any, change: dict[str, Any], names: frozenset[str] = frozenset()) -> Any:
    """`value` with the keys in `change` replaced at every level, and hostile text for those in `names`."""
    if isinstance(value, list):
        return [changed(item, change, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: change[key]
        if key in change
        else BAD
        if key in names and isinstance(item, str)
        else changed(item, change, names)
        for key, item in value.items()
    }


def poison(
    page: Page, pattern: str | re.Pattern[str], change: dict[str, Any], names: frozenset[str] = frozenset()
) -> None:
    """Change the answers of matching URLs with `changed`. In an event stream, changes each event."""

    def answer(route: Route) -> None:
        response = route.fetch()
        if "svg" in response.headers.get("content-type", ""):
            route.fulfill(response=response)
            return
        text = response.text()
        if "event-stream" not in response.headers.get("content-type", ""):
            route.fulfill(response=response, json=changed(json.loads(text), change, names))
            return
        lines = [
            f"data: {json.dumps(changed(json.loads(line[6:]), change, names))}"
            if line.startswith("data: ")
            else line
            for line in text.split("\n")
        ]
        route.fulfill(response=response, body="\n".join(lines))

    page.route(pattern, answer)


def fleet(page: Page, site: Site, change: dict[str, Any], names: frozenset[str] = frozenset()) -> None:
    """Answer the fleet stream with one changed event about the current devices."""
    result = changed(site.get("api/v1/peers"), change, names)
    result["peers"] = [{"tasks": [], "warm": [], **peer} for peer in result["peers"]]
    whole = {**result, "whole": True, "gone": [], "at": "2026-11-21T12:00:00+00:00"}
    body = f"event: fleet\ndata: {json.dumps(whole)}\n\nevent: end\ndata: {{}}\n\n"
    page.route(
        re.compile(r"/api/v1/fleet\b"),
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )


def harmless(page: Page) -> None:
    expect(page.locator("main")).to_contain_text(SHOWN)
    text = page.locator("main").inner_text()
    assert not set(text) & {"\u202e", "\u200b", "\x1b"}
    assert page.locator("main script, main img").count() == 0


def test_hostile_names_of_devices_do_no_harm_in_the_fleet(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, "#/")
    fleet(page, site, {}, NAMED)
    page.evaluate("location.hash = '#/fleet'")
    harmless(page)


def test_hostile_names_do_no_harm_where_results_are_compared(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, "#/")
    for pattern in ("**/api/v1/campaigns?*", "**/api/v1/matrix?*", "**/api/v1/compare?*"):
        poison(page, pattern, {}, NAMED)
    page.evaluate("to => { location.hash = to }", f"#/compare?a={done}/1&b={done}/2")
    expect(page.get_by_role("heading", name="Matrix")).to_be_visible(timeout=30_000)
    harmless(page)


def test_hostile_names_do_no_harm_where_a_campaign_is_defined(site: Site, visit: Open) -> None:
    page = visit(site.url, "#/submit")
    content = {
        "campaign": BAD,
        "models": [{"name": HOSTILE, "path": f"sha256:{site.shas[HOSTILE]}"}],
        "units": [BAD],
    }
    page.get_by_label("The campaign as YAML").fill(json.dumps(content))
    expect(page.locator(".mistakes")).to_contain_text(
        "a\\u202egpj.exe\\u200b<script>alert(1)", timeout=30_000
    )
    assert page.locator("main script, main img").count() == 0


def test_a_task_is_followed_to_its_end_without_a_reload(site: Site, visit: Open) -> None:
    campaign = site.submit("followed", "large.onnx", **LONG)
    until(lambda: site.get(f"api/v1/campaigns/{campaign}/tasks")["tasks"], "it has tasks", every=0.2)
    page = visit(site.url, f"#/tasks/{campaign}/1")
    page.evaluate("document.body.dataset.same = 'yes'")
    line = page.locator(".headline.progress")
    expect(line).to_contain_text(re.compile(r"run [\d,. ]+/"), timeout=60_000)
    before = line.inner_text()
    expect(line).not_to_have_text(before, timeout=30_000)  # progress updates without a reload
    site.post(f"api/v1/campaigns/{campaign}/cancel")
    expect(page.locator(".under .state.cancelled")).to_be_visible(timeout=60_000)
    expect(page.locator(".headline")).to_contain_text("Cancelled")
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()
    assert page.evaluate("document.body.dataset.same") == "yes"


@pytest.mark.parametrize("name", ["campaigns", "campaign", "list", "task", "fleet", "compare"])
def test_a_simulation_is_marked_on_every_page_that_shows_it(
    site: Site, done: str, visit: Open, name: str
) -> None:
    change = {"simulated": True, "a_simulated": True, "b_simulated": True}
    paths = {
        "campaigns": "#/",
        "campaign": f"#/campaigns/{done}",
        "list": f"#/campaigns/{done}?view=list",
        "task": f"#/tasks/{done}/1",
        "fleet": "#/fleet",
        "compare": f"#/compare?a={done}/1&b={done}/2",
    }
    page = visit(site.url, "#/gate")
    if name == "fleet":
        fleet(page, site, change)
    elif name == "compare":
        poison(page, re.compile(r"/api/v1/(campaigns|compare)\b"), change)
        poison(page, re.compile(r"/api/v1/matrix\b"), {"verdict": "simulated"})
    elif name in ("campaign", "list"):
        poison(page, re.compile(r"/api/v1/campaigns/[^/?]+(/events)?$"), change)
    else:
        poison(page, re.compile(r"/api/v1/campaigns\b"), {**change, "verdict": "simulated"})
    page.evaluate("to => { location.hash = to }", paths[name])
    marks = {
        "campaigns": page.locator("tbody .simulated"),
        "campaign": page.locator(".matrix .cell").filter(has_text="simulated"),
        "list": page.locator(".long .simulated"),
        "task": page.locator(".under .simulated"),
        "fleet": page.locator("tbody .simulated"),
        "compare": page.get_by_role("region", name="Matrix").get_by_text("(simulation)"),
    }
    expect(marks[name].first).to_be_visible(timeout=30_000)
    if name in ("campaign", "list", "task", "compare"):
        expect(page.locator("p.warning")).to_contain_text("Simulation: these figures come from a script")
    if name == "task":
        expect(page.get_by_role("region", name="Verdict")).to_contain_text("⚠")
