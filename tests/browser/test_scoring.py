"""Answers scored again in the browser: the button, the changed scores, and the task's page afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from playwright.sync_api import expect

from tests.browser.site import HOSTILE, Open, Site, network
from tests.plug_ins import put_package
from tests.real.lab import campaign

SIZE = 8
SURE = "sure = sure_module:Sure"
SOURCE = """class Sure:
    name = "sure"

    def score(self, answers):
        {body}
"""


def install(packages: Path, body: str, version: str) -> None:
    put_package(packages, "sure", SURE, SOURCE.format(body=body), version=version)


def test_a_metric_that_was_mended_scores_a_campaign_again(
    site: Site, packages: Path, tmp_path: Path, visit: Open
) -> None:
    install(packages, "return {'sure': 0.25}", "1.0")
    samples = np.eye(SIZE, dtype=np.float32)
    np.savez(tmp_path / "few.npz", x=samples, labels=np.arange(SIZE))
    model = network(tmp_path, HOSTILE, SIZE)
    evaluate = {"task": "classification", "data": "few.npz", "metrics": ["accuracy", "sure"]}
    file = campaign(
        tmp_path,
        "evaluated",
        [{"path": str(model), "evaluate": evaluate}],
        units=["CPU (ONNX)"],
    )
    done = site.lab.submit(site.home, file)
    assert done.code == 0, done
    made = done.json()["campaign"]

    page = visit(site.url, f"#/campaigns/{made}")
    again = page.get_by_role("button", name="Score again")
    again.click()
    told = page.get_by_role("region", name="Scored again")
    expect(told).to_contain_text("Scored the answers of 1 task again: 0 changed")
    expect(told.get_by_role("listitem")).to_have_count(0)

    install(packages, "return {'sure': 0.5}", "1.1")
    again.click()
    expect(told).to_contain_text("1 changed")
    expect(told.get_by_role("listitem")).to_have_text("task 1: sure 0.25 → 0.5 (sure sure 1.0 → sure 1.1)")

    install(packages, "raise ValueError('<b>no licence</b>')", "1.2")
    again.click()
    expect(told.get_by_role("listitem")).to_have_text("task 1: unchanged: metric 'sure': <b>no licence</b>")

    page.goto(f"{site.url}#/tasks/{made}/1")
    measured = page.get_by_role("definition")
    expect(measured.filter(has_text="sure=0.5")).to_be_visible()
    expect(measured.filter(has_text="sure=sure 1.1")).to_be_visible()


def test_a_campaign_without_examples_has_no_such_button(site: Site, done: str, visit: Open) -> None:
    page = visit(site.url, f"#/campaigns/{done}")
    expect(page.get_by_text("2 tasks: 2 done")).to_be_visible()
    expect(page.get_by_role("button", name="Delete …")).to_be_visible()
    expect(page.get_by_role("button", name="Score again")).to_be_hidden()
