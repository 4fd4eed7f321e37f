"""Real processes: a campaign's scheduler is killed for good, and the campaign ends on another machine, with nothing run twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.real.lab import Lab, campaign, script, until

LONG = {"latencies_ms": [100.0], "sleep": True}
"""Two and a half seconds, with 25 runs."""
SHORT, LONGER = 2, 2


def begun(lab: Lab, folder: Path, name: str, home: str) -> str:
    """Start a campaign and kill its scheduler once some tasks are done, some run and some wait. Returns the campaign's id."""
    models = [script(folder, f"{name}-short-{n}.json", load_ms=float(n)) for n in range(SHORT)]
    models += [script(folder, f"{name}-long-{n}.json", load_ms=float(n), **LONG) for n in range(LONGER)]
    file = campaign(folder, name, models, measure={"runs": 25, "loads": 1})
    result = lab.detach(home, file)

    def midway() -> bool:
        tasks = lab.tasks(home, result)
        return sum(task.state == "succeeded" for task in tasks) >= 2 and any(task.runs for task in tasks)

    until(midway, "some tasks are done and one runs")
    lab.kill_scheduler(home)
    return result


def runs(lab: Lab, found: str) -> Counter[str]:
    """How often each task of a campaign was run, by the workers' logs."""
    lines = [line for name in ("one", "two") for line in lab.log(name).splitlines()]
    ended = [line for line in lines if '"run.ended"' in line]
    tasks = [f"{found}/{n}" for n in range(1, SHORT + LONGER + 1)]
    return Counter({task: sum(f'"{task}"' in line for line in ended) for task in tasks})


def recorded_once(lab: Lab, home: str, found: str) -> None:
    """Check that each task has succeeded with one result, and was run once."""
    tasks = lab.tasks(home, found)
    assert [task.state for task in tasks] == ["succeeded"] * (SHORT + LONGER)
    counts = lab.ask(home, "SELECT task, count(*) FROM records WHERE task LIKE ? GROUP BY task", f"{found}/%")
    assert sorted(count for _, count in counts) == [1] * (SHORT + LONGER)
    assert set(runs(lab, found).values()) == {1}, runs(lab, found)


def test_with_a_copy_of_the_key_another_machine_carries_the_campaign_on(lab: Lab, tmp_path: Path) -> None:
    result = begun(lab, tmp_path, "adopted", "ada")
    key = tmp_path / "scheduler.key"
    key.write_bytes(lab.home("ada").key("scheduler").read_bytes())
    key.chmod(0o600)
    done = lab.run(
        "ada-elsewhere", "adopt", result, "--key", key, "--models", tmp_path, "--gate", lab.gate, "--json"
    )
    assert done.code == 0, done
    assert "finished elsewhere" in done.err
    assert {row["Status"] for row in done.json()["results"]} == {"Complete"}
    recorded_once(lab, "ada-elsewhere", result)
    again = lab.run("ada", "watch", result, "--json")
    assert "another" in again.out + again.err or "elsewhere" in again.out + again.err, again


def test_with_a_token_another_scheduler_carries_the_campaign_on(lab: Lab, tmp_path: Path) -> None:
    helper = lab.peer("a-friend")
    result = begun(lab, tmp_path, "delegated", "carol")
    token = lab.run("carol", "delegate", result, "--to", helper, "--gate", lab.gate)
    assert token.code == 0, token
    observed = lab.run("carol-elsewhere", "watch", result, "--gate", lab.gate)
    assert observed.code != 0, "a home without the key sees nothing"
    taken = lab.run("a-friend", "adopt", result, "--token", token.out.strip(), "--detach")
    assert taken.code == 0, taken
    if "wait for the model" in taken.err:  # only the dead machine had the model
        done = lab.run("a-friend", "adopt", result, "--models", tmp_path, "--json")
    else:
        done = lab.run("a-friend", "watch", result, "--json")
    assert done.code == 0, done
    recorded_once(lab, "a-friend", result)


def test_what_runs_is_watched_from_a_home_that_has_only_the_key(lab: Lab, tmp_path: Path) -> None:
    models = [script(tmp_path, f"watched-{n}.json", load_ms=float(n), **LONG) for n in range(2)]
    result = lab.detach("ada", campaign(tmp_path, "watched", models, measure={"runs": 25, "loads": 1}))
    until(lambda: any(task.runs for task in lab.tasks("ada", result)), "a task runs")
    place = lab.home("ada-afar").key("scheduler")
    place.parent.mkdir(parents=True)
    place.write_bytes(lab.home("ada").key("scheduler").read_bytes())
    place.chmod(0o600)
    observed = lab.run("ada-afar", "watch", result, "--gate", lab.gate, "--json")
    assert observed.code == 0, observed
    assert "2 tasks:" in observed.err
    document = observed.json()
    assert (document["tasks"], document["finished"], document["live"]) == (2, 2, [])
    assert lab.run("ada", "watch", result, "--json").code == 0
