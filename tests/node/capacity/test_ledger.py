"""The ledger alone: events go in, answers and commands come out, and no invariant is ever broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.capacity.allocations import KillCommand, OfferCommand, RunCommand
from node.capacity.ledger import MAX_REMEMBERED, Ledger
from protocol.messages.work import Conflict, Denied, Granted, HeldLease, Queued
from protocol.values.lease import GRACE_S, LEASE_TTL_S, Fence, LeaseState
from protocol.words import Reason, RunOutcome, WorkerState
from tests.node.ledger_parts import ANN, BOB, CAT, DEE, held, linked, want


def test_a_free_place_is_granted_and_its_run_ordered_at_once() -> None:
    ledger = linked()
    granted = ledger.commit(want(1), 0.0)
    assert isinstance(granted, Granted)
    assert granted.fence == Fence(incarnation=7, number=1)
    assert ledger.take_commands() == (RunCommand(granted.lease),)
    assert ledger.take_commands() == ()


def test_a_second_commit_with_the_same_key_gets_the_same_lease() -> None:
    ledger = linked()
    first = ledger.commit(want(1), 0.0)
    version = ledger.version
    ledger.take_commands()
    assert ledger.commit(want(1), 1.0) == first
    assert ledger.version == version
    assert ledger.take_commands() == ()


def test_the_same_key_for_another_task_is_refused() -> None:
    ledger = linked()
    ledger.commit(want(1), 0.0)
    other = replace(want(1), task_sha256="f" * 64)
    answer = ledger.commit(other, 0.0)
    assert isinstance(answer, Denied)
    assert answer.reason is Reason.BAD_REQUEST


def test_a_key_replayed_after_its_lease_ended_never_runs_again() -> None:
    ledger = linked()
    first = ledger.commit(want(1), 0.0)
    lease = held(first)
    ledger.take_commands()
    ledger.finish(lease.lease, 1.0)
    ledger.acknowledge(lease.lease)
    assert ledger.commit(want(1), 2.0) == first
    assert ledger.take_commands() == ()
    assert ledger.renew(ANN, [lease], 2.0).lost[0].lease == lease.lease


def test_a_commit_on_an_old_quote_gets_a_fresh_one_and_holds_nothing() -> None:
    ledger = linked()
    quote = ledger.quote(0.0)
    ledger.commit(want(1, BOB), 0.0)
    answer = ledger.commit(want(1, ANN, ledger=quote.ledger), 0.0)
    assert isinstance(answer, Conflict)
    assert answer.reason is Reason.STALE_QUOTE
    assert answer.quote.free == 0
    assert len(ledger.allocations()) == 1


def test_without_a_place_in_the_queue_the_second_of_two_racers_gets_busy() -> None:
    ledger = linked()
    ledger.commit(want(1, BOB), 0.0)
    answer = ledger.commit(want(1, ANN), 0.0)
    assert isinstance(answer, Conflict)
    assert answer.reason is Reason.BUSY


def test_a_queued_lease_is_offered_when_the_run_before_it_is_over() -> None:
    ledger = linked()
    first = held(ledger.commit(want(1), 0.0))
    second = ledger.commit(want(2, queue=True), 0.0)
    assert isinstance(second, Queued)
    assert second.position == 1
    ledger.take_commands()
    running = ledger.allocation(first.lease)
    assert running is not None
    running.began_at = 1.0
    ledger.finish(first.lease, 3.0)
    assert ledger.take_commands() == (OfferCommand(second.lease),)
    ledger.start(second.lease, 3.0)
    assert ledger.take_commands() == (RunCommand(second.lease),)
    third = ledger.commit(want(3, queue=True), 4.0)
    assert isinstance(third, Queued)
    assert third.start_s == pytest.approx(2.0), "one run ahead, which is expected to take as long as the last"


def test_a_higher_priority_is_offered_first() -> None:
    ledger = linked()
    first = held(ledger.commit(want(1), 0.0))
    ledger.commit(want(2, queue=True), 0.0)
    urgent = held(ledger.commit(want(3, queue=True, priority=80), 0.0))
    ledger.take_commands()
    ledger.finish(first.lease, 1.0)
    assert ledger.take_commands() == (OfferCommand(urgent.lease),)


def test_a_queued_lease_without_a_link_is_passed_over_and_offered_when_its_scheduler_is_back() -> None:
    ledger = linked(BOB)
    first = held(ledger.commit(want(1, BOB), 0.0))
    away = held(ledger.commit(want(2, ANN, queue=True), 0.0))
    there = held(ledger.commit(want(3, BOB, queue=True), 0.0))
    ledger.take_commands()
    ledger.finish(first.lease, 1.0)
    assert ledger.take_commands() == (OfferCommand(there.lease),)
    ledger.skip(there.lease, 1.0)
    assert ledger.take_commands() == ()
    ledger.link_up(ANN, 2.0)
    assert ledger.take_commands() == (OfferCommand(away.lease),)


def test_an_offer_that_was_not_answered_goes_to_the_next_and_comes_again() -> None:
    ledger = linked()
    first = held(ledger.commit(want(1, CAT), 0.0))
    mute = held(ledger.commit(want(2, ANN, queue=True), 0.0))
    other = held(ledger.commit(want(3, BOB, queue=True), 0.0))
    ledger.take_commands()
    ledger.finish(first.lease, 1.0)
    ledger.take_commands()
    ledger.link_down(ANN, 2.0)
    ledger.defer(mute.lease, 2.0)
    assert ledger.take_commands() == (OfferCommand(other.lease),)
    ledger.start(other.lease, 2.0)
    ledger.take_commands()
    ledger.link_up(ANN, 2.0)
    ledger.finish(other.lease, 3.0)
    assert ledger.take_commands() == (OfferCommand(mute.lease),)


def test_a_lapsed_run_goes_on_in_grace_and_a_renewal_takes_it_back() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1), 0.0))
    ledger.take_commands()
    ledger.expire(LEASE_TTL_S)
    assert ledger.take_commands() == ()
    place = ledger.allocation(lease.lease)
    assert place is not None
    assert place.state is LeaseState.LAPSED
    assert ledger.renew(ANN, [lease], 100.0).renewed == (lease.lease,)
    assert place.state.value == "running"


def test_a_lapsed_run_gives_way_to_another_grant_which_runs_when_it_is_dead() -> None:
    ledger = linked()
    lapsed = held(ledger.commit(want(1, ANN), 0.0))
    ledger.take_commands()
    ledger.expire(LEASE_TTL_S)
    granted = ledger.commit(want(1, BOB), LEASE_TTL_S + 1)
    assert isinstance(granted, Granted)
    assert ledger.take_commands() == (KillCommand(lapsed.lease, Reason.EXPIRED),)
    result = ledger.renew(ANN, [lapsed], LEASE_TTL_S + 2)
    assert [lost.reason for lost in result.lost] == [Reason.EXPIRED]
    ledger.finish(lapsed.lease, LEASE_TTL_S + 3)
    assert ledger.take_commands() == (RunCommand(granted.lease),)


def test_a_lapsed_run_is_killed_when_its_grace_is_over() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1), 0.0))
    ledger.take_commands()
    ledger.expire(LEASE_TTL_S)
    ledger.expire(LEASE_TTL_S + GRACE_S - 1)
    assert ledger.take_commands() == ()
    ledger.expire(LEASE_TTL_S + GRACE_S)
    assert ledger.take_commands() == (KillCommand(lease.lease, Reason.EXPIRED),)


def test_a_queued_lease_that_is_not_renewed_is_gone() -> None:
    ledger = linked()
    first = held(ledger.commit(want(1), 0.0))
    ticket = held(ledger.commit(want(2, queue=True), 0.0))
    ledger.renew(ANN, [first], 10.0)
    result = ledger.renew(ANN, [first, ticket], LEASE_TTL_S + 1)
    assert result.renewed == (first.lease,)
    assert [(lost.lease, lost.reason) for lost in result.lost] == [(ticket.lease, Reason.EXPIRED)]


def test_a_cancelled_run_keeps_the_device_until_it_is_dead() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1), 0.0))
    ledger.take_commands()
    assert ledger.stop(ANN, [lease], Reason.CANCELLED, 1.0) == (lease.lease,)
    assert ledger.take_commands() == (KillCommand(lease.lease, Reason.CANCELLED),)
    following = held(ledger.commit(want(2), 1.0))
    assert ledger.take_commands() == ()
    assert ledger.stop(ANN, [lease], Reason.CANCELLED, 1.0) == (lease.lease,)
    ledger.finish(lease.lease, 2.0)
    assert ledger.take_commands() == (RunCommand(following.lease),)


def test_nobody_stops_or_renews_the_lease_of_another() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1, ANN), 0.0))
    ledger.take_commands()
    assert ledger.stop(BOB, [lease], Reason.CANCELLED, 1.0) == ()
    assert ledger.take_commands() == ()
    assert ledger.renew(BOB, [lease], 1.0).lost[0].reason is Reason.UNKNOWN
    wrong = HeldLease(lease=lease.lease, fence=Fence(incarnation=7, number=99))
    assert ledger.renew(ANN, [wrong], 1.0).lost[0].reason is Reason.FENCED
    assert ledger.stop(ANN, [wrong], Reason.CANCELLED, 1.0) == ()
    place = ledger.allocation(lease.lease)
    assert place is not None
    assert place.state is LeaseState.RUNNING


def test_a_new_incarnation_knows_no_older_fence() -> None:
    lease = held(linked().commit(want(1), 0.0))
    reborn = Ledger(8)
    assert reborn.renew(ANN, [lease], 0.0).lost[0].reason is Reason.LOST
    assert reborn.stop(ANN, [lease], Reason.CANCELLED, 1.0) == ()
    fresh = reborn.commit(want(1), 0.0)
    assert isinstance(fresh, Granted)
    assert fresh.fence.key() > lease.fence.key()
    assert fresh.lease != lease.lease


def test_a_scheduler_with_an_older_epoch_is_refused_after_an_adoption() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1, epoch=1), 0.0))
    assert ledger.adopt(ANN, ANN, "c-Ann", 2, 0.0) is None
    assert [place.lease for place in ledger.of_campaign(ANN, "c-Ann")] == [lease.lease]
    old = ledger.commit(want(2, epoch=1, queue=True), 0.0)
    assert isinstance(old, Denied)
    assert old.reason is Reason.STALE_EPOCH
    assert isinstance(ledger.adopt(ANN, ANN, "c-Ann", 1, 0.0), Denied)
    assert ledger.adopt(ANN, ANN, "c-Ann", 2, 0.0) is None
    assert ledger.adopt(BOB, BOB, "c-Ann", 9, 0.0) is None, "another's campaign of the same name"
    assert isinstance(ledger.commit(want(3, epoch=2, queue=True), 0.0), Queued)


def test_a_ticket_whose_scheduler_is_gone_is_offered_to_who_adopts_its_campaign_at_once() -> None:
    ledger = linked()
    first = held(ledger.commit(want(1), 0.0))
    ticket = ledger.commit(want(2, queue=True), 0.0)
    assert isinstance(ticket, Queued)
    ledger.link_down(ANN, 1.0)
    ledger.finish(first.lease, 1.0)
    ledger.link_up(DEE, 2.0)
    ledger.take_commands()
    assert ledger.adopt(DEE, ANN, "c-Ann", 2, 2.0) is None
    assert ledger.take_commands() == (OfferCommand(ticket.lease),)


def test_a_lease_that_is_spoken_of_under_an_older_epoch_is_refused_also_on_a_link_that_named_none() -> None:
    ledger = linked()
    lease = held(ledger.commit(want(1, epoch=1), 0.0))
    assert ledger.adopt(ANN, ANN, "c-Ann", 5, 0.0) is None

    def refused(epoch: int | None, *, to_end: bool = False, **link: int) -> dict[str, Reason]:
        item = lease.model_copy(update={"epoch": epoch})
        named = {"c-Ann": link["named"]} if link else {}
        return ledger.refusals(ANN, ANN, [item], named, lambda _: True, to_end=to_end)

    stale = {lease.lease: Reason.STALE_EPOCH}
    assert [refused(epoch) for epoch in (1, 4, 5, None)] == [stale, stale, {}, {}]
    assert refused(6) == stale, "it is to adopt first, so that who spoke before is refused"
    assert (refused(6, to_end=True), refused(4, to_end=True)) == ({}, stale), "but it may end what is its own"
    assert refused(None, named=4) == stale
    assert refused(4, named=5) == stale
    ledger.stop(ANN, [lease], Reason.CANCELLED, 1.0)
    ledger.finish(lease.lease, 1.0)
    ledger.acknowledge(lease.lease)
    assert ledger.allocation(lease.lease) is None
    assert [refused(4), refused(5)] == [stale, {}], (
        "nor does it hear of its end as if the campaign were its own"
    )


def test_the_queue_is_bounded_for_all_and_for_each() -> None:
    ledger = Ledger(1, max_queue=3, max_queue_each=2)
    ledger.commit(want(0), 0.0)
    for number in (1, 2):
        assert isinstance(ledger.commit(want(number, queue=True), 0.0), Queued)
    own = ledger.commit(want(3, queue=True), 0.0)
    assert isinstance(own, Denied)
    assert own.reason is Reason.BUSY
    assert own.retry_s is not None
    assert "you have 2 queued leases" in own.detail
    assert isinstance(ledger.commit(want(1, BOB, queue=True), 0.0), Queued)
    full = ledger.commit(want(2, BOB, queue=True), 0.0)
    assert isinstance(full, Denied)
    assert "3 queued leases" in full.detail


def test_a_ticket_that_comes_back_from_an_offer_finds_its_place_in_the_queue() -> None:
    ledger = linked(max_queue=2)
    first = held(ledger.commit(want(1, CAT), 0.0))
    offered = held(ledger.commit(want(2, ANN, queue=True), 0.0))
    ledger.commit(want(3, BOB, queue=True), 0.0)
    ledger.finish(first.lease, 1.0)
    assert ledger.queue == 1
    assert isinstance(ledger.commit(want(4, CAT, queue=True), 1.0), Denied), "the offered one may come back"
    ledger.link_down(ANN, 2.0)
    ledger.defer(offered.lease, 2.0)
    assert ledger.queue <= 2


def test_a_worker_whose_runs_crash_on_three_models_is_suspect_and_faulty_while_a_check_fails() -> None:
    ledger = linked()
    condition = ledger.condition
    for model in "aab":
        condition.begin()
        condition.end(RunOutcome.FAILED, Reason.CRASHED, False, model)
        condition.clean()
    assert condition.state is WorkerState.ACTIVE
    assert not condition.suspect
    condition.begin()
    condition.end(RunOutcome.FAILED, Reason.CRASHED, False, "c")
    assert condition.suspect
    condition.record_examination("the unit is gone")
    assert condition.state is WorkerState.FAULTY
    condition.clean()
    refused = ledger.commit(want(1), 0.0)
    assert isinstance(refused, Denied)
    assert refused.reason is Reason.NOT_SERVING
    assert "3 models crashed" in refused.detail
    assert "the unit is gone" in refused.detail
    assert ledger.quote(0.0).free == 0
    condition.record_examination("it still is")
    assert condition.state is WorkerState.FAULTY
    condition.record_examination("")
    assert isinstance(ledger.commit(want(1), 0.0), Granted)


def test_a_check_that_finds_nothing_blames_the_models_and_counts_anew() -> None:
    condition = Ledger(1).condition
    for model in "abcd":
        condition.begin()
        condition.end(RunOutcome.FAILED, Reason.CRASHED, False, model)
        if condition.suspect:
            assert model == "c"
            condition.record_examination("")
        condition.clean()
    assert condition.state is WorkerState.ACTIVE
    assert not condition.suspect


def test_the_key_of_a_live_lease_is_never_forgotten() -> None:
    ledger = linked()
    first = ledger.commit(want(1), 0.0)
    assert isinstance(first, Granted)
    for number in range(2, MAX_REMEMBERED + 10):
        ticket = ledger.commit(want(number, queue=True), 0.0)
        assert isinstance(ticket, Queued)
        ledger.stop(ANN, (HeldLease(lease=ticket.lease, fence=ticket.fence),), Reason.CANCELLED, 0.0)
    again = ledger.commit(want(1), 0.0)
    assert isinstance(again, Granted)
    assert again.lease == first.lease


def test_a_success_or_a_broken_model_between_crashes_keeps_a_worker_well() -> None:
    condition = Ledger(1).condition
    ends = [
        (RunOutcome.FAILED, Reason.CRASHED, False, "a"),
        (RunOutcome.FAILED, Reason.CRASHED, False, "b"),
        (RunOutcome.FAILED, Reason.BROKEN_MODEL, True, "c"),
        (RunOutcome.COMPLETE, None, False, "d"),
        (RunOutcome.FAILED, Reason.CRASHED, False, "e"),
    ]
    for end in ends:
        condition.begin()
        condition.end(*end)
        condition.clean()
    assert condition.state is WorkerState.ACTIVE
