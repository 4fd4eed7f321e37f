"""Whose turn it is, who gives way to whom and when, and whose time is over: one table row or story for each promise."""

from __future__ import annotations

from typing import Any

import pytest

from node.capacity.allocations import KillCommand, OfferCommand, RunCommand, SlotRequest, WarnCommand
from node.capacity.ledger import Ledger
from node.capacity.queue import aged, expected_starts
from protocol.messages.work import Conflict, Denied, Granted, HeldLease, Preempt, Queued
from protocol.values.lease import PREEMPT_GRACE_S, LeaseState
from protocol.words import Reason
from tests.node.ledger_parts import ANN, BOB, CAT, DEE, campaign_of, held, linked, want


def warning_of(run: HeldLease, grace_s: float, priority: int) -> WarnCommand:
    note = Preempt(lease=run.lease, fence=run.fence, grace_s=grace_s, priority=priority)
    return WarnCommand(ANN, (ANN, campaign_of(ANN)), note)


def run_of(ledger: Ledger, wanted: SlotRequest, now: float = 0.0) -> HeldLease:
    """It is granted and runs."""
    answer = ledger.commit(wanted, now)
    assert isinstance(answer, Granted)
    ledger.take_commands()
    place = ledger.allocation(answer.lease)
    assert place is not None
    assert place.state is LeaseState.RUNNING
    place.began_at = now
    return held(answer)


def ticket_of(ledger: Ledger, wanted: SlotRequest, now: float = 0.0) -> HeldLease:
    """It has to wait."""
    answer = ledger.commit(wanted, now)
    assert isinstance(answer, Queued)
    return held(answer)


def warned(ledger: Ledger) -> list[str]:
    """The leases whose schedulers get a warning of preemption; takes all orders."""
    return [order.note.lease for order in ledger.take_commands() if isinstance(order, WarnCommand)]


# -- turns ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "cap", "waited_s", "priority"),
    [
        (50, 100, 0.0, 50),
        (50, 100, 59.9, 50),
        (50, 100, 60.0, 51),
        (50, 100, 9 * 60.0, 59),
        (50, 100, 9e9, 59),
        (50, 52, 9e9, 52),
        (50, 50, 9e9, 50),
    ],
)
def test_a_priority_rises_by_one_a_minute_nine_times_and_never_above_what_is_permitted(
    own: int, cap: int, waited_s: float, priority: int
) -> None:
    assert aged(own, cap, waited_s) == priority


@pytest.mark.parametrize(
    ("left", "slots", "count", "starts"),
    [
        ([], 1, 3, [0.0, 4.0, 8.0]),
        ([1.5], 1, 3, [1.5, 5.5, 9.5]),
        ([3.0, 1.0], 2, 4, [1.0, 3.0, 5.0, 7.0]),
        ([3.0], 2, 3, [0.0, 3.0, 4.0]),
    ],
)
def test_expected_starts_follow_from_what_runs_and_what_a_run_takes(
    left: list[float], slots: int, count: int, starts: list[float]
) -> None:
    assert expected_starts(left, slots, [4.0] * count) == starts


def serve_all(ledger: Ledger, now: float, number: int) -> list[str]:
    """Let run after run end at once; who was served, by the third letter of their names."""
    served: list[str] = []
    for _ in range(number):
        for order in ledger.take_commands():
            if isinstance(order, OfferCommand):
                ledger.start(order.lease, now)
        running = next(place for place in ledger.allocations() if place.state is LeaseState.RUNNING)
        served.append(running.request.task.task)
        ledger.finish(running.lease, now)
        ledger.acknowledge(running.lease)
    return served


def test_equals_are_served_in_turn_and_each_of_them_in_the_order_of_asking() -> None:
    ledger = linked()
    ledger.commit(want(0, CAT), 0.0)
    for number in range(1, 5):
        ticket_of(ledger, want(number, ANN, queue=True))
    for number in range(1, 3):
        ticket_of(ledger, want(number, BOB, queue=True))
    assert serve_all(ledger, 1.0, 7) == [
        "c-Cat/0", "c-Ann/1", "c-Bob/1", "c-Ann/2", "c-Bob/2", "c-Ann/3", "c-Ann/4",
    ]  # fmt: skip


def test_who_acts_for_a_principal_is_served_on_its_account() -> None:
    ledger = linked()
    ledger.commit(want(0, CAT), 0.0)
    ticket_of(ledger, want(1, ANN, queue=True))
    ticket_of(ledger, want(2, DEE, principal=ANN, queue=True, epoch=2))
    ticket_of(ledger, want(1, BOB, queue=True))
    assert serve_all(ledger, 1.0, 4) == ["c-Cat/0", "c-Ann/1", "c-Bob/1", "c-Ann/2"]


def test_who_waited_for_long_goes_before_who_came_now_with_a_little_more_and_not_across_a_gap() -> None:
    ledger = linked()
    first = run_of(ledger, want(0, CAT))
    old = ticket_of(ledger, want(1, ANN, queue=True, priority=50))
    now = 0.0
    for _ in range(60):
        now += 10.0
        ledger.renew(CAT, [first], now)
        ledger.renew(ANN, [old], now)
    little = ticket_of(ledger, want(1, BOB, queue=True, priority=58), now)
    assert ledger.queue_order(now) == [old.lease, little.lease]
    more = ticket_of(ledger, want(2, BOB, queue=True, priority=60), now)
    assert ledger.queue_order(now)[0] == more.lease


def test_queued_leases_get_their_position_and_estimated_start() -> None:
    ledger = linked()
    first = run_of(ledger, want(1))
    ledger.finish(first.lease, 4.0)
    run_of(ledger, want(2), 4.0)
    one = ticket_of(ledger, want(3, queue=True), 5.0)
    two = ticket_of(ledger, want(1, BOB, queue=True, priority=55), 5.0)
    result = ledger.renew(ANN, [one], 5.0)
    assert [(each.lease, each.position, each.start_s) for each in result.waiting] == [(one.lease, 2, 7.0)]
    assert [each.position for each in ledger.renew(BOB, [two], 5.0).waiting] == [1]


def test_the_owners_requests_go_first_where_the_owner_says_so() -> None:
    for owner_first, order in ((False, ["c-Ann/1", "c-Bob/1"]), (True, ["c-Bob/1", "c-Ann/1"])):
        ledger = linked(owner_first=owner_first)
        ledger.commit(want(0, CAT, owner=True), 0.0)
        ticket_of(ledger, want(1, ANN, queue=True, priority=90))
        ticket_of(ledger, want(1, BOB, queue=True, priority=1, owner=True))
        ledger.timing(ledger.allocations()[0].lease, True, 0.0)
        assert serve_all(ledger, 0.5, 3)[1:] == order


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


# -- measurements --------------------------------------------------------------------------------------------------------------


def test_what_is_being_timed_is_warned_when_the_measurement_ends() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    ledger.timing(low.lease, True, 1.0)
    high = ticket_of(ledger, want(1, BOB, queue=True, priority=90), 2.0)
    ledger.expire(10.0)
    assert ledger.take_commands() == ()
    ledger.timing(low.lease, False, 12.0)
    assert warned(ledger) == [low.lease]
    ledger.renew(BOB, [high], 12.5)
    ledger.expire(13.0)
    assert ledger.take_commands() == (KillCommand(low.lease, Reason.PREEMPTED), OfferCommand(high.lease))


def test_a_measurement_that_begins_in_the_grace_is_let_end_and_then_there_is_no_more_grace() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    high = ticket_of(ledger, want(1, BOB, queue=True, priority=90), 2.0)
    assert warned(ledger) == [low.lease]
    ledger.timing(low.lease, True, 2.5)
    ledger.expire(3.0)
    deadline = ledger.next_deadline()
    assert deadline is not None
    assert deadline > 3.0, "nothing is to be done until the measurement ends"
    ledger.expire(9.0)
    assert ledger.take_commands() == ()
    ledger.timing(low.lease, False, 9.5)
    assert ledger.take_commands() == (KillCommand(low.lease, Reason.PREEMPTED), OfferCommand(high.lease))


def test_another_is_warned_instead_when_a_measurement_began_in_the_grace() -> None:
    ledger = linked(slots=2)
    older = run_of(ledger, want(1, ANN), 0.0)
    newer = run_of(ledger, want(2, ANN), 1.0)
    ticket_of(ledger, want(1, BOB, queue=True, priority=90), 2.0)
    assert warned(ledger) == [newer.lease]
    ledger.timing(newer.lease, True, 2.5)
    ledger.expire(3.0)
    assert warned(ledger) == [older.lease]
    ledger.timing(newer.lease, False, 3.5)
    ledger.expire(4.0)
    kills = [order for order in ledger.take_commands() if isinstance(order, KillCommand)]
    assert kills == [KillCommand(older.lease, Reason.PREEMPTED)]


LAUNCH_S = 12.0
LOADED_S, TIMED_S = 5.0, 5.5
"""Into each launch its load is over, and its inferences begin: within the grace."""


def stopped_at(ledger: Ledger, low: HeldLease, wanted: SlotRequest, arrives: float) -> float | None:
    """Seconds into three launches of a run when it is stopped for a commit that comes at `arrives`."""
    times = [arrives, *(n * LAUNCH_S + s for n in range(3) for s in (0.0, LOADED_S, TIMED_S, LAUNCH_S))]
    for now in sorted({*times, *(time + PREEMPT_GRACE_S for time in times)}):
        within = now % LAUNCH_S
        ended = int(now // LAUNCH_S)
        if now == arrives:
            ticket_of(ledger, wanted, now)
        elif ended == 3:
            break
        elif within == 0.0 and ended:
            ledger.between_launches(low.lease, now)
        if within in (0.0, LOADED_S, TIMED_S) and not killed(ledger):
            ledger.timing(low.lease, within != LOADED_S, now)
        ledger.renew(ANN, [low], now)
        if killed(ledger):
            place = ledger.allocation(low.lease)
            assert place is not None
            assert not place.timed, "never while it is timed"
            return now
    return None


def killed(ledger: Ledger) -> bool:
    return any(place.stop_reason is Reason.PREEMPTED for place in ledger.allocations())


@pytest.mark.parametrize(
    ("arrives", "changes", "stopped"),
    [
        (1.0, {}, 12.0),
        (5.2, {}, 12.0),
        (8.0, {}, 12.0),
        (11.9, {}, 12.0),
        (13.0, {}, 24.0),
        (20.0, {}, 24.0),
        (30.0, {}, None),
        (8.0, {"preempted": 1}, 12.0),
        (8.0, {"preempted": 2}, None),
        (8.0, {"priority": 81}, None),
    ],
    ids=[
        "as it is loaded",
        "as it warms up: a launch that begins within the grace is let end",
        "as it is timed",
        "a moment before the launch ends: there is no grace between two launches",
        "as it is loaded once more",
        "in the second launch",
        "in the last launch",
        "for the second time",
        "twice is enough",
        "not across a smaller gap",
    ],
)
def test_a_run_yields_between_two_of_its_launches(
    arrives: float, changes: dict[str, Any], stopped: float | None
) -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN, **changes))
    high = want(1, BOB, queue=True, priority=90)
    assert stopped_at(ledger, low, high, arrives) == stopped


def test_a_run_that_yields_between_launches_is_warned_as_it_is_stopped_and_not_twice() -> None:
    for at, before in ((2.0, []), (1.8, [BOB])):
        ledger = linked()
        low = run_of(ledger, want(1, ANN))
        if before:
            ticket_of(ledger, want(1, BOB, queue=True, priority=90), at)
            assert warned(ledger) == [low.lease]
        ledger.timing(low.lease, True, 1.9)
        if not before:
            ticket_of(ledger, want(1, BOB, queue=True, priority=90), at)
        assert ledger.take_commands() == ()
        ledger.between_launches(low.lease, 2.0)
        first, *others = ledger.take_commands()
        if before:
            assert first == KillCommand(low.lease, Reason.PREEMPTED)
            assert [type(each) for each in others] == [OfferCommand]
        else:
            assert first == warning_of(low, 0.0, 90)
            assert [type(each) for each in others] == [KillCommand, OfferCommand]


@pytest.mark.parametrize("claimed", [False, True])
def test_a_slot_between_launches_goes_to_the_first_in_the_queue_though_it_warned_another_run(
    claimed: bool,
) -> None:
    ledger = linked(slots=2, owner_first=True)
    low = run_of(ledger, want(1, ANN))
    high = run_of(ledger, want(2, ANN, priority=90), 1.0)
    ledger.timing(low.lease, not claimed, 1.0)
    owners = ticket_of(ledger, want(1, CAT, queue=True, owner=True), 1.4)
    assert warned(ledger) == [high.lease]
    ticket_of(ledger, want(1, BOB, queue=True, priority=90), 1.5)
    assert warned(ledger) == [low.lease] * claimed
    ledger.take_commands()
    ledger.between_launches(low.lease, 1.6)
    orders = ledger.take_commands()
    assert [order.lease for order in orders if isinstance(order, OfferCommand)] == [owners.lease]
    assert [order.lease for order in orders if isinstance(order, KillCommand)] == [low.lease]
    ledger.timing(high.lease, False, 20.0)
    assert ledger.take_commands() == (), "the run that was warned goes on"


def test_a_run_between_launches_for_which_nobody_waits_goes_on() -> None:
    ledger = linked()
    low = run_of(ledger, want(1, ANN))
    equal = ticket_of(ledger, want(1, BOB, queue=True), 1.0)
    ledger.timing(low.lease, True, 2.0)
    ledger.between_launches(low.lease, 3.0)
    assert ledger.take_commands() == ()
    ledger.stop(BOB, [equal], Reason.CANCELLED, 4.0)
    ledger.between_launches(low.lease, 5.0)
    assert ledger.take_commands() == ()
    ledger.stop(ANN, [low], Reason.CANCELLED, 6.0)
    ledger.take_commands()
    ledger.between_launches(low.lease, 6.1)
    ledger.finish(low.lease, 6.2)
    ledger.between_launches(low.lease, 6.3)
    assert ledger.take_commands() == (), "it ends already, or is over"


def test_a_cancel_and_a_time_limit_wait_for_no_measurement() -> None:
    ledger = linked(slots=2)
    cancelled = run_of(ledger, want(1, ANN))
    limited = run_of(ledger, want(2, ANN, left_s=9.0))
    ledger.timing(cancelled.lease, True, 1.0)
    ledger.timing(limited.lease, True, 1.0)
    assert ledger.stop(ANN, [cancelled], Reason.CANCELLED, 2.0) == (cancelled.lease,)
    ledger.expire(9.0)
    assert ledger.take_commands() == (
        KillCommand(cancelled.lease, Reason.CANCELLED),
        KillCommand(limited.lease, Reason.TIMED_OUT),
    )


# -- limits --------------------------------------------------------------------------------------------------------------------


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
    assert "permission is for 2" in over.detail
    ticket_of(ledger, want(1, BOB, queue=True))
    ledger.stop(DEE, [ticket], Reason.CANCELLED, 0.0)
    ticket_of(ledger, want(4, DEE, principal=ANN, queue=True, epoch=2, slots=2))


# -- permission gone, campaigns handed over ------------------------------------------------------------------------------------


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


# -- what is known in advance ---------------------------------------------------------------------------------------------------


def test_an_outlook_says_how_many_go_before_how_long_it_takes_and_who_would_give_way() -> None:
    ledger = linked()
    assert ledger.outlook(BOB, 50, False, 0.0) == (0, 0.0, "")
    first = run_of(ledger, want(1, ANN))
    ledger.finish(first.lease, 4.0)
    low = run_of(ledger, want(2, ANN, priority=30), 4.0)
    ticket_of(ledger, want(3, ANN, queue=True, priority=35), 4.0)
    assert ledger.outlook(BOB, 30, False, 5.0) == (1, 7.0, "")
    assert ledger.outlook(BOB, 39, False, 5.0) == (0, 3.0, "")
    assert ledger.outlook(BOB, 40, False, 5.0) == (0, PREEMPT_GRACE_S, "a run at priority 30")
    assert ledger.outlook(BOB, 40, False, 5.0, sees_all=True)[2] == "c-Ann/2 at priority 30"
    assert ledger.outlook(ANN, 40, False, 5.0)[2] == "c-Ann/2 at priority 30", "its own"
    ledger.timing(low.lease, True, 5.0)
    assert ledger.outlook(BOB, 40, False, 5.0) == (
        0,
        3.0,
        "a run at priority 30, once what is being timed is done",
    )
    quote = ledger.quote(5.0)
    assert (quote.free, quote.queue, quote.start_s, quote.run_s, quote.why) == (0, 1, 7.0, 4.0, "")
    ledger.condition.drain("its owner paused it")
    assert ledger.quote(5.0).why == "its owner paused it"
    assert ledger.renew(ANN, [low], 5.0).why == "its owner paused it"
    assert ledger.outlook(BOB, 40, False, 5.0) == (1, None, "")


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
