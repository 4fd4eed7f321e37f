"""Real processes: two schedulers of one home share a PostgreSQL server, and when one is killed the other continues its campaigns."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scheduler.run.seats import seat_identity
from scheduler.store.database import ServerLocation, server_url
from scheduler.store.seats import TERM_S
from scheduler.store.store import Store
from scheduler.trust.listed import trust_peer
from swarm.net.identity import load_or_create
from tests.real.lab import Lab, campaign, script, until

SHORT, LONG = 2, 3
SLOW = {"latencies_ms": [400.0], "sleep": True}
"""Ten seconds, with 25 runs."""


@dataclass
class Shared:
    """Two machines with the same scheduler key, store and model folder."""

    lab: Lab
    machines: tuple[str, str]
    folder: Path
    url: str
    store: Store

    def start(self, machine: str) -> None:
        """Start the machine's scheduler, which waits for campaigns."""
        self.lab.start(machine, "schedule", "--stay", "--gate", self.lab.gate)

    def submit(self, name: str) -> str:
        """Submit a campaign of short and long tasks on the first machine. Returns its id."""
        models = [script(self.folder, f"{name}-s{n}.json", load_ms=float(n)) for n in range(SHORT)]
        models += [script(self.folder, f"{name}-l{n}.json", load_ms=float(n), **SLOW) for n in range(LONG)]
        file = campaign(self.folder, name, models, measure={"runs": 25, "loads": 1})
        done = self.lab.run(
            self.machines[0],
            "submit",
            file,
            "--gate",
            self.lab.gate,
            "--json",
            "--detach",
            environment={"SARK_STORE": self.url},
        )
        assert done.code == 0, done
        return str(done.json()["campaign"])

    def runs(self, found: str) -> bool:
        """Whether a task of the campaign runs now."""
        return any(task.state == "running" for task in self.store.tasks.all(found))

    def ended(self, found: str) -> bool:
        row = self.store.campaigns.get(found)
        return row is not None and row.ended is not None

    def recorded_once(self, found: str) -> None:
        """Check that each task has succeeded with one result, and was run once."""
        tasks = self.store.tasks.all(found)
        assert [str(task.state) for task in tasks] == ["succeeded"] * (SHORT + LONG)
        rows = self.store.results.rows(found)
        assert sorted(row.task.id for row in rows if row.record) == sorted(task.id for task in tasks)
        logs = [line for name in ("one", "two") for line in self.lab.log(name).splitlines()]
        counts = Counter(
            task.id for task in tasks for line in logs if '"run.ended"' in line and f'"{task.id}"' in line
        )
        assert set(counts.values()) == {1}, counts


@pytest.fixture
def shared(lab: Lab, postgres: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shared]:
    machines = (request.param, f"{request.param}-two")
    first, second = (lab.home(name) for name in machines)
    key = load_or_create(first.key("scheduler"))
    place = second.key("scheduler")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(first.key("scheduler"), place)
    for worker in lab.workers:
        trust_peer(second, lab.worker_peer(worker), worker, now=time.time())
    first.spool.mkdir(parents=True, exist_ok=True)
    second.spool.parent.mkdir(parents=True, exist_ok=True)
    second.spool.symlink_to(first.spool)
    lab.settings = {**lab.settings, "SARK_STORE": postgres}
    try:
        with Store(ServerLocation(server_url(postgres), f"sark_{key.peer_id}")) as store:
            yield Shared(lab, machines, tmp_path, postgres, store)
    finally:
        for machine in machines:
            if machine in lab.running:
                lab.kill(machine)
        lab.settings = {name: value for name, value in lab.settings.items() if name != "SARK_STORE"}


@pytest.mark.parametrize("shared", ["bob"], indirect=True)
def test_two_schedulers_share_the_campaigns_and_one_carries_on_when_the_other_is_killed(
    shared: Shared,
) -> None:
    lab, store = shared.lab, shared.store
    for machine in shared.machines:
        shared.start(machine)
    until(lambda: len(store.seats.all()) == 2, "both have a seat")
    campaigns = [shared.submit(f"shared-{n}") for n in range(2)]
    until(lambda: sorted(row.campaigns for row in store.seats.all()) == [1, 1], "each leads one")
    until(lambda: all(shared.runs(found) for found in campaigns), "a task of each runs")
    seats = {row.place: row.seat for row in store.seats.all()}
    victim, survivor = shared.machines
    lab.kill(victim)
    killed = time.monotonic()
    other = next(seat for place, seat in seats.items() if survivor in place.split("/"))

    def carried_on() -> bool:
        return all(row.campaigns == 0 for row in store.seats.all() if row.seat != other)

    until(carried_on, "the other leads both", within=4 * TERM_S)
    took = time.monotonic() - killed
    print(f"led by the other {took:.1f} s after the kill")  # noqa: T201
    until(lambda: all(map(shared.ended, campaigns)), "both have ended")
    for found in campaigns:
        shared.recorded_once(found)
    peer = seat_identity(load_or_create(lab.home(victim).key("scheduler")), 1).peer_id
    assert {row.peer for row in store.seats.all()} == {lab.peer(victim), peer}


@pytest.mark.parametrize("shared", ["carol"], indirect=True)
def test_a_scheduler_that_was_frozen_meanwhile_writes_nothing_and_takes_part_again(shared: Shared) -> None:
    lab, store = shared.lab, shared.store
    for machine in shared.machines:
        shared.start(machine)
    until(lambda: len(store.seats.all()) == 2, "both have a seat")
    found = shared.submit("frozen")
    until(lambda: shared.runs(found), "a task runs")
    leader = next(row for row in store.seats.all() if row.campaigns)
    frozen = next(name for name in shared.machines if name in Path(leader.place.split(":")[1]).parts)
    os.kill(lab.running[frozen].pid, signal.SIGSTOP)
    try:
        until(
            lambda: all(bool(row.campaigns) == (row.seat != leader.seat) for row in store.seats.all()),
            "the other leads it",
        )
    finally:
        os.kill(lab.running[frozen].pid, signal.SIGCONT)
    ended = lab.running[frozen].poll
    until(lambda: '"scheduler.superseded"' in lab.log(frozen) or ended() is not None, "it sees that")
    if (
        ended() is not None
    ):  # it was frozen inside a transaction, and the server cut its connection; a supervisor restarts it
        assert "the server does not answer" in lab.log(frozen)
        shared.start(frozen)
    until(lambda: shared.ended(found), "it has ended")
    shared.recorded_once(found)
    until(lambda: all(row.left_s > 0 for row in store.seats.all()), "both take part again")
