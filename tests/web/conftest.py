"""A real swarm (a gate and two workers, each a real process, nothing simulated), its dashboard in a real browser.

Whatever a page does that it should not is noted while it is open and told when it closes: errors on the console, breaches of the policy
that the server sends, requests to anybody else.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Browser, Page, sync_playwright

from tests.real.lab import Lab, kill_marked, marked, until

CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
HOSTILE: Final = "<img src=x onerror=alert(1)>&\"'=1+1.onnx"
"""A model's name that a page, a sheet or an attribute could take for something else."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it needs a browser and real processes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            if CHROMIUM is None:
                item.add_marker(
                    pytest.mark.skip("no chromium on this machine: its package is called chromium")
                )


class WebLab(Lab):
    """Its workers simulate nothing, and its gate tells the scheduler `me` how it stands."""

    def start_gate(self) -> None:
        """The gate, with an operator."""
        listen = f"/ip4/{self.address}/tcp/{self.port}"
        self.start("gate", "gate", "--listen", listen, "--operator", self.peer("me"))

    def start_worker(self, name: str, *arguments: str) -> None:
        """A worker that serves and obeys `me`."""
        me = self.peer("me")
        self.start(
            name, "join", "--gate", self.gate, "--allow", me, "--owner", me, "--name", name, "--on-battery",
            "--listen", "/ip4/127.0.0.1/tcp/0",
        )  # fmt: skip

    def close(self) -> None:
        """End everything; how fast is not looked at here."""
        try:
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.communicate(timeout=30)
        finally:
            kill_marked(self.mark)


@dataclass
class Site:
    """The dashboard of one home."""

    lab: WebLab
    home: str
    url: str
    shas: dict[str, str] = field(default_factory=dict)
    """Of the models that were sent, by name."""

    def post(self, path: str, **how: Any) -> Any:
        """Ask the API as a program would."""
        answer = httpx.post(self.url + path, timeout=20, trust_env=False, **how)
        assert answer.is_success, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        """The same, looking only."""
        answer = httpx.get(self.url + path, timeout=20, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()

    def send(self, model: Path) -> None:
        """Send a model, to be named in campaigns."""
        self.shas[model.name] = self.post(
            "api/v1/models", params={"name": model.name}, content=model.read_bytes()
        )["sha256"]

    def submit(self, name: str, *models: str, **more: Any) -> str:
        """Submit a campaign by the API; gives its id."""
        content = {
            "campaign": name,
            "models": [f"sha256:{self.shas[model]}" for model in models],
            "units": ["CPU (ONNX)"],
            **more,
        }
        return str(self.post("api/v1/campaigns", json=content)["campaign_id"])

    def ended(self, campaign: str) -> str:
        """Wait until it has; gives how."""

        def status() -> str:
            told = self.get(f"api/v1/campaigns/{campaign}")
            return str(told["status"]) if told["ended"] else ""

        return str(until(status, f"{campaign} has ended", within=60, every=0.2))


@contextlib.contextmanager
def served(lab: WebLab, home: str) -> Iterator[str]:
    """`sark-node serve` on that home; gives its address."""
    log = lab.folder / f"serve-{home}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            lab.command(home, "serve", "--port", "0", "--gate", lab.gate),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=lab.environment(home),
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Dashboard"), log.read_text()
        yield line.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def network(folder: Path, name: str, width: int) -> Path:
    """A real model: a product and a threshold."""
    weights = np.random.default_rng(1).standard_normal((width, width)).astype("float32") / width
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, width]) for end in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / name
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebLab]:
    lab = WebLab(tmp_path_factory.mktemp("web"), ("me",))
    try:
        lab.mend()
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing of the lab is left", within=10)


@pytest.fixture(scope="session")
def site(lab: WebLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The dashboard of who submits, with models sent."""
    folder = tmp_path_factory.mktemp("models")
    with served(lab, "me") as url:
        made = Site(lab, "me", url)
        for name, width in (("small.onnx", 32), ("large.onnx", 256), (HOSTILE, 48)):
            made.send(network(folder, name, width))
        yield made


@pytest.fixture(scope="session")
def done(site: Site) -> str:
    """A campaign that has ended well, with a model of a hostile name."""
    campaign = site.submit("all done", "small.onnx", HOSTILE, measure={"runs": 10, "loads": 1})
    assert site.ended(campaign) == "succeeded"
    return campaign


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page of a site: `visit(url, "#/fleet", scheme="dark", width=360)`. What it did that it should not is told at the end."""
    wrong: list[str] = []

    def notes(kind: str, text: str, noted: str) -> None:
        """`noted`: what the browser itself is to note, for the test asks for what is answered with no."""
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
            page.set_default_timeout(20_000)
            page.on("console", lambda said: notes(said.type, said.text, noted))
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


def told(value: Any) -> str:
    """For a message of a failed assertion."""
    return json.dumps(value, indent=1)
