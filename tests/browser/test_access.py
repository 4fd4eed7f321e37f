"""Accessibility: axe finds nothing serious on any page, light or dark, and nothing overflows a narrow screen."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.site import Open, Site, indented

PAGES = (
    "",
    "#/campaigns/{done}",
    "#/campaigns/{done}?view=list",
    "#/tasks/{done}/1",
    "#/fleet",
    "#/gate",
    "#/compare?a={done}/1&b={done}/2",
    "#/submit",
    "#/experiments",
)
SERIOUS = ("serious", "critical")


def settled(page: Page, path: str) -> None:
    """Wait for the content that a page loads late."""
    if path == "#/fleet":
        expect(page.locator("tbody tr")).to_have_count(2)
    elif path == "#/gate":
        expect(page.get_by_text("Up for")).to_be_visible()
    elif "compare" in path:
        expect(page.get_by_role("heading", name="Matrix")).to_be_visible()
    elif "submit" in path:
        expect(page.get_by_role("heading", name="Plan")).to_be_visible()
    elif "campaigns" in path:
        expect(page.locator("tbody tr").first).to_be_visible()
    elif "tasks" in path:
        expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(site: Site, done: str, visit: Open, scheme: str) -> None:
    page = visit(site.url, scheme=scheme, calm=True)
    for path in PAGES:
        page.goto(site.url + path.format(done=done))
        page.wait_for_selector("h1")
        settled(page, path)
        results = [
            {
                "path": path,
                "id": one["id"],
                "help": one["help"],
                "nodes": [n["html"] for n in one["nodes"]][:3],
            }
            for one in Axe().run(page).response["violations"]
            if one["impact"] in SERIOUS
        ]
        assert results == [], indented(results)


def test_a_question_before_a_manifest_is_accessible_too(site: Site, visit: Open) -> None:
    campaign = site.submit("asked", "small.onnx", measure={"runs": 1_000_000, "loads": 1})
    page = visit(site.url, f"#/campaigns/{campaign}", calm=True)
    page.get_by_role("button", name="Cancel campaign").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    bad = [one for one in Axe().run(page).response["violations"] if one["impact"] in SERIOUS]
    assert bad == [], indented(bad)
    page.get_by_role("button", name="Cancel campaign", exact=True).click()
    expect(page.locator(".line .state.cancelled").first).to_be_visible()


@pytest.mark.smoke
def test_no_page_runs_out_of_a_narrow_screen(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, width=360)
    for path in PAGES:
        page.goto(site.url + path.format(done=done))
        page.wait_for_selector("h1")
        settled(page, path)
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, path
