"""How campaigns end when devices crash, refuse, are paused, gone or cut off; and what a restored home does with its own campaign."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.lab import Lab, campaign, launches, marked, script, until
from tests.real.relay import relayed

pytestmark = pytest.mark.slow
CRASHES = {"fail": {"phase": "run", "error": "signal"}}
LONG = {"latencies_ms": [100.0], "sleep": True}
"""A minute, with 600 runs."""


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Lab]:
    """One device, one scheduler."""
    lab = Lab(tmp_path, ("ada",), workers=("one",))
    try:
        lab.mend()
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing is left")


def test_models_that_crash_cost_no_good_one_on_the_only_device(lone: Lab, tmp_path: Path) -> None:
    models = [script(tmp_path, f"crashes-{n}.json", load_ms=float(n), **CRASHES) for n in range(4)]
    models += [script(tmp_path, f"good-{n}.json", load_ms=float(n)) for n in range(10)]
    done = lone.submit("ada", campaign(tmp_path, "crashers", models, timeouts={"queue": "45s"}))
    assert done.code == 1, done
    rows = {row["FileName"].removesuffix(".json"): row for row in done.json()["results"]}
    assert {rows[f"good-{n}"]["Status"] for n in range(10)} == {"Complete"}
    for n in range(4):
        row = rows[f"crashes-{n}"]
        assert (row["Status"], row["Reason"]) == ("Failed", "crashed"), row
        assert "no device" not in row["Detail"], row


def test_a_retry_is_made_although_its_backoff_is_longer_than_the_queue_limit(
    lone: Lab, tmp_path: Path
) -> None:
    model = script(tmp_path, "crashes.json", **CRASHES)
    file = campaign(
        tmp_path, "patient", [model], timeouts={"queue": "8s"}, retry={"attempts": 2, "backoff": "60s"}
    )
    done = lone.submit("ada", file)
    (row,) = done.json()["results"]
    assert (row["Attempt"], row["Reason"]) == (2, "crashed"), row


@pytest.mark.parametrize("how", ["paused", "gone"])
def test_a_campaign_waits_for_a_device_that_is_away_and_not_for_one_that_cannot_be(
    lone: Lab, tmp_path: Path, how: str
) -> None:
    """The second campaign begins later and waits as long. So when it has ended, the first has outlived that time."""
    models = [script(tmp_path, f"m-{n}.json", load_ms=float(n), **LONG) for n in range(3)]
    result = lone.detach(
        "ada", campaign(tmp_path, how, models, measure={"runs": 20, "loads": 1}), "--wait", "3s"
    )
    until(lambda: any(task.runs for task in lone.tasks("ada", result)), "a task runs")
    if how == "paused":
        assert lone.run("one", "pause").code == 0
    else:
        lone.kill("one")
    other = campaign(tmp_path, "elsewhere", models[:1], devices={"where": ["ram >= 9999 GiB"]})
    done = lone.submit("ada", other, "--wait", "3s")
    assert done.code == 3, done
    observed = lone.run("ada", "explain", result, "--gate", lone.gate)
    assert observed.code == 0, observed
    assert {"paused": "one: paused by its owner, since", "gone": "is gone"}[how] in observed.out, observed
    assert [task for task in lone.tasks("ada", result) if task.state == "pending"]
    if how == "paused":
        assert lone.run("one", "resume").code == 0
    else:
        lone.mend()
    done = lone.run("ada", "watch", result, "--json")
    assert done.code == 0, done
    assert {row["Status"] for row in done.json()["results"]} == {"Complete"}


def test_a_cancel_that_a_device_did_not_confirm_says_so_and_is_told_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, ("ada",), workers=("one",))
    try:
        with relayed(lab) as relays:
            model = script(tmp_path, "long.json", **LONG)
            result = lab.detach(
                "ada", campaign(tmp_path, "cut-off", [model], measure={"runs": 600, "loads": 1})
            )
            until(lambda: any(task.runs for task in lab.tasks("ada", result)), "the task runs")
            relays["one"].silence()
            done = lab.run("ada", "cancel", result, "--gate", lab.gate)
            assert done.code == 4, done
            assert "1 asked to stop but not confirmed by one" in done.err
            assert launches(lab, "one")
            relays["one"].mend()
            until(lambda: not launches(lab, "one"), "it is told again, and stops")
            until(lambda: not marked(lab.mark_of("ada")), "nothing is owed any more")
            again = lab.run("ada", "cancel", result, "--gate", lab.gate)
            assert (again.code, "had ended" in again.out) == (0, True), again
    finally:
        lab.close()


def test_a_restored_home_carries_its_own_campaign_on(lone: Lab, tmp_path: Path) -> None:
    models = [script(tmp_path, f"m-{n}.json", load_ms=float(n), **LONG) for n in range(8)]
    result = lone.detach("ada", campaign(tmp_path, "restored", models, measure={"runs": 10, "loads": 1}))

    def recorded() -> int:
        return sum(task.state == "succeeded" for task in lone.tasks("ada", result))

    until(recorded, "a result is recorded")
    backup = tmp_path / "backup.db"
    assert lone.run("ada", "db", "backup", backup).code == 0
    epoch = "SELECT epoch FROM campaigns WHERE id = ?"
    for _ in range(3):
        (before,) = lone.ask("ada", epoch, result)
        os.kill(lone.scheduler_pid("ada"), signal.SIGKILL)
        until(lambda before=before: lone.ask("ada", epoch, result) > [before], "it came back by itself")
    lone.kill_scheduler("ada")
    restored = lone.run("ada", "db", "restore", backup, "--replace")
    assert restored.code == 0, restored
    done = lone.run("ada", "watch", result, "--gate", lone.gate, "--json")
    assert done.code == 0, done
    assert {row["Status"] for row in done.json()["results"]} == {"Complete"}
    assert "elsewhere" not in done.err


def test_a_scheduler_whose_supervisor_was_killed_has_another_and_comes_back_by_itself(
    lone: Lab, tmp_path: Path
) -> None:
    models = [script(tmp_path, f"m-{n}.json", load_ms=float(n), **LONG) for n in range(4)]
    result = lone.detach("ada", campaign(tmp_path, "alone", models, measure={"runs": 60, "loads": 1}))
    until(lambda: any(task.runs for task in lone.tasks("ada", result)), "a task runs")
    scheduler, first = lone.scheduler_pid("ada"), lone.supervisor_pid("ada")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: lone.supervisor_pid("ada") not in (None, first), "there is another")
    assert lone.scheduler_pid("ada") == scheduler, "it went on"
    os.kill(scheduler, signal.SIGKILL)
    epoch = "SELECT epoch FROM campaigns WHERE id = ?"
    until(lambda: lone.ask("ada", epoch, result) > [(1,)], "it came back by itself")
    until(
        lambda: lone.ask("ada", "SELECT ended FROM campaigns WHERE id = ?", result) != [(None,)], "it ended"
    )
    assert [task.state for task in lone.tasks("ada", result)] == ["succeeded"] * 4
    until(lambda: not marked(lone.mark_of("ada")), "neither is left")
