"""Events: readable lines, a chain that reveals every change, and no secrets in them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sark
from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason
from scheduler.core.commands import CommitTo, EndAttempt, EndPending, RecordGrant
from scheduler.output.events import TEMPLATES, event_line, event_words
from scheduler.output.schemas import event_info
from scheduler.store.database import Location
from scheduler.store.events import chain_hash, check_chain
from scheduler.store.rows import EventRow, NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity

WORKER = Identity.from_seed("worker").peer_id
SCHEDULER = Identity.from_seed("scheduler").peer_id


def a_task(n: int) -> Task:
    return Task(
        campaign="c-one",
        task=f"c-one/{n}",
        scheduler=SCHEDULER,
        model=Model(name="tiny.onnx", sha256="ab" * 32, size=100),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def lived(place: Location) -> Store:
    """A store in which one task failed and one was refused, lost and cancelled."""
    store = Store(place, wall=lambda: 1_790_000_000.25)
    store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], [a_task(1), a_task(2)])
    store.attempts.begin([CommitTo(f"c-one/{n}", 1, f"key-{n}", WORKER, "mini-7", 1) for n in (1, 2)])
    store.attempts.record_grant(
        RecordGrant("c-one/1", 1, lease="l1", fence=Fence(incarnation=1, number=1), queued=True)
    )
    store.attempts.end(
        EndAttempt("c-one/2", 1, TaskEvent.REFUSE, reason=Reason.BUSY, detail="mini-7 is full\nmore")
    )
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.FAIL, reason=Reason.CRASHED, detail="boom\x1b[31m"))
    store.events.add(
        ["c-one"], "worker.set-aside", peer=WORKER, device="mini-7", seconds=30, why="3 quick failures"
    )
    store.campaigns.request_cancel("c-one")
    store.attempts.end_pending(EndPending(["c-one/2"], TaskEvent.CANCEL, reason=Reason.CANCELLED))
    store.campaigns.end("c-one")
    return store


@pytest.mark.slow
def test_each_event_is_a_line_that_says_when_which_task_and_what(place: Location) -> None:
    with lived(place) as store:
        lines = [event_line(event) for event in store.events.all("c-one")]
    assert [line[25:] for line in lines] == [
        "   1             created: one, 2 tasks",
        "   2  task 1     asks mini-7 (attempt 1)",
        "   3  task 2     asks mini-7 (attempt 1)",
        "   4  task 1     queued at mini-7 (attempt 1)",
        "   5  task 2     mini-7 refused it: busy: mini-7 is full",
        "   6  task 1     failed: crashed: boom[31m",
        "   7             mini-7 is set aside for 30 s: 3 quick failures",
        "   8             cancel requested; open tasks: 1",
        "   9  task 2     cancelled",
        "  10             ended: failed: 1 failed, 1 cancelled",
    ]
    assert all(line[10] == " " and line[19] == "." for line in lines)


def test_an_event_of_a_newer_version_is_shown_by_its_name_and_fields() -> None:
    event = EventRow("c-one", 1, 0.0, "task.teleported", None, {"to": "the moon"})
    assert event_words(event) == "task.teleported: to the moon"
    assert event_info(event).fields == {"to": "the moon"}
    for name in TEMPLATES:
        assert event_words(EventRow("c-one", 1, 0.0, name, None, {}))


def test_a_chain_shows_what_was_changed_left_out_or_put_in(place: Location) -> None:
    with lived(place) as store:
        events, count = tuple(store.events.all("c-one")), store.events.count("c-one")
    assert count == (10, 10)
    assert check_chain(events, count) is None
    for position in range(len(events)):
        event = events[position]
        for other in (
            replace(event, at=event.at + 1),
            replace(event, name="task.succeeded!"),
            replace(event, task="c-one/9"),
            replace(event, fields={**event.fields, "device": "other"}),
            replace(event, hash=""),
            replace(event, hash="00" * 32),
            replace(event, campaign="c-two"),
        ):
            broken = check_chain((*events[:position], other, *events[position + 1 :]), count)
            assert broken is not None
            assert broken.seq == position + 1
        left_out = check_chain((*events[:position], *events[position + 1 :]), count)
        assert left_out is not None
        assert left_out.seq == position + 1
        assert "missing" in left_out.why
    assert check_chain(events[:-1], (10, 9)) is not None, "the last one was taken away"
    put_in = check_chain(events, (9, 10))
    assert put_in is not None
    assert "inserted" in put_in.why
    assert check_chain(events, (9, 9)) is None, "one more was written since they were counted"


def test_a_chain_that_was_written_anew_holds_but_lacks_the_hash_that_was_noted(place: Location) -> None:
    with lived(place) as store:
        events = tuple(store.events.all("c-one"))
    noted, count = events[6].hash, (10, 10)
    assert check_chain(events, count, noted) is None
    anew: list[EventRow] = []
    for event in events:
        result = replace(event, at=event.at + (event.seq == 3))
        before = anew[-1].hash if anew else ""
        anew.append(replace(result, hash=chain_hash(before, result)))
    assert check_chain(anew, count) is None, "there is no key in it"
    broken = check_chain(anew, count, noted)
    assert broken is not None
    assert "the hash that was noted" in broken.why


def test_the_chain_holds_the_hash_of_each_record(place: Location) -> None:
    fence = Fence(incarnation=1, number=1)
    with Store(place) as store:
        store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}"), [], [a_task(1)])
        store.attempts.begin([CommitTo("c-one/1", 1, "key-1", WORKER, "mini-7", 1)])
        store.attempts.record_grant(RecordGrant("c-one/1", 1, lease="l1", fence=fence, queued=False))
        store.attempts.record_result(
            task="c-one/1", attempt=1, fence=fence, worker=WORKER, sha256="ab" * 32, body=b"r", signature=b"s" * 64,
            event=TaskEvent.SUCCEED,
        )  # fmt: skip
        *_, granted, done = store.events.all("c-one")
    assert (granted.fields["device"], done.name, done.fields["record"]) == (
        "mini-7",
        "task.succeeded",
        "ab" * 32,
    )


def test_no_key_and_no_token_is_in_an_event(place: Location) -> None:
    with lived(place) as store:
        text = json.dumps([event_info(event).model_dump() for event in store.events.all("c-one")])
        fields = {key for event in store.events.all("c-one") for key in event.fields}
    assert "key-1" not in text
    assert "token" not in text
    assert fields <= {
        "name", "tasks", "attempt", "worker", "device", "lease", "fence", "reason", "detail", "peer", "seconds", "why",
        "outcome", "failed", "cancelled", "succeeded", "trust",
    }  # fmt: skip


def run(home: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        sark.main(["--home", str(home), *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_shows_them_checks_them_and_names_the_first_broken_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Home.at(tmp_path).store
    lived(path).close()
    assert run(tmp_path, "events") == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert run(tmp_path, "events", "c-one", "--follow") == 0, "it has ended, so there is nothing to wait for"
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert run(tmp_path, "events", "c-one", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["count"] == 10
    assert run(tmp_path, "events", "c-one", "--verify") == 0
    assert (
        f"the chain of 10 events is intact. Last hash: {document['events'][-1]['hash']}"
        in capsys.readouterr().out
    )
    noted = document["events"][4]["hash"]
    assert run(tmp_path, "events", "c-one", "--verify", "--last", noted.upper()) == 0
    assert "is intact and contains the expected hash" in capsys.readouterr().out
    assert run(tmp_path, "events", "c-one", "--verify", "--last", "ab" * 32) == 1
    assert "the hash that was noted" in capsys.readouterr().out
    assert run(tmp_path, "events", "c-one", "--last", noted) == 2
    assert run(tmp_path, "events", "c-one", "--verify", "--last", "xyz") == 2
    capsys.readouterr()
    with Store(path) as store:
        store.database.connection.exec_driver_sql("UPDATE events SET fields = 'junk' WHERE seq = 6")
    assert run(tmp_path, "events", "c-one", "--verify") == 1
    assert "broken at event 6" in capsys.readouterr().out
    assert run(tmp_path, "events", "c-one") == 0, "what is there can still be read"


@pytest.mark.parametrize(("tasks", "words"), [(1, "created: c, 1 task"), (2, "created: c, 2 tasks")])
def test_one_task_is_one_task(tasks: int, words: str) -> None:
    assert (
        event_words(EventRow("c", 1, 0.0, "campaign.created", None, {"name": "c", "tasks": tasks}, ""))
        == words
    )


def test_a_campaign_that_is_planned_later_is_not_created_with_no_tasks() -> None:
    made = EventRow("c-one", 1, 0.0, "campaign.created", None, {"name": "many", "tasks": 0}, "")
    assert event_words(made) == "created: many, its tasks follow"
