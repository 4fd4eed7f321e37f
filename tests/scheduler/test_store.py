"""The store: one transaction for each function, nothing lost by kill -9, a full disk or a second writer."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite

from protocol.attempt import TaskEvent, TaskState
from protocol.errors import LocalProtocolError, ResourceError
from protocol.lease import Fence
from protocol.requirement import Requirement
from protocol.task import Measure, Model, Task, Timeouts, read_task, task_body
from protocol.words import Phase, Reason
from scheduler import migrations, tables
from scheduler.chain import check_chain
from scheduler.store import Store
from scheduler.stored import AttemptState, Intent, Live, NewCampaign, NewModel, Outcome, Place
from swarm.identity import Identity

SCHEDULER = Identity.from_seed("scheduler").peer_id
WORKER = Identity.from_seed("worker").peer_id
FENCE = Fence(incarnation=1, number=7)


def a_task(campaign: str, n: int) -> Task:
    return Task(
        campaign=campaign,
        task=f"{campaign}/{n}",
        scheduler=SCHEDULER,
        model=Model(name="tiny.onnx", sha256="ab" * 32, size=100),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def fill(store: Store, campaign: str = "c-one", tasks: int = 3) -> None:
    store.create_campaign(
        NewCampaign(id=campaign, name="one", scheduler=SCHEDULER, spec="{}"),
        [NewModel("tiny.onnx", "ab" * 32, 100)],
        [a_task(campaign, n) for n in range(1, tasks + 1)],
    )


def begin(store: Store, task: str = "c-one/1", attempt: int = 1, worker: str = WORKER) -> None:
    store.begin_attempts([Intent(task, attempt, f"{task}/{attempt}", worker, "mini-7", 1)])


def grant(store: Store, task: str = "c-one/1", attempt: int = 1, fence: Fence = FENCE) -> None:
    store.record_grant(task, attempt, lease=f"l{fence.number}", fence=fence, queued=False)


def result(
    store: Store,
    *,
    attempt: int = 1,
    fence: Fence = FENCE,
    event: TaskEvent = TaskEvent.SUCCEED,
    sha256: str = "cd" * 32,
    reason: Reason | None = None,
) -> Reason | str | None:
    kept = store.record_result(
        task="c-one/1",
        attempt=attempt,
        fence=fence,
        worker=WORKER,
        sha256=sha256,
        body=b"record",
        signature=b"s" * 64,
        event=event,
        reason=reason,
    )
    return "again" if kept.again else kept.stale


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store.db", wall=lambda: 1000.0)
    fill(made)
    return made


def test_a_campaign_comes_back_as_it_was_stored(store: Store) -> None:
    (row,) = store.unfinished_campaigns()
    assert (row.id, row.planned, row.epoch, row.created, row.outcome) == ("c-one", True, 0, 1000.0, None)
    assert [task.id for task in store.tasks("c-one")] == ["c-one/1", "c-one/2", "c-one/3"]
    assert read_task(store.bodies("c-one")["c-one/2"]) == a_task("c-one", 2)
    assert store.models("c-one") == (NewModel("tiny.onnx", "ab" * 32, 100),)
    assert store.needed_models() == {"ab" * 32}


def test_a_campaign_is_found_by_a_prefix_of_its_id_or_by_its_name(store: Store) -> None:
    fill(store, "c-other")
    assert [row.id for row in store.find_campaign("c-ot")] == ["c-other"]
    assert {row.id for row in store.find_campaign("one")} == {"c-one", "c-other"}
    assert [row.id for row in store.find_campaign("c-one")] == ["c-one"]
    assert store.find_campaign("%") == ()


def test_a_campaign_is_stored_whole_or_not_at_all(store: Store) -> None:
    twice = [a_task("c-two", 1), a_task("c-two", 1)]
    with pytest.raises(Exception, match="UNIQUE"):
        store.create_campaign(NewCampaign("c-two", "two", SCHEDULER, "{}"), [], twice)
    assert store.campaign("c-two") is None


def test_a_campaign_without_tasks_is_planned_once(store: Store) -> None:
    store.create_campaign(NewCampaign("c-late", "late", SCHEDULER, "{}"), [], None)
    late = store.campaign("c-late")
    assert late is not None
    assert not late.planned
    store.plan_campaign("c-late", [a_task("c-late", 1)])
    store.plan_campaign("c-late", [a_task("c-late", 1), a_task("c-late", 2)])
    assert len(store.tasks("c-late")) == 1


def test_a_task_goes_its_way_and_every_step_is_an_event_without_gaps(store: Store) -> None:
    begin(store)
    grant(store)
    store.set_progress([Live("c-one/1", 1, Phase.RUN, 5, 10, 1.5)])
    running = store.task("c-one/1")
    assert running is not None
    assert (running.state, running.phase, running.done, running.fence) == (
        TaskState.RUNNING,
        Phase.RUN,
        5,
        FENCE,
    )
    assert result(store) is None
    done = store.task("c-one/1")
    assert done is not None
    assert done.state is TaskState.SUCCEEDED
    (attempt,) = store.attempts("c-one")
    assert (attempt.state, attempt.worker, attempt.lease) == (AttemptState.SUCCEEDED, WORKER, "l7")
    events = store.events_since("c-one")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.name for event in events] == [
        "campaign.created",
        "task.committing",
        "task.granted",
        "task.succeeded",
    ]
    assert [event.name for event in store.events_since("c-one", 3)] == ["task.succeeded"]
    row = store.rows("c-one")[0]
    assert (row.record, row.worker, row.attempt) == (b"record", WORKER, 1)
    assert store.rows("c-one")[1].record is None


def test_the_same_result_twice_is_recorded_once_and_answered_the_same(store: Store) -> None:
    begin(store)
    grant(store)
    assert result(store) is None
    assert result(store) == "again"
    assert result(store, sha256="ef" * 32) is Reason.FENCED
    assert [event.name for event in store.events_since("c-one")].count("task.succeeded") == 1


def test_a_result_under_an_older_fence_or_attempt_changes_nothing(store: Store) -> None:
    begin(store)
    grant(store)
    store.end_attempt("c-one/1", 1, TaskEvent.LOSE, reason=Reason.LOST)
    assert result(store) is Reason.FENCED
    begin(store, attempt=2)
    assert result(store) is Reason.FENCED
    grant(store, attempt=2, fence=Fence(incarnation=1, number=9))
    assert result(store) is Reason.FENCED
    assert result(store, attempt=2) is Reason.FENCED
    row = store.task("c-one/1")
    assert row is not None
    assert (row.state, row.attempt, row.tries) == (TaskState.LEASED, 2, 1)


def test_a_failed_attempt_keeps_its_record_and_does_not_decide(store: Store) -> None:
    begin(store)
    grant(store)
    assert result(store, event=TaskEvent.RETRY, reason=Reason.CRASHED) is None
    begin(store, attempt=2)
    grant(store, attempt=2, fence=Fence(incarnation=1, number=8))
    assert result(store, attempt=2, fence=Fence(incarnation=1, number=8)) is None
    assert store.rows("c-one")[0].attempt == 2
    assert [row.state for row in store.attempts("c-one")] == [AttemptState.FAILED, AttemptState.SUCCEEDED]


def test_what_the_table_does_not_allow_changes_nothing(store: Store) -> None:
    begin(store)
    before = store.events_since("c-one")
    with pytest.raises(LocalProtocolError):
        begin(store, attempt=2)
    with pytest.raises(LocalProtocolError):
        store.begin_attempts([Intent("c-one/2", 5, "k", WORKER, "d", 1)])
    with pytest.raises(LocalProtocolError):
        store.record_grant("c-one/1", 4, lease="l", fence=FENCE, queued=True)
    with pytest.raises(LocalProtocolError):
        store.end_campaign("c-one")
    assert store.events_since("c-one") == before


def test_progress_of_an_attempt_that_is_over_is_passed_over(store: Store) -> None:
    begin(store)
    grant(store)
    store.end_attempt("c-one/1", 1, TaskEvent.LOSE, reason=Reason.LOST)
    store.set_progress([Live("c-one/1", 1, Phase.RUN, 5)])
    row = store.task("c-one/1")
    assert row is not None
    assert (row.state, row.phase) == (TaskState.PENDING, None)


def test_a_cancel_is_asked_for_by_campaign_or_by_task(store: Store) -> None:
    assert store.request_cancel("c-one/2") == 1
    assert store.cancel_requests() == ("c-one/2",)
    assert store.request_cancel("c-one") == 3
    store.end_pending(["c-one/1", "c-one/2", "c-one/3"], TaskEvent.CANCEL, reason=Reason.CANCELLED)
    assert store.cancel_requests() == ()
    assert store.end_campaign("c-one") is Outcome.CANCELLED
    assert store.unfinished_campaigns() == ()
    assert store.request_cancel("c-one") == 0
    assert store.request_cancel("c-nobody") == 0


def test_a_result_for_who_carries_the_campaign_on_is_called_that_for_its_worker_keeps_it_then(
    store: Store,
) -> None:
    begin(store)
    grant(store)
    store.end_attempt("c-one/1", 1, TaskEvent.CANCEL, reason=Reason.ADOPTED)
    store.end_pending(["c-one/2"], TaskEvent.CANCEL, reason=Reason.CANCELLED)
    for task, why in (("c-one/1", Reason.ADOPTED), ("c-one/2", Reason.CANCELLED)):
        assert store.known_result(task=task, attempt=1, worker=WORKER, sha256="cd" * 32).stale is why
    assert result(store) is Reason.ADOPTED


def test_the_outcome_is_failed_as_soon_as_one_task_failed(store: Store) -> None:
    store.end_pending(["c-one/1"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS, detail="no device fits")
    store.end_pending(["c-one/2", "c-one/3"], TaskEvent.CANCEL)
    assert store.end_campaign("c-one") is Outcome.FAILED
    (summary,) = store.summaries()
    assert summary.counts == {TaskState.FAILED: 1, TaskState.CANCELLED: 2}
    assert summary.tasks == 3


def test_epochs_rise(store: Store) -> None:
    assert [store.next_epoch("c-one"), store.next_epoch("c-one")] == [1, 2]


def test_another_process_is_noticed_and_we_ourselves_are_not(store: Store) -> None:
    first = store.changed_by_others()
    begin(store)
    assert store.changed_by_others() == first
    with Store(store.path) as other:
        other.request_cancel("c-one")
    assert store.changed_by_others() != first


def test_a_full_disk_is_one_clear_line_and_nothing_is_lost(store: Store) -> None:
    pages = store._connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    store._connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceError, match="the disk is full"):
        fill(store, "c-big", tasks=500)
    assert store.campaign("c-big") is None
    assert len(store.tasks("c-one")) == 3
    store._connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    fill(store, "c-big", tasks=500)
    assert len(store.tasks("c-big")) == 500


def test_a_locked_store_is_one_clear_line(store: Store) -> None:
    with Store(store.path) as other:
        store._connection.exec_driver_sql("PRAGMA busy_timeout = 10")
        with other._writing(), pytest.raises(ResourceError, match="locked"):
            store.request_cancel("c-one")
    assert store.request_cancel("c-one") == 3


def test_junk_a_damaged_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database at all" * 400)
    with pytest.raises(ResourceError, match="not a store"):
        Store(junk)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="cannot be opened"):
        Store(tmp_path / "folder")


def test_a_store_of_a_newer_version_is_left_alone(store: Store) -> None:
    store._connection.exec_driver_sql(f"PRAGMA user_version = {len(tables.MIGRATIONS) + 1}")
    store.close()
    before = store.path.read_bytes()
    with pytest.raises(ResourceError, match="newer sark-node"):
        Store(store.path)
    assert store.path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_file_as_it_was(store: Store) -> None:
    def broken(connection: object) -> None:
        store._connection.exec_driver_sql("CREATE TABLE half (x)")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"), store._writing() as c:
        tables.migrate(c, store.path, known=[*tables.MIGRATIONS, broken])
    names = store._connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
    assert "half" not in names
    assert store._connection.exec_driver_sql("PRAGMA user_version").scalar_one() == len(tables.MIGRATIONS)


WRITER = """
import sys
from pathlib import Path
from protocol.attempt import TaskEvent
from scheduler.store import Store
store = Store(Path(sys.argv[1]))
store.end_pending(["c-one/1"], TaskEvent.FAIL, detail="on disk")
with store._writing() as c:
    store._event(c, "c-one", "half.done", None)
    c.exec_driver_sql("UPDATE tasks SET state = 'failed'")
    print("half way", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_in_the_middle_of_a_transaction_leaves_all_of_it_or_nothing(store: Store) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half way\n"
        os.kill(child.pid, signal.SIGKILL)
    states = [task.state for task in store.tasks("c-one")]
    assert states == [TaskState.FAILED, TaskState.PENDING, TaskState.PENDING]
    assert [event.name for event in store.events_since("c-one")] == ["campaign.created", "task.failed"]
    assert store.request_cancel("c-one") == 2


EVENTS = """
import sys
from pathlib import Path
from scheduler.store import Store
store = Store(Path(sys.argv[1]))
for _ in range(40):
    store.next_epoch("c-one")
"""


def test_two_processes_write_side_by_side_and_no_event_is_lost(store: Store) -> None:
    children = [subprocess.Popen([sys.executable, "-c", EVENTS, str(store.path)]) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    row = store.campaign("c-one")
    assert row is not None
    assert row.epoch == 80
    assert [event.seq for event in store.events_since("c-one")] == list(range(1, 82))


def first_form(path: Path) -> sqlite3.Connection:
    """A store as the first release made it, with a campaign on its way."""
    made = sqlite3.connect(path)
    made.executescript(migrations.FIRST + "PRAGMA user_version = 1;")
    made.execute(
        "INSERT INTO campaigns VALUES ('c-old', 'old', ?, '{}', 3, 5.0, 60.0, NULL, 50, 2, 1, 0, 900.25, NULL, NULL, '', 3)",
        (SCHEDULER,),
    )
    made.execute("INSERT INTO models VALUES ('c-old', 'tiny.onnx', ?, 100, '')", ("ab" * 32,))
    made.execute(
        "INSERT INTO tasks (id, campaign, n, body, model, sha256, unit, state, attempt, tries, worker, device, lease, incarnation,"
        " number, detail, cancel, done, note) VALUES ('c-old/1', 'c-old', 1, ?, 'tiny.onnx', ?, 'CPU (ONNX)', 'leased', 1, 0, ?,"
        " 'mini-7', 'l7', 1, 7, '', 0, 0, 'a note')",
        (task_body(a_task("c-old", 1)), "ab" * 32, WORKER),
    )
    made.execute(
        "INSERT INTO attempts VALUES ('c-old/1', 1, 'k', ?, 'mini-7', 2, 'granted', 'l7', 1, 7, NULL, '', 901.5, NULL)",
        (WORKER,),
    )
    made.execute(
        "INSERT INTO events VALUES ('c-old', 1, 900.25, 'campaign.created', NULL, '{\"name\": \"old\"}')"
    )
    made.execute(
        "INSERT INTO events VALUES ('c-old', 2, 901.5, 'task.committing', 'c-old/1', '{\"attempt\": 1}')"
    )
    made.commit()
    return made


def test_a_store_of_the_first_release_is_brought_up_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first_form(path).close()
    with Store(path, wall=lambda: 1000.0) as store:
        row = store.task("c-old/1")
        assert row is not None
        assert (row.state, row.fence, row.note, row.device) == (TaskState.LEASED, FENCE, "a note", "mini-7")
        assert (row.position, row.start_s, row.preempted, row.replica) == (None, None, 0, None)
        assert read_task(store.bodies("c-old")["c-old/1"]) == a_task("c-old", 1)
        assert [attempt.lease for attempt in store.attempts("c-old")] == ["l7"]
        store.next_epoch("c-old")
        assert [(event.seq, event.at, event.name) for event in store.events_since("c-old")] == [
            (1, 900.25, "campaign.created"),
            (2, 901.5, "task.committing"),
            (3, 1000.0, "campaign.adopted"),
        ]
        assert check_chain(store.all_events("c-old"), store.event_count("c-old")) is None
    with Store(path) as again:
        assert check_chain(again.all_events("c-old"), again.event_count("c-old")) is None


def test_a_new_store_and_one_brought_up_are_alike_and_as_the_tables_say(tmp_path: Path) -> None:
    first_form(tmp_path / "old.db").close()
    shapes = []
    for name in ("old.db", "new.db"):
        with Store(tmp_path / name) as store:
            shapes.append(
                {
                    table.name: store._connection.exec_driver_sql(f"PRAGMA table_info({table.name})").all()
                    for table in tables.metadata.sorted_tables
                }
            )
    old, new = shapes
    assert old == new
    for table in tables.metadata.sorted_tables:
        told = {(row.name, row.type, bool(row.notnull)) for row in new[table.name]}
        assert told == {
            (column.name, str(column.type.compile(dialect=sqlite.dialect())), not column.nullable)
            for column in table.c
        }


def test_a_ticket_s_place_is_kept_while_it_waits_and_gone_when_it_runs(store: Store) -> None:
    begin(store)
    store.record_grant("c-one/1", 1, lease="l7", fence=FENCE, queued=True)
    store.set_places(
        [Place("c-one/1", 1, 3, 40.0, "behind others"), Place("c-one/2", 1, 1), Place("c-one/1", 9, 9)]
    )
    row = store.task("c-one/1")
    assert row is not None
    assert (row.position, row.start_s, row.note) == (3, 40.0, "behind others")
    store.record_grant("c-one/1", 1, lease="l7", fence=FENCE, queued=False)
    store.set_progress([Live("c-one/1", 1, Phase.LOAD)])
    row = store.task("c-one/1")
    assert row is not None
    assert (row.position, row.start_s) == (None, None)
