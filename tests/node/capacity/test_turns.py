"""Which lease is next: by priority, by age, each account in turn, and the owner first where the settings say so."""

from __future__ import annotations

import pytest

from node.capacity.allocations import OfferCommand
from node.capacity.ledger import Ledger
from node.capacity.queue import aged, expected_starts
from protocol.values.lease import LeaseState
from tests.node.ledger_parts import ANN, BOB, CAT, DEE, linked, run_of, ticket_of, want


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
    """End each run at once, `number` times. Returns the served tasks in order."""
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
