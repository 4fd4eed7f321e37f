"""A report in a real browser: it keeps its policy, fetches nothing, fits a narrow page, and names cannot inject anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from results.report.facts import Report
from scheduler.output.render import ReportFormat, render
from tests.scheduler.report_parts import complete, failed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=document.title='run'><script>document.title='run'<"


@pytest.mark.smoke
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [360, 1100])
def test_a_report_is_quiet_and_fits(tmp_path: Path, width: int) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    results = [
        complete(1, model=HOSTILE + ".onnx"),
        complete(2, device=1, model="x" * 190 + ".onnx", ms=30),
        failed(3, detail=f"{HOSTILE} {'y' * 500}"),
    ]
    report = Report(results, campaign="c-ab23cd45", title=HOSTILE, written=1.7e9, version="0.1.0")
    file = tmp_path / "report.html"
    file.write_text(render(report, ReportFormat.HTML), encoding="utf-8")
    lines: list[str] = []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
        page.on("console", lambda message: lines.append(message.text))
        page.on("request", lambda request: lines.append(request.url))
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (
            page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 22, 29)"
        )
        assert "Benchmark report" in page.title()
        assert page.locator("figure svg").count() >= 4
        assert page.locator("section").first.is_visible()
        browser.close()
    assert lines == [file.as_uri()]
