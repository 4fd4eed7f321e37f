"""The campaign form: its choices for the models that are named."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.browser.site import Open, Site

TEXT = "campaign: c\nmodels: [{}]\nunits: [CPU (ONNX)]\n"


def write(page: Page, *models: str) -> None:
    page.locator("#text").fill(TEXT.format(", ".join(models)))


def test_units_that_run_none_of_the_models_are_disabled_with_the_reason(site: Site, visit: Open) -> None:
    def with_a_driver_of_its_own(route: Route) -> None:
        fleet: dict[str, Any] = route.fetch().json()
        fleet["peers"][0]["units"].append(
            {"unit": "NPU (Mine)", "runtime": "r", "formats": ["tflite", "mine"]}
        )
        route.fulfill(body=json.dumps(fleet), content_type="application/json")

    page = visit(site.url)
    page.route("**/api/v1/peers?*", with_a_driver_of_its_own)
    page.goto(f"{site.url}#/submit")
    boxes = page.get_by_role("group", name="Compute units")
    onnx, mine = boxes.get_by_label("CPU (ONNX)", exact=False).first, boxes.get_by_label("NPU (Mine)")
    write(page, "https://example.org/m.onnx")
    expect(mine).to_be_disabled()
    expect(boxes).to_contain_text("NPU (Mine) 1 device; runs tflite and mine, not onnx")
    expect(onnx).to_be_checked()
    expect(onnx).to_be_enabled()
    write(page, "https://example.org/m.tflite")
    expect(mine).to_be_enabled()
    expect(onnx).to_be_enabled()  # it is checked, so it can be unchecked
    expect(boxes).to_contain_text("runs onnx, not tflite")
    onnx.uncheck()
    expect(onnx).to_be_disabled()
    write(page, "https://example.org/m.tflite", "https://example.org/m.onnx")
    expect(onnx).to_be_enabled()
    write(page, "https://example.org/model.bin")
    expect(mine).to_be_enabled()


SLOW_CHECKS = """
const plain = window.fetch;
window.fetch = async (...given) => {
  if (String(given[0]).includes("/validate")) await new Promise((resolve) => setTimeout(resolve, 400));
  return plain(...given);
};
"""
QUICK_EDITS = """
async (edits) => {
  for (const [id, value] of edits) {
    const field = document.getElementById(id);
    field.value = value;
    field.dispatchEvent(new Event("change"));
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
"""


def test_edits_that_follow_faster_than_the_text_is_checked_are_all_kept(site: Site, visit: Open) -> None:
    page = visit(site.url)
    page.add_init_script(SLOW_CHECKS)
    page.goto(f"{site.url}#/submit")
    page.reload()
    expect(page.get_by_text("models must not be empty")).to_be_visible()
    page.evaluate(
        QUICK_EDITS, [["f-name", "quick"], ["f-runs", "30"], ["f-threads", "1, 2"], ["f-batch", "4"]]
    )
    text = page.get_by_label("The campaign as YAML")
    for line in (r"campaign: quick\n", r"  runs: 30 ", r"  threads: \[1, 2\]", r"  batch: \[?4"):
        expect(text).to_have_value(re.compile(line))
