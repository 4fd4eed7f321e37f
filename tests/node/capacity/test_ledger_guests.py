"""How a guest may try to keep a device from others, and how the ledger responds."""

from __future__ import annotations

import pytest

from node.capacity.allocations import Allocation, KillCommand, OfferCommand, WarnCommand
from node.capacity.epochs import MAX_DELEGATE_EPOCH, MAX_EACH
from node.capacity.ledger import Ledger
from node.capacity.slots import MUTE_S
from protocol.messages.work import Conflict, Denied, Granted, HeldLease, Queued
from protocol.values.lease import MAX_EPOCH, PREEMPT_GRACE_S
from protocol.words import Reason
from tests.node.ledger_parts import ANN, BOB, CAT, DEE, campaign_of, held, linked, want

YEAR_S = 31_536_000.0


def full(**settings: bool) -> tuple[Ledger, list[HeldLease]]:
    """One run and four queued leases of two guests: the ledger is full."""
    ledger = linked(max_queue=4, max_queue_each=3, **settings)
    ledger.commit(want(0, BOB, preempted=2), 0.0)
    tickets = [
        held(ledger.commit(want(number, peer, queue=True, priority=priority), 0.0))
        for number, peer, priority in ((1, BOB, 50), (2, CAT, 40), (3, CAT, 40), (4, BOB, 50))
    ]
    ledger.take_commands()
    return ledger, tickets


def test_a_request_of_higher_priority_displaces_the_youngest_of_the_lowest() -> None:
    ledger, tickets = full()
    assert isinstance(ledger.commit(want(1, DEE, queue=True, priority=41), 1.0), Queued)
    result = ledger.renew(CAT, tickets, 2.0)
    assert [lost.reason for lost in result.lost if lost.lease == tickets[2].lease] == [Reason.BUSY]
    assert ledger.allocation(tickets[1].lease) is not None
    assert ledger.queue == 4
    none = ledger.commit(want(2, DEE, queue=True, priority=40), 3.0)
    assert isinstance(none, Denied)
    assert none.reason is Reason.BUSY


@pytest.mark.parametrize("owner_first", [True, False])
def test_guests_cannot_fill_the_queue_so_that_the_owner_is_shut_out(owner_first: bool) -> None:
    ledger, tickets = full(owner_first=owner_first)
    assert isinstance(ledger.commit(want(1, ANN, queue=True, priority=0, owner=True), 1.0), Queued)
    assert ledger.allocation(tickets[2].lease) is None
    guest = ledger.commit(want(1, DEE, queue=True, priority=100), 2.0)
    assert isinstance(guest, Queued), "of the guests' again"
    assert any(place.request.owner for place in ledger.allocations()), "never the owner's"


def test_the_owner_does_not_believe_a_guest_that_its_run_gave_way_often_enough() -> None:
    ledger = linked(owner_first=True)
    run = held(ledger.commit(want(1, BOB, preempted=2), 0.0))
    place = ledger.allocation(run.lease)
    assert place is not None
    place.began_at = 0.0
    ledger.take_commands()
    ledger.commit(want(1, CAT, queue=True, priority=90), 1.0)
    assert ledger.take_commands() == (), "another guest does"
    mine = held(ledger.commit(want(1, ANN, queue=True, owner=True), 1.0))
    (warning,) = ledger.take_commands()
    assert isinstance(warning, WarnCommand)
    ledger.expire(1.0 + PREEMPT_GRACE_S)
    assert ledger.take_commands() == (KillCommand(run.lease, Reason.PREEMPTED), OfferCommand(mine.lease))


def test_a_task_that_gave_way_twice_here_does_so_no_more_whatever_is_said_of_it() -> None:
    ledger = linked(owner_first=True)
    for times in range(3):
        run = held(ledger.commit(want(1, BOB, key_of=times), 10.0 * times))
        place = ledger.allocation(run.lease)
        assert place is not None
        place.began_at = 10.0 * times
        ledger.take_commands()
        mine = held(ledger.commit(want(times, ANN, queue=True, owner=True), 10.0 * times + 1))
        ledger.expire(10.0 * times + 1 + PREEMPT_GRACE_S)
        killed = [order for order in ledger.take_commands() if isinstance(order, KillCommand)]
        assert len(killed) == (times < 2)
        ledger.finish(run.lease, 10.0 * times + 3)
        ledger.acknowledge(run.lease)
        ledger.take_commands()
        ledger.skip(mine.lease, 10.0 * times + 3)


def test_nobody_keeps_the_device_idle_by_not_answering_its_offers() -> None:
    ledger = linked()
    first = held(ledger.commit(want(0, CAT, priority=90), 0.0))
    ledger.take_commands()
    for number in range(1, 5):
        ledger.commit(want(number, BOB, queue=True, priority=60), 0.0)
    other = held(ledger.commit(want(1, ANN, queue=True, priority=55), 0.0))
    ledger.finish(first.lease, 1.0)
    for now in (1.0, 6.0):
        (offer,) = ledger.take_commands()
        assert isinstance(offer, OfferCommand)
        assert offer.lease != other.lease
        ledger.defer(offer.lease, now, unanswered=True)
    assert ledger.take_commands() == (OfferCommand(other.lease),)
    ledger.start(other.lease, 6.0)
    ledger.take_commands()
    assert ledger.queue == 4, "its queued leases are still there"
    ledger.commit(want(9, BOB, queue=True, priority=100), 7.0)
    assert ledger.take_commands() == (), "and nothing gives way to it meanwhile"
    ledger.finish(other.lease, 8.0)
    (last,) = ledger.take_commands()
    assert isinstance(last, OfferCommand), "nobody else waits"
    ledger.start(last.lease, 8.0)
    later = held(ledger.commit(want(2, ANN, queue=True, priority=55), 8.0))
    ledger.take_commands()
    ledger.finish(last.lease, 9.0)
    (offer,) = ledger.take_commands()
    assert offer != OfferCommand(later.lease), "it answered, and counts again"


def renew_all(ledger: Ledger, until: float) -> None:
    """Renew every lease in time, up to `until`."""
    for now in range(0, int(until) + 1, 10):
        for place in ledger.allocations():
            ledger.renew(place.peer, [HeldLease(lease=place.lease, fence=place.fence)], float(now))


def test_who_did_not_answer_is_asked_in_its_turn_again_after_a_while() -> None:
    ledger = linked()
    first = held(ledger.commit(want(0, CAT), 0.0))
    mute = held(ledger.commit(want(1, BOB, queue=True, priority=60), 0.0))
    ledger.take_commands()
    ledger.finish(first.lease, 1.0)
    for now in (1.0, 2.0):
        assert ledger.take_commands() == (OfferCommand(mute.lease),), "nobody else waits"
        if now == 2.0:
            run = held(ledger.commit(want(1, ANN, queue=True), now))
        ledger.defer(mute.lease, now, unanswered=True)
    assert ledger.take_commands() == (OfferCommand(run.lease),)
    ledger.start(run.lease, 2.0)
    ledger.commit(want(2, ANN, queue=True), 2.0)
    ledger.take_commands()
    late = 2.0 + MUTE_S
    renew_all(ledger, late)
    ledger.take_commands()
    ledger.finish(run.lease, late)
    assert OfferCommand(mute.lease) in ledger.take_commands()


def test_times_above_the_limit_of_a_message_are_sent_as_that_limit() -> None:
    ledger = linked()
    run = held(ledger.commit(want(0, BOB), 0.0))
    place = ledger.allocation(run.lease)
    assert place is not None
    place.began_at = 0.0
    ledger.take_commands()
    ledger.finish(run.lease, 2 * YEAR_S)
    ledger.commit(want(1, CAT), 2 * YEAR_S)
    for number in range(3):
        answer = ledger.commit(want(number, ANN, queue=True), 2 * YEAR_S)
        assert isinstance(answer, Queued)
        assert answer.start_s == YEAR_S
    assert ledger.quote(2 * YEAR_S).run_s == YEAR_S
    conflict = ledger.commit(want(9, DEE), 2 * YEAR_S)
    assert isinstance(conflict, Conflict)


def test_who_acts_for_a_principal_leaves_it_epochs_to_take_its_campaign_back() -> None:
    ledger = linked()
    ledger.commit(want(1, ANN), 0.0)
    campaign = campaign_of(ANN)
    refused = ledger.adopt(DEE, ANN, campaign, MAX_EPOCH, 0.0)
    assert isinstance(refused, Denied)
    assert refused.reason is Reason.BAD_REQUEST
    assert ledger.adopt(DEE, ANN, campaign, MAX_DELEGATE_EPOCH, 0.0) is None
    assert isinstance(ledger.adopt(ANN, ANN, campaign, MAX_DELEGATE_EPOCH, 0.0), Denied)
    assert ledger.adopt(ANN, ANN, campaign, MAX_DELEGATE_EPOCH + 1, 0.0) is None
    assert isinstance(ledger.commit(want(2, ANN, queue=True, epoch=MAX_DELEGATE_EPOCH + 1), 1.0), Queued)


def test_nobody_pushes_out_what_was_heard_of_anothers_campaign() -> None:
    ledger = linked()
    assert ledger.adopt(DEE, ANN, "c-1", 7, 0.0) is None
    for number in range(5 * MAX_EACH):
        ledger.adopt(BOB, BOB, f"c-{number}", 1, 0.0)
    assert isinstance(ledger.adopt(ANN, ANN, "c-1", 3, 0.0), Denied)
    assert ledger.epoch(BOB, "c-0") == 0, "its own it does"


def test_what_waits_longer_than_the_owner_lets_it_ends_whatever_its_task_says() -> None:
    ledger = linked()
    run = held(ledger.commit(want(0, ANN), 0.0))
    ticket = held(ledger.commit(want(1, BOB, queue=True, max_queue_s=20.0), 0.0))
    for now in (10.0, 19.0):
        ledger.renew(ANN, [run], now)
        assert ledger.renew(BOB, [ticket], now).renewed
    assert [lost.reason for lost in ledger.renew(BOB, [ticket], 20.0).lost] == [Reason.TIMED_OUT]


def test_only_what_is_meant_is_evicted() -> None:
    ledger = linked(slots=2)
    one, two = (
        ledger.commit(want(number, BOB, backing_token=token), 0.0) for number, token in ((1, "a"), (2, "b"))
    )
    assert isinstance(one, Granted)
    assert isinstance(two, Granted)
    ledger.take_commands()

    def gone(place: Allocation) -> bool:
        return place.backing_token == "a"

    assert ledger.evict_those(gone, Reason.NOT_ALLOWED, 1.0) == (one.lease,)
    assert ledger.take_commands() == (KillCommand(one.lease, Reason.NOT_ALLOWED),)
