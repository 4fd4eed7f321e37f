"""An experiment with real processes: it is run and run again, and a model that broke raises an alarm at a webhook that can check the
sender.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.real.lab import Lab, campaign, script
from tests.real.test_bad_models import UNIT, custom_op, good

SECRET = "a secret of 24 letters.."


class Hook:
    """A server on loopback that keeps what it receives. It refuses the first message, as a busy server would."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        keep = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                keep.append((dict(self.headers), body))
                self.send_response(503 if len(keep) == 1 else 204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing on stderr."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?key=abc"


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_model_that_broke_is_a_regression_with_exit_code_and_a_signed_webhook(
    lab: Lab, hook: Hook, tmp_path: Path
) -> None:
    good(tmp_path / "m.onnx")
    file = campaign(tmp_path, "nightly", ["m.onnx"], units=[UNIT], measure={"runs": 60, "loads": 6})
    saved = lab.run("ada", "experiment", "save", file, "--json")
    assert (saved.code, saved.json()["version"], saved.json()["new"]) == (0, 1, True), saved

    first = lab.run("ada", "experiment", "run", "nightly", "--gate", lab.gate, "--json")
    assert first.code == 0, first
    (row,) = first.json()["results"]
    assert row["Status"] == "Complete", row
    assert "fine" in first.err, first
    accepted = lab.run(
        "ada", "experiment", "accept", first.json()["campaign"]
    )  # other work may have disturbed it
    assert accepted.code == 0, accepted

    (tmp_path / "secret").write_text(SECRET)
    result = lab.run(
        "ada", "experiment", "schedule", "nightly", "--every", "30d", "--webhook", hook.url,
        "--secret-file", tmp_path / "secret",
    )  # fmt: skip
    assert result.code == 0, result
    custom_op(tmp_path / "m.onnx")
    worse = lab.run("ada", "experiment", "tick", "--gate", lab.gate)
    assert worse.code == 1, worse
    assert "broken-model" in worse.out, worse
    assert "nightly@2" in worse.out, worse

    assert len(hook.got) == 2, "the second try was taken"
    headers, body = hook.got[-1]
    message = json.loads(body)
    assert (message["event"], message["experiment"]) == ("experiment.regression", "nightly")
    (cell,) = message["worse"]
    assert (cell["finding"], cell["against"]) == ("failed", first.json()["campaign"])
    signed = hmac.new(SECRET.encode(), f"{headers['X-Sark-Timestamp']}.".encode() + body, hashlib.sha256)
    assert headers["X-Sark-Signature"] == f"sha256={signed.hexdigest()}"

    history = lab.run("ada", "experiment", "history", "nightly", "--json").json()
    assert [run["finding"] for run in history["runs"]] == ["regression", "fine"]
    points = [point["finding"] for cell in history["cells"] for point in cell["points"]]
    assert points[0] == "failed"
    assert points[1] in ("first", "doubtful")
    listed = lab.run("ada", "campaigns", "--json").json()["campaigns"][0]
    assert (listed["experiment"], listed["finding"]) == ("nightly@2", "regression")


def test_a_simulation_is_no_good_result_and_raises_no_alarm(lab: Lab, tmp_path: Path) -> None:
    for times in ([2.0, 2.01, 1.99], [3.0, 3.01, 2.99]):
        script(tmp_path, "m.json", latencies_ms=times)
        file = campaign(tmp_path, "pretended", ["m.json"], measure={"runs": 60, "loads": 6})
        assert lab.run("ada", "experiment", "save", file).code == 0
        ran = lab.run("ada", "experiment", "run", "pretended", "--gate", lab.gate, "--json")
        assert ran.code == 0, ran
        assert [row["Verdict"] for row in ran.json()["results"]] == ["simulated"]
        assert "incomplete" in ran.err, ran
        (cell,) = lab.run("ada", "experiment", "history", "pretended", "--json").json()["cells"]
        assert cell["simulated"]
        assert (cell["points"][0]["finding"], cell["points"][0]["against"]) == ("simulated", None)
