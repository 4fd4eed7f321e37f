"""The core's policies: priorities and preemption, replicas, campaigns led elsewhere, workers that take work and never finish it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from protocol.errors import LocalProtocolError
from protocol.formats.phase import Phase
from protocol.messages.work import Denied, LiveLease, Renewed
from protocol.values.attempt import AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.trust import MINE, OWN, Trust, TrustKind, TrustScope
from protocol.words import Reason, RunOutcome, WorkerState
from scheduler.core.allocator import REPLICAS_WAIT, ROOTS_WAIT
from scheduler.core.commands import (
    CancelOn,
    Command,
    CommitTo,
    EndAttempt,
    EndCampaign,
    EndHedge,
    EndPending,
    ProbeWorker,
    RecordEvent,
    RecordGrant,
    RecordWaitReason,
    ReleaseOn,
    SetAside,
)
from scheduler.core.entries import LEASED_TASK_STATES, Attempt, TaskEntry, TaskLimits
from scheduler.core.reconciler import OWED_S
from scheduler.core.scheduler import SchedulerCore
from scheduler.core.timeouts import STOP_S
from tests.scheduler.core_invariants import check
from tests.scheduler.core_parts import PEERS, Story, a_live_task, a_record, a_task, advert, decided, of, quote

ONE = "c-one/1"


# -- priorities ----------------------------------------------------------------------------------------------------------------------


def test_the_higher_priority_is_served_first_and_of_equal_ones_the_older() -> None:
    core = SchedulerCore(random.Random(1))
    for campaign, priority in (("c-low", 10), ("c-old", 50), ("c-new", 50), ("c-high", 80)):
        decided(
            core,
            core.add(TaskLimits(campaign, priority=priority), [TaskEntry(a_task(1, campaign=campaign))], 0.0),
            0.0,
        )
    decided(core, core.workers.add_adverts("", [advert(n) for n in range(3)], 0.0), 0.0)
    commits: list[CommitTo] = []
    for n in range(3):
        commits += of(decided(core, core.workers.add_quote(PEERS[n], quote(), 0.0), 0.0), CommitTo)
    order = list(dict.fromkeys(commit.task.partition("/")[0] for commit in commits))
    assert order == ["c-high", "c-old", "c-new", "c-low"]


def test_a_commit_says_how_often_the_task_gave_way_and_how_long_its_campaign_has() -> None:
    story = Story(ends_at=160.0)
    story.grant(story.commits[0])
    story.now += 10
    story.tell(story.core.failures.lose_leases(PEERS[0], ["l1"], Reason.PREEMPTED, story.now))
    again = story.commits[-1]
    assert (story.commits[0].preempted, story.commits[0].left_s) == (0, 60.0)
    assert (again.preempted, again.left_s) == (1, 50.0)


@pytest.mark.parametrize("how", ["renewal", "record"])
def test_a_task_that_gave_way_has_lost_no_try_and_goes_on_at_once_anywhere(how: str) -> None:
    story = Story()
    story.grant(story.commits[0])
    result = story.tell(
        story.core.reconciler.warn(PEERS[0], "l1", Fence(incarnation=1, number=1), 80, story.now)
    )
    assert of(result, RecordEvent)[0].fields["priority"] == 80
    if how == "renewal":
        orders = story.tell(story.core.failures.lose_leases(PEERS[0], ["l1"], Reason.PREEMPTED, story.now))
        (end,) = of(orders, EndAttempt)
        assert (end.event, end.reason) == (TaskEvent.PREEMPT, Reason.PREEMPTED)
        assert "of priority 80" in end.detail
    else:
        record = a_record(story.core, ONE, outcome=RunOutcome.CANCELLED, reason=Reason.PREEMPTED, timings=())
        event, why, detail = story.core.failures.judge(record)
        assert (event, why) == (TaskEvent.PREEMPT, Reason.PREEMPTED)
        assert "of priority 80" in detail
        orders = story.tell(story.core.failures.settle(ONE, event, why, story.now))
    entry = story.core.state.tasks[ONE]
    assert (entry.preempted, entry.tries, entry.tried) == (1, 0, set())
    assert not of(orders, SetAside)
    assert of(orders, CommitTo), "it is asked for again in the same breath"


def test_a_worker_that_says_preempted_more_often_than_is_allowed_has_lost_the_task() -> None:
    story = Story(attempts=3, backoff_s=0.0)
    for turn in range(5):
        story.grant(story.commits[-1])
        story.tell(story.core.failures.lose_leases(PEERS[0], [f"l{turn + 1}"], Reason.PREEMPTED, story.now))
        story.after(1.0)
    entry = story.core.state.tasks[ONE]
    assert (entry.preempted, entry.attempt, entry.state) == (2, 2 + 3, TaskState.FAILED)


# -- replicas ------------------------------------------------------------------------------------------------------------------------


def replicas(
    count: int,
    workers: int,
    trust_of: Callable[[str], Trust] = lambda peer: OWN,
    scope: TrustScope = MINE,
    **hosts: int,
) -> Story:
    """A task `count` times, on `workers` workers; `hosts`: the device of each worker that shares one."""
    story = Story(tasks=0, workers=0, looks=False)
    story.core.state.trust_of = trust_of
    tasks = [a_task(n, campaign="c-two", replica=n) for n in range(1, count + 1)]
    limits = TaskLimits("c-two", backoff_s=0.0, trust=scope)
    story.tell(story.core.add(limits, [TaskEntry(task) for task in tasks], story.now))
    adverts = [advert(n).model_copy(update={"device": f"d{hosts.get(f'w{n}', n)}"}) for n in range(workers)]
    story.tell(story.core.workers.add_adverts("", adverts, story.now))
    for n in range(workers):
        story.tell(story.core.workers.add_quote(PEERS[n], quote(), story.now))
    return story


def test_replicas_go_to_different_devices_and_wait_when_there_are_too_few() -> None:
    story = replicas(3, 2)
    assert sorted(commit.peer for commit in story.commits) == sorted(PEERS[:2])
    for commit in tuple(story.commits):
        story.grant(commit)
        story.succeed(commit.task)
    story.after(1.0)
    assert len(story.commits) == 2
    assert [note.words for note in of(story.orders, RecordWaitReason)] == [REPLICAS_WAIT]
    story.tell(story.core.workers.add_adverts("", [advert(2)], story.now))
    story.tell(story.core.workers.add_quote(PEERS[2], quote(), story.now))
    assert story.commits[-1].peer == PEERS[2]


def test_two_workers_of_one_device_do_not_stand_in_for_two_devices() -> None:
    story = replicas(2, 2, w0=7, w1=7)
    assert len(story.commits) == 1


ANYONE = TrustScope(anyone=True)


def two_roots(peer: str) -> Trust:
    """The trust in four workers: two of one pool, and two strangers of one network."""
    if PEERS.index(peer) < 2:
        return Trust(TrustKind.POOL, "lab", "pool-1")
    return Trust(TrustKind.STRANGER, root="192.0.2.0/24")


def test_where_strangers_are_admitted_replicas_go_to_different_owners_and_wait_for_one_more() -> None:
    story = replicas(3, 4, two_roots, ANYONE)
    places = [PEERS.index(commit.peer) // 2 for commit in story.commits]
    assert sorted(places) == [0, 1]
    story.after(1.0)
    assert [note.words for note in of(story.orders, RecordWaitReason)] == [ROOTS_WAIT]
    for commit in tuple(story.commits):
        story.grant(commit)
        story.succeed(commit.task)
    story.after(1.0)
    assert len(story.commits) == 2, "nor when the others have ended"


@pytest.mark.parametrize("reporting", [False, True])
def test_of_two_replicas_found_on_one_device_the_second_is_stopped_unless_it_has_a_result(
    reporting: bool,
) -> None:
    story = replicas(0, 2, w0=7, w1=7)
    entries = [
        TaskEntry(
            a_task(n, campaign="c-two", replica=n),
            TaskState.LEASED,
            Attempt(
                1,
                PEERS[n - 1],
                f"x{n}",
                Fence(incarnation=1, number=n),
                AttemptStatus.RESTORED,
                inherited=True,
            ),
        )
        for n in (1, 2)
    ]
    story.tell(story.core.add(TaskLimits("c-two"), entries, story.now))
    for n, entry in enumerate(entries, 1):
        lease = LiveLease(
            task=entry.id,
            attempt=1,
            lease=f"x{n}",
            fence=Fence(incarnation=1, number=n),
            reporting=reporting and n == 2,
        )
        args = (PEERS[n - 1], "c-two", 1, (lease,), story.now)
        orders = story.tell(story.core.reconciler.reconcile(*args, expected=frozenset({f"x{n}"})))
    check(story.core.state)
    assert entries[0].state in LEASED_TASK_STATES
    if reporting:
        assert entries[1].state in LEASED_TASK_STATES
        return
    assert [cancel.held[0].lease for cancel in of(orders, CancelOn)] == ["x2"]
    assert (entries[1].state, entries[1].tries) == (TaskState.PENDING, 0)


def test_among_trusted_devices_replicas_repeat_the_measurement_on_devices_of_one_owner() -> None:
    story = replicas(2, 2, two_roots)
    assert len(story.commits) == 2


def test_a_key_that_claims_the_device_id_of_another_is_another_device_and_has_no_task_that_names_it() -> None:
    def clash(device: str, peer: str) -> str:
        return "it is another's" if (device, peer) == ("d7", PEERS[1]) else ""

    story = replicas(0, 0)
    story.core.state.clash = clash
    pinned = [TaskEntry(a_task(n, "device == d7", campaign="c-pin")) for n in range(1, 4)]
    story.tell(story.core.add(TaskLimits("c-pin"), pinned, story.now))
    adverts = [advert(n).model_copy(update={"device": "d7"}) for n in range(2)]
    story.tell(story.core.workers.add_adverts("", adverts, story.now))
    for n in range(2):
        story.tell(story.core.workers.add_quote(PEERS[n], quote(), story.now))
    assert {commit.peer for commit in story.commits} == {PEERS[0]}
    devices = {story.core.state.device_of(story.core.state.worker(PEERS[n])) for n in range(2)}
    assert devices == {"d7", f"d7 {PEERS[1]}"}


def test_a_replica_is_not_tried_again_where_its_sibling_is() -> None:
    story = replicas(2, 2)
    for commit in tuple(story.commits):
        story.grant(commit)
    first = story.commits[0]
    story.fail(first.task, Reason.CRASHED)
    story.after(1.0)
    assert {commit.peer for commit in story.commits if commit.task == first.task} == {first.peer}


# -- campaigns led elsewhere ---------------------------------------------------------------------------------------------------------


def stale() -> Denied:
    return Denied(reason=Reason.STALE_EPOCH, detail="this campaign was adopted under epoch 7")


def test_a_campaign_that_is_carried_on_elsewhere_ends_here_and_nothing_is_touched_at_workers() -> None:
    story = Story(tasks=4)
    story.grant(story.commits[0])
    story.grant(story.commits[1], queued=True)
    orders = story.tell(story.core.failures.end_superseded("c-one", story.now))
    assert not of(orders, CancelOn)
    assert not of(orders, ReleaseOn)
    ends = of(orders, EndAttempt)
    assert [(end.event, end.reason) for end in ends] == [(TaskEvent.CANCEL, Reason.ADOPTED)] * 2
    assert of(orders, EndPending)[0].tasks == ("c-one/3", "c-one/4")
    assert of(orders, EndCampaign)[0].detail == "carried on elsewhere (adopted)"
    assert story.core.idle
    assert story.core.reconciler.start(PEERS[0], "l2", Fence(incarnation=1, number=2), story.now) == (
        None,
        [],
    )


def test_workers_are_not_believed_that_a_campaign_went_elsewhere_however_many_they_are() -> None:
    story = Story(tasks=3, workers=3, attempts=1)
    for commit in tuple(story.commits):
        story.grant(commit)
    for liar in PEERS[:3]:
        orders = story.tell(story.core.failures.exclude(liar, "c-one", story.now))
        assert not of(orders, EndCampaign)
        assert [tell.name for tell in of(orders, RecordEvent)] == ["worker.refused"], "it is recorded"
        assert not story.core.state.worker(liar).held
        assert all(liar not in need.fits for need in story.core.state.ranked), "it gets no more of it"
    assert {entry.state for entry in story.core.state.tasks.values()} == {TaskState.PENDING}
    assert {entry.tries for entry in story.core.state.tasks.values()} == {0}
    assert all(PEERS[0] in need.declined for need in story.core.state.ranked), "and is named when people ask"


def test_a_campaign_of_which_no_worker_has_anything_cannot_have_gone_elsewhere() -> None:
    story = Story()
    commit = story.commits[0]
    orders = story.tell(story.core.reconciler.deny(commit.task, commit.attempt, stale(), story.now))
    assert not of(orders, EndCampaign)
    story.tell(story.core.workers.add_adverts(story.group, [advert(1)], story.now))
    assert of(story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now)), CommitTo)


def test_a_campaign_adopted_with_a_hedged_task_ends_both_queued_leases() -> None:
    story = Story(workers=2)
    story.grant(story.commits[0], queued=True, position=1, start_s=9.0)
    story.grant(story.commits[1], queued=True, position=1, start_s=9.0)
    orders = story.tell(story.core.failures.end_superseded("c-one", story.now))
    assert of(orders, EndCampaign)
    assert len(of(orders, EndAttempt)) + len(of(orders, EndHedge)) >= 1


# -- what workers claim to have ----------------------------------------------------------------------------------------------------------


def claimed(tasks: int = 1, *, attempts: int = 1) -> SchedulerCore:
    """A core with tasks that a worker claims to have, as after an adoption."""
    core = SchedulerCore(random.Random(1))
    entries = [
        a_live_task(n, TaskState.LEASED, PEERS[0], f"x{n}", Fence(incarnation=1, number=n), inherited=True)
        for n in range(1, tasks + 1)
    ]
    decided(core, core.add(TaskLimits("c-one", attempts=attempts), entries, 100.0), 100.0)
    return core


def test_a_claim_that_is_not_kept_costs_no_try() -> None:
    core = claimed(tasks=2)
    orders = decided(
        core,
        core.reconciler.reconcile(
            PEERS[0], "c-one", 1, (), 101.0, expected=frozenset(h.lease for h in core.held_on(PEERS[0]))
        ),
        101.0,
    )
    assert {end.event for end in of(orders, EndAttempt)} == {TaskEvent.REFUSE}
    check(core.state)
    for entry in core.state.tasks.values():
        assert (entry.state, entry.tries, entry.current) == (TaskState.PENDING, 0, None)


@pytest.mark.parametrize("reporting", [True, False])
def test_a_claim_that_comes_to_nothing_is_over_within_a_bounded_time_and_costs_no_try(
    reporting: bool,
) -> None:
    core, now = claimed(), 101.0
    entry = core.state.tasks["c-one/1"]
    live_lease = LiveLease(
        task=entry.id,
        attempt=1,
        lease="x1",
        fence=Fence(incarnation=1, number=1),
        reporting=reporting,
        phase=None if reporting else Phase.RUN,
    )
    decided(
        core,
        core.reconciler.reconcile(PEERS[0], "c-one", 1, (live_lease,), now, expected=frozenset({"x1"})),
        now,
    )
    assert entry.live
    assert entry.current is not None
    limit = OWED_S if reporting else entry.max_run_s(entry.current) + STOP_S
    while core.state.tasks["c-one/1"].live and now < 101.0 + limit + 5.0:
        now += 1.0
        decided(core, core.tick(now), now)
    assert (entry.state, entry.tries) == (TaskState.PENDING, 0)


@pytest.mark.parametrize("same", ["lease", "fence"])
def test_a_worker_that_gives_one_lease_to_two_tasks_has_the_second_taken_away(same: str) -> None:
    story = Story(tasks=8, workers=1)
    first, second = story.commits
    story.grant(first)
    entry, other = story.core.state.tasks[first.task], story.core.state.tasks[second.task]
    assert entry.lease is not None
    assert entry.fence is not None
    lease = entry.lease if same == "lease" else "l99"
    fence = entry.fence if same == "fence" else Fence(incarnation=1, number=99)
    story.tell(
        story.core.reconciler.grant(
            second.peer, RecordGrant(second.task, second.attempt, lease, fence, queued=False), story.now
        )
    )
    assert (other.state, other.tries) == (TaskState.PENDING, 0), "it is not asked again at once"
    assert entry.state is TaskState.LEASED


# -- order of the tasks --------------------------------------------------------------------------------------------------------------------


def test_a_task_that_was_lost_goes_before_those_that_nobody_was_asked_to_take() -> None:
    story = Story(tasks=8, workers=1)
    first = story.commits[0]
    story.begin(first)
    story.tell(story.core.workers.close_link(PEERS[0]))
    story.tell(story.core.failures.lose_all_at_worker(PEERS[0], "gone", story.now))
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)], story.now))
    story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now))
    assert next(commit.task for commit in story.commits if commit.peer == PEERS[1]) == first.task


def test_many_that_nobody_may_have_now_do_not_keep_the_others_waiting() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    tried = [
        TaskEntry(a_task(n), last=1, tries=1, tried=frozenset({PEERS[0]}), not_before=1e9)
        for n in range(1, 201)
    ]
    decided(core, core.add(TaskLimits("c-one"), [*tried, TaskEntry(a_task(201))], now), now)
    (need,) = core.state.groups
    decided(core, core.workers.add_adverts(need, [advert(0)], now), now)
    commits = of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo)
    for _ in range(20):
        now += 0.2
        commits += of(decided(core, core.tick(now), now), CommitTo)
    assert [commit.task for commit in commits] == ["c-one/201"]


# -- workers that never finish their work --------------------------------------------------------------------------------------------


def test_a_worker_that_is_asked_and_never_answers_is_set_aside_for_longer_and_longer_and_comes_back() -> None:
    story = Story(tasks=60, attempts=50, backoff_s=0.0)
    asides: list[float] = []
    back: list[RecordEvent] = []
    for _ in range(600):
        while story.commits:
            commit = story.commits.pop()
            story.tell(story.core.workers.mark_unreachable(commit.peer, "silence", story.now))
            orders = story.tell(
                story.core.reconciler.fail_commit(
                    commit.task, commit.attempt, "silence", story.now, sent=True
                )
            )
            asides += [order.seconds for order in of(orders, SetAside)]
        for probe in of(story.after(3.0), ProbeWorker):
            story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
        back += [order for order in of(story.orders, RecordEvent) if order.name == "worker.back"]
    assert asides[:4] == [30.0, 60.0, 120.0, 240.0]
    assert max(asides) <= 600
    assert len(back) >= 3
    assert "after not answering" in story.core.state.worker(PEERS[0]).why_aside or back


def test_a_worker_that_takes_a_task_and_never_begins_loses_it_to_another() -> None:
    story = Story(workers=1)
    silent = story.commits[0]
    story.grant(silent)
    assert not of(story.after(119.0), CancelOn)
    (stop,) = of(story.after(2.0), CancelOn)
    assert stop.peer == silent.peer
    story.tell(story.core.workers.add_adverts(story.group, [advert(1)], story.now))
    story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now))
    orders = story.tell(story.core.failures.confirm_stop(silent.peer, ["l1"], story.now))
    assert "never started" in of(orders, EndAttempt)[0].detail
    (again,) = of(orders, CommitTo)
    assert again.peer != silent.peer


def test_campaigns_that_would_use_a_worker_learn_why_it_is_set_aside() -> None:
    story = Story(tasks=10)
    asides: list[SetAside] = []
    for _ in range(3):
        story.grant(story.commits.pop(0))
        lease = f"l{story.numbers}"
        asides += of(
            story.tell(story.core.failures.lose_leases(PEERS[0], [lease], Reason.BAD_REQUEST, story.now)),
            SetAside,
        )
    (aside,) = asides
    assert aside.campaigns == ("c-one",)
    assert aside.why.startswith("set aside for 30 s after quick failures")
    note = [order.words for order in of(story.after(1.0), RecordWaitReason)]
    assert any("set aside for 30 s" in words for words in note)


@pytest.mark.parametrize("fault", ["silent", "quick", "liar"])
def test_a_faulty_worker_cannot_use_up_the_tries_of_tasks_that_another_worker_would_run(fault: str) -> None:
    """One worker does everything wrong and is always first; the other works at its own pace."""
    story = Story(tasks=12, workers=2, attempts=3, backoff_s=0.1)
    bad, good = PEERS[:2]
    leases: dict[str, CommitTo] = {}
    for _ in range(400):
        while story.commits:
            commit = story.commits.pop()
            if commit.peer == bad and fault == "silent":
                story.now += 1.0
                story.tell(story.core.workers.mark_unreachable(bad, "silence", story.now))
                orders: list[Command] = decided(
                    story.core,
                    story.core.reconciler.fail_commit(
                        commit.task, commit.attempt, "silence", story.now, sent=True
                    ),
                    story.now,
                )
                story.tell(orders)
                continue
            story.grant(commit, queued=commit.peer == good)
            if commit.peer == good:
                leases[f"l{story.numbers}"] = commit
            elif fault == "quick":
                story.fail(commit.task, Reason.CRASHED)
            else:
                story.tell(
                    story.core.failures.lose_leases(bad, [f"l{story.numbers}"], Reason.BAD_REQUEST, story.now)
                )
        for lease, commit in tuple(leases.items()):
            del leases[lease]
            held = [item for item in story.core.held_on(good) if item.lease == lease]
            if held:
                task, orders = story.core.reconciler.start(good, lease, held[0].fence, story.now)
                story.tell(orders)
                if task is not None:
                    story.now += 0.5
                    story.succeed(commit.task)
        for probe in of(story.after(0.5), ProbeWorker):
            story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
        if story.core.idle:
            break
    assert {entry.state for entry in story.core.state.tasks.values()} == {TaskState.SUCCEEDED}


def test_a_worker_that_takes_no_work_is_asked_again_as_soon_as_it_says_that_it_does() -> None:
    story = Story(tasks=3)
    story.grant(story.commits[0])
    core = story.core
    story.tell(
        core.workers.update_status(
            PEERS[0], Renewed(incarnation=1, state=WorkerState.BUSY, why="paused by its owner"), story.now
        )
    )
    view = core.state.worker(PEERS[0])
    assert (view.state_why, view.why) == ("paused by its owner", "paused by its owner")
    assert not view.serving(story.now)
    orders = story.tell(
        core.workers.update_status(PEERS[0], Renewed(incarnation=1, state=WorkerState.BUSY), story.now)
    )
    assert of(orders, ProbeWorker)


def test_the_books_own_check_sees_replicas_that_meet_on_one_device_of_two_workers() -> None:
    story = replicas(2, 2)
    story.grant(story.commits[0])
    story.grant(story.commits[1])
    same = advert(1).model_copy(update={"device": "d0", "seq": 2})
    decided(story.core, story.core.workers.add_adverts("", [same], story.now), story.now)
    with pytest.raises(LocalProtocolError, match="on one device"):
        check(story.core.state)
