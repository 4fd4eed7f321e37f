"""Sittings with real processes: the next one waits, on the same device, whatever happens to its scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.lab import a_lab, campaign, script, until

pytestmark = pytest.mark.slow
APART_S = 30.0


def test_the_next_sitting_waits_for_its_time_through_a_kill_of_the_scheduler(tmp_path: Path) -> None:
    with a_lab(tmp_path, ("ada",)) as lab:
        model = script(tmp_path, "m.json", load_ms=1.0)
        measure = {"runs": 24, "sittings": 2, "apart": f"{APART_S:g}s"}
        name = lab.detach("ada", campaign(tmp_path, "sits", [model], measure=measure))
        until(lambda: [task.state for task in lab.tasks("ada", name)] == ["succeeded", "pending"], "one sat")
        note = "SELECT note FROM tasks WHERE campaign = ? AND n = 2"
        until(lambda: "waits for its 2nd sitting, until" in lab.ask("ada", note, name)[0][0], "it says so")
        observed = lab.run("ada", "explain", name, "--gate", lab.gate)
        assert "waits for its 2nd sitting, in " in observed.out, observed
        lab.kill_scheduler("ada")
        done = lab.run("ada", "watch", name, "--json")
        assert done.code == 0, done
        first, second = done.json()["results"]
        assert (first["Sitting"], second["Sitting"], second["FirstSitting"]) == (1, 2, first["JobId"])
        assert (second["WorkerId"], second["Status"]) == (first["WorkerId"], "Complete")
        (_, ended), (begun, _) = lab.ask(
            "ada", "SELECT begun, ended FROM tasks WHERE campaign = ? ORDER BY n", name
        )
        assert begun - ended >= APART_S - 1
