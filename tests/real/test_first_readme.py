"""The commands of the predecessor's README, typed unchanged into a shell against a gate, workers and `sark-node serve`; only port, model
and ids are filled in. The same client also tests what that README documents without an example.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.drivers.onnx_models import OnnxModels
from tests.real.lab import TIMEOUT_S, Lab, until
from tests.swarm.web_parts import web_beside

CREATE: Final = """
curl -X POST http://localhost:5000/api/campaigns \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_url": "MODEL",
    "jobs": [
      {
        "compute_unit": "CPU (ONNX)",
        "num_inference_runs": 10
      }
    ]
  }'
"""
FILES: Final = "curl http://localhost:5000/api/results/files"
DOWNLOAD: Final = "curl http://localhost:5000/api/campaigns/{campaign-id}/results > results.csv"
CREATE_TWO: Final = """
curl -X POST http://localhost:5000/api/campaigns \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_url": "MODEL",
    "jobs": [
      { "compute_unit": "CPU (ONNX)", "num_inference_runs": 10 },
      { "compute_unit": "GPU (ONNX)", "num_inference_runs": 10 }
    ]
  }'
"""
MONITOR: Final = "curl http://localhost:5000/api/campaigns/{campaign-id}"
REGISTER: Final = "curl -X POST http://localhost:5000/api/register -d '{...}'"
CREATE_MANY: Final = """
curl -X POST http://localhost:5000/api/campaigns \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_url": "MODEL",
    "jobs": [
      { "compute_unit": "CPU (ONNX)" },
      { "compute_unit": "CPU (ONNX)" },
      { "compute_unit": "GPU (CoreML)" },
      { "compute_unit": "GPU (CoreML)" }
    ]
  }'
"""
DEVICE: Final = """{
  "device_name": "MacBook Pro",
  "ip_address": "192.168.1.100",
  "capabilities": ["CPU (ONNX)", "GPU (CoreML)"],
  "device_info": {
    "Soc": "Apple M2 Pro",
    "Ram": "16",
    "DeviceOs": "Darwin",
    "UDID": "unique-device-id"
  }
}"""
"""Stands for the dots in the README's example."""


@dataclass
class Client:
    """Somebody with a shell and curl, who knows that README."""

    folder: Path
    port: int
    model: str

    def type(self, command: str, campaign: str = "") -> str:
        """Type a command and return its output. curl must succeed, whatever the server answered."""
        command = command.replace("localhost:5000", f"localhost:{self.port}").replace("MODEL", self.model)
        command = command.replace("{campaign-id}", campaign).replace("{...}", DEVICE)
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env={**os.environ, "NO_PROXY": "*"}, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def json(self, command: str, campaign: str = "") -> Any:
        """`type`, for a command that answers with JSON."""
        return json.loads(self.type(command, campaign))

    def ask(self, method: str, path: str, body: str = "") -> Any:
        """A request that is documented without an example."""
        data = f" -d '{body}'" if body else ""
        return self.json(f"curl -X {method} http://localhost:5000/api{path}{data}")

    def rows(self, campaign: str) -> list[dict[str, str]]:
        """The rows of results.csv, downloaded now."""
        self.type(DOWNLOAD, campaign)
        with (self.folder / "results.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def cancel(self, campaign: str) -> None:
        """Cancel a campaign. Not in that README: nothing here has the units that some of its jobs ask for."""
        self.ask("POST", f"/v1/campaigns/{campaign}/cancel")
        until(lambda: self.json(MONITOR, campaign)["status"] != "running", f"{campaign} is over", every=0.2)


@pytest.fixture(scope="module")
def client(whole_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client on a worker's own home, so that this home may command the worker."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    lab, tmp_path = whole_lab, tmp_path_factory.mktemp("readme")
    lab.mend()
    model = Path(OnnxModels(tmp_path).nano())
    with web_beside() as site, (tmp_path / "serve.log").open("wb") as errors:
        site.file("/model/tinyyolov2-7.onnx", model.read_bytes())
        server = subprocess.Popen(
            lab.command("one", "serve", "--port", "0", "--gate", lab.gate, "--allow-paths"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=lab.environment("one"), text=True,
        )  # fmt: skip
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            assert line.startswith("Dashboard"), (tmp_path / "serve.log").read_text()
            port = int(line.strip().rstrip("/").rpartition(":")[2])
            yield Client(tmp_path, port, f"http://127.0.0.1:{site.port}/model/tinyyolov2-7.onnx")
        finally:
            server.terminate()
            server.communicate(timeout=TIMEOUT_S)


def test_the_readme_of_the_predecessor_runs_as_it_stands(client: Client, lab: Lab) -> None:
    # First Campaign
    made = client.json(CREATE)
    campaign = made["campaign_id"]
    assert (made["total_jobs"], made["jobs"][0]["job_id"]) == (1, f"{campaign}-job-0")
    until(
        lambda: client.json(MONITOR, campaign)["status"] == "completed",
        "it is completed",
        every=0.3,
    )
    assert client.json(FILES)["files"][0]["campaign_id"] == campaign
    (row,) = client.rows(campaign)
    assert (row["Status"], row["JobId"], row["FileName"]) == (
        "Complete", f"{campaign}-job-0", "tinyyolov2-7.onnx",
    )  # fmt: skip
    assert float(row["InferenceMsMedian"]) > 0
    # Single Device Benchmark: nothing here has the second unit
    two = client.json(CREATE_TWO)["campaign_id"]
    until(
        lambda: any(row["Status"] == "Complete" for row in client.rows(two)),
        "one of two is complete",
        every=0.3,
    )
    assert client.json(MONITOR, two)["job_breakdown"]["complete"] == 1
    client.cancel(two)
    # Multi-Device Distribution
    registered = client.json(REGISTER)
    assert registered["status"] == "registered"
    assert registered["how_to_join"].startswith("sark-node join --gate /ip4/")
    many = client.json(CREATE_MANY)
    assert [job["compute_unit"] for job in many["jobs"]] == ["CPU (ONNX)"] * 2 + ["GPU (CoreML)"] * 2
    client.cancel(many["campaign_id"])
    document = client.json("curl http://localhost:5000/api/campaigns")["campaigns"]
    assert [each["campaign_id"] for each in document][:3] == [many["campaign_id"], two, campaign]
    # requests that are documented without an example
    job = client.ask("GET", f"/jobs/{campaign}-job-0")
    assert (job["job"]["status"], job["result"]["status"]) == ("complete", "Complete")
    assert job["result"]["InferenceMsMedian"] == pytest.approx(float(row["InferenceMsMedian"]), abs=1e-6)
    assert client.ask("GET", "/health")["status"] == "healthy"
    assert set(client.ask("GET", "/queue/status")) == {
        "worker_queues", "capability_queues", "results_queue_size",
    }  # fmt: skip
    file = client.json(FILES)["files"][0]["filename"]
    assert client.type(f"curl http://localhost:5000/api/results/download/{file}").startswith("Status,JobId,")


def test_the_workers_of_the_swarm_and_what_their_owner_can_say(client: Client, lab: Lab) -> None:
    workers: dict[str, Any] = {}

    def both() -> bool:
        workers.update({each["device_name"]: each for each in client.ask("GET", "/workers")["workers"]})
        return {"one", "two"} <= workers.keys()

    until(both, "both workers are seen", every=0.3)
    own, other = workers["one"]["worker_id"], workers["two"]["worker_id"]
    assert "CPU (ONNX)" in workers["one"]["capabilities"]
    assert client.ask("GET", f"/workers/{own}")["worker_id"] == own
    assert client.ask("GET", f"/workers/{other}/health")["is_healthy"] is True
    assert client.ask("GET", "/health/workers")["healthy"] >= 2
    assert client.ask("POST", f"/workers/{other}/heartbeat")["action"] == "none"
    assert client.ask("GET", "/monitoring/stats")["health_monitor"]["total_workers"] >= 2
    refused = client.ask("PUT", f"/workers/{other}/status", '{ "status": "active" }')
    assert (refused["status"], refused["error"]) == (403, "you are not its owner")
    paused = client.ask("PUT", f"/workers/{own}/status", '{ "status": "cleanup" }')
    assert paused == {"worker_id": own, "status": "cleanup"}
    assert "paused by its owner" in lab.run("one", "status").out
    served = client.ask("PUT", f"/workers/{own}/status", '{ "status": "active" }')
    assert served == {"worker_id": own, "status": "active"}
    assert client.ask("PUT", f"/workers/{own}/reset")["status"] == "active"


def test_reset_clears_what_is_over(client: Client, lab: Lab) -> None:
    campaign = client.json(CREATE)["campaign_id"]
    running = client.ask("POST", "/reset")
    assert (running["status"], running["title"]) == (409, "Conflict")
    client.cancel(campaign)
    reply = client.ask("POST", "/reset")
    assert reply["status"] == "reset"
    assert client.json("curl http://localhost:5000/api/campaigns")["count"] == 0
    assert Path(reply["backup"]).exists()
    assert lab.run("one", "status").out.startswith("this device: active")
