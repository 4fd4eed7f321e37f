"""The store: one transaction for each function, and nothing lost by kill -9, a full disk or a second writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from protocol.errors import LocalProtocolError
from protocol.formats.phase import Phase
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.task import read_task
from protocol.words import Reason
from scheduler.core.commands import CommitTo, EndAttempt, EndPending, LiveAttempt, RecordGrant
from scheduler.core.commands import QueuePosition as Seat
from scheduler.store.database import Location
from scheduler.store.events import check_chain
from scheduler.store.progress import waiting_text
from scheduler.store.rows import AttemptState, CampaignStatus, NewCampaign, NewModel
from scheduler.store.schema import tasks
from scheduler.store.store import Store
from swarm.base.units import local_time
from swarm.net.identity import Identity
from tests.scheduler.core_parts import SCHEDULER, a_task

WORKER = Identity.from_seed("worker").peer_id
FENCE = Fence(incarnation=1, number=7)


def fill(store: Store, campaign: str = "c-one", tasks: int = 3) -> None:
    store.campaigns.create(
        NewCampaign(id=campaign, name="one", scheduler=SCHEDULER, spec="{}"),
        [NewModel("tiny.onnx", "ab" * 32, 100)],
        [a_task(n, campaign=campaign) for n in range(1, tasks + 1)],
    )


def begin(store: Store, task: str = "c-one/1", attempt: int = 1, worker: str = WORKER) -> None:
    store.attempts.begin([CommitTo(task, attempt, f"{task}/{attempt}", worker, "mini-7", 1)])


def grant(store: Store, task: str = "c-one/1", attempt: int = 1, fence: Fence = FENCE) -> None:
    store.attempts.record_grant(
        RecordGrant(task, attempt, lease=f"l{fence.number}", fence=fence, queued=False)
    )


def result(
    store: Store,
    *,
    attempt: int = 1,
    fence: Fence = FENCE,
    event: TaskEvent = TaskEvent.SUCCEED,
    sha256: str = "cd" * 32,
    reason: Reason | None = None,
) -> Reason | str | None:
    receipt = store.attempts.record_result(
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
    return "again" if receipt.duplicate else receipt.stale


@pytest.fixture
def store(place: Location) -> Iterator[Store]:
    """A store on SQLite, then on PostgreSQL."""
    with Store(place, wall=lambda: 1000.0) as made:
        fill(made)
        yield made


def test_a_campaign_comes_back_as_it_was_stored(store: Store) -> None:
    (row,) = store.campaigns.unfinished()
    assert (row.id, row.planned, row.epoch, row.created, row.outcome) == ("c-one", True, 0, 1000.0, None)
    assert [task.id for task in store.tasks.all("c-one")] == ["c-one/1", "c-one/2", "c-one/3"]
    assert read_task(store.tasks.bodies("c-one")["c-one/2"]) == a_task(2, campaign="c-one")
    assert store.campaigns.models("c-one") == (NewModel("tiny.onnx", "ab" * 32, 100),)
    assert store.campaigns.needed_models() == {"ab" * 32}


def test_a_campaign_is_found_by_a_prefix_of_its_id_or_by_its_name(store: Store) -> None:
    fill(store, "c-other")
    assert [row.id for row in store.campaigns.find("c-ot")] == ["c-other"]
    assert {row.id for row in store.campaigns.find("one")} == {"c-one", "c-other"}
    assert [row.id for row in store.campaigns.find("c-one")] == ["c-one"]
    assert store.campaigns.find("%") == ()


def test_a_campaign_is_stored_whole_or_not_at_all(store: Store) -> None:
    twice = [a_task(1, campaign="c-two"), a_task(1, campaign="c-two")]
    with pytest.raises(IntegrityError):
        store.campaigns.create(NewCampaign("c-two", "two", SCHEDULER, "{}"), [], twice)
    assert store.campaigns.get("c-two") is None


def test_a_campaign_that_another_process_has_stored_is_not_stored_again(store: Store) -> None:
    same = NewCampaign("c-one", "another name", SCHEDULER, "{}")
    assert not store.campaigns.create(same, [], [a_task(1, campaign="c-one")])
    stored = store.campaigns.get("c-one")
    assert stored is not None
    assert stored.name == "one"


def test_a_campaign_without_tasks_is_planned_once(store: Store) -> None:
    store.campaigns.create(NewCampaign("c-late", "late", SCHEDULER, "{}"), [], None)
    late = store.campaigns.get("c-late")
    assert late is not None
    assert not late.planned
    store.campaigns.plan("c-late", [a_task(1, campaign="c-late")])
    store.campaigns.plan("c-late", [a_task(1, campaign="c-late"), a_task(2, campaign="c-late")])
    assert len(store.tasks.all("c-late")) == 1


def test_a_plan_is_stored_in_portions_by_one_process_and_taken_up_with_the_last(store: Store) -> None:
    store.campaigns.create(NewCampaign("c-late", "late", SCHEDULER, "{}"), [], None)
    one, two, three = (a_task(n, campaign="c-late") for n in (1, 2, 3))
    assert store.campaigns.plan("c-late", [one], last=False)
    assert "c-late" in store.campaigns.unfinished_ids(planned=False)
    assert not store.campaigns.plan("c-late", [one, two]), "another process begins with the same plan"
    assert store.campaigns.plan("c-late", [two, three], after=1)
    assert "c-late" in store.campaigns.unfinished_ids(planned=True)
    assert [task.n for task in store.tasks.all("c-late")] == [1, 2, 3]
    (event,) = store.events.named("c-late", ["campaign.planned"])
    assert event.fields["tasks"] == 3
    assert not store.campaigns.discard_plan("c-late", 10), "it came to its end"
    assert len(store.tasks.all("c-late")) == 3


def test_what_an_unfinished_plan_has_left_is_discarded_in_portions(store: Store) -> None:
    store.campaigns.create(NewCampaign("c-late", "late", SCHEDULER, "{}"), [], None)
    store.campaigns.plan("c-late", [a_task(n, campaign="c-late") for n in (1, 2, 3)], last=False)
    assert store.campaigns.discard_plan("c-late", 2)
    assert [task.n for task in store.tasks.all("c-late")] == [1]
    assert store.campaigns.discard_plan("c-late", 2)
    assert not store.campaigns.discard_plan("c-late", 2)
    assert store.campaigns.plan("c-late", [a_task(1, campaign="c-late")])


def test_of_a_large_campaign_only_what_is_shown_is_read(store: Store) -> None:
    fill(store, "c-two")
    begin(store)
    store.events.add(["c-one"], "worker.back", peer=WORKER)
    begin(store, "c-one/3")
    grant(store)
    store.attempts.end_pending(EndPending(["c-one/2"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    named = store.events.named("c-one", ["worker.back", "task.granted"])
    assert [(event.name, event.task) for event in named] == [("worker.back", None)]
    assert set(store.attempts.last("c-one", [TaskState.COMMITTING, TaskState.LEASED])) == {
        "c-one/1",
        "c-one/3",
    }
    assert store.attempts.unsuccessful_attempts("c-one") == ()
    for state, numbers in ((TaskState.COMMITTING, [3]), (TaskState.CANCELLED, [2]), (TaskState.FAILED, [])):
        assert [task.n for task in store.tasks.standing("c-one", state, 1)] == numbers
        assert list(store.tasks.fields("c-one", state, ["n"])) == [(n,) for n in numbers]
    assert list(store.tasks.bodies_of(["c-one/2"])) == ["c-one/2"]
    assert [row.task.id for row in store.results.rows("c-one", first_ended=2)] == ["c-one/2"]


def test_a_task_goes_its_way_and_every_step_is_an_event_without_gaps(store: Store) -> None:
    begin(store)
    grant(store)
    store.attempts.set_progress([LiveAttempt("c-one/1", 1, Phase.RUN, 5, 10, 1.5)])
    running = store.tasks.get("c-one/1")
    assert running is not None
    assert (running.state, running.phase, running.done, running.fence) == (
        TaskState.RUNNING,
        Phase.RUN,
        5,
        FENCE,
    )
    assert result(store) is None
    done = store.tasks.get("c-one/1")
    assert done is not None
    assert done.state is TaskState.SUCCEEDED
    (attempt,) = store.attempts.all("c-one")
    assert (attempt.state, attempt.worker, attempt.lease) == (AttemptState.SUCCEEDED, WORKER, "l7")
    events = store.events.since("c-one")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.name for event in events] == [
        "campaign.created",
        "task.committing",
        "task.granted",
        "task.succeeded",
    ]
    assert [event.name for event in store.events.since("c-one", 3)] == ["task.succeeded"]
    row = store.results.rows("c-one")[0]
    assert (row.record, row.worker, row.attempt) == (b"record", WORKER, 1)
    assert store.results.rows("c-one")[1].record is None


def test_the_same_result_twice_is_recorded_once_and_answered_the_same(store: Store) -> None:
    begin(store)
    grant(store)
    assert result(store) is None
    assert result(store) == "again"
    assert result(store, sha256="ef" * 32) is Reason.FENCED
    assert [event.name for event in store.events.since("c-one")].count("task.succeeded") == 1


def test_a_result_under_an_older_fence_or_attempt_changes_nothing(store: Store) -> None:
    begin(store)
    grant(store)
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.LOSE, reason=Reason.LOST))
    assert result(store) is Reason.FENCED
    begin(store, attempt=2)
    assert result(store) is Reason.FENCED
    grant(store, attempt=2, fence=Fence(incarnation=1, number=9))
    assert result(store) is Reason.FENCED
    assert result(store, attempt=2) is Reason.FENCED
    row = store.tasks.get("c-one/1")
    assert row is not None
    assert (row.state, row.attempt, row.tries) == (TaskState.LEASED, 2, 1)


def test_a_failed_attempt_keeps_its_record_and_does_not_decide(store: Store) -> None:
    begin(store)
    grant(store)
    assert result(store, event=TaskEvent.RETRY, reason=Reason.CRASHED) is None
    begin(store, attempt=2)
    grant(store, attempt=2, fence=Fence(incarnation=1, number=8))
    assert result(store, attempt=2, fence=Fence(incarnation=1, number=8)) is None
    assert store.results.rows("c-one")[0].attempt == 2
    assert [row.state for row in store.attempts.all("c-one")] == [AttemptState.FAILED, AttemptState.SUCCEEDED]


def test_what_the_table_does_not_allow_changes_nothing(store: Store) -> None:
    begin(store)
    before = store.events.since("c-one")
    with pytest.raises(LocalProtocolError):
        begin(store, attempt=2)
    with pytest.raises(LocalProtocolError):
        store.attempts.begin([CommitTo("c-one/2", 5, "k", WORKER, "d", 1)])
    with pytest.raises(LocalProtocolError):  # the task has no run that the hedge could go beside
        store.attempts.begin([CommitTo("c-one/2", 1, "k", WORKER, "d", 1, hedge=True)])
    with pytest.raises(LocalProtocolError):
        store.attempts.record_grant(RecordGrant("c-one/1", 4, lease="l", fence=FENCE, queued=True))
    with pytest.raises(LocalProtocolError):
        store.campaigns.end("c-one")
    assert store.events.since("c-one") == before


def test_progress_of_an_attempt_that_is_over_is_passed_over(store: Store) -> None:
    begin(store)
    grant(store)
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.LOSE, reason=Reason.LOST))
    store.attempts.set_progress([LiveAttempt("c-one/1", 1, Phase.RUN, 5)])
    row = store.tasks.get("c-one/1")
    assert row is not None
    assert (row.state, row.phase) == (TaskState.PENDING, None)


def test_a_cancel_is_asked_for_by_campaign_or_by_task(store: Store) -> None:
    assert store.campaigns.request_cancel("c-one/2") == 1
    assert store.tasks.cancel_requests() == ("c-one/2",)
    assert store.campaigns.cancel_requests() == ()
    assert store.campaigns.request_cancel("c-one") == 3
    assert store.campaigns.cancel_requests() == ("c-one",)
    store.attempts.end_pending(EndPending(["c-one/1"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    assert store.campaigns.cancel_requests() == ("c-one",)  # until the last of its tasks has ended
    store.attempts.end_pending(EndPending(["c-one/2", "c-one/3"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    assert store.tasks.cancel_requests() == ()
    assert store.campaigns.end("c-one") is CampaignStatus.CANCELLED
    assert store.campaigns.cancel_requests() == ()
    assert store.campaigns.unfinished() == ()
    assert store.campaigns.request_cancel("c-one") == 0
    assert store.campaigns.request_cancel("c-nobody") == 0


def test_a_result_for_who_carries_the_campaign_on_is_called_that_for_its_worker_keeps_it_then(
    store: Store,
) -> None:
    begin(store)
    grant(store)
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.CANCEL, reason=Reason.ADOPTED))
    store.attempts.end_pending(EndPending(["c-one/2"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    for task, why in (("c-one/1", Reason.ADOPTED), ("c-one/2", Reason.CANCELLED)):
        assert store.attempts.known_result(task=task, attempt=1, worker=WORKER, sha256="cd" * 32).stale is why
    assert result(store) is Reason.ADOPTED


def test_the_outcome_is_failed_as_soon_as_one_task_failed(store: Store) -> None:
    store.attempts.end_pending(
        EndPending(["c-one/1"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS, detail="no device fits")
    )
    store.attempts.end_pending(EndPending(["c-one/2", "c-one/3"], TaskEvent.CANCEL))
    assert store.campaigns.end("c-one") is CampaignStatus.FAILED
    (summary,) = store.campaigns.summaries()
    assert summary.counts == {TaskState.FAILED: 1, TaskState.CANCELLED: 2}
    assert summary.tasks == 3


def test_epochs_rise(store: Store) -> None:
    assert [store.campaigns.next_epoch("c-one"), store.campaigns.next_epoch("c-one")] == [1, 2]


def test_another_process_is_noticed_and_we_ourselves_are_not(store: Store) -> None:
    first = store.changes_by_others()
    begin(store)
    assert store.changes_by_others() == first
    with Store(store.location) as other:
        other.campaigns.request_cancel("c-one")
    assert store.changes_by_others() != first


OPEN = """
import sys
from pathlib import Path
from scheduler.store.database import ServerLocation, server_url
from scheduler.store.store import Store
place = Path(sys.argv[1]) if len(sys.argv) == 2 else ServerLocation(server_url(sys.argv[1]), sys.argv[2])
store = Store(place)
"""


def run_in_child(place: Location, script: str) -> list[str]:
    """The command of a process that opens the store and runs `script`."""
    where = [str(place)] if isinstance(place, Path) else [place.url.render_as_string(False), place.schema]
    return [sys.executable, "-c", OPEN + script, *where]


WRITER = """
from protocol.values.attempt import TaskEvent
from scheduler.core.commands import EndPending
store.attempts.end_pending(EndPending(["c-one/1"], TaskEvent.FAIL, detail="on disk"))
with store.database.transaction() as c:
    store.events.append(c, "c-one", "half.done", None)
    c.exec_driver_sql("UPDATE tasks SET state = 'failed'")
    print("half way", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_in_the_middle_of_a_transaction_leaves_all_of_it_or_nothing(store: Store) -> None:
    with subprocess.Popen(
        run_in_child(store.location, WRITER), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half way\n"
        os.kill(child.pid, signal.SIGKILL)
    states = [task.state for task in store.tasks.all("c-one")]
    assert states == [TaskState.FAILED, TaskState.PENDING, TaskState.PENDING]
    assert [event.name for event in store.events.since("c-one")] == ["campaign.created", "task.failed"]
    assert store.campaigns.request_cancel("c-one") == 2


EVENTS = """
for _ in range(40):
    store.campaigns.next_epoch("c-one")
"""


@pytest.mark.slow
def test_two_processes_write_side_by_side_and_no_event_is_lost(store: Store) -> None:
    children = [subprocess.Popen(run_in_child(store.location, EVENTS)) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    row = store.campaigns.get("c-one")
    assert row is not None
    assert row.epoch == 80
    assert [event.seq for event in store.events.since("c-one")] == list(range(1, 82))


def test_the_position_of_a_queued_lease_is_kept_while_it_waits_and_gone_when_it_runs(store: Store) -> None:
    begin(store)
    store.attempts.record_grant(RecordGrant("c-one/1", 1, lease="l7", fence=FENCE, queued=True))
    store.attempts.set_positions(
        [Seat("c-one/1", 1, 3, 40.0, "behind others"), Seat("c-one/2", 1, 1), Seat("c-one/1", 9, 9)]
    )
    row = store.tasks.get("c-one/1")
    assert row is not None
    assert (row.position, row.start_s, row.note) == (3, 40.0, "behind others")
    store.attempts.record_grant(RecordGrant("c-one/1", 1, lease="l7", fence=FENCE, queued=False))
    store.attempts.set_progress([LiveAttempt("c-one/1", 1, Phase.LOAD)])
    row = store.tasks.get("c-one/1")
    assert row is not None
    assert (row.position, row.start_s) == (None, None)


def test_tasks_that_end_together_leave_the_same_rows_and_an_intact_chain_as_one_by_one(store: Store) -> None:
    fill(store, "c-two")
    why = (Reason.NOTHING_FITS, "no device fits")
    store.attempts.end_pending(EndPending([f"c-one/{n}" for n in (1, 2, 3)], TaskEvent.FAIL, *why))
    for n in (1, 2, 3):
        store.attempts.end(EndAttempt(f"c-two/{n}", 0, TaskEvent.FAIL, *why))
    tasks = [
        [(t.n, t.state, t.reason, t.detail, t.ended, t.tries) for t in store.tasks.all(campaign)]
        for campaign in ("c-one", "c-two")
    ]
    assert tasks[0] == tasks[1]
    lines = store.results.page().results
    assert len(lines) == 6
    alike = [replace(line, campaign="", task="") for line in sorted(lines, key=lambda line: line.task)]
    assert alike[:3] == alike[3:]
    events = [
        [(e.seq, e.name, e.task and e.task[6:], e.fields) for e in store.events.all(campaign)]
        for campaign in ("c-one", "c-two")
    ]
    assert events[0] == events[1]
    assert check_chain(store.events.all("c-one"), store.events.count("c-one")) is None


def test_a_wait_reason_keeps_the_time_at_which_it_was_first_said_and_leaves_tasks_that_run_alone(
    store: Store,
) -> None:
    now = [1_763_800_000.0]
    store.database.wall = lambda: now[0]
    begin(store)
    tasks = ["c-one/1", "c-one/2", "c-one/3"]

    def notes() -> list[str]:
        return [task.note for task in store.tasks.all("c-one")]

    store.tasks.set_wait_reason(tasks[:2], "100% _busy")
    first = f"100% _busy, since {local_time(now[0])}"
    now[0] += 7200
    store.tasks.set_wait_reason(tasks, "100% _busy")
    assert notes() == ["", first, f"100% _busy, since {local_time(now[0])}"]
    store.tasks.set_wait_reason(tasks[1:2], "paused by its owner")
    assert notes()[1] == f"paused by its owner, since {local_time(now[0])}"
    store.tasks.set_wait_reason(tasks, "")
    assert notes() == ["", "", ""]


def test_of_what_waits_for_an_instant_that_is_said(store: Store) -> None:
    store.database.wall = lambda: 1_763_800_000.0
    begin(store)
    store.tasks.set_wait_until([("c-one/2", "waits for its 2nd sitting", 2580.0)])
    (note,) = [task.note for task in store.tasks.all("c-one") if task.id == "c-one/2"]
    assert note == "waits for its 2nd sitting, until 2025-11-22T09:09:40+00:00"
    for passed, text in ((0.0, "in 43 min"), (10.0, "in 43 min"), (2500.0, "in 1 min 20 s"), (2600.0, "now")):
        assert waiting_text(note, 1_763_800_000.0 + passed) == f"waits for its 2nd sitting, {text}"
    for other in ("paused, until", "paused, until tomorrow", "busy, since 09:00", ""):
        assert waiting_text(other, 0.0) == other


def test_ended_tasks_are_told_by_what_they_share(store: Store) -> None:
    fill(store, "c-two", tasks=12)
    c = tasks.c
    with store.database.transaction() as connection:
        for n, (state, reason, detail) in enumerate(
            [(TaskState.FAILED, Reason.CRASHED, "signal 11")] * 10 + [(TaskState.FAILED, None, "")], start=1
        ):
            values = {"state": state, "reason": reason, "detail": detail, "ended": 100.0 - n}
            connection.execute(tasks.update().where(c.campaign == "c-two", c.n == n).values(**values))
    found = store.tasks.ended_alike("c-two", TaskState.FAILED, ("model", "reason", "detail"))
    in_order = sorted((since, sorted(numbers), *values) for since, numbers, values in found)
    assert in_order == [
        (89.0, [11], "m.onnx", None, ""),
        (90.0, list(range(1, 11)), "m.onnx", "crashed", "signal 11"),
    ]
