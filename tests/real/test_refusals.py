"""What cannot be done is refused at once, in a line or two, with the exit code of its kind; nothing hangs and nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path

from tests.real.lab import Lab, campaign, script


def test_when_nothing_fits_the_clause_and_the_nearest_miss_are_named(lab: Lab, tmp_path: Path) -> None:
    file = campaign(
        tmp_path, "giant", [script(tmp_path, "m.json")], devices={"where": ["cores >= 1", "ram >= 100 TiB"]}
    )
    done = lab.run("ada", "submit", file, "--gate", lab.gate, "--wait", "1s")
    assert done.code == 3, done
    lines = done.out.splitlines()
    assert any(re.search(r"0 of [12] devices? fit", line) for line in lines), (
        done
    )  # both workers may be on one device
    (clause,) = [line.split() for line in lines if line.strip().startswith("ram >= 100 TiB")]
    assert clause[4:6] == ["0", "fit"]
    assert "nearest:" in clause
    assert any(line.strip().startswith("Smallest change: ram >= ") for line in lines)


def test_a_stranger_is_refused_and_nothing_runs(lab: Lab, tmp_path: Path) -> None:
    file = campaign(tmp_path, "strange", [script(tmp_path, "m.json")])
    for worker in lab.workers:
        assert lab.run("stranger", "trust", lab.worker_peer(worker)).code == 0
    done = lab.submit("stranger", file, "--wait", "1s")
    assert done.code == 5, done
    (row,) = done.json()["results"]
    assert (row["Status"], row["Reason"]) == ("Failed", "not-allowed")
    assert "--allow" in row["Detail"]
    assert row["JobId"] not in lab.log("one") + lab.log("two")


def test_a_port_that_is_taken_is_named(lab: Lab) -> None:
    done = lab.run("second-gate", "gate", "--listen", f"/ip4/127.0.0.1/tcp/{lab.port}")
    assert done.code == 6, done
    assert str(lab.port) in done.err
    assert "Traceback" not in done.err


def test_the_folder_of_a_running_node_is_not_shared(lab: Lab) -> None:
    done = lab.run("one", "join", "--gate", lab.gate)
    assert done.code == 6, done
    assert f"in use by process {lab.running['one'].pid}" in done.err
    assert "--home" in done.err
    assert lab.running["one"].poll() is None
