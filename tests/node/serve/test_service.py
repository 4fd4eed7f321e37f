"""The whole worker over an in-memory network, with a scripted device."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import trio

from drivers.contract.base import ProgressReport
from protocol.formats.phase import Phase
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.work import (
    AdoptReply,
    AdoptRequest,
    Cancel,
    Conflict,
    Denied,
    Granted,
    HeldLease,
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
    Skip,
    Stopped,
)
from protocol.values.advert import Advert
from protocol.values.lease import Fence
from protocol.values.record import Record, unpack_samples
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Model
from protocol.wire.codec import pack
from protocol.words import (
    ProtocolId,
    Reason,
    RunOutcome,
    WorkerState,
)
from swarm.blobs.client import fetch_blob
from swarm.net.link import Link

MODEL = "a" * 64


async def until(condition: Any) -> None:
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.001)


async def test_a_granted_task_is_fetched_run_and_reported(world: Any) -> None:
    world.device.go.set()
    await world.start()
    link = await world.link()
    task = world.ann.task()
    granted = await link.ask(world.ann.commit(task), Granted)
    record: Record = await world.ann.record()
    assert record.outcome is RunOutcome.COMPLETE
    assert (record.task, record.attempt, record.fence) == (task.task, 1, granted.fence)
    assert record.timings
    assert unpack_samples(record.timings[0].samples) == tuple(range(1_000, 1_010))
    assert record.ran is not None
    assert record.ran.providers == ("CPUExecutionProvider",)
    assert {stage.stage for stage in record.stages} >= {"queue", "fetch", "load", "run"}
    phases = [note.phase for note in world.ann.came if isinstance(note, Progress)]
    assert phases == [Phase.FETCH, Phase.PREPARE, Phase.LOAD, Phase.RUN]
    seqs = [note.seq for note in world.ann.came if isinstance(note, Progress)]
    assert seqs == sorted(set(seqs))
    await until(lambda: world.unsent() == 0)


async def test_the_owner_reads_a_line_when_a_run_begins_and_one_when_it_ends(world: Any) -> None:
    await world.start()
    link = await world.link()
    task = world.ann.task()
    granted = await link.ask(world.ann.commit(task), Granted)
    await until(lambda: world.device.launches)
    assert world.lines == [f"{task.task} {task.model.name} on {task.unit} for you: running"]
    await link.ask(Cancel(held=(world.held(granted),)), Stopped)
    await world.ann.record()
    assert world.lines[1:] == [f"{task.task}: cancelled: cancelled"]


async def test_progress_that_no_note_can_hold_is_dropped_and_the_run_goes_on(world: Any) -> None:
    def boast(script: Any) -> None:
        outcome = script.events

        def events() -> Any:
            yield ProgressReport(Phase.LOAD, done=2**60)
            yield from outcome()

        script.events = events

    world.device.change = boast
    world.device.go.set()
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE


async def test_a_queued_lease_gets_ready_when_a_slot_is_free_and_start_runs_it(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    await world.ann.wait_for(Progress)
    assert world.ann.count(Ready) == 0
    world.device.go.set()
    ready = await world.ann.wait_for(Ready)
    assert (ready.lease, ready.fence) == (ticket.lease, ticket.fence)
    assert (await world.ann.record(2)).task == "c-1/2"
    assert len(world.device.launches) == 2
    await until(lambda: not worker.ledger.allocations())


async def test_a_skipped_lease_never_runs(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    world.ann.answers[Ready] = Skip()
    world.device.go.set()
    await world.ann.wait_for(Ready)
    await until(lambda: not worker.ledger.allocations())
    assert len(world.device.launches) == 1
    reply = await link.ask(Renew(held=(world.held(ticket),)), Renewed)
    assert reply.lost[0].reason is Reason.CANCELLED


async def test_cancel_is_answered_when_the_run_is_dead(world: Any) -> None:
    await world.start()
    link = await world.link()
    granted = await link.ask(world.ann.commit(world.ann.task()), Granted)
    await until(lambda: world.device.launches)
    stopped = await link.ask(Cancel(held=(world.held(granted),)), Stopped)
    assert world.device.launches[0].dead
    assert stopped.leases == (granted.lease,)
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.CANCELLED)
    assert len(record.loads) == 1, "what was seen before the end stays in"


async def test_release_ends_a_queued_lease_at_once(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    assert (await link.ask(Release(held=(world.held(ticket),)), Stopped)).leases == (ticket.lease,)
    assert worker.ledger.queue == 0


async def test_a_result_that_found_no_link_is_delivered_by_the_next_one(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await until(lambda: world.device.launches)
    await link.reset()
    await until(lambda: worker.conversation.links.best(world.ann.identity.peer_id, ("", "")) is None)
    world.device.go.set()
    await until(lambda: world.unsent() == 1)
    assert world.ann.count(Result) == 0
    await world.link()
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
    await until(lambda: world.unsent() == 0)


async def test_after_a_restart_old_fences_are_void_and_old_results_still_come(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    done = await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await until(lambda: world.device.launches)
    await link.reset()
    world.device.go.set()
    await until(lambda: world.unsent() == 1)
    world.device.go.clear()
    link = await world.link()
    running = await link.ask(world.ann.commit(world.ann.task(2)), Granted)
    world.kill()
    await world.start()
    again = await world.link()
    reply = await again.ask(Renew(held=(world.held(running), world.held(done))), Renewed)
    assert reply.incarnation == 2
    assert {lost.reason for lost in reply.lost} == {Reason.LOST}
    first = await world.ann.record()
    assert (first.task, first.fence.incarnation) == ("c-1/1", 1)
    fresh = await again.ask(world.ann.commit(world.ann.task(2), attempt=2), Granted)
    assert fresh.fence.key() > running.fence.key()
    del worker


async def test_a_stranger_is_refused_on_each_verb_and_as_a_taker_of_blobs(world: Any) -> None:
    await world.start()
    eve = world.scheduler()
    link: Link = await world.link(eve)
    nothing = (HeldLease(lease="x", fence=Fence(incarnation=1, number=1)),)
    shape = Shape(unit="CPU (ONNX)", requirement=Requirement(), model=MODEL, size=1)
    verbs = [
        Probe(campaign="c-1", shapes=(shape,)),
        eve.commit(eve.task()),
        Renew(held=nothing),
        Cancel(held=nothing),
        Release(held=nothing),
        AdoptRequest(campaign="c-1", epoch=1),
    ]
    for verb in verbs:
        answer = await link.ask(verb, Denied)
        assert answer.reason is Reason.NOT_ALLOWED, verb
        assert f"--allow {eve.identity.peer_id}" in answer.detail
    with pytest.raises(Exception, match="not served to this peer"):
        await fetch_blob(eve.network, world.network.peer_id, world.network.addresses, MODEL, sink=len)


async def test_a_scheduler_on_the_list_is_served(world: Any) -> None:
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    link = await world.link(bob)
    assert isinstance(await link.call(bob.commit(bob.task())), Granted)


async def test_of_two_schedulers_that_race_for_one_place_one_gets_a_conflict_with_a_fresh_quote(
    world: Any,
) -> None:
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    shape = Shape(unit="CPU (ONNX)", requirement=Requirement(), model=MODEL, size=1)
    answers = []

    async def race(hand: Any) -> None:
        link = await world.link(hand)
        quote = await link.ask(Probe(campaign="c-1", shapes=(shape,)), Quote)
        both.append(hand)
        await until(lambda: len(both) == 2)
        answers.append(await link.call(hand.commit(hand.task(), ledger=quote.ledger)))

    both: list[Any] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(race, world.ann)
        nursery.start_soon(race, bob)
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Granted"]
    lost = next(answer for answer in answers if isinstance(answer, Conflict))
    assert (lost.reason, lost.quote.free) == (Reason.STALE_QUOTE, 0)
    await until(lambda: len(world.device.launches) == 1)


async def test_a_quote_says_what_is_not_met_and_whether_the_model_is_here(world: Any) -> None:
    world.device.go.set()
    await world.start(labels={"site": "lab"})
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await world.ann.record()
    model = world.ann.task().model
    strict = Requirement(clauses=(parse_clause("ram >= 64 GiB"), parse_clause("label.site == lab")))
    ask = Probe(
        campaign="c-1",
        shapes=(
            Shape(unit="CPU (ONNX)", requirement=Requirement(), model=model.sha256, size=model.size),
            Shape(unit="GPU (ONNX)", requirement=strict, model=MODEL, size=9),
        ),
    )
    fits, not_fits = (await link.ask(ask, Quote)).shapes
    assert (fits.fits, fits.warm, fits.fetch) == (True, True, 0)
    assert (not_fits.fits, not_fits.warm, not_fits.fetch) == (False, False, 9)
    assert not_fits.unmet == (
        "unit GPU (ONNX): this device has CPU (ONNX)",
        "ram: has 8 GiB, needs >= 64 GiB",
    )
    refused = await link.ask(world.ann.commit(world.ann.task(2, requirement=strict)), Denied)
    assert refused.reason is Reason.DOES_NOT_FIT
    assert refused.unmet == ("ram: has 8 GiB, needs >= 64 GiB",)


async def test_a_task_that_is_not_the_schedulers_own_or_not_signed_is_refused(world: Any) -> None:
    bob = world.scheduler()
    await world.start()
    link = await world.link()
    foreign = world.ann.commit(bob.task())
    assert (await link.ask(foreign, Denied)).reason is Reason.NOT_ALLOWED
    unsigned = world.ann.commit(world.ann.task(), signature=bytes(64))
    assert (await link.ask(unsigned, Denied)).reason is Reason.BAD_REQUEST
    junk = world.ann.commit(world.ann.task()).model_copy(update={"task": b"\xc0"})
    assert (await link.ask(junk, Denied)).reason is Reason.BAD_REQUEST
    assert world.device.launches == []


async def test_a_scheduler_that_comes_back_adopts_what_runs(world: Any) -> None:
    await world.start()
    link = await world.link()
    granted = await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    await until(lambda: world.device.launches)
    await world.ann.wait_for(Progress, 3)
    await link.reset()
    link = await world.link()
    adopted = await link.ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    assert [(item.lease, item.queued) for item in adopted.leases] == [
        (granted.lease, False),
        (ticket.lease, True),
    ]
    assert adopted.leases[0].phase is Phase.LOAD
    old = await link.ask(world.ann.commit(world.ann.task(3), queue=True), Denied)
    assert old.reason is Reason.STALE_EPOCH


async def test_a_link_of_before_an_adoption_can_stop_nothing_any_more(world: Any) -> None:
    worker = await world.start()
    old = await world.link()
    granted = await old.ask(world.ann.commit(world.ann.task(1)), Granted)
    await until(lambda: world.device.launches)
    mine = (world.held(granted),)
    new = await world.link()
    await new.ask(AdoptRequest(campaign="c-1", epoch=5), AdoptReply)
    lost = (await old.ask(Renew(held=mine), Renewed)).lost
    assert [(each.lease, each.reason) for each in lost] == [(granted.lease, Reason.STALE_EPOCH)]
    for verb in (Cancel(held=mine), Release(held=mine)):
        assert (await old.ask(verb, Denied)).reason is Reason.STALE_EPOCH, verb
    assert not world.device.launches[0].killed.is_set()
    assert worker.ledger.running == 1
    assert (await new.ask(Renew(held=mine), Renewed)).renewed == (granted.lease,)
    late = await world.link()
    assert (await late.ask(Renew(held=mine), Renewed)).renewed == (granted.lease,), "named no epoch yet"
    await new.ask(Cancel(held=mine), Stopped)
    assert world.device.launches[0].dead


def clauses(*texts: str) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in texts))


@pytest.mark.parametrize(
    "strict", [clauses(*(f"cores >= {n}" for n in range(100, 109))), clauses("soc ~ " + "x" * 195)]
)
async def test_unmet_clauses_are_reported_up_to_the_size_of_an_answer(
    world: Any, strict: Requirement
) -> None:
    await world.start()
    link = await world.link()
    shape = Shape(unit="x" * 200, requirement=strict, model=MODEL, size=1)
    (quote,) = (await link.ask(Probe(campaign="c-1", shapes=(shape,)), Quote)).shapes
    assert not quote.fits
    assert 0 < len(quote.unmet) <= 8
    refused = await link.ask(world.ann.commit(world.ann.task(requirement=strict)), Denied)
    assert refused.reason is Reason.DOES_NOT_FIT
    assert len(refused.unmet) == len(strict.clauses)


async def test_a_task_that_is_wrong_at_length_is_refused_in_short(world: Any) -> None:
    await world.start()
    link = await world.link()
    body = pack(world.ann.task().to_wire() | {"measure": {"dims": {"x" * 5000: 1}}})
    ask = world.ann.commit(world.ann.task()).model_copy(update={"task": body})
    refused = await link.ask(ask, Denied)
    assert refused.reason is Reason.BAD_REQUEST
    assert "bad task: measure.dims" in refused.detail


async def test_a_full_disk_fails_the_task_and_leaves_the_worker_well(world: Any) -> None:
    worker = await world.start()
    world.free = 1_000
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    record = await world.ann.record()
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.DISK_FULL, False)
    world.free = 10**12
    world.device.go.set()
    await link.ask(world.ann.commit(world.ann.task(2)), Granted)
    assert (await world.ann.record(2)).outcome is RunOutcome.COMPLETE
    assert worker.ledger.condition.serving


async def test_a_model_with_another_content_fails_with_wrong_hash_after_a_second_try(world: Any) -> None:
    await world.start()
    world.ann.content = b"x" * 5_000
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.FAILED, Reason.WRONG_HASH)
    assert world.device.launches == []


async def test_a_large_record_is_pulled_by_its_scheduler_and_nobody_else(world: Any) -> None:
    world.device.change = lambda script: setattr(script, "noisy", True)
    world.device.go.set()
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    link = await world.link()
    task = world.ann.task(measure=world.ann.task().measure.model_copy(update={"runs": 20_000}))
    world.ann.answers[Result] = Denied(reason=Reason.OVERLOADED)
    await link.ask(world.ann.commit(task), Granted)
    result = await world.ann.wait_for(Result)
    assert result.body is None
    assert result.size > 40 * 1024
    got = bytearray()
    await fetch_blob(
        world.ann.network, world.network.peer_id, world.network.addresses, result.sha256, sink=got.extend
    )
    assert len(got) == result.size
    with pytest.raises(Exception, match="no such file"):
        await fetch_blob(bob.network, world.network.peer_id, world.network.addresses, result.sha256, sink=len)


async def three_crashes(world: Any, link: Link) -> None:
    def crash(script: Any) -> None:
        script.failure = world.crash("killed by SIGSEGV")

    world.device.change = crash
    world.device.go.set()
    for number in (1, 2, 3):
        world.ann.content = content = bytes([number]) * 10
        model = Model(name="m.onnx", sha256=hashlib.sha256(content).hexdigest(), size=10)
        await link.ask(world.ann.commit(world.ann.task(number, model=model)), Granted)
        record = await world.ann.record(number)
        assert record.reason is Reason.CRASHED


async def test_three_models_that_crash_on_a_device_that_works_take_no_worker_out(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await three_crashes(world, link)
    assert worker.ledger.condition.serving
    assert isinstance(await link.call(world.ann.commit(world.ann.task(4))), Granted)


async def test_a_device_that_does_not_work_serves_nobody_until_it_works_again(world: Any) -> None:
    world.trouble = "a check finds that CPU (ONNX) no longer works here"
    worker = await world.start()
    link = await world.link()
    await three_crashes(world, link)
    refused = await link.ask(world.ann.commit(world.ann.task(4)), Denied)
    assert refused.reason is Reason.NOT_SERVING
    stream = await world.ann.network.open(world.network.peer_id, ProtocolId.HEALTH, world.network.addresses)
    health = Link(stream, HEALTH)
    await world.nursery.start(health.run)
    pong = await health.ask(Ping(), Pong)
    assert (pong.role, pong.state) == ("worker", WorkerState.FAULTY)
    assert "3 models" in pong.why
    assert "no longer works" in pong.why
    world.trouble = ""
    await until(lambda: worker.ledger.condition.serving)
    assert isinstance(await link.call(world.ann.commit(world.ann.task(4))), Granted)


async def test_a_worker_that_leaves_ends_its_run_reports_it_and_withdraws_its_advert(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await until(lambda: world.device.launches)
    world.parts.leave.set()
    await until(lambda: world.board.withdrawn)
    assert world.device.launches[0].dead
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.NOT_SERVING)


async def test_a_worker_that_is_cancelled_leaves_no_run_behind(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await until(lambda: world.device.launches)
    world.kill()
    await until(lambda: world.device.launches[0].dead)


async def test_the_advert_says_what_the_device_is(world: Any) -> None:
    await world.start(labels={"site": "lab"})
    await until(lambda: world.board.adverts)
    advert: Advert = world.board.adverts[0]
    assert (advert.name, advert.ram, advert.labels) == ("lab-1", 8 * 1024**3, {"site": "lab"})
    assert advert.units[0].unit == "CPU (ONNX)"


class SlowBoard:
    """An index whose publishing never ends."""

    def __init__(self) -> None:
        self.publishing = trio.Event()
        self.under_way = False
        self.withdrawn: list[bool] = []

    async def publish(self, advert: Advert, campaigns: Any = ()) -> int:
        self.under_way = True
        self.publishing.set()
        try:
            await trio.sleep_forever()
        finally:
            self.under_way = False

    async def withdraw(self) -> int:
        await trio.lowlevel.checkpoint()
        self.withdrawn.append(self.under_way)
        return 1


async def test_nothing_is_published_any_more_when_the_advert_is_withdrawn(world: Any) -> None:
    world.board = board = SlowBoard()
    await world.start()
    await board.publishing.wait()
    world.parts.leave.set()
    await until(lambda: board.withdrawn)
    assert board.withdrawn == [False]
