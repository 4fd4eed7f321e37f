"""Workers that refuse, are away, or do not fit: how long tasks wait, and what is reported then."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

import pytest

from protocol.messages.work import Conflict, Denied
from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.task import Timeouts
from protocol.words import Reason, WorkerState
from scheduler.core.commands import (
    Command,
    CommitTo,
    Discover,
    EndCampaign,
    EndPending,
    Explain,
    ProbeWorker,
    RecordGrant,
    RecordWaitReason,
)
from scheduler.core.entries import TaskEntry, TaskLimits
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_parts import (
    PEERS,
    Story,
    a_task,
    advert,
    decided,
    of,
    quote,
)


def test_a_conflict_or_a_full_queue_is_no_try() -> None:
    story = Story()
    commit = story.commits[0]
    conflict = Conflict(reason=Reason.BUSY, quote=quote(free=0, queue=5))
    story.tell(story.core.reconciler.conflict(commit.task, commit.attempt, conflict, story.now))
    assert story.core.state.tasks[commit.task].tries == 0
    later = story.after(1.0)
    (again,) = of(later, CommitTo)
    assert again.attempt == 2
    denied = Denied(reason=Reason.BUSY, retry_s=3.0)
    story.tell(story.core.reconciler.deny(again.task, again.attempt, denied, story.now))
    assert not of(story.after(2.0), ProbeWorker)
    assert of(story.after(1.5), ProbeWorker)


def test_a_program_that_a_worker_runs_for_those_it_knows_alone_costs_the_other_models_nothing() -> None:
    core, now = SchedulerCore(random.Random(1)), 100.0
    program, plain = a_task(1), a_task(2)
    program = program.model_copy(update={"model": program.model.model_copy(update={"name": "net.pt2"})})
    orders = decided(
        core, core.add(TaskLimits(campaign="c-one"), [TaskEntry(program), TaskEntry(plain)], now), now
    )
    for look in of(orders, Discover):
        decided(core, core.workers.add_adverts(look.group, [advert(0)], now), now)
    first, second = of(decided(core, core.workers.add_quote(PEERS[0], quote(), now), now), CommitTo)
    assert (first.task, second.task) == ("c-one/1", "c-one/2")
    denied = Denied(
        reason=Reason.NOT_ALLOWED, detail="net.pt2: it carries a program", unmet=("a model without one",)
    )
    assert not of(decided(core, core.reconciler.deny(first.task, first.attempt, denied, now), now), CommitTo)
    fence = Fence(incarnation=1, number=1)
    decided(
        core,
        core.reconciler.grant(
            PEERS[0], RecordGrant(second.task, second.attempt, "l1", fence, queued=False), now
        ),
        now,
    )
    entry, need = core.state.tasks["c-one/1"], core.state.groups[core.state.tasks["c-one/1"].group]
    assert (entry.tries, need.fits, list(need.declined)) == (0, set(), [PEERS[0]])
    assert core.state.worker(PEERS[0]).refused is None
    assert core.state.groups[core.state.tasks["c-one/2"].group].fits == {PEERS[0]}


@pytest.mark.parametrize("how", ["denied", "conflict"])
def test_a_worker_that_says_no_again_and_again_is_left_alone_for_longer_and_longer(how: str) -> None:
    story = Story()
    requests: list[float] = []
    for _ in range(300):
        while story.commits:
            commit = story.commits.pop()
            requests.append(story.now)
            if how == "denied":
                busy = Denied(reason=Reason.BUSY, retry_s=0.01)
                story.tell(story.core.reconciler.deny(commit.task, commit.attempt, busy, story.now))
            else:
                late = Conflict(reason=Reason.STALE_QUOTE, quote=quote())
                story.tell(story.core.reconciler.conflict(commit.task, commit.attempt, late, story.now))
        for probe in of(story.after(0.5), ProbeWorker):
            story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
    waits = [after - before for before, after in itertools.pairwise(requests)]
    assert len(waits) < 12
    assert waits == sorted(waits)
    assert max(waits) <= 31
    story.after(31)
    for probe in of(story.orders, ProbeWorker):
        story.tell(story.core.workers.add_quote(probe.peer, quote(), story.now))
    story.grant(story.commits[-1])
    assert story.core.state.worker(PEERS[0]).backoff_s == 0


def test_a_worker_that_is_out_of_order_does_not_keep_a_task_from_the_others() -> None:
    story = Story(workers=2, backoff_s=5.0)
    first = story.commits[0]
    other = next(peer for peer in PEERS[:2] if peer != first.peer)
    story.tell(story.core.workers.add_quote(other, quote(state=WorkerState.FAULTY), story.now))
    story.grant(first)
    assert story.fail("c-one/1", Reason.CRASHED)[0] is TaskEvent.RETRY
    (again,) = of(story.after(6.0), CommitTo)
    assert again.peer == first.peer


AWAY: Final[dict[str, Callable[[Story], list[Command]]]] = {
    "paused": lambda story: story.core.workers.add_quote(
        PEERS[0],
        quote(state=WorkerState.DRAINING).model_copy(update={"why": "paused by its owner"}),
        story.now,
    ),
    "faulty": lambda story: story.core.workers.add_quote(
        PEERS[0], quote(state=WorkerState.FAULTY), story.now
    ),
    "gone": lambda story: story.core.workers.mark_unreachable(PEERS[0], "no answer", story.now),
    "quiet hours": lambda story: story.core.workers.refuse(
        PEERS[0], Denied(reason=Reason.NOT_SERVING, detail="quiet hours until 07:00"), story.now
    ),
}


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("refusing", [False, True])
def test_a_device_that_is_away_is_waited_for_as_long_as_the_queue_limit_says(
    away: str, refusing: bool
) -> None:
    """With `refusing`, there is also a device that does not serve this scheduler: that is not final either."""
    story = Story(workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0), advert(1)][: 1 + refusing], story.now))
    if refusing:
        denied = Denied(reason=Reason.NOT_ALLOWED, detail="not yours")
        story.tell(story.core.workers.refuse(PEERS[1], denied, story.now))
    hours = int(Timeouts().queue_s // 3600)
    orders: list[Command] = []
    for _ in range(60 * hours - 1):
        story.tell(AWAY[away](story))
        orders += story.after(60.0)
    assert not of(orders, Explain)
    notes = [each.words for each in of(orders, RecordWaitReason)]
    assert any(away in words for words in notes), notes
    story.tell(AWAY[away](story))
    (ended,) = of(story.after(121.0), EndPending)
    assert ended.reason is Reason.TIMED_OUT
    assert "no device took it within 12 h (timeouts.queue)" in ended.detail
    assert away in ended.detail


def test_tasks_that_every_device_refuses_are_given_up_after_the_wait() -> None:
    story = Story(workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    denied = Denied(reason=Reason.NOT_ALLOWED, detail="not yours")
    story.tell(story.core.workers.refuse(PEERS[0], denied, story.now))
    assert of(story.after(11.0), Explain)


def test_a_device_that_was_paused_is_called_paused_and_a_faulty_one_faulty() -> None:
    for state, says, why in (
        (WorkerState.DRAINING, "paused by its owner", "paused by its owner"),
        (WorkerState.DRAINING, "", "it is draining"),
        (WorkerState.FAULTY, "three runs crashed", "it is faulty: three runs crashed"),
    ):
        story = Story(workers=0)
        story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
        result = quote(state=state).model_copy(update={"why": says})
        story.tell(story.core.workers.add_quote(PEERS[0], result, story.now))
        assert story.core.state.worker(PEERS[0]).why == why


def test_nothing_that_fits_is_explained_after_the_wait_and_fails_the_tasks() -> None:
    story = Story(tasks=2, workers=0, wait_s=10.0)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    assert not of(story.after(9.0), Explain)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    (explain,) = of(story.after(1.0), Explain)
    assert not of(story.after(1.0), Explain)
    orders = story.tell(
        story.core.timeouts.end_unplaceable(explain.group, Reason.NOTHING_FITS, "none", story.now)
    )
    assert of(orders, EndPending)[0].tasks == ("c-one/1", "c-one/2")
    assert of(orders, EndCampaign)


def test_a_worker_that_turns_up_while_we_explain_gets_the_tasks() -> None:
    story = Story(workers=0, wait_s=1.0)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    (explain,) = of(story.after(1.5), Explain)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    orders = story.tell(
        story.core.timeouts.end_unplaceable(explain.group, Reason.NOTHING_FITS, "none", story.now)
    )
    assert not of(orders, EndPending)
    assert of(story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now)), CommitTo)
