"""Leases that have expired, limits on how much one peer may hold, and who speaks for a campaign that was delegated."""

from __future__ import annotations

from node.capacity.allocations import KillCommand, OfferCommand, WarnCommand
from protocol.messages.work import Denied
from protocol.words import Reason
from tests.node.ledger_parts import ANN, BOB, DEE, campaign_of, linked, run_of, ticket_of, want


def test_a_queued_lease_waits_no_longer_than_its_task_allows_however_often_it_is_renewed() -> None:
    ledger = linked()
    first = run_of(ledger, want(1, ANN))
    ticket = ticket_of(ledger, want(1, BOB, queue=True, queue_s=20.0), 1.0)
    for now in (10.0, 20.0):
        ledger.renew(ANN, [first], now)
        assert ledger.renew(BOB, [ticket], now).renewed == (ticket.lease,)
    assert ledger.next_deadline() == 21.0
    assert [lost.reason for lost in ledger.renew(BOB, [ticket], 21.0).lost] == [Reason.TIMED_OUT]


def test_all_of_a_campaign_ends_when_its_time_is_over() -> None:
    ledger = linked()
    run = run_of(ledger, want(1, ANN, left_s=30.0))
    ticket = ticket_of(ledger, want(2, ANN, queue=True, left_s=30.0))
    for now in (10.0, 20.0, 29.0):
        assert len(ledger.renew(ANN, [run, ticket], now).renewed) == 2
    assert ledger.next_deadline() == 30.0
    ledger.expire(30.0)
    assert ledger.take_commands() == (KillCommand(run.lease, Reason.TIMED_OUT),)
    result = ledger.renew(ANN, [run, ticket], 30.0)
    assert {lost.reason for lost in result.lost} == {Reason.TIMED_OUT}


def test_a_permission_for_so_many_places_counts_those_of_all_who_act_on_its_account() -> None:
    ledger = linked()
    run_of(ledger, want(1, ANN, slots=2))
    ticket = ticket_of(ledger, want(2, DEE, principal=ANN, queue=True, epoch=2, slots=2))
    over = ledger.commit(want(3, DEE, principal=ANN, queue=True, epoch=2, slots=2), 0.0)
    assert isinstance(over, Denied)
    assert (over.reason, over.retry_s is not None) == (Reason.QUOTA, True)
    assert "permission allows 2" in over.detail
    ticket_of(ledger, want(1, BOB, queue=True))
    ledger.stop(DEE, [ticket], Reason.CANCELLED, 0.0)
    ticket_of(ledger, want(4, DEE, principal=ANN, queue=True, epoch=2, slots=2))


def test_all_that_is_held_on_an_account_ends_when_its_permission_does() -> None:
    ledger = linked()
    run = run_of(ledger, want(1, DEE, principal=ANN))
    ticket = ticket_of(ledger, want(2, DEE, principal=ANN, queue=True))
    others = ticket_of(ledger, want(1, BOB, queue=True))
    assert ledger.evict(ANN, Reason.NOT_ALLOWED, 1.0) == (run.lease,)
    assert ledger.take_commands() == (KillCommand(run.lease, Reason.NOT_ALLOWED), OfferCommand(others.lease))
    result = ledger.renew(DEE, [run, ticket], 1.0)
    assert {lost.reason for lost in result.lost} == {Reason.NOT_ALLOWED}


def test_a_delegate_takes_a_campaign_over_and_who_had_it_can_end_nothing_any_more() -> None:
    ledger = linked()
    run = run_of(ledger, want(1, ANN))
    ticket = ticket_of(ledger, want(2, ANN, queue=True))
    others = ticket_of(ledger, want(1, BOB, queue=True))
    refused = ledger.adopt(DEE, ANN, "c-Ann", 1, 0.0)
    assert isinstance(refused, Denied), "another needs a higher epoch"
    assert refused.reason is Reason.STALE_EPOCH
    assert ledger.adopt(DEE, ANN, "c-Ann", 2, 0.0) is None
    assert [place.peer for place in ledger.of_campaign(ANN, "c-Ann")] == [DEE, DEE]
    everything = [run, ticket, others]
    gone = ledger.refusals(ANN, ANN, everything, {"c-Ann": 1}, lambda campaign: True)
    assert gone == {run.lease: Reason.STALE_EPOCH, ticket.lease: Reason.STALE_EPOCH}
    assert ledger.stop(ANN, [run, ticket], Reason.CANCELLED, 1.0) == ()
    assert ledger.renew(DEE, [run, ticket], 1.0).renewed == (run.lease, ticket.lease)
    late = ledger.commit(want(3, ANN, queue=True), 1.0)
    assert isinstance(late, Denied)
    assert late.reason is Reason.STALE_EPOCH
    again = ledger.commit(want(1, ANN), 1.0)
    assert isinstance(again, Denied), "a commit that comes late a second time"
    assert ledger.refusals(DEE, ANN, [run], {}, lambda campaign: False) == {run.lease: Reason.NOT_ALLOWED}


def test_an_offer_and_a_warning_go_to_who_speaks_now() -> None:
    ledger = linked(DEE, BOB)
    low = run_of(ledger, want(1, ANN))
    ledger.adopt(DEE, ANN, campaign_of(ANN), 2, 0.0)
    ticket_of(ledger, want(1, BOB, queue=True, priority=90))
    (warning,) = ledger.take_commands()
    assert isinstance(warning, WarnCommand)
    assert (warning.peer, warning.note.lease) == (DEE, low.lease)
