"""`watch` reads only what changed, and misses no change."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import CommitTo, EndAttempt, EndPending, LiveAttempt, QueuePosition, RecordGrant
from scheduler.output.campaign_tasks import NOTES_EVERY, CampaignTasks, FrontTasks
from scheduler.output.watch import render, standing_line
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from tests.scheduler.core_parts import SCHEDULER, a_task

FENCE = Fence(incarnation=1, number=1)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The scheduler's store and the watcher's."""
    with Store(tmp_path / "store.db") as writer, Store(tmp_path / "store.db") as reader:
        tasks = [a_task(n, campaign="c-one") for n in range(1, 6)]
        writer.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], tasks)
        yield writer, reader


def test_every_change_is_seen_and_alone(stores: tuple[Store, Store]) -> None:
    store, reader = stores
    rows = CampaignTasks(reader, "c-one")
    assert [row.n for row in rows.look()] == [1, 2, 3, 4, 5]
    assert rows.look() == []
    attempts = store.attempts
    steps = [
        lambda: attempts.begin([CommitTo("c-one/2", 1, "c-one/2/1", "w", "mini", 1)]),
        lambda: attempts.record_grant(RecordGrant("c-one/2", 1, "l1", FENCE, queued=True, position=3)),
        lambda: attempts.set_positions([QueuePosition("c-one/2", 1, 1, 2.0)]),
        lambda: attempts.record_grant(RecordGrant("c-one/2", 1, "l1", FENCE, queued=False)),
        lambda: attempts.set_progress([LiveAttempt("c-one/2", 1, Phase.RUN, 5, 10)]),
        lambda: attempts.end(EndAttempt("c-one/2", 1, TaskEvent.LOSE, Reason.LOST)),
        lambda: attempts.end_pending(EndPending(["c-one/2"], TaskEvent.CANCEL)),
    ]
    for step in steps:
        step()
        assert [row.n for row in rows.look()] == [2]
        assert list(rows.all) == list(store.tasks.all("c-one"))


def test_why_a_task_waits_is_seen_after_a_few_looks(stores: tuple[Store, Store]) -> None:
    store, reader = stores
    rows = CampaignTasks(reader, "c-one")
    rows.look()
    store.tasks.set_notes([("c-one/4", "no device that fits is up yet")])
    seen = []
    for _ in range(NOTES_EVERY):
        seen += rows.look()
    assert [(row.n, row.note) for row in seen] == [(4, "no device that fits is up yet")]


def test_tasks_that_are_planned_later_are_all_read(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as writer, Store(tmp_path / "store.db") as reader:
        writer.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], None)
        rows = CampaignTasks(reader, "c-one")
        assert rows.look() == []
        writer.campaigns.plan("c-one", [a_task(n, campaign="c-one") for n in (1, 2)])
        assert [row.n for row in rows.look()] == [1, 2]


def test_of_a_large_campaign_only_tasks_that_move_are_read(stores: tuple[Store, Store]) -> None:
    store, reader = stores
    store.attempts.begin([CommitTo("c-one/2", 1, "c-one/2/1", "w", "mini", 1)])
    rows = CampaignTasks(reader, "c-one", most=4)
    assert [row.n for row in rows.look()] == [2]
    assert rows.standing.counts == {TaskState.PENDING: 4, TaskState.COMMITTING: 1}
    assert standing_line("c-one", rows.standing).startswith("c-one: 5 tasks: 5 waiting; ")
    store.attempts.end_pending(EndPending(["c-one/5"], TaskEvent.CANCEL))
    assert [(row.n, row.state) for row in rows.look()] == [(5, TaskState.CANCELLED)]
    assert [row.n for row in CampaignTasks(reader, "c-one", most=5).look()] == [1, 2, 3, 4, 5]


def test_a_screen_reads_as_many_tasks_of_each_state_as_it_may_show_and_shows_the_same(
    stores: tuple[Store, Store],
) -> None:
    store, reader = stores
    store.campaigns.create(
        NewCampaign("c-two", "two", SCHEDULER, "{}"), [], [a_task(n, campaign="c-two") for n in range(1, 60)]
    )
    rows, seen = FrontTasks(reader, "c-two"), set[int]()
    steps: list[Callable[[], object]] = [
        lambda: store.attempts.begin([CommitTo("c-two/40", 1, "c-two/40/1", "w", "mini", 1)]),
        lambda: store.attempts.record_grant(RecordGrant("c-two/40", 1, "l1", FENCE, queued=False)),
        lambda: store.attempts.end_pending(EndPending(["c-two/7", "c-two/8"], TaskEvent.CANCEL)),
        lambda: store.attempts.end_pending(EndPending(["c-two/9"], TaskEvent.FAIL, reason=Reason.CRASHED)),
        lambda: store.tasks.set_notes([("c-two/1", "no device that fits is up yet")]),
    ]
    for change in steps:
        change()
        seen |= {row.n for row in rows.look(10)}
        assert rows.look(10) == []
        pictures = []
        campaign = store.campaigns.get("c-two")
        assert campaign is not None
        for tasks, standing in ((store.tasks.all("c-two"), None), (rows.all, rows.standing)):
            console = Console(file=io.StringIO(), width=100)
            console.print(render(campaign, tasks, 9.0, width=100, height=10, hint="q", standing=standing))
            pictures.append(console.file.getvalue())  # type: ignore[attr-defined]
        assert pictures[0] == pictures[1]
    assert 40 in seen
    assert len(rows.all) <= 10 * 4
