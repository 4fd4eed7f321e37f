"""What a restart restores from the store."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.record import DeviceFacts, Record, RunFacts, Timing, pack_samples, record_body
from protocol.words import RunOutcome
from scheduler.core.commands import CommitTo, RecordGrant
from scheduler.run.restore import entries_of, owed_stops
from scheduler.store.database import Location
from scheduler.store.results import ResultRepository
from scheduler.store.rows import NewCampaign, ResultRow
from scheduler.store.store import Store
from tests.scheduler.core_parts import PEERS, SCHEDULER, SHA, UNIT, a_task


class Counting(ResultRepository):
    """Counts how often all results are read."""

    reads = 0

    def rows(
        self, campaign: str, low: int = 0, high: int | None = None, *, first_ended: int | None = None
    ) -> tuple[ResultRow, ...]:
        self.reads += 1
        return super().rows(campaign, low, high, first_ended=first_ended)


@pytest.fixture
def store(place: Location) -> Iterator[Store]:
    with Store(place) as opened:
        opened.results = Counting(opened.database)
        yield opened


def succeed(store: Store, n: int, device: str) -> None:
    task, fence = f"c-one/{n}", Fence(incarnation=1, number=n)
    store.attempts.begin([CommitTo(task, 1, f"key-{n}", PEERS[0], "w", 1)])
    store.attempts.record_grant(RecordGrant(task, 1, lease=f"l-{n}", fence=fence, queued=False))
    record = Record(
        campaign="c-one",
        task=task,
        attempt=1,
        fence=fence,
        worker=PEERS[0],
        task_sha256=SHA,
        model_sha256=SHA,
        outcome=RunOutcome.COMPLETE,
        device=DeviceFacts(device=device, name="w"),
        ran=RunFacts(unit=UNIT, driver="x", runtime="r"),
        timings=(Timing(samples=pack_samples([1]), warmup=pack_samples([]), cpu_s=0, wall_s=0),),
    )
    stored = store.attempts.record_result(
        task=task,
        attempt=1,
        fence=fence,
        worker=PEERS[0],
        sha256=SHA,
        body=record_body(record),
        signature=bytes(64),
        event=TaskEvent.SUCCEED,
    )
    assert stored.stale is None


def test_where_replicas_ran_is_read_at_once_however_many_there_are(store: Store) -> None:
    tasks = [a_task(n, replica=1 + (n - 1) % 2) for n in range(1, 9)]
    store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], tasks)
    for n in range(1, 7):
        succeed(store, n, f"device-{n}")
    entries = entries_of(store, "c-one", store.tasks.bodies("c-one"))
    assert [entry.ran_on for entry in entries] == [*(f"device-{n}" for n in range(1, 7)), "", ""]
    assert isinstance(store.results, Counting)
    assert store.results.reads == 1


def test_since_when_a_task_has_ended_is_told_by_the_wall_clock_and_never_less_than_nothing(
    store: Store,
) -> None:
    store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], [a_task(1), a_task(2)])
    now = [5000.0]
    store.database.wall = lambda: now[0]
    succeed(store, 1, "device-1")
    bodies = store.tasks.bodies("c-one")
    for now[0], over_s in ((5600.0, 600.0), (4000.0, 0.0)):
        first, second = entries_of(store, "c-one", bodies)
        assert (first.over_s, first.worker, second.over_s) == (over_s, PEERS[0], 0.0)


def test_the_epochs_of_many_owed_stops_are_read_once_for_each_campaign() -> None:
    read: list[str] = []

    def campaign(name: str) -> object:
        read.append(name)
        return SimpleNamespace(epoch=7) if name == "c-one" else None

    fence = Fence(incarnation=1, number=1)
    rows = [
        SimpleNamespace(task=task, attempt=1, worker=PEERS[0], lease="l", fence=fence, ended=50.0)
        for task in ("c-one/1", "c-one/2", "c-gone/1")
    ]
    store: Any = SimpleNamespace(
        attempts=SimpleNamespace(unconfirmed=lambda: rows), campaigns=SimpleNamespace(get=campaign)
    )
    stops = owed_stops(store, 1000.0, 40.0)
    assert [stop.held.epoch for stop in stops if stop.held is not None] == [7, 7, None]
    assert {stop.until for stop in stops} == {1010.0}
    assert read == ["c-one", "c-gone"]
