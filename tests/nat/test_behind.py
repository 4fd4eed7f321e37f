"""Devices and a scheduler behind home routers, with only gates in the open: real processes, real NATs, real multicast."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nat.homes import GATES, UP, Homes, Looker
from tests.nat.topology import Sites
from tests.real.lab import campaign, script, until

SILENT_S = 20.0
EACH = 15
TASK_MS = 1500.0


@pytest.fixture(scope="module")
def neighbours(world: Sites, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """Lena works, Leo submits. Lena is started, but not waited for."""
    made = Homes(tmp_path_factory.mktemp("lan"), world, ("lena", "leo"), lan=True)
    try:
        made.begin("lena")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def homes(world: Sites, neighbours: Homes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """Two gates that do not know each other. Ben joined through both, Rita through the first; Anna submits through the second."""
    made = Homes(tmp_path_factory.mktemp("homes"), world, ("gate-1", "gate-2", "anna", *GATES))
    try:
        made.up("gate-1", "gate-2", *GATES)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def looker(homes: Homes) -> Iterator[Looker]:
    made = Looker(homes, "anna")
    yield made
    made.close()


@pytest.fixture
def everybody_is_found(homes: Homes, looker: Looker) -> None:
    """Wait until all are found through the second gate, and answer. The first time this takes until the gates have met."""
    gate = homes.at("gate-2")
    until(
        lambda: [name for name, met in sorted(looker.look(gate).items()) if met.answers] == sorted(GATES),
        "all are found, and answer",
        every=0.5,
    )


@pytest.mark.smoke
@pytest.mark.usefixtures("everybody_is_found")
def test_two_gates_that_do_not_know_each_other_are_one_swarm_through_a_node_that_knows_both(
    homes: Homes, looker: Looker
) -> None:
    rita = looker.look(homes.at("gate-2"))["rita"]
    assert homes.at("gate-1") in " ".join(rita.addresses), "she has a reservation at the first gate"
    assert homes.at("gate-2") not in " ".join(rita.addresses), "and none at the second"


@pytest.mark.usefixtures("everybody_is_found")
def test_a_campaign_outlives_all_gates_and_what_goes_through_them_comes_back_with_them(
    homes: Homes, world: Sites, tmp_path: Path
) -> None:
    """Ben's router keeps port numbers, so he is dialled after a moment. Rita's does not, so she stays behind her gate, which is
    reported.
    """
    submitted = homes.run(
        "anna", "submit", homes.pinned(tmp_path, each=EACH, task_ms=TASK_MS),
        "--gate", homes.at("gate-2"), "--detach", "--json",
    )  # fmt: skip
    assert submitted.code == 0, submitted
    document = submitted.json()["campaign"]

    def tasks(name: str, *states: str) -> int:
        return sum(task.device == name and task.state in states for task in homes.tasks("anna", document))

    until(lambda: homes.count_in_scheduler_log('"path.direct"'), "there is a direct link with one")
    until(lambda: homes.count_in_log("rita", '"path.stays_relayed"'), "the other stays relayed")
    assert homes.count_in_scheduler_log('"path.direct"') == 1
    until(lambda: tasks("rita", "running"), "she works")

    places, done = homes.count_in_log("ben", '"reservation.made"'), tasks("ben", "succeeded")
    homes.kill("gate-2")
    world.cut("gate-1")
    threading.Event().wait(SILENT_S)
    until(lambda: homes.count_in_scheduler_log("rita: was not heard from"), "hers are known to be lost")
    assert not tasks("rita", "running")
    assert tasks("ben", "succeeded") > done, "his went on"

    world.mend("gate-1")
    homes.begin("gate-2")
    watched = homes.run("anna", "watch", document, "--json")
    assert [row["Status"] for row in watched.json()["results"]] == ["Complete"] * EACH * 2, watched
    until(
        lambda: homes.count_in_log("ben", '"reservation.made"') > places,
        "he has his reservation at the second again",
    )

    gate = world.addresses["gate-1"]
    until(lambda: homes.count_in_log("gate-2", UP["gate"]) > 1, "the second is up again")
    peers = homes.run("anna", "peers", "--gate", homes.at("gate-2"))
    assert [f"via gate {gate}:" in line for line in peers.out.splitlines() if line.startswith("rita ")] == [
        True
    ]
    status = homes.run("rita", "status")
    assert f"cannot be dialled from outside; reached through gate {gate}:" in status.out


def test_a_lan_without_any_gate_is_a_swarm(neighbours: Homes, tmp_path: Path) -> None:
    """By mDNS: neither of the two knows anything about the other beforehand."""
    until(lambda: neighbours.count_in_log("lena", "is a worker now"), "she is up")
    model = script(tmp_path, "m.json", latencies_ms=[5.0])
    done = neighbours.run("leo", "submit", campaign(tmp_path, "near", [model]), "--json")
    assert done.code == 0, done
    assert [row["Status"] for row in done.json()["results"]] == ["Complete"]
    assert neighbours.count_in_log("lena", '"run.ended"') == 1
