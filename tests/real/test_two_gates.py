"""Workers that joined through different gates are one swarm: either gate finds all of them, and one campaign runs on all of them."""

from __future__ import annotations

from pathlib import Path

from tests.real.apart import can_be_apart
from tests.real.lab import TIMEOUT_S, Lab, marked, until
from tests.real.two_gates import (
    Watch,
    await_found,
    one_for_each,
    other_gate,
    shares,
    start_two_gates,
    start_workers,
    worker_ids,
)

WORKERS = 8


def answering(lab: Lab, gate: str) -> set[str]:
    """The peers that `sark-node peers` finds through that gate, and that answer."""
    listed = lab.run("ada", "peers", "--gate", gate, "--json").json()["peers"]
    return {each["peer"] for each in listed if each["unreachable"] is None}


def test_eight_workers_of_two_gates_that_know_nothing_of_each_other_are_all_found_and_all_work(
    tmp_path: Path,
) -> None:
    names = [f"w{number}" for number in range(WORKERS)]
    lab = Lab(tmp_path, ("ada",), workers=names, apart=can_be_apart())
    try:
        start_two_gates(lab)
        start_workers(lab, names)
        by_one, by_other = Watch(lab.gate), Watch(other_gate(lab))
        with by_one.running(), by_other.running():
            for watch in (by_one, by_other):
                await_found(watch, WORKERS, within=300)
        assert set(by_one.first_seen) == set(by_other.first_seen) == set(worker_ids(lab))
        for gate in (lab.gate, other_gate(lab)):
            until(lambda gate=gate: answering(lab, gate) == set(by_one.first_seen), "peers shows all")  # type: ignore[misc]
        table = tmp_path / "found.csv"
        everybody = one_for_each(tmp_path, sorted(by_one.first_seen), 0.5)
        done = lab.submit("ada", everybody, "--csv", table, within=TIMEOUT_S)
        assert done.code == 0, done
        assert shares(table) == dict.fromkeys(by_one.first_seen, 1)
        lab.stop(*names)
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing is left")
