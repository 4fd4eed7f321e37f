"""The stand-alone binary on its own: only the one file, a fresh user, and no path into this tree or its environment.

`make binary` builds the file and then runs this.
"""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from drivers.native.library import TINY_MODEL
from tests.packages.in_bash import install_completion, typed
from tests.real.lab import MARK, Done, Lab, campaign, kill_marked, marked, script, until

ROOT: Final = Path(__file__).parents[2]
MADE_OF: Final = (
    *("protocol", "results", "swarm", "drivers", "node", "scheduler", "gate", "web", "tools"),
    *("sark.py", "pyproject.toml", "constraints.txt", "examples/quickstart/campaign.yaml"),
)
LONG: Final = 300.0
"""Time limit in seconds for a command on a busy machine, not its usual duration."""


def why_not(dist: Path) -> str:
    """Why there is nothing to test, or an empty string if `dist` holds a binary of the current tree."""
    made = the_file(dist)
    if made is None:
        return "the stand-alone binary was not built: `make binary` builds and tries it"
    parts = (path for name in MADE_OF for path in (ROOT / name, *(ROOT / name).rglob("*")) if path.is_file())
    newest = max(path.stat().st_mtime for path in parts if "__pycache__" not in path.parts)
    if newest > made.stat().st_mtime:
        return (
            "the stand-alone binary in dist/ is of before the last change: `make binary` builds and tries it"
        )
    return ""


def the_file(dist: Path) -> Path | None:
    """The newest binary for this system and processor."""
    result = dist.glob(f"sark-node-*-{sys.platform}-{platform.machine().lower()}")
    return max(result, key=lambda path: path.stat().st_mtime, default=None)


pytestmark = pytest.mark.real


class Alone(Lab):
    """All nodes belong to one user, whose PATH has only the system's programs and the binary."""

    @property
    def user(self) -> Path:
        return self.folder / "user"

    def environment(self, name: str) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.user),
            "LANG": "C.UTF-8",
            MARK: self.mark,
            "SARK_TEST_NODE": self.mark_of(name),
            "SARK_MAX_WAIT_S": "0",
            "SARK_LAN": "false",
            "SARK_CALIBRATE": "false",
        }

    def well(self, name: str, *arguments: str | Path) -> Done:
        """Run a command, which must succeed."""
        done = self.run(name, *arguments, within=LONG)
        assert done.code == 0, (arguments, done)
        return done

    def close(self) -> None:
        try:
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.communicate(timeout=60)
        finally:
            kill_marked(self.mark)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """The binary as `sark-node` on a user's PATH. Unpacks itself in two simultaneous first starts."""
    if why := why_not(ROOT / "dist"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("alone")
    program = folder / "bin" / "sark-node"
    program.parent.mkdir()
    file = the_file(ROOT / "dist")
    assert file is not None
    shutil.copy2(file, program)
    lab = Alone(folder, ("me",), program=(str(program),), workers=("one", "two"))
    lab.user.mkdir()
    try:
        both = [
            subprocess.Popen(
                [str(program), "--version"], cwd=lab.user, env=lab.environment("me"), stdout=subprocess.PIPE
            )
            for _ in range(2)
        ]
        lines = [process.communicate(timeout=LONG)[0].decode() for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert all(text.startswith("sark-node ") for text in lines), lines
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing of it is left", within=30)


@pytest.fixture(scope="module")
def model(alone: Alone) -> Path:
    path = alone.folder / "tiny.onnx"
    path.write_bytes(TINY_MODEL)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as source:
        return list(csv.DictReader(source))


def test_it_unpacks_once_also_where_two_first_starts_come_at_once(alone: Alone) -> None:
    apps = alone.user / ".local" / "share" / "sark-node"
    (app,) = [path for path in apps.iterdir() if (path / "sark-node").is_file()]
    assert list(apps.glob(".new*")) == []
    assert not [path for path in app.iterdir() if path.name not in ("sark-node", "_internal")]


def test_it_finds_here_what_the_installed_program_finds(alone: Alone) -> None:
    document = alone.well("me", "info", "--json").json()
    installed = Lab(alone.folder, ()).run("installed", "info", "--json", within=LONG).json()
    for name in ("units", "sandbox", "sandbox_notes", "soc", "cores", "threads", "ram", "os", "arch"):
        assert document[name] == installed[name], name
    assert "CPU (ONNX)" in alone.well("me", "doctor").out


def test_it_measures_by_itself(alone: Alone, model: Path) -> None:
    out = alone.folder / "bench.csv"
    alone.well("me", "bench", model, "--runs", "20", "--csv", out)
    (row,) = rows_of(out)
    assert (row["Status"], row["ComputeUnits"]) == ("Complete", "CPU (ONNX)")
    assert float(row["InferenceMsMedian"]) > 0


@pytest.fixture(scope="module")
def swarm(alone: Alone) -> Alone:
    """A gate with a pool, a worker that joined by ticket, one that joined by the gate's address, and the scheduler `me`."""
    alone.start("gate", "gate", "--listen", f"/ip4/127.0.0.1/tcp/{alone.port}")
    alone.await_up("gate")
    alone.well("gate", "pool", "create", "lab")
    ticket = alone.well("gate", "pool", "invite", "lab").out.strip()
    alone.start("one", "join", ticket, "--name", "one", "--on-battery", "--listen", "/ip4/127.0.0.1/tcp/0")
    alone.start_worker("two", "--label", "site=two")
    submits = alone.well("gate", "pool", "invite", "lab", "--submit").out.strip()
    alone.well("me", "pool", "join", submits)
    alone.await_up("one")
    alone.await_up("two")

    def there() -> list[str]:
        return sorted(peer["name"] for peer in alone.well("me", "peers", "--json").json()["peers"])

    until(lambda: there() == ["one", "two"], "both workers are found", within=LONG)
    return alone


@pytest.mark.parametrize(
    ("worker", "where"),
    [("one", "pools has lab"), ("two", "label.site == two")],
    ids=["by ticket", "by address"],
)
def test_a_campaign_runs_on_a_worker_with_a_scheduler_behind_it(
    swarm: Alone, model: Path, worker: str, where: str
) -> None:
    measure, devices = {"runs": 20, "loads": 3}, {"where": [where]}
    file = campaign(swarm.folder, worker, [model], units=["CPU (ONNX)"], measure=measure, devices=devices)
    out, raw = swarm.folder / f"{worker}.csv", swarm.folder / f"{worker}.json"
    assert "1 task" in swarm.well("me", "plan", file).out
    swarm.well("me", "submit", file, "--csv", out)
    (row,) = rows_of(out)
    assert (row["Status"], row["DeviceName"]) == ("Complete", worker)
    swarm.well("me", "results", "--raw", raw)
    assert "1 signed result" in swarm.well("me", "verify", raw, "--csv", out).out


def test_what_looks_at_it_works(swarm: Alone) -> None:
    simulated = script(swarm.folder, "script.json")
    swarm.well("me", "submit", campaign(swarm.folder, "looked at", [simulated]))
    assert "succeeded" in swarm.well("me", "top", "--once").out
    page = swarm.folder / "report.html"
    swarm.well("me", "report", "-o", page)
    assert page.read_text(encoding="utf-8").lower().lstrip().startswith("<!doctype html")
    assert swarm.well("one", "status", "--json").json()
    assert swarm.well("gate", "gate", "status", "--json").json()


def test_it_serves_its_pages_and_its_api(alone: Alone) -> None:
    result = alone.folder / "serve.txt"
    with result.open("wb") as out:
        process = subprocess.Popen(
            alone.command("me", "serve", "--port", "0"),
            cwd=alone.folder,
            env=alone.environment("me"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    alone.running["serve"] = process

    def address() -> list[str]:
        assert process.poll() is None, result.read_text()
        return [word for word in result.read_text().split() if word.startswith("http://")]

    base = until(address, "its address", within=LONG)[0].rstrip("/.,")
    for path, kind, holds in (
        ("/", "text/html", b"<title"),
        ("/static/app.js", "javascript", b"import"),
        ("/docs", "text/html", b"<title"),
        ("/openapi.json", "json", b'"/api/v1/campaigns"'),
        ("/api/v1/campaigns", "json", b'"count"'),
        ("/api/v1/worker", "json", b"{"),
        ("/api/v1/peers", "json", b'"count"'),
        ("/api/v1/metrics", "text/plain", b"sark_"),
    ):
        with urllib.request.urlopen(f"{base}{path}", timeout=60) as answer:  # noqa: S310  (our own address)
            assert answer.status == 200, path
            assert kind in answer.headers["content-type"], path
            assert holds in answer.read(), path


def test_the_demo_has_its_models_with_it(alone: Alone) -> None:
    folder = alone.folder / "demo"
    done = alone.well("me", "demo", "--workers", "1", "--directory", folder)
    assert "done; nothing of the demo is running any more" in done.out
    rows = rows_of(folder / "results.csv")
    assert {row["FileName"] for row in rows} == {"magika-standard_v3_3.onnx", "squeezenet.onnx"}
    assert {row["Status"] for row in rows} == {"Complete"}
    assert not marked(str(folder))


def test_bash_completes_its_commands(alone: Alone) -> None:
    environment = alone.environment("me")
    assert "bash completion installed" in install_completion(environment)
    assert "sark-node campaigns " in typed("sark-node camp\t", "campaigns ", environment, alone.user)


def test_what_was_built_before_the_last_change_is_not_tried(tmp_path: Path) -> None:
    assert "was not built" in why_not(tmp_path)
    made = tmp_path / f"sark-node-1-{sys.platform}-{platform.machine().lower()}"
    made.write_bytes(b"")
    assert why_not(tmp_path) == ""
    os.utime(made, (1.0, 1.0))
    assert "before the last change" in why_not(tmp_path)
