"""Experiments created, changed, scheduled and deleted in the browser, and campaigns deleted there."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.browser.site import Open, Site


def written(page: Page, site: Site, runs: int) -> None:
    """Write a campaign into the editor."""
    sha = site.shas["small.onnx"]
    page.get_by_label("The campaign as YAML").fill(
        f"campaign: nightly\nmodels: ['sha256:{sha}']\nunits: [CPU (ONNX)]\nmeasure: {{runs: {runs}, loads: 1}}\n"
    )


def test_an_experiment_is_saved_changed_scheduled_and_deleted(site: Site, visit: Open) -> None:
    page = visit(site.url, "#/submit", noted="422")
    written(page, site, 10)
    page.get_by_role("button", name="Save as experiment …").click()
    page.get_by_role("dialog").get_by_label("Name").fill("every night")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1, name="every night")).to_be_visible()
    expect(page.get_by_text("It has not run yet.")).to_be_visible()
    page.get_by_role("link", name="Change …").click()
    expect(page.get_by_role("heading", level=1, name="Change every night")).to_be_visible()
    written(page, site, 20)
    page.get_by_role("button", name="Save as the next version of every night").click()
    expect(page.get_by_text("@2,")).to_be_visible()
    form = page.get_by_role("form", name="Schedule")
    form.get_by_label("Run every").fill("soon")
    with_error = form.get_by_role("button", name="Set schedule")
    with_error.click()
    expect(form.get_by_role("alert")).to_contain_text("every: ")
    form.get_by_label("Run every").fill("1d")
    form.get_by_label("at (UTC)").fill("03:00")
    with_error.click()
    expect(page.get_by_text("every day at 03:00 UTC", exact=True)).to_be_visible()
    page.get_by_role("button", name="Remove schedule").click()
    expect(page.get_by_text("on request", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert site.get("api/v1/experiments/every%20night")["latest"] == 2, "nothing is deleted without a yes"
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete experiment").click()
    expect(page.get_by_text("No experiments yet.")).to_be_visible()


def test_a_campaign_is_deleted_only_after_a_question(site: Site, visit: Open) -> None:
    campaign = site.submit("to go", "small.onnx", measure={"runs": 10, "loads": 1})
    site.ended(campaign)
    page = visit(site.url, f"#/campaigns/{campaign}")
    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_role("dialog")).to_contain_text("This cannot be undone.")
    page.get_by_role("dialog").get_by_role("button", name="Delete campaign").click()
    expect(page.get_by_role("heading", level=1, name="Campaigns")).to_be_visible()
    answer = httpx.get(f"{site.url}api/v1/campaigns/{campaign}", trust_env=False)
    assert answer.status_code == httpx.codes.NOT_FOUND
