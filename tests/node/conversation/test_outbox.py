"""Waiting and settled records: who may have them, and which are evicted first."""

from __future__ import annotations

import pytest

from node.capacity.allocations import gives_way
from node.conversation.outbox import (
    CLOCK_STEADY_S,
    MAX_IN_MEMORY,
    MAX_ITEMS,
    MAX_SETTLED_BYTES,
    RETENTION_S,
    Outbox,
)
from tests.node.conversation.parts import ANN, BOB, item


def test_a_record_is_its_schedulers_alone() -> None:
    outbox = Outbox(lambda: 100.0, lambda: 100.0)
    one = item(b"one")
    outbox.put(one)
    assert outbox.waiting(BOB) == []
    assert not outbox.is_for(BOB, one.sha256)
    assert outbox.is_for(ANN, one.sha256)


def test_what_is_too_old_is_given_up_for_what_comes() -> None:
    now = 100.0
    outbox = Outbox(lambda: now, lambda: now)
    old = item(b"old")
    outbox.put(old)
    now += RETENTION_S + 1
    assert outbox.make_room(item(b"new", stored=now)) == [old]


@pytest.mark.parametrize("jump_s", [-1.7e9, 2 * RETENTION_S, 1.7e9])
def test_no_record_of_this_life_grows_older_when_the_clock_is_set(jump_s: float) -> None:
    now, wall = 5.0, 1.7e9
    outbox = Outbox(lambda: wall, lambda: now)
    one = item(b"early", stored=wall)
    outbox.put(one)
    wall += jump_s
    assert outbox.make_room(item(b"new", stored=max(0.0, wall))) == []
    now, wall = now + RETENTION_S + 1, wall + RETENTION_S + 1
    assert outbox.make_room(item(b"new", stored=max(0.0, wall))) == [one]


def test_a_record_of_an_earlier_life_is_old_once_the_clock_was_right_for_an_hour() -> None:
    now, wall = 5.0, 1.7e9
    old = item(b"old", stored=wall - RETENTION_S - 1)
    outbox = Outbox(lambda: wall, lambda: now, [old])
    new = item(b"new", stored=wall)
    assert outbox.make_room(new) == [], "the clock was perhaps just set"
    now, wall = now + CLOCK_STEADY_S - 1, wall + CLOCK_STEADY_S - 1
    assert outbox.make_room(new) == []
    wall += 120.0
    assert outbox.make_room(new) == [], "it was set again"
    now, wall = now + CLOCK_STEADY_S, wall + CLOCK_STEADY_S
    assert outbox.make_room(new) == [old]


def test_what_was_stored_before_the_clock_was_set_is_no_older_for_it() -> None:
    now, wall = 5.0, 1.7e9  # a board without a battery-backed clock starts in 1970
    early = item(b"early", stored=5.0)
    outbox = Outbox(lambda: wall, lambda: now, [early])
    assert outbox.make_room(item(b"new", stored=wall)) == []
    now, wall = now + CLOCK_STEADY_S, wall + CLOCK_STEADY_S
    assert outbox.make_room(item(b"new", stored=wall)) == []


def test_after_a_day_a_settled_record_is_forgotten() -> None:
    now = 100.0
    outbox = Outbox(lambda: now, lambda: now)
    old, young = item(b"old"), item(b"young", stored=100.0 + RETENTION_S + 1)
    outbox.put(old)
    outbox.settle(old.sha256, keep=True)
    assert outbox.of("c-1", ANN) == [(old, True)]
    assert outbox.of("c-1", BOB) == []
    assert outbox.campaigns() == ("c-1",)
    now += RETENTION_S + 1
    assert outbox.of("c-1", ANN) == []
    assert outbox.campaigns() == ()
    outbox.put(young)
    assert outbox.settle(young.sha256, keep=True) == ((young.sha256,), (old.sha256,))


def test_the_oldest_settled_records_are_dropped_when_there_are_too_many_bytes() -> None:
    outbox = Outbox(lambda: 100.0, lambda: 100.0)
    share = bytes(MAX_SETTLED_BYTES // 4)
    made = [item(bytes([n]) + share[1:], stored=float(n)) for n in range(1, 6)]
    removed: tuple[str, ...] = ()
    for one in made:
        outbox.put(one)
        _, removed = outbox.settle(one.sha256, keep=True)
    assert removed == (made[0].sha256,)
    assert [result for result, _ in outbox.of("c-1", ANN)] == made[1:]


def test_there_is_a_bound() -> None:
    assert MAX_ITEMS <= 10_000


def test_whoever_takes_the_most_of_shared_room_loses_its_oldest_first() -> None:
    items = [("ann", 10), ("eve", 40), ("eve", 40), ("ann", 10), ("bob", 30)]

    def left(number: int, room: int) -> list[tuple[str, int]]:
        gone = gives_way(items, lambda one: one[0], lambda one: one[1], number=number, room=room)
        rest = list(items)
        for one in gone:
            rest.remove(one)
        return rest

    assert left(5, 130) == items
    assert left(5, 129) == [items[0], items[2], items[3], items[4]]
    assert left(5, 60) == [items[0], items[3], items[4]]
    assert left(3, 1_000) == [items[2], items[3], items[4]]
    assert left(0, 0) == []


def test_what_no_disk_took_is_kept_for_an_adopter_too_until_its_room_is_needed() -> None:
    outbox = Outbox(lambda: 100.0, lambda: 100.0)
    made = [item(bytes([n]), task=f"c-1/{n}", stored=float(n)) for n in range(MAX_IN_MEMORY + 2)]
    for n, one in enumerate(made[:MAX_IN_MEMORY]):
        assert outbox.put_in_memory(one, bytes([n]))
    assert not outbox.put_in_memory(made[-1], b"-"), "all of them wait"
    for one in made[:2]:
        assert outbox.settle(one.sha256, keep=True) == ((), ()), "there is nothing of it on disk"
    assert outbox.of("c-1", ANN)[:2] == [(made[0], True), (made[1], True)]
    assert outbox.in_memory(made[0].sha256) == bytes([0])
    assert outbox.put_in_memory(made[-1], b"-")
    assert outbox.in_memory(made[0].sha256) is None
    assert outbox.of("c-1", ANN)[0] == (made[1], True)
    assert outbox.settle(made[2].sha256) == ((), ())
    assert outbox.in_memory(made[2].sha256) is None
