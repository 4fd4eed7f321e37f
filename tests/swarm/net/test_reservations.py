"""What a gate reserves, decided without network or clock."""

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


def why(relay: RelayReservations, peer: str, ip: str | None = HOME, now: float = 0.0) -> DeclineReason | None:
    """Why `peer` gets no reservation; None when it gets one."""
    try:
        relay.reserve(peer, ip, now)
    except ReservationDeclined as declined:
        return declined.reason
    return None


def why_not_connected(
    relay: RelayReservations, source: str, target: str, now: float = 0.0
) -> DeclineReason | None:
    try:
        relay.begin(source, HOME, target, now)
    except ReservationDeclined as declined:
        return declined.reason
    return None


def test_a_reservation_is_kept_by_renewal_and_lost_without() -> None:
    relay = RelayReservations(RelayLimits(ttl_s=100))
    slot = relay.reserve("a", HOME, 0)
    assert (slot.until, relay.holds("a", 99), relay.holds("a", 100)) == (100, True, False)
    assert relay.reserve("a", HOME, 60).until == 160
    assert relay.holds("a", 159)
    assert (relay.reserved, relay.renewed, len(relay.reservations(60))) == (1, 1, 1)
    relay.release("a")
    assert not relay.holds("a", 61)


def test_a_network_has_its_share_whoever_its_peers_are() -> None:
    relay = RelayReservations(RelayLimits(reservations=6, reservations_per_network=2))
    assert [why(relay, f"home {n}", f"192.0.2.{n}") for n in (1, 2, 3)] == [
        None,
        None,
        DeclineReason.NETWORK_SHARE,
    ]
    assert why(relay, "home 1", "192.0.2.200") is None  # it had a reservation already
    assert [why(relay, f"six {n}", f"2001:db8:1:{n}::1") for n in (1, 2, 3)] == [
        None,
        None,
        DeclineReason.NETWORK_SHARE,
    ]
    assert [why(relay, f"far {n}", f"198.51.{n}.1") for n in (1, 2, 3)] == [None, None, DeclineReason.FULL]
    relay.release("home 2")
    assert why(relay, "home 3") is None


def test_expired_reservations_make_room() -> None:
    relay = RelayReservations(RelayLimits(reservations=1, ttl_s=10))
    assert why(relay, "a", now=0) is None
    assert why(relay, "b", now=9) is DeclineReason.FULL
    assert why(relay, "b", now=10) is None


def test_who_moves_takes_its_share_along() -> None:
    relay = RelayReservations(RelayLimits(reservations_per_network=1))
    assert why(relay, "a", "192.0.2.1") is None
    assert why(relay, "a", "198.51.100.1") is None
    assert why(relay, "b", "192.0.2.1") is None
    assert why(relay, "a", "192.0.2.2") is DeclineReason.NETWORK_SHARE
    assert relay.holds("a", 0)  # refused, it keeps its reservation


def test_a_circuit_that_was_never_established_hides_no_other() -> None:
    relay = RelayReservations()
    relay.reserve("b", HOME, 0)
    failed, live = (relay.begin("a", HOME, "b", 0) for _ in range(2))
    relay.end(failed, None)
    relay.begin("a", HOME, "b", 0)
    assert len(relay.circuits) == relay.connected == 2
    relay.end(live, CircuitEnd.CLOSED)
    assert len(relay.circuits) == 1


def test_who_asks_too_often_waits() -> None:
    relay = RelayReservations(RelayLimits(reserve_burst=3, reserve_every_s=10))
    assert [why(relay, "a", now=0) for _ in range(4)] == [None, None, None, DeclineReason.TOO_OFTEN]
    assert why(relay, "b", now=0) is None
    assert why(relay, "a", now=9.9) is DeclineReason.TOO_OFTEN
    assert why(relay, "a", now=10) is None


def test_strangers_relayed_peers_and_all_while_it_drains_get_nothing() -> None:
    relay = RelayReservations(allow=lambda peer: peer != "stranger")
    assert why(relay, "stranger") is DeclineReason.NOT_ALLOWED
    assert why(relay, "a", None) is DeclineReason.RELAYED
    assert why(relay, "a") is None
    relay.draining = True
    assert why(relay, "a") is DeclineReason.DRAINING
    assert why_not_connected(relay, "b", "a") is DeclineReason.DRAINING
    assert relay.declined == {
        DeclineReason.NOT_ALLOWED: 1,
        DeclineReason.RELAYED: 1,
        DeclineReason.DRAINING: 2,
    }


def test_who_is_served_no_longer_loses_its_reservation_and_its_circuits() -> None:
    served = {"a", "b", "c", "owner"}
    relay = RelayReservations(allow=served.__contains__)
    for peer in ("b", "c"):
        assert why(relay, peer) is None
    running = {pair: relay.begin(pair[0], HOME, pair[1], 0) for pair in ("ab", "ac", "cb")}
    served.remove("c")
    assert [relay.carry(running[pair], 1) for pair in ("ab", "ac", "cb")] == [
        None,
        CircuitEnd.NOT_ALLOWED,
        CircuitEnd.NOT_ALLOWED,
    ]
    assert why_not_connected(relay, "a", "c") is DeclineReason.NO_RESERVATION
    assert [slot.peer for slot in relay.reservations(0)] == ["b"]
    served.add("c")
    assert relay.carry(running["ac"], 1) is None


def test_a_visitor_is_served_as_long_as_the_member_who_introduced_it() -> None:
    """The visitor's own permission lasts for minutes, but its running calls do not end with it."""
    served, visitors = {"member", "b"}, {"visitor": "member"}

    def allow(peer: str) -> bool:
        return peer in served or visitors.get(peer) in served

    relay = RelayReservations(allow=allow, answers_for=lambda peer: visitors.get(peer, peer))
    assert why(relay, "b") is None
    circuit = relay.begin("visitor", HOME, "b", 0)
    visitors.clear()
    assert relay.carry(circuit, 1) is None
    assert why_not_connected(relay, "visitor", "b") is DeclineReason.NOT_ALLOWED
    served.remove("member")
    assert relay.carry(circuit, 1) is CircuitEnd.NOT_ALLOWED


def test_circuits_have_shares_too() -> None:
    relay = RelayReservations(
        RelayLimits(circuits=4, circuits_from_peer=2, circuits_to_peer=2, circuits_from_network=3)
    )
    for peer in ("x", "y", "z"):
        relay.reserve(peer, HOME, 0)
    assert why_not_connected(relay, "a", "nobody") is DeclineReason.NO_RESERVATION
    assert why_not_connected(relay, "a", "x") is None
    assert why_not_connected(relay, "a", "x") is None
    assert why_not_connected(relay, "a", "y") is DeclineReason.PEER_SHARE
    assert why_not_connected(relay, "b", "x") is DeclineReason.PEER_SHARE
    assert why_not_connected(relay, "b", "y") is None
    assert why_not_connected(relay, "b", "z") is DeclineReason.NETWORK_SHARE
    relay.begin("c", "198.51.100.1", "z", 0)
    assert why_not_connected(relay, "d", "z") is DeclineReason.FULL


def test_two_peers_have_few_circuits_between_them() -> None:
    relay = RelayReservations(RelayLimits(circuits_of_pair=2))
    relay.reserve("x", HOME, 0)
    relay.reserve("y", HOME, 0)
    first = relay.begin("a", HOME, "x", 0)
    assert [why_not_connected(relay, "a", "x") for _ in range(2)] == [None, DeclineReason.PEER_SHARE]
    assert why_not_connected(relay, "a", "y") is None
    assert why_not_connected(relay, "b", "x") is None
    relay.end(first, CircuitEnd.CLOSED)
    assert why_not_connected(relay, "a", "x") is None


def test_a_circuit_carries_what_it_may_and_not_a_byte_more() -> None:
    relay = RelayReservations(RelayLimits(circuit_bytes=100, circuit_s=60))
    relay.reserve("x", HOME, 0)
    circuit = relay.begin("a", HOME, "x", 5)
    assert circuit.ends_at == 65
    assert relay.carry(circuit, 60) is None
    assert relay.carry(circuit, 41) is CircuitEnd.BYTES
    assert relay.carry(circuit, 40) is None
    assert [(one.carried, one.began) for one in relay.circuits] == [(100, 5)]
    relay.end(circuit, CircuitEnd.BYTES)
    relay.end(circuit, CircuitEnd.CLOSED)  # the first reason counts
    assert (relay.circuits, relay.bytes, relay.connected, relay.ended) == ({}, 100, 1, {CircuitEnd.BYTES: 1})


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
    """Whatever is requested in whatever order, no share is ever exceeded and everything reserved is returned."""

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
        self.relay = RelayReservations(self.limits)
        self.now = 0.0
        self.live: list[OpenCircuit] = []

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(peer=PEERS, ip=IPS)
    def reserve(self, peer: str, ip: str) -> None:
        try:
            self.relay.reserve(peer, ip, self.now)
        except ReservationDeclined:
            return
        assert self.relay.holds(peer, self.now)

    @rule(peer=PEERS)
    def leave(self, peer: str) -> None:
        self.relay.release(peer)
        assert not self.relay.holds(peer, self.now)

    @rule(source=PEERS, called=PEERS, ip=IPS)
    def call(self, source: str, called: str, ip: str) -> None:
        held, before = self.relay.holds(called, self.now), len(self.live)
        with contextlib.suppress(ReservationDeclined):
            self.live.append(self.relay.begin(source, ip, called, self.now))
        assert held or len(self.live) == before

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(0, 600))
    def carry(self, data: st.DataObject, size: int) -> None:
        circuit = data.draw(st.sampled_from(self.live))
        before = circuit.carried
        fits = before + size <= self.limits.circuit_bytes
        assert self.relay.carry(circuit, size) is (None if fits else CircuitEnd.BYTES)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), reason=st.sampled_from([*CircuitEnd, None]))
    def hang_up(self, data: st.DataObject, reason: CircuitEnd | None) -> None:
        circuit = data.draw(st.sampled_from(self.live))
        self.live.remove(circuit)
        self.relay.end(circuit, reason)

    @invariant()
    def nothing_is_exceeded(self) -> None:
        observed, reservations = self.relay, self.relay.reservations(self.now)
        assert len(reservations) <= self.limits.reservations
        networks = [slot.network for slot in reservations]
        assert all(networks.count(network) <= 2 for network in networks)
        assert len(observed.circuits) == len(self.live) <= self.limits.circuits
        sources = [circuit.source for circuit in observed.circuits]
        targets = [circuit.target for circuit in observed.circuits]
        assert all(sources.count(peer) <= 2 for peer in sources)
        assert all(targets.count(peer) <= 3 for peer in targets)
        assert all(circuit.carried <= self.limits.circuit_bytes for circuit in observed.circuits)
        assert observed.connected == len(self.live) + sum(observed.ended.values())

    def teardown(self) -> None:
        for circuit in self.live:
            self.relay.end(circuit, CircuitEnd.STOPPED)
        self.now += 1000
        for number in range(2):  # all shares are free again
            self.relay.reserve(f"new {number}", "192.0.2.9", self.now)
            self.relay.begin(f"caller {number}", "192.0.2.9", f"new {number}", self.now)


TestDesk = Desk.TestCase
TestDesk.settings = settings(max_examples=40, stateful_step_count=30)


@given(st.lists(st.floats(0, 5), max_size=60))
def test_a_peer_never_gets_more_than_its_burst_and_what_came_back_since(pauses: list[float]) -> None:
    relay = RelayReservations(RelayLimits(reserve_burst=4, reserve_every_s=2))
    now, granted = 0.0, 0
    for pause in pauses:
        now += pause
        granted += why(relay, "a", now=now) is None
        assert granted <= 4 + now / 2 + 1e-6


def test_all_circuits_together_keep_to_the_bytes_a_second_that_were_set() -> None:
    relay = RelayReservations(RelayLimits(bytes_per_s=1000))
    assert relay.pace(1000, 10.0) == 0.0  # a second's worth passes at once
    assert relay.pace(500, 10.0) == 0.5
    assert relay.pace(1500, 10.0) == 2.0
    assert relay.pace(1000, 13.0) == 0.0  # it was quiet for a second
    assert RelayReservations().pace(1 << 40, 0.0) == 0.0
