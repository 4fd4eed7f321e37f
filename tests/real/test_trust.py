"""A submitter and devices that serve it: they get nothing until the submitter trusts them, and nothing more once it no longer does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.lab import Lab, campaign, script


@pytest.fixture
def wary(lab: Lab) -> Iterator[Lab]:
    """A lab whose workers serve ada, who does not trust any of them yet."""
    for worker in lab.workers:
        assert lab.run("ada", "trust", lab.worker_peer(worker), "--forget").code == 0
    yield lab
    for worker in lab.workers:
        lab.trust(worker)


def test_devices_that_serve_a_submitter_get_nothing_until_it_trusts_them(wary: Lab, tmp_path: Path) -> None:
    file = campaign(tmp_path, "wary", [script(tmp_path, "m.json")])
    one = wary.worker_peer("one")
    plan = wary.run("ada", "plan", file, "--gate", wary.gate)
    assert plan.code == 1, plan
    assert f"one serves you, not trusted yet: sark-node trust {one}" in plan.out
    peers = wary.run("ada", "peers", "--gate", wary.gate)
    assert f"one serves you, not trusted yet: sark-node trust {one}" in peers.out
    done = wary.submit("ada", file, "--wait", "1s")
    assert done.code == 3, done
    (row,) = done.json()["results"]
    assert (row["Reason"], row["Trust"]) == ("not-trusted", "")
    assert f"sark-node trust {one}" in row["Detail"]
    assert row["JobId"] not in wary.log("one") + wary.log("two")

    assert wary.run("ada", "trust", one, "--name", "my laptop").code == 0
    found = json.loads(wary.run("ada", "peers", "--json", "--gate", wary.gate).out)["peers"]
    assert {each["name"]: (each["trust"], each["serves"]) for each in found} == {
        "one": ("listed", False),
        "two": ("stranger", True),
    }
    done = wary.submit("ada", file)
    assert done.code == 0, done
    (row,) = done.json()["results"]
    assert (row["Status"], row["Trust"], row["WorkerId"]) == ("Complete", "listed", one)
    assert wary.run("ada", "trust").out.count("my laptop") == 1


def test_strangers_are_not_told_of_a_campaigns_models_by_plan(wary: Lab, tmp_path: Path) -> None:
    """A stranger that allows nobody learns nothing either: bob is no friend of a home whose requests fail."""
    file = campaign(tmp_path, "nosy", [script(tmp_path, "m.json")])
    plan = wary.run("dora", "plan", file, "--gate", wary.gate)
    assert plan.code == 1, plan
    assert "serves you" not in plan.out
    assert "1 stranger fits too" in plan.out  # the two workers of this machine claim one device id
    assert "probe" not in wary.log("one")


def test_a_campaign_that_names_a_key_needs_no_list(wary: Lab, tmp_path: Path) -> None:
    two = wary.worker_peer("two")
    file = campaign(tmp_path, "named", [script(tmp_path, "m.json")], devices={"trust": [two]})
    (row,) = wary.submit("ada", file).json()["results"]
    assert (row["Status"], row["Trust"], row["WorkerId"]) == ("Complete", "listed", two)


def test_a_damaged_list_is_an_error_and_not_an_empty_one(wary: Lab, tmp_path: Path) -> None:
    path = wary.home("ada").folder("scheduler") / "trust" / "keys.json"
    before = path.read_bytes()
    path.write_bytes(before[:20])
    try:
        done = wary.run(
            "ada", "plan", campaign(tmp_path, "d", [script(tmp_path, "m.json")]), "--gate", wary.gate
        )
    finally:
        path.write_bytes(before)
    assert done.code == 6, done
    assert "is damaged" in done.err
    assert "Traceback" not in done.err
