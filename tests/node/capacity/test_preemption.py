"""Which lease is next, which run gives way to which and when, and which lease has expired: a table row or a story per promise."""

from __future__ import annotations

from typing import Any

import pytest

from node.capacity.allocations import KillCommand, OfferCommand, RunCommand
from node.capacity.ledger import Ledger
from protocol.messages.work import Conflict, Denied, Granted, HeldLease
from protocol.values.lease import PREEMPT_GRACE_S, LeaseState
from protocol.words import Reason
from tests.node.ledger_parts import (
    ANN,
    BOB,
    CAT,
    DEE,
    held,
    linked,
    run_of,
    ticket_of,
    want,
    warned,
    warning_of,
)

# -- giving way ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"priority": 0, "owner": True}, {"priority": 61}])
def test_a_preempted_run_gives_its_slot_to_the_first_in_the_queue_not_to_who_had_it_warned(
    later: dict[str, Any],
) -> None:
    ledger = linked(owner_first=True)
    low = run_of(ledger, want(1, ANN, priority=50))
    ticket_of(ledger, want(1, BOB, queue=True, priority=60), 3.0)
    assert warned(ledger) == [low.lease]
    first = ticket_of(ledger, want(1, CAT, queue=True, **later), 3.5)
    assert ledger.take_commands() == (), "the grace is that of the warning"
    ledger.expire(3.0 + PREEMPT_GRACE_S)
    assert ledger.take_commands() == (KillCommand(low.lease, Reason.PREEMPTED), OfferCommand(first.lease))


def test_who_stands_first_and_may_not_have_a_run_give_way_takes_nothing_from_who_may() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN, priority=50))
    waits = ticket_of(ledger, want(1, CAT, queue=True, priority=59))
    for now in range(10, 121, 10):
        ledger.renew(ANN, [low], now)
        ledger.renew(CAT, [waits], now)
    high = ticket_of(ledger, want(1, BOB, queue=True, priority=60), 120.0)
    assert ledger.queue_order(120.0) == [waits.lease, high.lease], "it has waited, and stands at 61"
    ledger.take_commands()
    ledger.expire(120.0 + PREEMPT_GRACE_S)
    assert ledger.take_commands() == (KillCommand(low.lease, Reason.PREEMPTED), OfferCommand(high.lease))


def test_a_run_gives_way_to_a_priority_ten_higher_after_a_grace_and_the_queued_lease_gets_its_slot() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    high = ticket_of(ledger, want(1, BOB, queue=True, priority=60), 3.0)
    (warning,) = ledger.take_commands()
    assert warning == warning_of(low, PREEMPT_GRACE_S, 60)
    assert ledger.next_deadline() == 3.0 + PREEMPT_GRACE_S
    ledger.expire(3.9)
    assert ledger.take_commands() == ()
    ledger.expire(4.0)
    assert ledger.take_commands() == (KillCommand(low.lease, Reason.PREEMPTED), OfferCommand(high.lease))
    assert [lost.reason for lost in ledger.renew(ANN, [low], 4.0).lost] == [Reason.PREEMPTED]
    ledger.start(high.lease, 4.0)
    assert ledger.take_commands() == (), "the device is not free yet"
    ledger.finish(low.lease, 4.5)
    assert ledger.take_commands() == (RunCommand(high.lease),)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"priority": 50}, {"priority": 59}),
        ({"priority": 50}, {"priority": 90, "max_priority": 59}),
        ({"priority": 90, "max_priority": 50}, {"priority": 59}),
        ({"priority": 0, "preempted": 2}, {"priority": 100}),
        ({"priority": 50, "owner": True}, {"priority": 50}),
    ],
)
def test_nothing_gives_way_across_a_smaller_gap_or_for_a_third_time(
    low: dict[str, int], high: dict[str, int]
) -> None:
    ledger = linked()
    run_of(ledger, want(1, ANN, **low))
    ticket = ticket_of(ledger, want(1, BOB, queue=True, **high))
    for now in (1.0, 5.0, 14.0):
        ledger.expire(now)
    assert warned(ledger) == []
    place = ledger.allocation(ticket.lease)
    assert place is not None
    assert place.state is LeaseState.QUEUED


def test_waiting_alone_makes_nothing_give_way() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN, priority=50))
    ticket = ticket_of(ledger, want(1, BOB, queue=True, priority=55))
    for minute in range(1, 600):
        ledger.renew(ANN, [low], minute * 10.0)
        ledger.renew(BOB, [ticket], minute * 10.0)
    assert warned(ledger) == []


@pytest.mark.parametrize(
    ("runner", "asker", "gives_way"),
    [
        ({"priority": 100}, {"priority": 0, "owner": True}, True),
        ({"priority": 0, "owner": True}, {"priority": 100}, False),
        ({"priority": 50, "owner": True}, {"priority": 59, "owner": True}, False),
        ({"priority": 50, "owner": True}, {"priority": 60, "owner": True}, True),
    ],
)
def test_where_the_owner_goes_first_others_give_way_to_it_and_it_to_nobody(
    runner: dict[str, int], asker: dict[str, int], gives_way: bool
) -> None:
    ledger = linked(owner_first=True)
    run_of(ledger, want(1, ANN, **runner))
    ticket_of(ledger, want(1, BOB, queue=True, **asker))
    assert bool(warned(ledger)) is gives_way


def test_the_least_work_is_lost_and_then_the_lowest_priority() -> None:
    ledger = linked(slots=3)
    run_of(ledger, want(1, ANN, priority=10), 0.0)
    middle = run_of(ledger, want(2, ANN, priority=40), 5.0)
    lowest = run_of(ledger, want(3, ANN, priority=30), 5.0)
    ticket_of(ledger, want(1, BOB, queue=True, priority=80), 6.0)
    assert warned(ledger) == [lowest.lease]
    ticket_of(ledger, want(2, BOB, queue=True, priority=80), 6.0)
    assert warned(ledger) == [middle.lease], "one run gives way for each queued lease"


def test_nothing_gives_way_while_a_slot_is_free_or_comes_free() -> None:
    ledger = linked(slots=2)
    low = run_of(ledger, want(1, ANN))
    run_of(ledger, want(1, BOB, priority=90), 0.0)
    other = run_of_second(ledger)
    high = ticket_of(ledger, want(3, BOB, queue=True, priority=90), 1.0)
    assert warned(ledger) == [low.lease]
    ledger.finish(other.lease, 1.5)
    assert ledger.take_commands() == (OfferCommand(high.lease),)
    ledger.expire(10.0)
    assert ledger.take_commands() == (), "who was warned goes on"


def run_of_second(ledger: Ledger) -> HeldLease:
    """The run in the second slot."""
    place = ledger.allocations()[1]
    return HeldLease(lease=place.lease, fence=place.fence)


@pytest.mark.parametrize("how", ["cancelled", "expired", "timed out", "cut off", "evicted"])
def test_who_was_warned_goes_on_when_the_higher_request_goes_away(how: str) -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    ledger.renew(ANN, [low], 9.0)
    high = ticket_of(
        ledger, want(1, BOB, queue=True, priority=90, queue_s=0.5 if how == "timed out" else 1e6), 9.0
    )
    assert warned(ledger) == [low.lease]
    if how == "cancelled":
        ledger.stop(BOB, [high], Reason.CANCELLED, 9.5)
    elif how == "cut off":
        ledger.link_down(BOB, 9.5)
    elif how == "evicted":
        ledger.evict(BOB, Reason.NOT_ALLOWED, 9.5)
    elif how == "expired":
        place = ledger.allocation(high.lease)
        assert place is not None
        place.deadline = 9.5
    ledger.expire(9.6)
    ledger.expire(12.0)
    assert ledger.take_commands() == ()
    assert ledger.renew(ANN, [low], 12.0).renewed == (low.lease,)
    if how == "cut off":
        ledger.link_up(BOB, 13.0)
        assert warned(ledger) == [low.lease], "and is warned again"


def test_a_place_that_is_not_in_use_yet_gives_way_at_once_and_loses_nothing() -> None:
    ledger = linked()
    dying = run_of(ledger, want(1, ANN))
    ledger.stop(ANN, [dying], Reason.CANCELLED, 1.0)
    unused = held(ledger.commit(want(2, ANN), 1.0))
    ledger.take_commands()
    answer = ledger.commit(want(1, BOB, priority=80), 1.1)
    assert isinstance(answer, Granted), "no queueing was asked for, and none is needed"
    assert ledger.take_commands() == (warning_of(unused, 0.0, 80),)
    assert [lost.reason for lost in ledger.renew(ANN, [unused], 1.2).lost] == [Reason.PREEMPTED]
    ledger.finish(dying.lease, 1.5)
    assert ledger.take_commands() == (RunCommand(answer.lease),)


def test_a_commit_that_will_not_wait_preempts_no_run() -> None:
    ledger = linked()
    run_of(ledger, want(1, ANN))
    assert isinstance(ledger.commit(want(1, BOB, priority=100), 0.0), Conflict)
    assert warned(ledger) == []


def test_who_cannot_be_asked_makes_nothing_give_way() -> None:
    ledger = linked(ANN)
    run_of(ledger, want(1, ANN))
    ticket_of(ledger, want(1, BOB, queue=True, priority=100))
    assert warned(ledger) == []


def test_a_worker_that_is_held_back_gives_no_turns_and_one_that_finishes_does() -> None:
    ledger = linked()
    first = run_of(ledger, want(1, ANN))
    ledger.condition.drain("leaving")
    ticket = None
    for finish in (False, True):
        ledger.condition.cancel_drain()
        ticket = ticket or ticket_of(ledger, want(1, BOB, queue=True, priority=50))
        ledger.condition.drain("leaving", finish=finish)
        if finish:
            ledger.link_up(BOB, 2.0)
            assert ledger.take_commands() == (OfferCommand(ticket.lease),)
        else:
            ledger.finish(first.lease, 1.0)
            assert ledger.take_commands() == ()


@pytest.mark.parametrize("condition", ["held", "drained", "broken"])
def test_a_worker_that_is_held_back_within_a_grace_spares_the_run_and_has_nothing_left_to_do(
    condition: str,
) -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    ticket_of(ledger, want(1, BOB, queue=True, priority=90), 1.0)
    assert warned(ledger) == [low.lease]
    if condition == "held":
        ledger.condition.hold("paused by its owner")
    elif condition == "drained":
        ledger.condition.drain("leaving")
    else:
        ledger.condition.break_down("the device fell over")
    ledger.close_queue()
    ledger.expire(1.0 + PREEMPT_GRACE_S)
    deadline = ledger.next_deadline()
    assert deadline is not None
    assert deadline > 1.0 + PREEMPT_GRACE_S, "else the worker's clock would look again and again without end"
    assert ledger.take_commands() == ()
    assert ledger.renew(ANN, [low], 3.0).renewed == (low.lease,)


# -- outlook --------------------------------------------------------------------------------------------------------------------


def test_an_outlook_says_how_many_go_before_how_long_it_takes_and_who_would_give_way() -> None:
    ledger = linked()
    assert ledger.estimate_wait(BOB, 50, False, 0.0) == (0, 0.0, "")
    first = run_of(ledger, want(1, ANN))
    ledger.finish(first.lease, 4.0)
    low = run_of(ledger, want(2, ANN, priority=30), 4.0)
    ticket_of(ledger, want(3, ANN, queue=True, priority=35), 4.0)
    assert ledger.estimate_wait(BOB, 30, False, 5.0) == (1, 7.0, "")
    assert ledger.estimate_wait(BOB, 39, False, 5.0) == (0, 3.0, "")
    assert ledger.estimate_wait(BOB, 40, False, 5.0) == (0, PREEMPT_GRACE_S, "a run at priority 30")
    assert ledger.estimate_wait(BOB, 40, False, 5.0, sees_all=True)[2] == "c-Ann/2 at priority 30"
    assert ledger.estimate_wait(ANN, 40, False, 5.0)[2] == "c-Ann/2 at priority 30", "its own"
    ledger.timing(low.lease, True, 5.0)
    assert ledger.estimate_wait(BOB, 40, False, 5.0) == (
        0,
        3.0,
        "a run at priority 30, when its current timing ends",
    )
    quote = ledger.quote(5.0)
    assert (quote.free, quote.queue, quote.start_s, quote.run_s, quote.why) == (0, 1, 7.0, 4.0, "")
    ledger.condition.drain("its owner paused it")
    assert ledger.quote(5.0).why == "its owner paused it"
    assert ledger.renew(ANN, [low], 5.0).why == "its owner paused it"
    assert ledger.estimate_wait(BOB, 40, False, 5.0) == (1, None, "")


def test_many_racers_for_one_worker_never_overcommit_it_and_each_loser_learns_at_once_how_it_stands() -> None:
    for slots in (1, 3):
        ledger = linked(slots=slots, max_queue=20, max_queue_each=20)
        version = ledger.version
        answers = [
            ledger.commit(
                want(number, peer, queue=number % 2 == 0, ledger=version if number < 50 else None), 0.0
            )
            for number in range(100)
            for peer in (ANN, BOB, CAT, DEE)
        ]
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds.count("Granted") == slots
        assert kinds.count("Queued") == 20
        assert ledger.running == slots
        for answer in answers:
            if isinstance(answer, Conflict):
                assert answer.quote.free <= slots
                assert answer.quote.ledger <= ledger.version
            elif isinstance(answer, Denied):
                assert answer.retry_s is not None
