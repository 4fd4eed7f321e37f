"""Which peers are disconnected at the connection limit: floods of keys that come back at once, beside working peers and newcomers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from swarm.net.limits import ConnectionLimits
from swarm.p2p.connection_gater import ConnectionGater, InboundConnection
from swarm.p2p.connection_value import NEW_S, ConnectionUse, ConnectionValue, least_useful

NOW = 10_000.0
ROOM = 120
TICK_S = 0.0625
"""Time between two connections of the flood. In proportion to the limit it equals 128 per second at a gate."""


def value(peer: str, **changes: float | int | str | bool) -> ConnectionValue:
    fields = {"network": "", "since": 0.0, "used_at": -math.inf, "marks": 0} | changes
    return ConnectionValue(peer, **fields)  # type: ignore[arg-type]


def order(*values: ConnectionValue, known: Callable[[str], bool] = lambda peer: False) -> list[str]:
    return [each.peer for each in least_useful(values, NOW, known, len(values), room=ROOM)]


def test_what_only_answers_pings_leaves_first_and_the_longest_idle_of_those() -> None:
    asked = value("asked an hour ago", used_at=NOW - 3600.0, marks=1)
    assert order(asked, value("idle", since=200.0), value("idle for longer", since=100.0)) == [
        "idle for longer",
        "idle",
        "asked an hour ago",
    ]


def test_work_over_many_minutes_and_a_reservation_count_more_than_one_late_call() -> None:
    flood = value("one call", since=NOW - 10.0, used_at=NOW - 9.0, marks=1)
    worker = value("worked", used_at=NOW - 240.0, marks=12)
    behind = value("behind a router", since=NOW - 300.0, used_at=NOW - 299.0, marks=1, reserved=True)
    assert order(behind, worker, flood)[0] == "one call"


def test_a_network_that_has_many_connections_gives_some_back_first() -> None:
    crowd = [value(f"crowd {n}", network="192.0.2.0/24", since=NOW - 60.0) for n in range(40)]
    alone = value("alone", network="198.51.100.0/24", since=NOW - 300.0)
    assert order(alone, *crowd)[-1] == "alone"


def test_known_peers_newcomers_and_those_at_work_stay() -> None:
    fresh = value("fresh", since=NOW - NEW_S + 0.1)
    working = value("working", used_at=NOW - 1.0, marks=1)
    idle = value("idle", since=NOW - 60.0)
    friend = value("friend")
    assert order(fresh, working, idle, friend, known=lambda peer: peer == "friend") == ["idle"]
    # a call every second does not lock out everybody else, and a rush of newcomers ends no work
    assert order(fresh, working) == ["working"]
    assert order(fresh, replace(fresh, peer="fresh too"), working) == []
    assert order(fresh) == []


def test_use_is_marked_once_a_minute_for_calls_and_for_answers() -> None:
    use = ConnectionUse()
    for second in range(0, 180, 5):
        use.note(float(second), answered=False)
    assert (use.marks, use.used_at) == (3, 175.0)
    use.note(175.0, answered=True)
    assert use.marks == 4
    for minute in range(100):
        use.note(minute * 60.0, answered=False)
    assert use.marks == 20


@dataclass
class Gate:
    """A connection gater whose limit for strangers is ROOM, on virtual time."""

    now: float = 0.0
    gater: ConnectionGater = field(
        default_factory=lambda: ConnectionGater(
            ConnectionLimits(strangers=ROOM), knows=lambda peer: peer.startswith("friend")
        )
    )
    up: dict[str, InboundConnection] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def connect(self, peer: str, *, call: bool = False) -> bool:
        arrival = self.gater.arrive("127.0.0.1", self.now)
        assert arrival is not None

        def cut() -> None:
            del self.up[peer]
            self.lost.append(peer)
            self.gater.leave(arrival)

        arrival.cut = cut
        if not self.gater.keep_authenticated(arrival, peer, 0, self.now):
            self.gater.leave(arrival)
            return False
        self.up[peer] = arrival
        if call:
            self.call(peer)
        return True

    def call(self, peer: str) -> None:
        self.up[peer].use.note(self.now, answered=False)

    def flood(self, seconds: float, every: Callable[[float], None], *, call: bool = False) -> None:
        """A flood of more keys than the limit for strangers; each comes back as soon as its connection is closed."""
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            down = next((f"flood {n}" for n in range(ROOM + 20) if f"flood {n}" not in self.up), None)
            if down is not None:
                self.connect(down, call=call)
            every(self.now)


@pytest.mark.parametrize("call", [False, True], ids=["pings", "one call each"])
def test_a_flood_that_comes_back_at_once_ends_no_work_and_keeps_no_newcomer_out(call: bool) -> None:
    gate = Gate()
    workers = [f"worker {n}" for n in range(40)]
    for peer in workers:
        gate.connect(peer)

    def work(now: float) -> None:
        for peer in workers:
            if now % 30.0 < TICK_S:
                gate.call(peer)

    for _ in range(6):  # three minutes of quiet work
        gate.now += 30.0
        work(0.0)
    entered: dict[str, int] = {}

    def newcomers(now: float) -> None:
        work(now)
        for number in range(9):
            peer = f"newcomer {number}"
            if peer in gate.up and now % 2.0 < TICK_S:
                gate.call(peer)
            elif now > start + 3.0 * (number + 1) and peer not in gate.up and now % 1.0 < TICK_S:
                entered[peer] = entered.get(peer, 0) + 1
                gate.connect(peer)

    start = gate.now
    gate.flood(90.0, newcomers, call=call)
    assert {f"newcomer {number}" for number in range(9)} <= gate.up.keys()
    assert max(entered.values()) <= 2
    assert [peer for peer in gate.lost if not peer.startswith("flood")] == []
    assert len(gate.up) <= ROOM
    assert gate.gater.evicted > 500


def test_a_flood_of_strangers_leaves_the_reserved_room_to_the_known() -> None:
    gate = Gate()
    gate.flood(20.0, lambda now: None)
    assert len(gate.up) == ROOM
    assert all(gate.connect(f"friend {n}") for n in range(30))
    gate.flood(20.0, lambda now: None)
    assert all(f"friend {n}" in gate.up for n in range(30))
    assert len(gate.up) <= ROOM


def test_where_all_have_just_arrived_the_next_is_refused_and_nobody_churns() -> None:
    gate = Gate()
    for number in range(ROOM):
        assert gate.connect(f"one {number}")
    assert not gate.connect("two")
    assert gate.lost == []
    assert gate.gater.refused == {"full": 1}
    gate.now += NEW_S
    assert gate.connect("two")
    assert gate.lost == ["one 0"]
