"""The dashboard in a real browser.

While a page is open, its faults are recorded, and reported when it closes: errors on the console, violations of the server's content
security policy, and requests to other servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.site import CHROMIUM, HOSTILE, Open, Site, WebLab, network, served
from tests.plug_ins import path_with
from tests.real.lab import TIMEOUT_S, marked, until

expect.set_options(timeout=1000 * TIMEOUT_S)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as `real`, and skip them without a browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            if CHROMIUM is None:
                item.add_marker(
                    pytest.mark.skip("no chromium on this machine: its package is called chromium")
                )


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which all processes here import packages as well."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Iterator[WebLab]:
    settings = {"PYTHONPATH": path_with(packages)}
    lab = WebLab(tmp_path_factory.mktemp("web"), ("me",), settings=settings)
    try:
        lab.mend()
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing of the lab is left")


@pytest.fixture(scope="session")
def site(lab: WebLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The submitter's dashboard, with uploaded models."""
    folder = tmp_path_factory.mktemp("models")
    with served(lab, "me") as url:
        made = Site(lab, "me", url)
        for name, width in (("small.onnx", 32), ("large.onnx", 256), (HOSTILE, 48)):
            made.send(network(folder, name, width))
        yield made


@pytest.fixture(scope="session")
def done(site: Site) -> str:
    """A campaign that has succeeded, with a model of a hostile name."""
    campaign = site.submit("all done", "small.onnx", HOSTILE, measure={"runs": 10, "loads": 1})
    assert site.ended(campaign) == "succeeded"
    return campaign


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * TIMEOUT_S
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open a page of a site: `visit(url, "#/fleet", scheme="dark", width=360)`. Its faults fail the test at the end."""
    wrong: list[str] = []

    def notes(kind: str, text: str, noted: str) -> None:
        """Record a console error, unless it contains `noted`: the browser's own message about a refusal that the test provokes."""
        if kind == "error" and not (noted and noted in text):
            wrong.append(f"console: {text}")

    with contextlib.ExitStack() as open_:

        def go(
            url: str,
            path: str = "",
            *,
            scheme: str = "light",
            width: int = 1400,
            calm: bool = False,
            noted: str = "",
        ) -> Page:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,  # type: ignore[arg-type]
                reduced_motion="reduce" if calm else "no-preference",
                accept_downloads=True,
            )
            open_.callback(context.close)
            context.add_init_script(
                "addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective))"
            )
            page = context.new_page()
            # an answer that a test changes may still be in progress when the page closes
            open_.callback(lambda: page.is_closed() or page.unroute_all(behavior="ignoreErrors"))
            page.set_default_timeout(1000 * TIMEOUT_S)
            page.on("console", lambda message: notes(message.type, message.text, noted))
            page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
            page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
            page.on(
                "request",
                lambda asked: (
                    None if asked.url.startswith((url, "blob:", "data:")) else wrong.append(f"to {asked.url}")
                ),
            )
            page.goto(url + path)
            page.wait_for_selector("h1")
            return page

        yield go
    assert wrong == []
