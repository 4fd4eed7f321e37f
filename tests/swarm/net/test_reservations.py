"""What a gate lends, decided without network or clock."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm.net.addresses import network_of
from swarm.net.reservations import (
    WORDS,
    CircuitEnd,
    DeclineReason,
    OpenCircuit,
    RelayLimits,
    RelayReservations,
    ReservationDeclined,
)

HOME = "192.0.2.7"


def why(desk: RelayReservations, peer: str, ip: str | None = HOME, now: float = 0.0) -> DeclineReason | None:
    """Why `peer` gets no place; None when it gets one."""
    try:
        desk.reserve(peer, ip, now)
    except ReservationDeclined as declined:
        return declined.reason
    return None


def why_not_connected(
    desk: RelayReservations, source: str, target: str, now: float = 0.0
) -> DeclineReason | None:
    try:
        desk.begin(source, HOME, target, now)
    except ReservationDeclined as declined:
        return declined.reason
    return None


def test_a_place_is_kept_by_asking_again_and_lost_without() -> None:
    desk = RelayReservations(RelayLimits(ttl_s=100))
    slot = desk.reserve("a", HOME, 0)
    assert (slot.until, desk.holds("a", 99), desk.holds("a", 100)) == (100, True, False)
    assert desk.reserve("a", HOME, 60).until == 160
    assert desk.holds("a", 159)
    seen = desk.snapshot(60)
    assert (seen.reserved, seen.renewed, len(seen.slots)) == (1, 1, 1)
    desk.release("a")
    assert not desk.holds("a", 61)


def test_a_network_has_its_share_whoever_its_peers_are() -> None:
    desk = RelayReservations(RelayLimits(reservations=6, reservations_per_network=2))
    assert [why(desk, f"home {n}", f"192.0.2.{n}") for n in (1, 2, 3)] == [
        None,
        None,
        DeclineReason.NETWORK_SHARE,
    ]
    assert why(desk, "home 1", "192.0.2.200") is None  # it had one already
    assert [why(desk, f"six {n}", f"2001:db8:1:{n}::1") for n in (1, 2, 3)] == [
        None,
        None,
        DeclineReason.NETWORK_SHARE,
    ]
    assert [why(desk, f"far {n}", f"198.51.{n}.1") for n in (1, 2, 3)] == [None, None, DeclineReason.FULL]
    desk.release("home 2")
    assert why(desk, "home 3") is None


def test_places_that_ran_out_make_room() -> None:
    desk = RelayReservations(RelayLimits(reservations=1, ttl_s=10))
    assert why(desk, "a", now=0) is None
    assert why(desk, "b", now=9) is DeclineReason.FULL
    assert why(desk, "b", now=10) is None


def test_who_moves_takes_its_share_along() -> None:
    desk = RelayReservations(RelayLimits(reservations_per_network=1))
    assert why(desk, "a", "192.0.2.1") is None
    assert why(desk, "a", "198.51.100.1") is None
    assert why(desk, "b", "192.0.2.1") is None
    assert why(desk, "a", "192.0.2.2") is DeclineReason.NETWORK_SHARE
    assert desk.holds("a", 0)  # refused, it keeps the one it has


def test_who_asks_too_often_waits() -> None:
    desk = RelayReservations(RelayLimits(reserve_burst=3, reserve_every_s=10))
    assert [why(desk, "a", now=0) for _ in range(4)] == [None, None, None, DeclineReason.TOO_OFTEN]
    assert why(desk, "b", now=0) is None
    assert why(desk, "a", now=9.9) is DeclineReason.TOO_OFTEN
    assert why(desk, "a", now=10) is None


def test_strangers_relayed_peers_and_all_while_it_drains_get_nothing() -> None:
    desk = RelayReservations(allow=lambda peer: peer != "stranger")
    assert why(desk, "stranger") is DeclineReason.NOT_ALLOWED
    assert why(desk, "a", None) is DeclineReason.RELAYED
    assert why(desk, "a") is None
    desk.drain()
    assert why(desk, "a") is DeclineReason.DRAINING
    assert why_not_connected(desk, "b", "a") is DeclineReason.DRAINING
    assert desk.snapshot(0).draining
    assert desk.snapshot(0).declined == {
        DeclineReason.NOT_ALLOWED: 1,
        DeclineReason.RELAYED: 1,
        DeclineReason.DRAINING: 2,
    }


def test_who_is_served_no_longer_loses_its_place_and_what_runs() -> None:
    served = {"a", "b", "c", "owner"}
    desk = RelayReservations(allow=served.__contains__)
    for peer in ("b", "c"):
        assert why(desk, peer) is None
    running = {pair: desk.begin(pair[0], HOME, pair[1], 0) for pair in ("ab", "ac", "cb")}
    served.remove("c")
    assert [desk.carry(running[pair], 1) for pair in ("ab", "ac", "cb")] == [
        None,
        CircuitEnd.NOT_ALLOWED,
        CircuitEnd.NOT_ALLOWED,
    ]
    assert why_not_connected(desk, "a", "c") is DeclineReason.NO_RESERVATION
    assert [slot.peer for slot in desk.snapshot(0).slots] == ["b"]
    served.add("c")
    assert desk.carry(running["ac"], 1) is None


def test_a_visitor_is_served_as_long_as_who_vouched_for_it() -> None:
    """Its own permission is for minutes: what runs does not end with it."""
    served, visitors = {"member", "b"}, {"visitor": "member"}

    def allow(peer: str) -> bool:
        return peer in served or visitors.get(peer) in served

    desk = RelayReservations(allow=allow, answers_for=lambda peer: visitors.get(peer, peer))
    assert why(desk, "b") is None
    passage = desk.begin("visitor", HOME, "b", 0)
    visitors.clear()
    assert desk.carry(passage, 1) is None
    assert why_not_connected(desk, "visitor", "b") is DeclineReason.NOT_ALLOWED
    served.remove("member")
    assert desk.carry(passage, 1) is CircuitEnd.NOT_ALLOWED


def test_circuits_have_shares_too() -> None:
    desk = RelayReservations(
        RelayLimits(circuits=4, circuits_from_peer=2, circuits_to_peer=2, circuits_from_network=3)
    )
    for peer in ("x", "y", "z"):
        desk.reserve(peer, HOME, 0)
    assert why_not_connected(desk, "a", "nobody") is DeclineReason.NO_RESERVATION
    assert why_not_connected(desk, "a", "x") is None
    assert why_not_connected(desk, "a", "x") is None
    assert why_not_connected(desk, "a", "y") is DeclineReason.PEER_SHARE
    assert why_not_connected(desk, "b", "x") is DeclineReason.PEER_SHARE
    assert why_not_connected(desk, "b", "y") is None
    assert why_not_connected(desk, "b", "z") is DeclineReason.NETWORK_SHARE
    desk.begin("c", "198.51.100.1", "z", 0)
    assert why_not_connected(desk, "d", "z") is DeclineReason.FULL


def test_two_peers_have_few_circuits_between_them() -> None:
    desk = RelayReservations(RelayLimits(circuits_of_pair=2))
    desk.reserve("x", HOME, 0)
    desk.reserve("y", HOME, 0)
    first = desk.begin("a", HOME, "x", 0)
    assert [why_not_connected(desk, "a", "x") for _ in range(2)] == [None, DeclineReason.PEER_SHARE]
    assert why_not_connected(desk, "a", "y") is None
    assert why_not_connected(desk, "b", "x") is None
    desk.end(first, CircuitEnd.CLOSED)
    assert why_not_connected(desk, "a", "x") is None


def test_a_circuit_carries_what_it_may_and_not_a_byte_more() -> None:
    desk = RelayReservations(RelayLimits(circuit_bytes=100, circuit_s=60))
    desk.reserve("x", HOME, 0)
    passage = desk.begin("a", HOME, "x", 5)
    assert passage.ends_at == 65
    assert desk.carry(passage, 60) is None
    assert desk.carry(passage, 41) is CircuitEnd.BYTES
    assert desk.carry(passage, 40) is None
    (seen,) = desk.snapshot(10).passages
    assert (seen.bytes, seen.seconds) == (100, 5)
    desk.end(passage, CircuitEnd.BYTES)
    desk.end(passage, CircuitEnd.CLOSED)  # the first word counts
    after = desk.snapshot(10)
    assert (after.passages, after.bytes, after.connected, after.ended) == ((), 100, 1, {CircuitEnd.BYTES: 1})


def test_every_refusal_has_its_word() -> None:
    assert set(WORDS) == set(DeclineReason)


@pytest.mark.parametrize(
    ("ip", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
    ],
)
def test_a_network_is_a_24_or_a_48(ip: str, network: str) -> None:
    assert network_of(ip) == network


PEERS = st.sampled_from([f"peer {number}" for number in range(8)])
IPS = st.sampled_from(["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1", "2001:db8:0:9::1"])


class Desk(RuleBasedStateMachine):
    """Whatever is asked in whatever order, no share is ever exceeded and everything lent comes back."""

    limits = RelayLimits(
        reservations=4,
        reservations_per_network=2,
        ttl_s=50,
        circuits=5,
        circuits_from_peer=2,
        circuits_to_peer=3,
        circuits_from_network=3,
        circuit_bytes=1000,
        reserve_burst=1000,
        connect_burst=1000,
    )

    def __init__(self) -> None:
        super().__init__()
        self.desk = RelayReservations(self.limits)
        self.now = 0.0
        self.live: list[OpenCircuit] = []

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(peer=PEERS, ip=IPS)
    def reserve(self, peer: str, ip: str) -> None:
        try:
            self.desk.reserve(peer, ip, self.now)
        except ReservationDeclined:
            return
        assert self.desk.holds(peer, self.now)

    @rule(peer=PEERS)
    def leave(self, peer: str) -> None:
        self.desk.release(peer)
        assert not self.desk.holds(peer, self.now)

    @rule(source=PEERS, called=PEERS, ip=IPS)
    def call(self, source: str, called: str, ip: str) -> None:
        held, before = self.desk.holds(called, self.now), len(self.live)
        with contextlib.suppress(ReservationDeclined):
            self.live.append(self.desk.begin(source, ip, called, self.now))
        assert held or len(self.live) == before

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(0, 600))
    def carry(self, data: st.DataObject, size: int) -> None:
        passage = data.draw(st.sampled_from(self.live))
        before = passage.carried
        fits = before + size <= self.limits.circuit_bytes
        assert self.desk.carry(passage, size) is (None if fits else CircuitEnd.BYTES)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), reason=st.sampled_from([*CircuitEnd, None]))
    def hang_up(self, data: st.DataObject, reason: CircuitEnd | None) -> None:
        passage = data.draw(st.sampled_from(self.live))
        self.live.remove(passage)
        self.desk.end(passage, reason)

    @invariant()
    def nothing_is_exceeded(self) -> None:
        seen = self.desk.snapshot(self.now)
        assert len(seen.slots) <= self.limits.reservations
        networks = [slot.network for slot in seen.slots]
        assert all(networks.count(network) <= 2 for network in networks)
        assert len(seen.passages) == len(self.live) <= self.limits.circuits
        sources = [passage.source for passage in seen.passages]
        targets = [passage.target for passage in seen.passages]
        assert all(sources.count(peer) <= 2 for peer in sources)
        assert all(targets.count(peer) <= 3 for peer in targets)
        assert all(passage.bytes <= self.limits.circuit_bytes for passage in seen.passages)
        assert seen.connected == len(self.live) + sum(seen.ended.values())

    def teardown(self) -> None:
        for passage in self.live:
            self.desk.end(passage, CircuitEnd.STOPPED)
        self.now += 1000
        for number in range(2):  # all shares are whole again
            self.desk.reserve(f"new {number}", "192.0.2.9", self.now)
            self.desk.begin(f"caller {number}", "192.0.2.9", f"new {number}", self.now)


TestDesk = Desk.TestCase
TestDesk.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.floats(0, 5), max_size=60))
def test_a_peer_never_gets_more_than_its_burst_and_what_came_back_since(pauses: list[float]) -> None:
    desk = RelayReservations(RelayLimits(reserve_burst=4, reserve_every_s=2))
    now, granted = 0.0, 0
    for pause in pauses:
        now += pause
        granted += why(desk, "a", now=now) is None
        assert granted <= 4 + now / 2 + 1e-6


def test_all_circuits_together_keep_to_the_bytes_a_second_that_were_set() -> None:
    desk = RelayReservations(RelayLimits(bytes_per_s=1000))
    assert desk.pace(1000, 10.0) == 0.0  # a second's worth goes at once
    assert desk.pace(500, 10.0) == 0.5
    assert desk.pace(1500, 10.0) == 2.0
    assert desk.pace(1000, 13.0) == 0.0  # it was quiet for a second
    assert RelayReservations().pace(1 << 40, 0.0) == 0.0
