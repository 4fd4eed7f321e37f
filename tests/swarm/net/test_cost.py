"""What peers may cost: buckets, and the order of waiting peers. No clock, no tasks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.cost import (
    MOST_REST_S,
    SHARES,
    SLICE_US,
    Bucket,
    FairQueue,
    PeerClass,
    Share,
    next_slice_us,
    rest_s,
)

SHARE = Share(per_s=1_000, burst=5_000)


@pytest.mark.parametrize(
    ("charged", "at", "cost", "wait"),
    [
        ((), 0.0, 5_000, 0.0),
        ((), 0.0, 50_000, 0.0),  # more than the bucket ever holds: a full one is enough
        ((1_000,), 0.0, 4_000, 0.0),
        ((1_000,), 0.0, 4_500, 0.5),
        ((1_000,), 0.5, 4_500, 0.0),
        ((1_000,), 0.0, 50_000, 1.0),
        ((50_000,), 0.0, 1, 45.001),
        ((50_000,), 0.0, 0, 45.0),  # the bucket is in debt
        ((50_000,), 45.0, 0, 0.0),
        ((50_000,), 1_000.0, 5_000, 0.0),  # and never more than full
        ((3_000, 3_000), 0.0, 0, 1.0),
    ],
)
def test_a_bucket(charged: tuple[float, ...], at: float, cost: float, wait: float) -> None:
    bucket = Bucket()
    for amount in charged:
        bucket.charge(0.0, SHARE, amount)
    assert bucket.wait_s(at, SHARE, cost) == pytest.approx(wait)


def test_the_owner_never_waits() -> None:
    bucket, share = Bucket(), SHARES[PeerClass.OWN]
    bucket.charge(0.0, share, 1e12)
    assert bucket.wait_s(0.0, share, 1e12) == 0.0


def test_a_peer_that_becomes_known_pays_its_debt_at_the_new_rate() -> None:
    bucket = Bucket()
    bucket.charge(0.0, SHARE, 15_000)
    assert bucket.wait_s(0.0, SHARE, 0) == 10.0
    assert bucket.wait_s(0.0, SHARE.times(2), 0) == 2.5


def test_those_that_are_known_better_get_more() -> None:
    stranger, known, own = (SHARES[kind] for kind in PeerClass)
    assert stranger.per_s < known.per_s < own.per_s == math.inf
    assert stranger.weight < known.weight < own.weight


def order(queue: FairQueue[str]) -> str:
    return "".join(queue.pop()[1] for _ in range(len(queue)))


@pytest.mark.parametrize(
    ("pushed", "out"),
    [
        ([("a", 1), ("b", 1), ("c", 1)], "abc"),
        ([("a", 1), ("a", 1), ("a", 1), ("b", 1)], "abaa"),
        ([("a", 3), ("a", 1), ("b", 1), ("b", 1), ("b", 1), ("b", 1)], "abbbab"),
        ([("a", 1)] * 50 + [("b", 1), ("c", 1)], "abc" + "a" * 49),
    ],
)
def test_a_backlog_delays_its_own_peer(pushed: list[tuple[str, float]], out: str) -> None:
    queue: FairQueue[str] = FairQueue()
    for peer, cost in pushed:
        queue.push(peer, 1.0, cost, peer)
    assert order(queue) == out


def test_a_heavier_peer_has_more_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(8):
        queue.push("a", 1.0, 1.0, "a")
        queue.push("B", 4.0, 1.0, "B")
    assert order(queue)[:10].count("B") == 8


def test_who_comes_late_does_not_wait_for_a_backlog_and_is_not_owed_the_past() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("a", 1.0, 1.0, "a")
    for _ in range(50):
        queue.pop()
    for _ in range(3):
        queue.push("b", 1.0, 1.0, "b")
    assert order(queue)[:7].count("b") == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 10)) | st.none(), max_size=60))
def test_nothing_is_lost_and_each_peer_is_served_in_order(steps: list[tuple[str, float] | None]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    pushed: list[tuple[str, int]] = []
    popped: list[tuple[str, int]] = []
    for number, step in enumerate(steps):
        if step is not None:
            queue.push(step[0], 1.0, step[1], (step[0], number))
            pushed.append((step[0], number))
        elif queue:
            popped.append(queue.pop()[1])
    popped += [queue.pop()[1] for _ in range(len(queue))]
    assert sorted(popped) == sorted(pushed)
    for peer in "abcd":
        assert [item for item in popped if item[0] == peer] == [item for item in pushed if item[0] == peer]


@pytest.mark.parametrize(
    ("given_us", "took_s", "rest"),
    [
        (2_000, 0.0, 0.006),
        (2_000, 0.005, 0.015),
        (0, 0.0, 0.0),
        (2_000, 3.0, MOST_REST_S),
        (1e9, 0.0, MOST_REST_S),
    ],
)
def test_the_rest_after_a_slice(given_us: float, took_s: float, rest: float) -> None:
    assert rest_s(given_us, took_s) == pytest.approx(rest)


def test_a_queue_knows_how_many_peers_wait() -> None:
    queue = FairQueue[str]()
    for peer in "aab":
        queue.push(peer, 1.0, 1.0, peer)
    counts = []
    while queue:
        counts.append(queue.peers)
        queue.pop()
    assert (counts, queue.peers) == ([2, 2, 1], 0)


@pytest.mark.parametrize(
    ("given_us", "took_s", "most"),
    [
        (2_000, 0.0, SLICE_US),
        (2_000, 0.001, SLICE_US),
        (2_000, 0.02, SLICE_US / 10),
        (150, 0.015, SLICE_US / 100),
    ],
)
def test_a_slice_that_took_longer_than_estimated_is_followed_by_a_smaller_one(
    given_us: float, took_s: float, most: float
) -> None:
    assert next_slice_us(given_us, took_s) == pytest.approx(most)
