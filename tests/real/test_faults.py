"""A process is killed in the middle of a campaign, and the campaign still ends well."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.real.lab import Lab, campaign, marked, script, until

LONG = {"latencies_ms": [100.0], "sleep": True}
"""Three seconds, with 30 runs."""


def test_a_campaign_survives_its_worker_and_its_gate_and_both_are_found_again(
    lab: Lab, tmp_path: Path
) -> None:
    model = script(tmp_path, "long.json", **LONG)
    result = lab.detach("ada", campaign(tmp_path, "killed", [model], measure={"runs": 30, "loads": 1}))
    (task,) = until(lambda: [task for task in lab.tasks("ada", result) if task.runs], "the task runs")
    first = task.device
    lab.kill(first)
    until(lambda: not marked(lab.mark_of(first)), f"no child of {first} is left")
    until(
        lambda: [task for task in lab.tasks("ada", result) if task.runs and task.attempt == 2],
        "the task runs elsewhere",
    )
    lab.kill("gate")
    done = lab.run("ada", "watch", result, "--json")
    assert done.code == 0, done
    (row,) = done.json()["results"]
    assert row["Status"] == "Complete"
    assert {first, row["DeviceName"]} == {"one", "two"}
    assert row["Attempt"] == 2
    assert lab.ask("ada", "SELECT count(*) FROM records WHERE task = ?", f"{result}/1") == [(1,)]
    lab.mend()

    def names() -> set[str]:
        observed = lab.run("passer-by", "peers", "--gate", lab.gate, "--json")
        return {peer["name"] for peer in observed.json()["peers"]} if observed.code == 0 else set()

    until(lambda: names() >= {"one", "two"}, "the workers are found through the gate again")


@pytest.mark.smoke
def test_a_killed_scheduler_carries_on_and_runs_nothing_twice(lab: Lab, tmp_path: Path) -> None:
    models = [script(tmp_path, f"short-{n}.json", load_ms=float(n)) for n in range(4)]
    models += [script(tmp_path, f"long-{n}.json", load_ms=float(n), **LONG) for n in range(2)]
    file = campaign(tmp_path, "killed-scheduler", models, measure={"runs": 30, "loads": 1})
    result = lab.detach("ada", file)

    def midway() -> bool:
        tasks = lab.tasks("ada", result)
        return any(task.state == "succeeded" for task in tasks) and any(task.runs for task in tasks)

    until(midway, "some tasks are done and one runs")
    os.kill(lab.scheduler_pid("ada"), signal.SIGKILL)
    epoch = "SELECT epoch FROM campaigns WHERE id = ?"
    until(lambda: lab.ask("ada", epoch, result) > [(1,)], "it came back by itself")
    before = {task.n: task for task in lab.tasks("ada", result)}
    done = lab.run("ada", "watch", result, "--json")
    assert done.code == 0, done
    after = {task.n: task for task in lab.tasks("ada", result)}
    assert [task.state for task in after.values()] == ["succeeded"] * 6
    finished = [n for n, task in before.items() if task.state == "succeeded"]
    assert finished
    assert {n: after[n].attempt for n in finished} == {n: before[n].attempt for n in finished}
    assert (
        lab.ask(
            "ada",
            "SELECT task, count(*) FROM records WHERE task LIKE ? GROUP BY task HAVING count(*) > 1",
            f"{result}/%",
        )
        == []
    )
    logs = (lab.log("one") + lab.log("two")).splitlines()
    for n in finished:
        ran = [line for line in logs if '"run.ended"' in line and f'"{result}/{n}"' in line]
        assert len(ran) == 1, ran
    running = [n for n, task in before.items() if task.runs]
    assert {n: after[n].attempt for n in running} == {n: before[n].attempt for n in running}
