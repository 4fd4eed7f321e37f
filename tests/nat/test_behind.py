"""Devices and a scheduler behind home routers, with nothing but a gate in the open: real processes, real NATs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nat.topology import Sites
from tests.real.apart import can_be_apart
from tests.real.lab import Done, Lab, campaign, script, until

EVERYWHERE = ("--listen", "/ip4/0.0.0.0/tcp/0")
WORKERS = ("ben", "one", "two")
SILENT_S = 20.0
DIRECT = "path.direct"


@pytest.fixture(scope="module")
def lab(world: Sites, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Anna submits from behind one router; Ben and two on one LAN work behind others."""
    made = Lab(
        tmp_path_factory.mktemp("lab"),
        ("anna",),
        workers=WORKERS,
        more=dict.fromkeys(WORKERS, EVERYWHERE),
        places={"gate": world.inside("gate-1"), **{name: world.inside(name) for name in ("anna", *WORKERS)}},
        address=world.addresses["gate-1"],
        apart=can_be_apart(),
    )
    try:
        made.mend()
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def everybody_is_found(lab: Lab) -> None:
    lab.mend()
    until(lambda: len(found(lab)) == len(WORKERS), "all are found, and answer", within=60, every=1)


def found(lab: Lab) -> list[dict[str, dict[str, object]]]:
    """Devices that Anna finds and reaches now."""
    done = lab.run("anna", "peers", "--gate", lab.gate, "--json")
    return [peer for peer in done.json()["peers"] if peer["path"]] if done.code == 0 else []


def far(tmp_path: Path, *, tasks: int, task_ms: float) -> Path:
    """A campaign of so many tasks, each about so long."""
    models = [
        script(tmp_path, f"m{n}.json", latencies_ms=[task_ms / 5 + n / 100], sleep=True) for n in range(tasks)
    ]
    return campaign(tmp_path, "far", models)


def runs(lab: Lab, found: str) -> bool:
    return any(task.runs for task in lab.tasks("anna", found))


def ended(lab: Lab, found: str) -> Done:
    """Its results, once it has ended."""
    done = lab.run("anna", "watch", found, "--json", within=120)
    assert done.code == 0, done
    return done


def complete(done: Done, tasks: int) -> bool:
    return [row["Status"] for row in done.json()["results"]] == ["Complete"] * tasks


def test_a_campaign_runs_on_devices_that_nobody_can_dial(lab: Lab, tmp_path: Path) -> None:
    here = found(lab)
    assert [(peer["path"]["direct"], len(peer["addresses"])) for peer in here] == [(False, 2)] * 3, here
    assert complete(lab.submit("anna", far(tmp_path, tasks=6, task_ms=10)), 6)


def test_who_met_at_the_gate_goes_on_without_it(lab: Lab, tmp_path: Path) -> None:
    log = lab.folder / "anna" / "logs" / "scheduler.log"

    def direct() -> int:
        return len({line for line in log.read_text(errors="replace").splitlines() if f'"{DIRECT}"' in line})

    before = direct() if log.exists() else 0
    running = lab.detach("anna", far(tmp_path, tasks=24, task_ms=2000))
    until(lambda: direct() - before >= len(WORKERS), "links to all three are direct", within=60)
    until(lambda: runs(lab, running), "a task runs")
    lab.kill("gate")
    assert complete(ended(lab, running), 24)


def test_a_gate_that_is_killed_and_started_again_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    running = lab.detach("anna", far(tmp_path, tasks=12, task_ms=1500))
    until(lambda: runs(lab, running), "a task runs")
    before = {name: lab.log(name).count('"place.taken"') for name in WORKERS}
    lab.kill("gate")
    lab.start_gate()
    until(
        lambda: all(lab.log(name).count('"place.taken"') > count for name, count in before.items()),
        "all have a place at the gate again",
        within=60,
    )
    assert complete(ended(lab, running), 12)


def test_twenty_silent_seconds_of_the_gate_lose_nothing(lab: Lab, world: Sites, tmp_path: Path) -> None:
    running = lab.detach("anna", far(tmp_path, tasks=12, task_ms=1500))
    until(lambda: runs(lab, running), "a task runs")
    world.cut("gate-1")
    threading.Event().wait(SILENT_S)
    world.mend("gate-1")
    assert complete(ended(lab, running), 12)
