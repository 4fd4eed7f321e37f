"""Priorities, measurements and time limits with a whole worker: what its schedulers hear, and how the runs end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trio

from drivers.contract.base import BetweenLaunches, MeasureReport, ModelDescription, ProgressReport
from protocol.formats.phase import Phase
from protocol.messages.work import (
    MAX_BATCH,
    AdoptReply,
    AdoptRequest,
    Cancel,
    CredentialsReply,
    Denied,
    Granted,
    ListLeases,
    Preempt,
    Probe,
    Progress,
    Queued,
    Quote,
    Ready,
    Release,
    Renew,
    Renewed,
    Result,
    Shape,
    ShowCredentials,
    StatusRequest,
    Stopped,
    WorkerStatus,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Timeouts
from protocol.words import Reason, Right, RunOutcome
from swarm.pools.tokens import Grant, issue

MODEL = "a" * 64


async def until(condition: Any) -> None:
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.001)


def hang_while_timed(script: Any, more: Callable[[], Any] = lambda: ()) -> None:
    """Keep the launch in its timed inferences until `go` is set. `more` gives the events that follow."""

    def events() -> Any:
        yield ProgressReport(Phase.RUN, 0, script.order.runs)
        script.go.wait(5)
        yield ModelDescription(
            script.unit, "onnx", "onnxruntime 1", ("CPUExecutionProvider",), 2, {"x": (1,)}, {"x": "f"}, 0
        )
        yield MeasureReport((1,) * script.order.runs, (5,), 0.1, 0.2, 300, 40, 0)
        yield from more()

    script.events = events


async def test_a_run_gives_way_its_scheduler_is_warned_and_its_record_says_so(world: Any) -> None:
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    low, high = await world.link(), await world.link(bob)
    granted = await low.ask(world.ann.commit(world.ann.task(), priority=20), Granted)
    await world.ann.wait_for(Progress, 3)
    request = trio.current_time()
    ticket = await high.ask(bob.commit(bob.task(), priority=30, queue=True), Queued)
    warning = await world.ann.wait_for(Preempt)
    assert (warning.lease, warning.fence, warning.priority) == (granted.lease, granted.fence, 30)
    ready = await bob.wait_for(Ready)
    assert ready.lease == ticket.lease
    assert trio.current_time() - request >= warning.grace_s
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)
    assert len(record.loads) == 1, "what was seen before stays in"
    world.device.go.set()
    assert (await bob.record()).outcome is RunOutcome.COMPLETE


async def test_a_run_that_is_being_timed_is_let_end_and_only_then_the_higher_one_begins(world: Any) -> None:
    world.device.change = hang_while_timed
    bob = world.scheduler()
    worker = await world.start(allow=(bob.identity.peer_id,))
    low, high = await world.link(), await world.link(bob)
    granted = await low.ask(world.ann.commit(world.ann.task(), priority=0), Granted)
    await until(lambda: worker.ledger.allocation(granted.lease).timed)
    await high.ask(bob.commit(bob.task(), priority=100, queue=True), Queued)
    worker.ledger.expire(trio.current_time() + 5.0)
    worker.carry_out()
    assert not world.device.launches[0].killed.is_set()
    world.device.go.set()
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
    assert (await bob.record()).outcome is RunOutcome.COMPLETE
    assert world.ann.count(Preempt) == 0


async def test_a_run_of_several_launches_gives_way_after_the_one_that_is_being_timed(world: Any) -> None:
    begun: list[int] = []

    def two_more() -> Iterator[BetweenLaunches | MeasureReport]:
        for number in (2, 3):
            yield BetweenLaunches()
            begun.append(number)
            yield MeasureReport((1,), (5,), 0.1, 0.2, 300, 40, 0)

    world.device.change = lambda script: hang_while_timed(script, two_more)
    bob = world.scheduler()
    worker = await world.start(allow=(bob.identity.peer_id,))
    low, high = await world.link(), await world.link(bob)
    granted = await low.ask(world.ann.commit(world.ann.task(), priority=0), Granted)
    await until(lambda: worker.ledger.allocation(granted.lease).timed)
    world.device.change = lambda script: None
    await high.ask(bob.commit(bob.task(), priority=100, queue=True), Queued)
    world.device.go.set()
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.PREEMPTED)
    assert (len(record.timings), begun) == (1, [])
    assert (await world.ann.wait_for(Preempt)).grace_s == 0
    assert (await bob.record()).outcome is RunOutcome.COMPLETE


async def test_a_run_ends_with_its_campaign_whatever_became_of_the_scheduler(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(), left_s=0.1), Granted)
    await link.reset()
    await until(lambda: world.unsent() == 1)
    assert world.device.launches == [] or world.device.launches[0].dead
    await world.link()
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.TIMED_OUT)


async def test_a_queued_lease_ends_when_its_time_in_the_queue_is_over(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    waiting = world.ann.task(2, timeouts=Timeouts(queue_s=0.1))
    ticket = await link.ask(world.ann.commit(waiting, queue=True), Queued)
    await until(lambda: not worker.ledger.queue)
    reply = await link.ask(Renew(held=(world.held(ticket),)), Renewed)
    assert [lost.reason for lost in reply.lost] == [Reason.TIMED_OUT]


async def test_a_quote_tells_for_each_priority_how_long_it_takes_and_who_would_give_way(world: Any) -> None:
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    low, high = await world.link(), await world.link(bob)
    await low.ask(world.ann.commit(world.ann.task(1), priority=20), Granted)
    await low.ask(world.ann.commit(world.ann.task(2), priority=25, queue=True), Queued)
    await world.ann.wait_for(Progress, 3)
    shapes = tuple(
        Shape(unit="CPU (ONNX)", requirement=Requirement(), model=MODEL, size=9, priority=priority)
        for priority in (20, 25, 26, 30)
    )
    quote = await high.ask(Probe(campaign="c-1", shapes=shapes), Quote)
    assert [(each.ahead, each.preempts) for each in quote.shapes] == [
        (1, ""),
        (0, ""),
        (0, ""),
        (0, "a run at priority 20"),
    ]
    assert [each.start_s for each in quote.shapes] == [None, None, None, 1.0]
    assert (quote.free, quote.queue, quote.run_s) == (0, 1, None)


async def test_whoever_asks_how_it_stands_sees_its_own_work_and_the_owner_all_of_it(world: Any) -> None:
    bob = world.scheduler()
    worker = await world.start(allow=(bob.identity.peer_id,))
    own, other = await world.link(), await world.link(bob)
    await other.ask(bob.commit(bob.task(1), priority=20), Granted)
    await bob.wait_for(Progress, 3)
    await own.ask(world.ann.commit(world.ann.task(2), priority=25, queue=True), Queued)
    all_of_it = await own.ask(StatusRequest(), WorkerStatus)
    assert [(job.task, job.state, job.priority) for job in all_of_it.jobs] == [
        ("c-1/1", "running", 20),
        ("c-1/2", "queued", 25),
    ]
    assert all_of_it.jobs[0].phase is Phase.LOAD
    assert all_of_it.jobs[0].principal == bob.identity.peer_id
    observed = await other.ask(StatusRequest(), WorkerStatus)
    assert [job.task for job in observed.jobs] == ["c-1/1"]
    assert (observed.running, observed.queue, observed.state) == (1, 1, worker.ledger.condition.state)


async def test_a_campaign_is_listed_page_by_page_and_listing_changes_nothing(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    count = MAX_BATCH + 6
    tickets = [
        await link.ask(world.ann.commit(world.ann.task(number), queue=True), Queued)
        for number in range(2, count + 1)
    ]
    other = await world.link()
    first = await other.ask(ListLeases(campaign="c-1"), AdoptReply)
    assert len(first.leases) == MAX_BATCH
    assert (first.leases[0].task, first.leases[0].queued, first.leases[1].queued) == ("c-1/1", False, True)
    assert first.cursor is not None
    await link.ask(Release(held=(world.held(tickets[0]),)), Stopped)
    rest = await other.ask(ListLeases(campaign="c-1", cursor=first.cursor), AdoptReply)
    assert rest.cursor is None
    lines = [lease.task for lease in (*first.leases, *rest.leases)]
    assert lines == [f"c-1/{number}" for number in range(1, count + 1)]
    assert (first.epoch, worker.ledger.epoch(world.ann.identity.peer_id, "c-1")) == (1, 1)
    again = await link.ask(world.ann.commit(world.ann.task(99), queue=True), Queued)
    assert isinstance(again, Queued), "who looks takes nothing over"
    adopted = await other.ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    assert adopted.epoch == 2
    refused = await link.ask(world.ann.commit(world.ann.task(100), queue=True), Denied)
    assert refused.reason is Reason.STALE_EPOCH


async def test_a_delegate_takes_a_campaign_over_and_carries_it_on_under_its_own_signature(world: Any) -> None:
    ann, dee = world.ann, world.scheduler()
    worker = await world.start()
    old, new = await world.link(), await world.link(dee)
    granted = await old.ask(ann.commit(ann.task(1)), Granted)
    await ann.wait_for(Progress, 3)
    assert isinstance(await new.call(AdoptRequest(campaign="c-1", epoch=2)), Denied), "no permission yet"
    grant = Grant(frozenset({Right.SUBMIT}), priority=60, campaigns=frozenset({"c-1"}))
    token = issue(ann.identity, dee.identity.peer_id, grant, now=world.wall)
    shown = await new.ask(ShowCredentials(issuer=ann.identity.peer_id, token=token), CredentialsReply)
    assert shown.principal == ann.identity.peer_id
    assert isinstance(await new.call(AdoptRequest(campaign="c-1", epoch=1)), Denied), "needs a higher epoch"
    adopted = await new.ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    assert [lease.lease for lease in adopted.leases] == [granted.lease]
    mine = (world.held(granted),)
    lost = (await old.ask(Renew(held=mine), Renewed)).lost
    assert [each.reason for each in lost] == [Reason.STALE_EPOCH]
    assert (await old.ask(Cancel(held=mine), Denied)).reason is Reason.STALE_EPOCH
    assert (await new.ask(Renew(held=mine), Renewed)).renewed == (granted.lease,)
    task = dee.task(2, scheduler=ann.identity.peer_id)
    await new.ask(dee.commit(task, epoch=2, priority=90, queue=True), Queued)
    assert [place.request.base_priority for place in worker.ledger.allocations()] == [50, 60], (
        "no more than is permitted"
    )
    foreign = dee.task(3, campaign="c-2", scheduler=ann.identity.peer_id)
    refused = await new.ask(dee.commit(foreign, epoch=2, queue=True), Denied)
    assert refused.reason is Reason.NOT_ALLOWED
    world.device.go.set()
    assert (await dee.record(1)).task == "c-1/1", "results go to who speaks now"
    assert (await dee.record(2)).task == "c-1/2"
    assert ann.count(Result) == 0
