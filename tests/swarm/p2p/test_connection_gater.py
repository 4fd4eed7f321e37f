"""Who may connect: the pace and share of each network, the limit for unproven peers, and the last places for known peers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Unreachable
from swarm.base.process import for_others
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import parse_tcp
from swarm.net.identity import Identity
from swarm.net.limits import ConnectionLimits
from swarm.net.network import Stream
from swarm.p2p.connection_gater import MAX_RATED, ConnectionGater, InboundConnection

HOME, OTHER = "192.0.2.7", "198.51.100.7"


def proved(arrivals: ConnectionGater, ip: str, now: float, count: int) -> list[InboundConnection]:
    """`count` connections from that address that prove their identity at once; returns the admitted ones."""
    results = []
    for number in range(count):
        arrival = arrivals.arrive(ip, now)
        if arrival is not None and arrivals.keep_authenticated(arrival, f"peer {number}", 0, now):
            results.append(arrival)
    return results


def test_a_network_has_its_share_however_many_addresses_it_has() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=4))
    held = [one for n in range(6) for one in proved(arrivals, f"192.0.2.{n}", 0.0, 1)]
    assert len(held) == 4
    assert arrivals.refused == {"network-share": 2}
    assert proved(arrivals, OTHER, 0.0, 1)
    arrivals.leave(held[0])
    assert proved(arrivals, HOME, 0.0, 1)


def half(arrivals: ConnectionGater, ip: str) -> InboundConnection | None:
    """Half of a circuit from that address, if there is room for it."""
    arrival = arrivals.arrive(ip, 0.0)
    assert arrival is not None
    if arrivals.carry(arrival):
        return arrival
    arrivals.leave(arrival)
    return None


@pytest.mark.parametrize(("halves", "all_"), [(3, 100), (100, 12)])
def test_halves_of_circuits_have_a_number_of_their_own_and_leave_room_for_peers(
    halves: int, all_: int
) -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=2, data_connections=halves, all=all_))
    held = [half(arrivals, HOME) for _ in range(3)]
    assert [one is not None for one in held] == [True, True, False], "a network has its share"
    assert half(arrivals, OTHER)
    assert not half(arrivals, "127.0.0.1"), "three are taken"
    assert arrivals.refused == {"circuits": 2}
    assert held[0] is not None
    arrivals.leave(held[0])
    assert half(arrivals, HOME)


@pytest.mark.parametrize(("files", "halves"), [(16_256, 2_048), (3_172, 2_048), (2_024, 1_000), (896, 224)])
def test_peers_have_their_room_and_with_few_files_three_quarters(files: int, halves: int) -> None:
    assert ConnectionLimits(all=files).most_data_connections == halves


def test_halves_of_circuits_take_nothing_of_their_networks_share() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=4))
    assert all(half(arrivals, HOME) for _ in range(4))
    assert len(proved(arrivals, HOME, 0.0, 5)) == 4
    assert arrivals.refused == {"network-share": 1}


def test_a_half_for_which_there_is_no_room_counts_as_a_newcomer() -> None:
    arrivals = ConnectionGater(ConnectionLimits(burst=3, per_s=0.001, data_connections=0))
    assert [half(arrivals, HOME) for _ in range(3)] == [None] * 3
    assert arrivals.arrive(HOME, 0.0) is None


def test_halves_of_circuits_are_no_newcomers_of_their_network() -> None:
    arrivals = ConnectionGater(ConnectionLimits(burst=2, per_s=0.001, per_network=100, pending_per_ip=1))
    for _ in range(20):
        arrival = arrivals.arrive(HOME, 0.0)
        assert arrival is not None
        assert arrivals.carry(arrival)
    assert len(proved(arrivals, HOME, 0.0, 3)) == 2
    assert arrivals.refused == {"too-fast": 1}


@pytest.mark.parametrize(
    ("one", "other"), [("2001:db8:1::1", "2001:db8:1:ffff::9"), ("::ffff:192.0.2.1", "192.0.2.250")]
)
def test_addresses_of_one_network_share_whatever_they_wear(one: str, other: str) -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=1))
    assert proved(arrivals, one, 0.0, 1)
    assert arrivals.arrive(other, 0.0) is None


def test_there_are_never_more_connections_than_open_files_for_them() -> None:
    arrivals = ConnectionGater(ConnectionLimits(all=3))
    held = [arrivals.arrive(ip, 0.0) for ip in ("127.0.0.1", HOME, OTHER, "203.0.113.7")]
    assert [one is not None for one in held] == [True, True, True, False]
    assert arrivals.refused == {"files": 1}
    assert held[0] is not None
    arrivals.leave(held[0])
    assert arrivals.arrive("203.0.113.7", 0.0)


@pytest.mark.parametrize(("files", "connections"), [(16_384, 16_256), (256, 128), (100, 50)])
def test_some_open_files_are_kept_from_others(files: int, connections: int) -> None:
    assert for_others(files) == connections


def test_a_node_asks_for_more_open_files_and_takes_what_it_gets() -> None:
    ask = (
        "import resource as r; from swarm.base.process import allow_open_files as allow;"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 300)); print(allow(200), allow(1000), allow(50),"
        " r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "200 300 50 (300, 300)\n"


def test_a_flood_is_held_to_its_networks_pace_and_nobody_elses() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=10_000, burst=10, per_s=2.0))
    assert len(proved(arrivals, HOME, 100.0, 1000)) == 10
    assert len(proved(arrivals, HOME, 103.0, 1000)) == 6
    assert len(proved(arrivals, OTHER, 103.0, 3)) == 3
    assert arrivals.refused["too-fast"] == 990 + 994


def test_connections_that_prove_nothing_take_no_more_than_their_part() -> None:
    """The oldest ones make room: of the address that has used its part, or of the network that has most."""
    arrivals = ConnectionGater(ConnectionLimits(pending=5, pending_per_ip=3))
    cut: list[str] = []

    def arrive(ip: str, name: str) -> InboundConnection:
        arrival = arrivals.arrive(ip, 0.0)
        assert arrival is not None
        arrival.cut = lambda: cut.append(name)
        return arrival

    floods = [arrive("127.0.0.1", f"flood {number}") for number in range(5)]
    assert cut == ["flood 0", "flood 1"]
    honest = arrive(HOME, "honest")
    for number in range(5):
        arrive(f"198.51.100.{number}", f"network {number}")
    assert "honest" not in cut
    assert cut[2:] == ["flood 2", "flood 3", "network 0", "network 1"]
    assert arrivals.refused == {"pending": 6}
    assert arrivals.keep_authenticated(honest, "honest", 1, 0.0)
    for one in floods:
        arrivals.leave(one)


def test_loopback_has_no_share_and_no_pace() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=1, burst=1, per_s=1.0))
    assert len(proved(arrivals, "127.0.0.1", 0.0, 50)) == 50
    assert len(proved(arrivals, "::1", 0.0, 50)) == 50


def test_an_address_that_is_none_has_the_share_of_one_network() -> None:
    arrivals = ConnectionGater(ConnectionLimits(per_network=2))
    assert len(proved(arrivals, "", 0.0, 5)) == 2


def test_the_last_connections_are_for_known_peers() -> None:
    arrivals = ConnectionGater(ConnectionLimits(strangers=3), knows=lambda peer: peer == "friend")
    for peer, stored in (("stranger", False), ("friend", True)):
        arrival = arrivals.arrive(HOME, 0.0)
        assert arrival is not None
        assert arrivals.keep_authenticated(arrival, peer, 4, 0.0) is stored
    assert arrivals.refused == {"full": 1}


def test_what_is_remembered_of_networks_is_bounded() -> None:
    arrivals = ConnectionGater()
    for number in range(MAX_RATED + 10):
        arrival = arrivals.arrive(f"10.{number >> 8}.{number & 255}.1", 0.0)
        assert arrival is not None
        arrivals.leave(arrival)
    assert len(arrivals._rates._full_at) == MAX_RATED


@given(
    st.lists(
        st.tuples(st.sampled_from([HOME, OTHER, "127.0.0.1"]), st.sampled_from("apl"), st.integers(0, 9))
    )
)
def test_whatever_comes_and_goes_nothing_is_left_behind(steps: list[tuple[str, str, int]]) -> None:
    arrivals = ConnectionGater(
        ConnectionLimits(pending=6, pending_per_ip=4, per_network=5, burst=8, per_s=1.0, strangers=4)
    )
    here: list[InboundConnection] = []
    for now, (ip, step, which) in enumerate(steps):
        if step == "a" and (arrival := arrivals.arrive(ip, float(now))) is not None:
            here.append(arrival)
        elif step == "p" and here:
            arrivals.keep_authenticated(here[which % len(here)], "peer", which % 3, float(now))
        elif step == "l" and here:
            arrivals.leave(here.pop(which % len(here)))
        assert arrivals._held.total() == len(here)
        assert arrivals._pending.total() == sum(not one.authenticated for one in here)
    for arrival in here:
        arrivals.leave(arrival)
    assert not arrivals._held
    assert not arrivals._pending
    assert not arrivals._staying


# -- over real sockets -----------------------------------------------------------------------------------------------------------


async def until(what: Callable[[], bool], within_s: float = 20.0) -> None:
    with trio.fail_after(within_s):
        while not what():
            await trio.sleep(0.02)


async def reaches(victim: HostNetwork, guest: HostNetwork) -> bool:
    """Whether the guest is still connected after a moment in which it might have been dropped."""
    try:
        await guest.connect(victim.peer_id, victim.addresses)
        stream = await guest.open(victim.peer_id, "/echo", victim.addresses)
        await stream.send_all(b"x")
        answered = await stream.receive_some() == b"x"
        await stream.aclose()
        return answered
    except (Unreachable, trio.BrokenResourceError):
        return False


async def test_a_node_that_is_full_of_strangers_still_takes_those_it_knows() -> None:
    friend = Identity.from_seed("friend")
    arrivals = ConnectionGater(ConnectionLimits(strangers=2), knows=lambda peer: peer == friend.peer_id)

    async def echo(stream: Stream) -> None:
        while data := await stream.receive_some():
            await stream.send_all(data)

    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"], gater=arrivals) as victim:
        victim.handle("/echo", echo)
        async with (
            open_host(Identity.fresh()) as one,
            open_host(Identity.fresh()) as two,
            open_host(Identity.fresh()) as late,
            open_host(friend) as known,
        ):
            assert await reaches(victim, one)
            assert await reaches(victim, two)
            assert not await reaches(victim, late)
            assert await reaches(victim, known)
            assert await reaches(victim, one)
    assert arrivals.refused["full"] >= 1


async def test_an_idle_stranger_is_closed_for_a_newcomer_and_one_that_works_is_not() -> None:
    arrivals = ConnectionGater(ConnectionLimits(strangers=2))

    async def echo(stream: Stream) -> None:
        while data := await stream.receive_some():
            await stream.send_all(data)

    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"], gater=arrivals) as victim:
        victim.handle("/echo", echo)
        async with (
            open_host(Identity.fresh()) as idle,
            open_host(Identity.fresh()) as works,
            open_host(Identity.fresh()) as late,
        ):
            await idle.connect(victim.peer_id, victim.addresses)
            assert await reaches(victim, works)
            with trio.fail_after(30):
                while not await reaches(victim, late):
                    assert await reaches(victim, works)
            assert await reaches(victim, works)
            await until(lambda: idle.peer_id not in victim.connected())
    assert arrivals.evicted == 1


async def test_half_open_connections_are_cut_at_their_limit_and_free_their_slots() -> None:
    arrivals = ConnectionGater(ConnectionLimits(pending_per_ip=4))
    async with open_host(Identity.fresh(), listen=["/ip4/127.0.0.1/tcp/0"], gater=arrivals) as victim:
        where = parse_tcp(victim.addresses[0])
        assert where is not None
        flood = [socket.create_connection((where.host, where.port)) for _ in range(12)]
        await until(lambda: arrivals.refused["pending"] >= 8)
        for one in flood:
            one.close()
        async with open_host(Identity.fresh()) as honest:
            with trio.fail_after(20):
                while not honest.connected():
                    with contextlib.suppress(Unreachable):
                        await honest.connect(victim.peer_id, victim.addresses)
            assert honest.connected() == (victim.peer_id,)
