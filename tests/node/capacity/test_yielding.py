"""Timed inferences end before their run gives way, and a run of several launches gives way between two launches."""

from __future__ import annotations

from typing import Any

import pytest

from node.capacity.allocations import KillCommand, OfferCommand, SlotRequest
from node.capacity.ledger import Ledger
from protocol.messages.work import HeldLease
from protocol.values.lease import PREEMPT_GRACE_S
from protocol.words import Reason
from tests.node.ledger_parts import ANN, BOB, CAT, linked, run_of, ticket_of, want, warned, warning_of


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
"""Seconds into each launch at which its load ends, and at which its inferences begin: within the grace."""


def stopped_at(ledger: Ledger, low: HeldLease, wanted: SlotRequest, arrives: float) -> float | None:
    """When, in seconds since the start of its three launches, a run is stopped for a commit that comes at `arrives`."""
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
