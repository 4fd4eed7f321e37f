"""Concurrent users: two schedulers on the same devices, and a cancel from another terminal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.real.lab import TIMEOUT_S, Lab, alive, campaign, launches, marked, script, until


@pytest.mark.smoke
def test_two_schedulers_share_the_workers_and_no_two_runs_overlap(lab: Lab, tmp_path: Path) -> None:
    models = [
        script(tmp_path, f"m{n}.json", load_ms=20.0 + n, latencies_ms=[20.0], sleep=True) for n in range(2)
    ]
    by_key = {
        name: lab.detach(name, campaign(tmp_path, f"of-{name}", models, measure={"runs": 20, "loads": 2}))
        for name in ("ada", "bob")
    }
    most, observed = 0, set()

    def over() -> bool:
        nonlocal most
        now = launches(lab, "one", "two")
        observed.update(now)
        most = max(most, len(now))
        return all(
            lab.ask(name, "SELECT ended FROM campaigns WHERE id = ?", each)[0][0]
            for name, each in by_key.items()
        )

    until(over, "both campaigns have ended", every=0.01)
    assert len(observed) > 1
    assert most == 1
    for name, each in by_key.items():
        done = lab.run(name, "results", each, "--json")
        assert [row["Status"] for row in done.json()["results"]] == ["Complete"] * 2


def test_a_task_and_then_its_campaign_are_cancelled_from_another_terminal(lab: Lab, tmp_path: Path) -> None:
    models = [
        script(tmp_path, f"m{n}.json", load_ms=1.0 + n, latencies_ms=[100.0], sleep=True) for n in range(4)
    ]
    file = campaign(tmp_path, "cancelled", models, measure={"runs": 600, "loads": 1})
    with subprocess.Popen(
        lab.command("ada", "submit", file, "--gate", lab.gate),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=lab.environment("ada"),
    ) as watching:
        assert watching.stdout is not None
        result = watching.stdout.readline().split()[1]
        task = until(lambda: next((t for t in lab.tasks("ada", result) if t.runs), None), "a task runs")
        running = launches(lab, "one", "two")
        assert running
        done = lab.run("ada", "cancel", f"{result}/{task.n}", "--gate", lab.gate)
        assert done.code == 0, done
        assert "is cancelled: 1 stopped" in done.out
        assert not [pid for pid in running if alive(pid)]
        until(lambda: launches(lab, "one", "two"), "another task runs")
        done = lab.run("ada", "cancel", result, "--gate", lab.gate)
        assert launches(lab, "one", "two") == []
        assert done.code == 0, done
        assert "is cancelled: 3 stopped, 1 had ended before" in done.out
        output, _ = watching.communicate(timeout=TIMEOUT_S)
        assert watching.returncode == 1, output
        assert "0 of 4 tasks complete" in output
    listed = {each["campaign_id"]: each for each in lab.run("ada", "campaigns", "--json").json()["campaigns"]}
    assert listed[result]["status"] == "cancelled"
    assert listed[result]["tasks"]["cancelled"] == 4
    again = lab.run("ada", "cancel", result, "--gate", lab.gate)
    assert again.code == 0, again
    assert "had ended" in again.out


def test_ctrl_c_stops_watching_and_the_campaign_goes_on(lab: Lab, tmp_path: Path) -> None:
    model = script(tmp_path, "m.json", latencies_ms=[100.0], sleep=True)
    file = campaign(tmp_path, "detached", [model], measure={"runs": 20, "loads": 1})
    with subprocess.Popen(
        lab.command("bob", "submit", file, "--gate", lab.gate),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=lab.environment("bob"),
        start_new_session=True,
    ) as watching:
        assert watching.stdout is not None
        words = watching.stdout.readline()
        result = words.split()[1]
        watching.send_signal(signal.SIGINT)
        _, outcome = watching.communicate(timeout=TIMEOUT_S)
    assert watching.returncode == 130
    assert f"sark-node watch {result}" in outcome
    assert "Traceback" not in outcome
    done = lab.run("bob", "watch", result[:6], "--json")
    assert done.code == 0, done
    assert done.json()["campaign"] == result
    until(lambda: not marked(lab.mark_of("bob")), "the scheduler process ends when nothing is left")
