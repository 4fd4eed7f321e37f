"""Explanations: every task says what it waits for and what was tried; equal stories are shown once; nothing is just "waiting"."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import sark
from protocol.formats.phase import Phase
from protocol.values.advert import Advert, UnitOffer
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason
from scheduler.core.commands import CommitTo, EndAttempt, EndPending, LiveAttempt, QueuePosition, RecordGrant
from scheduler.preview.alike import AlikeTasks, alike_tasks
from scheduler.preview.survey import DeviceAnswer, SwarmVisit
from scheduler.preview.why import LiveFacts, WhyReport, preemption_line, why_lines, why_report
from scheduler.store.database import Location as StorePlace
from scheduler.store.progress import clipped
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.text import ranges
from swarm.net.identity import Identity

SCHEDULER = Identity.from_seed("scheduler").peer_id
WORKER = Identity.from_seed("worker").peer_id
GIB = 1024**3


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_task(n: int, *clauses: str, note: str = "") -> Task:
    texts = clauses or ("units has CPU (ONNX)",)
    return Task(
        campaign="c-one",
        task=f"c-one/{n}",
        scheduler=SCHEDULER,
        model=Model(name="tiny.onnx", sha256="ab" * 32, size=100),
        unit="CPU (ONNX)",
        requirement=Requirement(clauses=tuple(parse_clause(text) for text in texts)),
        measure=Measure(),
        timeouts=Timeouts(),
        note=note,
    )


def advert(name: str, ram: int = 8) -> Advert:
    return Advert(
        peer=Identity.from_seed(name).peer_id,
        seq=1,
        device=f"d-{name}",
        name=name,
        ram=ram * GIB,
        units=(UnitOffer(unit="CPU (ONNX)", runtime="r"),),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: StorePlace, clock: Clock) -> Store:
    return Store(place, wall=clock)


def submit(store: Store, tasks: Sequence[Task] | None, **terms: int) -> None:
    store.campaigns.create(NewCampaign("c-one", "one", SCHEDULER, "{}", **terms), [], tasks)


def begin(
    store: Store, n: int, attempt: int = 1, *, queued: bool | None = None, device: str = "mini-7"
) -> None:
    store.attempts.begin([CommitTo(f"c-one/{n}", attempt, f"k{n}.{attempt}", WORKER, device, 1)])
    if queued is not None:
        fence = Fence(incarnation=1, number=10 * n + attempt)
        store.attempts.record_grant(
            RecordGrant(f"c-one/{n}", attempt, lease=f"l{n}.{attempt}", fence=fence, queued=queued)
        )


def report_of(
    store: Store,
    clock: Clock,
    *,
    seen: LiveFacts | None = None,
    only: int | None = None,
    **more: Sequence[Requirement],
) -> WhyReport:
    row = store.campaigns.get("c-one")
    assert row is not None
    one = None if only is None else store.tasks.get(f"c-one/{only}")
    return why_report(
        row,
        alike_tasks(store, row, one),
        store.events.all("c-one"),
        seen or LiveFacts(SwarmVisit((advert("one"),), {})),
        clock.now,
        unplanned=more.get("unplanned", ()),
    )


def test_tasks_with_the_same_story_are_shown_once_with_the_clauses_and_what_would_help(
    store: Store, clock: Clock
) -> None:
    submit(store, [a_task(n, "units has CPU (ONNX)", "ram >= 64 GiB") for n in range(1, 38)] + [a_task(38)])
    clock.now += 72
    lines = why_lines(report_of(store, clock))
    assert lines == [
        "c-one  one  running for 1:12, priority 50: 38 pending",
        "",
        "37 tasks (1-37) wait for a device, for 1:12",
        "  tiny.onnx × CPU (ONNX)",
        "    0 of 1 device fit",
        "      units has CPU (ONNX)  1 meets it, 1 left",
        "      ram >= 64 GiB         0 meet it, 0 left   nearest: one has 8 GiB",
        "    Smallest change: ram >= 8 GiB → 1 device",
        "",
        "Task 38 waits for a device, for 1:12",
        "  tiny.onnx × CPU (ONNX)",
        "    there now and fit: one",
    ]


def test_a_queued_lease_shows_its_position_its_expected_start_and_what_decides(
    store: Store, clock: Clock
) -> None:
    submit(store, [a_task(1)])
    begin(store, 1, queued=True)
    store.attempts.set_positions([QueuePosition("c-one/1", 1, 3, 40.0)])
    clock.now += 130
    (story,) = report_of(store, clock).stories
    assert story.head == "Task 1 waits in a queue, for 2:10"
    assert story.why[0] == "at mini-7: queued 3rd, starts in ~40 s"
    assert story.why[1] == "its priority counts as 50 plus 2 for waiting"
    assert "or less where a ticket permits less" in report_of(store, clock).remarks[0], "nobody said"
    assert story.tried == ("attempt 1: mini-7 has it in its queue (2:10)",)


def answering(most: int = 100) -> LiveFacts:
    """The worker of `begin` reports the highest priority there."""
    return LiveFacts(SwarmVisit((advert("one"),), {WORKER: DeviceAnswer(most=most)}))


def test_a_ticket_that_caps_priorities_is_not_promised_more(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)], priority=80)
    begin(store, 1, queued=True)
    clock.now += 130
    capped = report_of(store, clock, seen=answering(most=20))
    assert capped.stories[0].why[1] == "its priority counts as 20 plus 2 for waiting"
    assert capped.remarks[0].startswith(
        "Priority 80, which counts as 20 at mini-7, the most that its ticket permits: higher"
    )
    assert "Runs of priority 10 or less give way" in capped.remarks[0]
    free = report_of(store, clock, seen=answering())
    assert free.remarks[0].startswith("Priority 80: higher priorities go first")
    assert "Runs of priority 70 or less give way" in free.remarks[0]


def test_a_device_that_does_not_answer_is_not_said_to_be_there(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    one, two = advert("one"), advert("two")
    lost = DeviceAnswer(why="no way", gone=True)
    seen = LiveFacts(SwarmVisit((one, two), {one.peer: lost}))
    assert report_of(store, clock, seen=seen).stories[0].why == (
        "there now and fit: two",
        "fits but does not answer: one",
    )
    alone = LiveFacts(SwarmVisit((one,), {one.peer: lost}))
    assert report_of(store, clock, seen=alone).stories[0].why == ("fits but does not answer: one",)


def test_queued_leases_are_shown_together_with_the_position_of_each(store: Store, clock: Clock) -> None:
    submit(store, [a_task(n) for n in (1, 2, 3)])
    for n, device in ((1, "mini-7"), (2, "mini-7"), (3, "old-pi")):
        begin(store, n, queued=True, device=device)
    store.attempts.set_positions([QueuePosition("c-one/1", 1, 1), QueuePosition("c-one/2", 1, 2, 9.0)])
    (story,) = report_of(store, clock).stories
    assert story.tasks == (1, 2, 3)
    assert story.why[0] == "at mini-7 1st, 2nd in ~9.0 s; old-pi"


def test_devices_that_fit_say_how_much_of_ours_they_have(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    live_facts = LiveFacts(SwarmVisit((advert("one"), advert("two")), {}), busy={"one": 3})
    assert report_of(store, clock, seen=live_facts).stories[0].why == (
        "there now and fit: one (has 3 tasks of yours: no more are queued there at once), two",
    )


def test_the_lowest_priorities_make_nobody_give_way(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)], priority=9)
    begin(store, 1, queued=True)
    assert not any("give way" in line for line in report_of(store, clock, seen=answering()).remarks)


def test_an_attempt_says_each_word_once_and_no_whole_address(store: Store, clock: Clock) -> None:
    peer = Identity.from_seed("x").peer_id
    assert (
        clipped(f"cannot reach {peer} at /ip4/192.0.2.7/tcp/4101/p2p/{peer}")
        == f"cannot reach …{peer[-8:]} at 192.0.2.7"
    )
    submit(store, [a_task(1)])
    begin(store, 1)
    store.attempts.end(
        EndAttempt("c-one/1", 1, TaskEvent.LOSE, reason=Reason.LOST, detail="mini-7: its process is gone")
    )
    assert (
        report_of(store, clock)
        .stories[0]
        .tried[0]
        .startswith("attempt 1: mini-7 lost it: its process is gone (")
    )


def test_what_a_worker_says_of_a_queued_lease_is_shown_with_it(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    begin(store, 1, queued=True)
    store.attempts.set_positions([QueuePosition("c-one/1", 1, None, None, "paused by its owner\x1b[2J")])
    assert "paused by its owner[2J" in " ".join(report_of(store, clock).stories[0].why)


def test_attempts_are_listed_one_by_one_for_a_task_and_counted_for_many(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1), a_task(2)], attempts=5)
    for n in (1, 2):
        begin(store, n, 1, queued=False)
        clock.now += 12
        store.attempts.end(
            EndAttempt(f"c-one/{n}", 1, TaskEvent.RETRY, reason=Reason.CRASHED, detail="boom\nmore")
        )
        begin(store, n, 2, device="old-pi")
        store.attempts.end(
            EndAttempt(f"c-one/{n}", 2, TaskEvent.REFUSE, reason=Reason.NOT_ALLOWED, detail="not you")
        )
    together = report_of(store, clock)
    assert {line for story in together.stories for line in story.tried} == {
        "mini-7 failed: crashed: boom",
        "old-pi refused it: not-allowed: not you",
    } or together.stories[0].tried == (
        "mini-7 failed: crashed: boom (2 times)",
        "old-pi refused it: not-allowed: not you (2 times)",
    )
    (alone,) = report_of(store, clock, only=1).stories
    assert alone.tried == (
        "attempt 1: mini-7 failed: crashed: boom (0:12)",
        "attempt 2: old-pi refused it: not-allowed: not you (0:00)",
    )
    assert any(
        re.match(
            "tried 1 of 5 times; may start elsewhere at once, and (now|in .+) also where it failed", line
        )
        for line in alone.why
    )


def test_a_task_that_failed_says_why_in_full(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    store.attempts.end_pending(
        EndPending(
            ["c-one/1"],
            TaskEvent.FAIL,
            reason=Reason.NOTHING_FITS,
            detail="0 of 2 devices fit\n  ram >= 1 TiB  0 fit",
        )
    )
    store.campaigns.end("c-one")
    lines = why_lines(report_of(store, clock))
    assert lines[0] == "c-one  one  failed after 0:00, priority 50"
    assert lines[2] == "Task 1 failed"
    assert lines[4:] == ["    nothing-fits: 0 of 2 devices fit", "      ram >= 1 TiB  0 fit"]


def test_how_long_ago_a_task_ended_is_told_without_its_events(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    row = store.campaigns.get("c-one")
    assert row is not None
    clock.now += 30.0
    store.attempts.end_pending(EndPending(["c-one/1"], TaskEvent.CANCEL))
    clock.now += 7.0
    result = why_report(row, alike_tasks(store, row), (), LiveFacts(None), clock.now)
    assert [story.since_s for story in result.stories] == [7.0]


def test_a_run_says_where_it_is_and_that_it_preemption_line(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    begin(store, 1, queued=False)
    store.attempts.end(EndAttempt("c-one/1", 1, TaskEvent.PREEMPT, reason=Reason.PREEMPTED))
    begin(store, 1, 2, queued=False)
    store.attempts.set_progress([LiveAttempt("c-one/1", 2, Phase.RUN, 12, 100, 1.5)])
    (story,) = report_of(store, clock).stories
    assert story.state is TaskState.RUNNING
    assert story.why == (
        "on mini-7: run 12/100 (median 1.5 ms)",
        "preempted by a higher priority, 1 of at most 2 times",
    )
    assert story.tried[0].startswith("attempt 1: mini-7 was preempted")
    assert preemption_line(2).endswith(": it will not be preempted again")


def test_workers_set_aside_are_shown_with_the_reason_and_until_when(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    for peer in ("peer-a", "peer-b", "peer-b", "peer-c"):
        store.events.add(
            ["c-one"],
            "worker.set-aside",
            peer=peer,
            device=f"d{peer[-1]}",
            seconds=30,
            why="3 quick failures",
        )
    store.events.add(["c-one"], "worker.back", peer="peer-c", device="dc")
    clock.now += 10
    assert report_of(store, clock).remarks == (
        "da is set aside for another 0:20: 3 quick failures",
        "db is set aside for another 0:20 (2 times): 3 quick failures",
    )
    clock.now += 60
    assert report_of(store, clock).remarks[0] == "da was set aside: 3 quick failures"


def test_remarks_state_when_nobody_schedules_or_the_swarm_was_not_seen(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    blind = LiveFacts(None, unreachable="no gate answers: x", scheduling=False)
    result = report_of(store, clock, seen=blind)
    assert result.remarks == (
        "No scheduler runs c-one now: sark-node watch c-one",
        "The swarm cannot be reached: no gate answers: x",
    )
    assert result.stories[0].why == ("no device has been asked yet",)


def test_a_campaign_over_devices_without_tasks_says_what_it_looks_for(store: Store, clock: Clock) -> None:
    submit(store, None)
    need = Requirement(clauses=(parse_clause("ram >= 1 TiB"),))
    result = report_of(store, clock, unplanned=[need])
    assert result.remarks[0].startswith("The tasks depend on the devices that fit")
    assert result.remarks[1] == "0 of 1 device fit"


def test_a_replica_that_lacks_a_device_says_so(store: Store, clock: Clock) -> None:
    note = "2 devices of one class are needed, but only 1 is there"
    submit(store, [a_task(1, "units has CPU (ONNX)", "device != d-one", note=note)])
    assert report_of(store, clock).stories[0].why[0] == note


def test_every_state_of_a_task_has_a_story(store: Store, clock: Clock) -> None:
    submit(store, [a_task(1)])
    begin(store, 1)
    (task,) = store.tasks.all("c-one")
    row = store.campaigns.get("c-one")
    assert row is not None
    for state in TaskState:
        alike = AlikeTasks(replace(task, state=state, cancel=True), clock.now, numbers=[1])
        result = why_report(row, [alike], (), LiveFacts(None), clock.now)
        assert result.stories[0].head.startswith("Task 1 ")
        assert "waiting" not in " ".join(why_lines(result))


def test_consecutive_numbers_are_shown_as_a_range() -> None:
    assert ranges([8, 3, 5, 9, 10]) == "3, 5, 8-10"
    assert ranges(range(0, 100, 2)).endswith(" …")


def test_the_command_tells_a_campaign_a_task_and_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with Store(Home.at(home).store) as store:
        submit(store, [a_task(1), a_task(2)])
        store.attempts.end_pending(EndPending(["c-one/1"], TaskEvent.CANCEL))

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            sark.main(["--home", str(home), "explain", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    assert run() == 0
    out = capsys.readouterr().out
    assert "The swarm cannot be reached: no gate is known here" in out
    assert "No scheduler runs c-one now" in out
    assert run("c-one/1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [story["head"] for story in document["stories"]] == ["Task 1 is cancelled"]
    assert run("c-one/7") == 2
    assert "c-one has no task '7'" in capsys.readouterr().err


def test_a_replica_without_a_device_of_its_own_is_explained_without_our_own_clauses(
    store: Store, clock: Clock
) -> None:
    note = "2 devices of one class are needed, but only 1 is there"
    apart = Requirement(clauses=(parse_clause("device != d-1"), parse_clause("ram >= 900 TiB")))
    submit(store, [a_task(1).model_copy(update={"replica": 2, "note": note, "requirement": apart})])
    (story,) = report_of(store, clock, seen=LiveFacts(SwarmVisit((advert("one"),), {}))).stories
    assert story.why == (note, "join another device of that class, or ask for fewer replicas")
