"""A real swarm with a dashboard: a gate and two workers, each a real process, nothing simulated."""

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
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Page

from tests.real.lab import TIMEOUT_S, Lab, kill_marked, until

CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
HOSTILE: Final = "<img src=x onerror=alert(1)>&\"'=1+1.onnx"
"""A model name that a page, a spreadsheet or an attribute could misinterpret."""


Open = Callable[..., Page]


class WebLab(Lab):
    """A lab whose workers simulate nothing, and whose gate reports its status to the scheduler `me`."""

    def start_gate(self) -> None:
        """Start the gate, with an operator."""
        listen = f"/ip4/{self.address}/tcp/{self.port}"
        self.start("gate", "gate", "--listen", listen, "--operator", self.peer("me"))

    def start_worker(self, name: str, *arguments: str) -> None:
        """Start a worker that serves and obeys `me`."""
        me = self.peer("me")
        self.start(
            name, "join", "--gate", self.gate, "--allow", me, "--owner", me, "--name", name, "--on-battery",
            "--listen", "/ip4/127.0.0.1/tcp/0",
        )  # fmt: skip

    def close(self) -> None:
        """End all processes. How quickly they end is not checked here."""
        try:
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.communicate(timeout=TIMEOUT_S)
        finally:
            kill_marked(self.mark)


@dataclass
class Site:
    """The dashboard of one home."""

    lab: WebLab
    home: str
    url: str
    shas: dict[str, str] = field(default_factory=dict)
    """The hashes of uploaded models, by name."""

    def post(self, path: str, **how: Any) -> Any:
        """POST to the API, as a program would."""
        answer = httpx.post(self.url + path, timeout=TIMEOUT_S, trust_env=False, **how)
        assert answer.is_success, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        """GET from the API."""
        answer = httpx.get(self.url + path, timeout=TIMEOUT_S, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()

    def send(self, model: Path) -> None:
        """Upload a model, so that campaigns can name it."""
        self.shas[model.name] = self.post(
            "api/v1/models", params={"name": model.name}, content=model.read_bytes()
        )["sha256"]

    def submit(self, name: str, *models: str, **more: Any) -> str:
        """Submit a campaign through the API. Returns its id."""
        content = {
            "campaign": name,
            "models": [f"sha256:{self.shas[model]}" for model in models],
            "units": ["CPU (ONNX)"],
            **more,
        }
        return str(self.post("api/v1/campaigns", json=content)["campaign_id"])

    def ended(self, campaign: str) -> str:
        """Wait until the campaign has ended. Returns its status."""

        def status() -> str:
            result = self.get(f"api/v1/campaigns/{campaign}")
            return str(result["status"]) if result["ended"] else ""

        return str(until(status, f"{campaign} has ended", every=0.2))


@contextlib.contextmanager
def served(lab: WebLab, home: str) -> Iterator[str]:
    """Run `sark-node serve` on a home. Yields its URL."""
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
        process.communicate(timeout=TIMEOUT_S)


def network(folder: Path, name: str, width: int) -> Path:
    """A real model: a matrix product and a ReLU."""
    weights = np.random.default_rng(1).standard_normal((width, width)).astype("float32") / width
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, width]) for end in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / name
    onnx.save(model, str(path))
    return path


def indented(value: Any) -> str:
    """JSON for the message of a failed assertion."""
    return json.dumps(value, indent=1)
