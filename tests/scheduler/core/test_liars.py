"""The core against single workers that lie: a worker's statement costs others little, and counts against that worker."""

from __future__ import annotations

import pytest

from protocol.messages.work import LiveLease, Renewed
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.trust import OWN, STRANGER, TrustScope
from protocol.words import Reason, WorkerState
from scheduler.core.commands import CommitTo, EndAttempt, RecordEvent, SetAside
from scheduler.core.reconciler import MAX_WARNINGS
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, Story, a_record, advert, of, quote


def test_a_worker_that_calls_every_model_broken_costs_no_task_where_others_run_them() -> None:
    story = Story(tasks=30, workers=3)
    asides: list[SetAside] = []
    waiting = list(story.commits)
    while waiting:
        commit, before = waiting.pop(0), len(story.commits)
        orders = story.grant(commit)
        story.now += 0.05
        if commit.peer == PEERS[0]:
            orders = story.fail(commit.task, Reason.BROKEN_MODEL, permanent=True)[1]
            asides += of(orders, SetAside)
        else:
            story.succeed(commit.task)
        waiting += story.commits[before:]
        if not waiting:
            story.after(6.0)
            waiting += story.commits[before + len(waiting) :]
    states = [entry.state for entry in story.core.state.tasks.values()]
    assert states == [TaskState.SUCCEEDED] * 30
    assert asides, "and it is set aside"


@pytest.mark.parametrize("reason", [Reason.WRONG_UNIT, Reason.CHECK_FAILED])
@pytest.mark.parametrize("complete", [False, True])
def test_a_wrong_unit_or_a_failed_check_on_one_device_is_tried_on_another_and_counts_against_the_first(
    reason: Reason, complete: bool
) -> None:
    story = Story(tasks=12, workers=2, attempts=5)
    asides: list[SetAside] = []

    def amiss(commit: CommitTo) -> TaskEvent:
        story.grant(commit)
        if not complete:
            event, orders = story.fail(commit.task, reason)
        else:
            record = a_record(story.core, commit.task)
            event, why, _ = story.core.failures.judge(record, (reason, "not what was asked for"))
            orders = story.tell(story.core.failures.settle(commit.task, event, why, story.now))
        asides.extend(of(orders, SetAside))
        return event

    mine = [commit for commit in story.commits if commit.peer == PEERS[0]]
    assert amiss(mine[0]) is TaskEvent.RETRY
    again = [commit for commit in story.commits if commit.task == mine[0].task]
    for _ in range(2):
        later = [commit for commit in story.commits if commit.peer == PEERS[0]][-1]
        assert amiss(later) is TaskEvent.RETRY
    assert [aside.peer for aside in asides] == [PEERS[0]]
    assert all(commit.peer != PEERS[0] for commit in again[1:])
    check(story.core.state)


def test_a_wrong_unit_on_the_only_device_that_fits_ends_the_task_and_is_not_held_against_it() -> None:
    story = Story(tasks=9, workers=1)
    for _ in range(5):
        commit = story.commits.pop(0)
        story.grant(commit)
        event, orders = story.fail(commit.task, Reason.WRONG_UNIT)
        assert event is TaskEvent.FAIL
        assert not of(orders, SetAside)


def test_a_worker_that_says_at_every_link_that_results_are_on_their_way_is_waited_for_once() -> None:
    story = Story(1, 1)
    commit = story.commits[0]
    story.begin(commit)
    entry = story.core.state.tasks[commit.task]
    assert entry.lease is not None
    assert entry.fence is not None
    lease, fence = entry.lease, entry.fence
    owes = LiveLease(task=commit.task, attempt=1, lease=lease, fence=fence, reporting=True)
    began = story.now
    while entry.attempt == 1 and entry.live and story.now < began + 500:
        story.tell(story.core.workers.close_link(commit.peer))
        expected = frozenset({lease})
        story.tell(
            story.core.reconciler.reconcile(commit.peer, "c-one", 1, (owes,), story.now, expected=expected)
        )
        story.after(20.0)
    assert story.now - began <= 80
    assert entry.tries == 1


def test_a_worker_that_queues_leases_and_loses_them_is_set_aside_and_costs_no_attempts() -> None:
    story = Story(tasks=40, workers=2)
    asides: list[SetAside] = []
    busy: set[str] = set()
    waiting, began = list(story.commits), story.now
    while story.now - began < 20:
        while waiting:
            commit, before = waiting.pop(0), len(story.commits)
            story.grant(commit, queued=commit.peer == PEERS[0] or commit.peer in busy)
            busy.add(commit.peer)
            if commit.peer == PEERS[0]:
                lease = f"l{story.numbers}"
                asides += of(
                    story.tell(story.core.failures.lose_leases(PEERS[0], [lease], Reason.EXPIRED, story.now)),
                    SetAside,
                )
            waiting += story.commits[before:]
        before = len(story.commits)
        story.after(0.2)
        waiting += story.commits[before:]
    assert max(entry.attempt for entry in story.core.state.tasks.values()) < 12
    assert [aside.seconds for aside in asides] == [30.0]
    assert not any(entry.over for entry in story.core.state.tasks.values())


def test_a_worker_is_believed_once_for_each_link_that_it_was_restarted() -> None:
    story = Story(tasks=2, workers=1)
    for commit in tuple(story.commits):
        story.grant(commit, queued=True)
    for incarnation in (2, 3, 4):
        story.tell(
            story.core.workers.update_status(
                PEERS[0], Renewed(incarnation=incarnation, state=WorkerState.FAULTY), story.now
            )
        )
    assert story.core.state.worker(PEERS[0]).incarnation == 2
    story.tell(story.core.workers.close_link(PEERS[0]))
    story.tell(
        story.core.workers.update_status(
            PEERS[0], Renewed(incarnation=5, state=WorkerState.FAULTY), story.now
        )
    )
    assert story.core.state.worker(PEERS[0]).incarnation == 5


def test_a_worker_that_warns_without_end_of_giving_way_fills_no_store() -> None:
    story = Story(1, 1)
    commit = story.commits[0]
    story.begin(commit)
    fence = Fence(incarnation=1, number=1)
    lines: list[RecordEvent] = []
    for n in range(1000):
        lines += of(
            story.tell(story.core.reconciler.warn(PEERS[0], "l1", fence, 60 + n % 2, story.now)), RecordEvent
        )
    assert len(lines) == MAX_WARNINGS
    same = Story(1, 1)
    same.begin(same.commits[0])
    lines = [
        t
        for _ in range(9)
        for t in of(same.core.reconciler.warn(PEERS[0], "l1", fence, 60, same.now), RecordEvent)
    ]
    assert len(lines) == 1


@pytest.mark.parametrize("claim", ["reporting", "settled"])
def test_a_worker_that_says_queued_and_ended_at_once_ends_no_scheduler(claim: str) -> None:
    story = Story()
    (commit,) = story.commits
    story.grant(commit, queued=True)
    entry = story.core.state.tasks[commit.task]
    assert entry.lease is not None
    assert entry.fence is not None
    queued = LiveLease(task=commit.task, attempt=1, lease=entry.lease, fence=entry.fence, queued=True)
    for lease in (queued.model_copy(update={claim: True}), queued):
        expected = frozenset({entry.lease})
        story.tell(
            story.core.reconciler.reconcile(commit.peer, "c-one", 1, (lease,), story.now, expected=expected)
        )
    assert entry.state is TaskState.QUEUED


@pytest.mark.parametrize(
    ("reason", "permanent"),
    [(Reason.NOT_WITNESSED, False), (Reason.BROKEN_MODEL, True), (Reason.OUT_OF_MEMORY, False)],
)
def test_whatever_strangers_say_they_end_no_task_that_a_device_of_ones_own_can_run(
    reason: Reason, permanent: bool
) -> None:
    own = PEERS[3]
    story = Story(
        tasks=8,
        workers=4,
        attempts=2,
        trust=TrustScope(anyone=True),
        trust_of=lambda peer: OWN if peer == own else STRANGER,
    )
    waiting = list(story.commits)
    while waiting:
        commit, before = waiting.pop(0), len(story.commits)
        story.grant(commit)
        story.now += 0.05
        if commit.peer == own:
            story.succeed(commit.task)
        else:
            assert story.fail(commit.task, reason, permanent=permanent)[0] is TaskEvent.DISCOUNT
        waiting += story.commits[before:]
        if not waiting:
            before = len(story.commits)
            story.after(40.0)
            waiting += story.commits[before:]
    entries = list(story.core.state.tasks.values())
    assert [entry.state for entry in entries] == [TaskState.SUCCEEDED] * 8
    assert max(entry.tries for entry in entries) == 0
    tried = [entry.tried - {own} for entry in entries]
    assert max(map(len, tried)) <= 2, "as many strangers as a task has tries, then only trusted ones"


def test_few_strangers_do_not_fail_a_task_again_and_again_while_ones_own_device_is_faulty() -> None:
    own = PEERS[2]
    story = Story(
        tasks=1,
        workers=3,
        attempts=3,
        trust=TrustScope(anyone=True),
        trust_of=lambda peer: OWN if peer == own else STRANGER,
    )
    story.tell(story.core.workers.add_quote(own, quote(state=WorkerState.FAULTY), story.now))
    failed: list[str] = []
    for _ in range(6):
        if len(story.commits) > len(failed):
            failed.append(story.commits[-1].peer)
            story.grant(story.commits[-1])
            story.fail(story.commits[-1].task, Reason.BROKEN_MODEL, permanent=True)
        story.after(40.0)
    assert sorted(failed) == sorted(PEERS[:2]), "each once, then it waits for the device of one's own"
    story.tell(story.core.workers.add_quote(own, quote(), story.now))
    assert story.commits[-1].peer == own
    story.grant(story.commits[-1])
    story.succeed(story.commits[-1].task)


def test_where_only_strangers_fit_their_failures_are_tries() -> None:
    story = Story(
        tasks=1, workers=3, attempts=2, trust=TrustScope(anyone=True), trust_of=lambda peer: STRANGER
    )
    (first,) = story.commits
    story.grant(first)
    assert story.fail(first.task, Reason.CRASHED)[0] is TaskEvent.RETRY


def test_a_task_that_every_stranger_there_has_failed_waits_for_a_device_of_ones_own_that_is_away() -> None:
    own = PEERS[2]
    story = Story(
        tasks=1,
        workers=3,
        attempts=5,
        trust=TrustScope(anyone=True),
        trust_of=lambda peer: OWN if peer == own else STRANGER,
    )
    waiting, peers = list(story.commits), list[str]()
    for _ in range(30):
        before = len(story.commits)
        for commit in waiting:
            peers.append(commit.peer)
            if commit.peer == own:
                core = story.core
                refused = (commit.task, commit.attempt, "it is out of sight", story.now)
                story.tell(core.workers.mark_unreachable(own, "it is out of sight", story.now))
                story.tell(core.reconciler.fail_commit(*refused, sent=False))
            else:
                story.grant(commit)
                story.fail(commit.task, Reason.CRASHED)
        story.after(10.0)
        waiting = story.commits[before:]
    assert sorted(set(peers) - {own}) == sorted(PEERS[:2])
    assert all(peers.count(peer) == 1 for peer in PEERS[:2]), (
        "nobody's failure counts, so nobody is asked twice"
    )


def test_strangers_that_send_no_results_end_no_task_that_ones_own_device_can_run() -> None:
    own = PEERS[3]
    story = Story(
        tasks=1,
        workers=3,
        attempts=2,
        trust=TrustScope(anyone=True),
        trust_of=lambda peer: OWN if peer == own else STRANGER,
    )
    story.tell(story.core.workers.add_adverts(story.group, [advert(3)], story.now))
    for _ in range(2):
        story.grant(story.commits[-1])
        lease = f"l{story.numbers}"
        peer = story.commits[-1].peer
        orders = story.core.failures.lose_leases(peer, [lease], Reason.BAD_REQUEST, story.now, "junk")
        assert [end.event for end in of(story.tell(orders), EndAttempt)] == [TaskEvent.DISCOUNT]
    story.tell(story.core.workers.add_quote(own, quote(), story.now))
    story.after(1.0)
    assert story.commits[-1].peer == own


def settled(story: Story, peer: str, agrees: bool) -> list[SetAside]:
    """Let the next task at `peer` succeed."""
    commit = next(commit for commit in story.commits if commit.peer == peer)
    story.commits.remove(commit)
    story.grant(commit)
    settle = story.core.failures.settle
    return of(story.tell(settle(commit.task, TaskEvent.SUCCEED, None, story.now, agrees=agrees)), SetAside)


@pytest.mark.parametrize("first", [False, True])
def test_outputs_that_differ_count_against_a_worker_only_where_another_devices_agree(first: bool) -> None:
    story = Story(tasks=12, workers=2, attempts=5)
    workers = [story.core.state.worker(peer) for peer in PEERS[:2]]
    settled(story, PEERS[0], first)
    assert not workers[0].failures
    settled(story, PEERS[1], not first)
    assert [bool(worker.failures) for worker in workers] == [not first, first]


def test_two_devices_whose_outputs_differ_blame_nobody() -> None:
    story = Story(tasks=12, workers=2, attempts=5)
    for peer in PEERS[:2]:
        settled(story, peer, agrees=False)
    assert not any(story.core.state.worker(peer).failures for peer in PEERS[:2])


def test_a_device_whose_outputs_keep_differing_from_anothers_is_set_aside() -> None:
    story = Story(tasks=12, workers=2, attempts=5)
    settled(story, PEERS[1], agrees=True)
    asides = [settled(story, PEERS[0], agrees=False) for _ in range(3)]
    assert any(asides)
