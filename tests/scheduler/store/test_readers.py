"""Rows one page at a time: with their replicas and sittings, and without the rest of the campaign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    record_body,
)
from protocol.values.sitting import Sitting
from protocol.values.task import Task
from protocol.words import RunOutcome
from scheduler.core.commands import CommitTo, RecordGrant
from scheduler.store.readers import MAX_REPLICAS, RowReader, campaign_rows, siblings
from scheduler.store.rows import NewCampaign, ResultRow
from scheduler.store.store import Store
from tests.scheduler.core_parts import PEERS, SCHEDULER, SHA, UNIT, a_task

CELL = {1: (1, 2, 3), 4: (4, 6, 8), 5: (5, 7, 9), 11: (11, 13), 12: (12, 14)}
"""First sitting → the sittings of its cell: with a step of 1; on two devices; of two replicas."""


def tasks() -> list[Task]:
    of = {n: (first, cell) for first, cell in CELL.items() for n in cell}
    made = []
    for n in range(1, 15):
        first, cell = of.get(n, (n, (n,)))
        sitting = Sitting(
            number=cell.index(n) + 1, of=max(len(cell), 2), step=1 if first == 1 else 2, apart_s=60
        )
        replica = None if n < 11 else 1 + (n - 11) % 2
        made.append(
            a_task(n, replica=replica).model_copy(update={"sitting": sitting if len(cell) > 1 else None})
        )
    return made


def finish(store: Store, task: Task, device: int) -> None:
    number = int(task.task.rpartition("/")[2])
    fence = Fence(incarnation=1, number=number)
    times = [1_000_000 + 1000 * number + launch for launch in range(6)]
    body = record_body(
        Record(
            campaign=task.campaign,
            task=task.task,
            attempt=1,
            fence=fence,
            worker=PEERS[device],
            task_sha256="ab" * 32,
            model_sha256=SHA,
            outcome=RunOutcome.COMPLETE,
            device=DeviceFacts(device=f"id-{device}", name=f"device {device}"),
            ran=RunFacts(unit=UNIT, driver="x", runtime="r 1", agrees=True),
            loads=(LoadSample(ns=1),),
            timings=tuple(
                Timing(samples=pack_samples([ns] * 3), warmup=pack_samples([1]), cpu_s=0, wall_s=1)
                for ns in times
            ),
        )
    )
    store.attempts.begin([CommitTo(task.task, 1, task.task, PEERS[device], "d", 1)])
    store.attempts.record_grant(RecordGrant(task.task, 1, lease="l", fence=fence, queued=False))
    store.attempts.record_result(
        task=task.task, attempt=1, fence=fence, worker=PEERS[device], sha256=SHA, body=body,
        signature=bytes(64), event=TaskEvent.SUCCEED,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.db", wall=lambda: 1000.0) as opened:
        made = tasks()
        opened.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], made)
        first = {n: first for first, cell in CELL.items() for n in cell}
        for n, task in enumerate(made, 1):
            if n != 3:  # the third sitting of its cell is not there yet
                finish(opened, task, device=first.get(n, n) % 2)
        yield opened


@pytest.mark.parametrize("pages", [1, 2, 5, 14])
def test_rows_of_pages_are_those_of_the_whole_campaign(store: Store, pages: int) -> None:
    whole = campaign_rows(store.results.rows("c-one"))
    assert [row.sittings for row in whole] == [2, 2, *[3] * 6, None, *[2] * 4]
    assert [row.agreement for row in whole[-4:]] == ["agrees"] * 4
    assert list(RowReader(store, "c-one").each_row()) == whole
    assert [result.row for result in RowReader(store, "c-one").each_raw()] == whole
    reader = RowReader(store, "c-one")
    assert [row for low in range(1, 15, pages) for row in reader.rows(low, low + pages - 1)] == whole
    assert [row for n in range(1, 15) for row in RowReader(store, "c-one").rows(n, n)] == whole
    assert [raw.row for raw in reader.raw(1, 14)] == whole


def test_of_other_sittings_each_is_read_once_and_of_no_other_cell(store: Store) -> None:
    asked: list[int] = []

    def numbered(campaign: str, numbers: Sequence[int]) -> tuple[ResultRow, ...]:
        asked.extend(numbers)
        return store.results.numbered(campaign, numbers)

    def rows(campaign: str, low: int, high: int) -> tuple[ResultRow, ...]:
        assert high - low <= 2 * MAX_REPLICAS
        return store.results.rows(campaign, low, high)

    watched = SimpleNamespace(results=SimpleNamespace(rows=rows, numbered=numbered))
    reader = RowReader(cast("Any", watched), "c-one")
    reader.rows(6, 6)
    assert asked == [4, 8]
    for n in range(1, 11):
        reader.rows(n, n)
    assert all(asked.count(n) == 1 for n in asked if n != 3), "what has not ended is asked for again"


def test_a_tasks_file_has_its_cell_and_its_replicas(store: Store) -> None:
    def alike(n: int) -> list[int]:
        (stored,) = store.results.rows("c-one", n, n)
        return [item.task.n for item in siblings(store, stored)]

    assert [alike(n) for n in (1, 6, 10, 13)] == [[1, 2, 3], [4, 6, 8], [10], [11, 13, 14]]
