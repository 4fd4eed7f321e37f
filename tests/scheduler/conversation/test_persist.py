"""Commands write to disk in the order in which the core decided them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import structlog

from protocol.messages.work import Conflict
from protocol.values.attempt import TaskState
from protocol.words import Reason
from scheduler.conversation.persist import CommandWriter
from scheduler.core.commands import CommitTo, RecordWaitReason, SwitchAttempt
from scheduler.store.database import Location
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from tests.scheduler.core_parts import SCHEDULER, Story, a_task, decided, of, quote


def test_a_hedged_request_that_at_once_becomes_the_only_one_is_written_in_that_order(
    place: Location,
) -> None:
    store = Store(place)
    campaign = NewCampaign(
        id="c-one",
        name="n",
        scheduler=SCHEDULER,
        spec="{}",
        attempts=3,
        backoff_s=5,
        wait_s=60,
        limit_s=None,
        priority=50,
    )
    store.campaigns.create(campaign, [], [a_task(1)])
    writer = CommandWriter(store, {}, structlog.get_logger(), lambda campaign: None)
    story = Story(1, 2)
    first = story.commits[0]
    writer.write(story.commits)
    writer.write(story.grant(first, queued=True, position=1))
    second = story.core.state.tasks[first.task].hedge
    assert second is not None
    busy = Conflict(reason=Reason.BUSY, quote=quote())
    writer.write(story.tell(story.core.reconciler.conflict(first.task, second.number, busy, story.now)))
    story.now = story.core.state.worker(second.worker).retry_at + 0.05
    broken = decided(story.core, story.core.workers.close_link(first.peer), story.now)
    lost = decided(
        story.core,
        story.core.failures.lose_all_at_worker(first.peer, "its process is gone", story.now),
        story.now,
    )
    orders = [*broken, *lost]
    assert of(orders, CommitTo), "it is asked for as a second one"
    assert of(orders, SwitchAttempt), "and then the first one is gone"
    writer.write(orders)
    row = store.tasks.all("c-one")[0]
    assert (row.state, row.worker) == (TaskState.COMMITTING, second.worker)
    store.close()


def test_waits_of_any_length_are_written_at_once_and_counted_from_then() -> None:
    written: list[tuple[str, str, float]] = []
    told: list[Sequence[tuple[str, str, float]]] = []
    tasks = SimpleNamespace(set_wait_until=told.append, set_wait_reason=lambda *what: written.append(what))
    store: Any = SimpleNamespace(tasks=tasks)
    writer = CommandWriter(store, {}, structlog.get_logger(), lambda campaign: None)
    writer.write([RecordWaitReason((f"c-one/{n}",), "waits", until=100.0 + n) for n in range(1, 4)])
    writer.write([RecordWaitReason(("c-one/9",), "nobody is there")])
    writer.write_notes(now=40.0)
    assert told == [[("c-one/1", "waits", 61.0), ("c-one/2", "waits", 62.0), ("c-one/3", "waits", 63.0)]]
    assert written == [(["c-one/9"], "nobody is there")]
    assert not writer.notes
