"""An experiment with real processes: run, run again, a slower model is an alarm, told to a webhook that can check who sent it."""

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

SECRET = "a secret of 24 letters.."
TIMES = [2.0, 2.01, 1.99, 2.0, 2.02]


class Hook:
    """A server on loopback that keeps what it is sent; it refuses the first of each as a busy one would."""

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
                """Nothing on stderr."""

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


def test_a_slower_model_is_a_regression_with_exit_code_and_a_signed_webhook(
    lab: Lab, hook: Hook, tmp_path: Path
) -> None:
    script(tmp_path, "m.json", latencies_ms=TIMES)
    file = campaign(tmp_path, "nightly", ["m.json"], measure={"runs": 60, "loads": 6})
    saved = lab.run("ada", "experiment", "save", file, "--json")
    assert (saved.code, saved.json()["version"], saved.json()["new"]) == (0, 1, True), saved

    first = lab.run("ada", "experiment", "run", "nightly", "--gate", lab.gate, "--json")
    assert first.code == 0, first
    (row,) = first.json()["results"]
    assert row["Verdict"] == "valid", row
    assert "fine" in first.err, first

    (tmp_path / "secret").write_text(SECRET)
    told = lab.run(
        "ada", "experiment", "schedule", "nightly", "--every", "30d", "--webhook", hook.url,
        "--secret-file", tmp_path / "secret",
    )  # fmt: skip
    assert told.code == 0, told
    script(tmp_path, "m.json", latencies_ms=[1.3 * ms for ms in TIMES])
    worse = lab.run("ada", "experiment", "tick", "--gate", lab.gate)
    assert worse.code == 1, worse
    assert "slower" in worse.out, worse
    assert "nightly@2" in worse.out, worse

    assert len(hook.got) == 2, "the second try was taken"
    headers, body = hook.got[-1]
    message = json.loads(body)
    assert (message["event"], message["experiment"]) == ("experiment.regression", "nightly")
    (cell,) = message["worse"]
    assert cell["ratio_low"] > 1.25
    signed = hmac.new(SECRET.encode(), f"{headers['X-Sark-Timestamp']}.".encode() + body, hashlib.sha256)
    assert headers["X-Sark-Signature"] == f"sha256={signed.hexdigest()}"

    history = lab.run("ada", "experiment", "history", "nightly", "--json").json()
    assert [run["finding"] for run in history["runs"]] == ["regression", "fine"]
    (cell,) = history["cells"]
    assert [point["finding"] for point in cell["points"]] == ["slower", "first"]
    listed = lab.run("ada", "campaigns", "--json").json()["campaigns"][0]
    assert (listed["experiment"], listed["finding"]) == ("nightly@2", "regression")
