"""Changes of tasks are gathered in memory and committed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from scheduler.core.commands import CommitTo, EndAttempt, RecordGrant
from scheduler.store.events import check_chain
from scheduler.store.store import Store
from tests.scheduler.conftest import StorePlace, World

PEER = "worker"
FENCE = Fence(incarnation=1, number=1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def store_of(place: StorePlace, tasks: int) -> Iterator[Store]:
    """A store with one campaign of `tasks` tasks."""
    with Store(place) as store:
        World(None, None, place, place, None, None, store).submit(tasks)  # type: ignore[arg-type]
        yield store


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with store_of(place, 3) as store:
        yield store


def intent(n: int, attempt: int = 1) -> CommitTo:
    return CommitTo(f"c-one/{n}", attempt, f"c-one/{n}/{attempt}", PEER, "device", 1)


def grant(n: int) -> RecordGrant:
    return RecordGrant(f"c-one/{n}", 1, f"lease-{n}", FENCE, queued=False)


def names(store: Store) -> list[str]:
    return [event.name for event in store.events.all("c-one")]


def test_what_is_gathered_is_on_disk_once_it_is_committed(store: Store, place: Path) -> None:
    asked: list[bool] = []
    store.gather(lambda: asked.append(store.uncommitted))
    store.attempts.begin([intent(1), intent(2)])
    store.attempts.record_grant(grant(1))
    assert asked == [True]
    with Store(place) as other:
        assert {task.state for task in other.tasks.all("c-one")} == {TaskState.PENDING}
        store.commit()
        states = [task.state for task in other.tasks.all("c-one")]
        assert states == [TaskState.LEASED, TaskState.COMMITTING, TaskState.PENDING]
        assert names(other) == ["campaign.created", "task.committing", "task.committing", "task.granted"]
        assert check_chain(other.events.all("c-one"), other.events.count("c-one")) is None
    assert not store.uncommitted


def test_a_process_that_ends_before_the_commit_has_done_nothing(store: Store, place: Path) -> None:
    store.gather(lambda: None)
    store.attempts.begin([intent(1)])
    store.close()
    with Store(place) as next_one:
        assert next_one.attempts.of_task("c-one/1") == ()
        assert names(next_one) == ["campaign.created"]


def test_whoever_reads_the_same_store_finds_what_was_gathered(store: Store) -> None:
    store.gather(lambda: None)
    store.attempts.begin([intent(1)])
    row = store.tasks.get("c-one/1")
    assert row is not None
    assert row.state is TaskState.COMMITTING
    assert not store.uncommitted


def test_what_is_written_at_once_comes_after_what_was_gathered(store: Store, place: Path) -> None:
    store.gather(lambda: None)
    store.attempts.begin([intent(1)])
    store.events.add(["c-one"], "worker.set-aside", peer=PEER)
    with Store(place) as other:
        assert names(other)[1:] == ["task.committing", "worker.set-aside"]


def test_a_task_that_is_pending_again_is_read_anew(store: Store) -> None:
    store.gather(lambda: None)
    store.attempts.begin([intent(1)])
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.REFUSE))
    store.attempts.begin([intent(1, attempt=2)])
    store.commit()
    store.attempts.end(EndAttempt("c-one/1", 2, TaskEvent.REFUSE))
    store.commit()
    store.tasks.set_notes([("c-one/1", "waits")])
    store.attempts.begin([intent(1, attempt=3)])
    store.commit()
    assert [each.attempt for each in store.attempts.of_task("c-one/1")] == [1, 2, 3]


def test_a_change_that_is_not_allowed_leaves_nothing_behind(store: Store) -> None:
    store.gather(lambda: None)
    with pytest.raises(LocalProtocolError, match="attempt 2 of c-one/2 after 0"):
        store.attempts.begin([intent(1), intent(2, attempt=2)])
    assert not store.uncommitted
    assert store.attempts.all("c-one") == ()


def test_many_tasks_are_written_with_a_few_statements(store: Store) -> None:
    store.gather(lambda: None)
    tally: list[str] = []
    store.database.connection.exec_driver_sql("SELECT 1")
    driver = store.database.connection.connection.driver_connection
    assert driver is not None
    store.attempts.begin([intent(n) for n in (1, 2, 3)])
    for n in (1, 2, 3):
        store.attempts.record_grant(grant(n))
    driver.set_trace_callback(tally.append)
    store.commit()
    assert sum(each.startswith("COMMIT") for each in tally) == 1
    assert sum(each.startswith("UPDATE campaigns") for each in tally) == 1
