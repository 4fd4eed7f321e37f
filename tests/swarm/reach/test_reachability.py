"""What a node concludes from the dial verdicts of gates: for all possible verdicts, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.addresses import is_private
from swarm.net.identity import Identity
from swarm.reach.reachability import (
    CALLED_S,
    FAR_COUNTS_S,
    MAX_ADDRESSES,
    RETRY_S,
    VERDICT_S,
    DialVerdict,
    Reach,
    ReachState,
    advertised,
    after_address_change,
    answered,
    called,
    verdict_of,
)

GATE, OTHER = (Identity.from_seed(name).peer_id for name in ("gate", "other"))
LAN = "192.168.1.7"
OWN = frozenset({LAN, "127.0.0.1"})
HOME = f"/ip4/{LAN}/tcp/4001"
ROUTER = "/ip4/8.8.4.4/tcp/51034"
"""The address at which a gate on the internet sees a node at home."""
CIRCUITS = tuple(f"/ip4/1.1.1.{n}/tcp/4101/p2p/{GATE}/p2p-circuit" for n in range(1, 7))


def far(*reached: int, gate: str = GATE) -> DialVerdict:
    """The verdict of a gate on the internet."""
    return verdict_of(gate, ROUTER, reached, OWN)


def near(*reached: int) -> DialVerdict:
    """The verdict of a gate on the same LAN."""
    return verdict_of(OTHER, f"/ip4/{LAN}/tcp/51034", reached, OWN)


Step = DialVerdict | str | float
VERDICTS = st.sampled_from([far(), far(4001), near(), near(4001)])
STEPS = st.lists(st.one_of(VERDICTS, st.sampled_from(["moved", "called"]), st.floats(0.1, 5000)), max_size=40)


def walk(steps: Sequence[Step]) -> Iterator[tuple[float, Step, ReachState]]:
    """Every state on the way."""
    now, standing = 1000.0, ReachState()
    for step in steps:
        if isinstance(step, float):
            now += step
        elif step == "moved":
            standing = after_address_change(standing, now)
        elif isinstance(step, DialVerdict):
            standing = answered(standing, step, now)
        else:
            standing = called(standing, now)
        yield now, step, standing


@given(steps=STEPS)
def test_a_node_is_behind_only_after_two_tries_in_vain_without_one_that_worked_between(
    steps: list[Step],
) -> None:
    before = ReachState()
    for _, step, standing in walk(steps):
        if standing.reach is Reach.BEHIND and before.reach is not Reach.BEHIND:
            assert isinstance(step, DialVerdict)
            assert not step.reached
            assert before.misses >= 1
            assert not standing.holder
        before = standing


@given(steps=STEPS)
def test_one_dial_back_that_worked_makes_it_direct_at_once_unless_it_came_from_the_lan_and_others_did_not(
    steps: list[Step],
) -> None:
    before = ReachState()
    for now, step, standing in walk(steps):
        if isinstance(step, DialVerdict) and step.reached:
            outranked = step.near and before.far_at is not None and now - before.far_at < FAR_COUNTS_S
            assert standing == before if outranked else standing.reach is Reach.DIRECT
        before = standing


@given(steps=STEPS)
def test_announced_addresses_fit_into_an_advert_and_a_node_behind_a_router_announces_only_circuits_and_the_lan(
    steps: list[Step],
) -> None:
    for _, _, standing in walk(steps):
        addresses = advertised(standing, [HOME, "/ip4/8.8.4.5/tcp/4001"], CIRCUITS)
        assert len(addresses) <= MAX_ADDRESSES
        assert addresses[-4:] == CIRCUITS[:4]
        if standing.reach is Reach.BEHIND:
            assert addresses[:-4] == (HOME,)


@given(steps=STEPS)
def test_the_next_question_is_never_more_than_ten_minutes_away(steps: list[Step]) -> None:
    for now, step, standing in walk(steps):
        if not isinstance(step, float):
            assert standing.ask_at <= now + 600


def test_a_second_gate_that_did_not_get_through_either_settles_it_at_once() -> None:
    standing = answered(ReachState(), far(), 5.0)
    assert (standing.reach, standing.ask_at) == (Reach.UNKNOWN, 5.0 + RETRY_S)
    assert answered(standing, far(gate=OTHER), 5.0).reach is Reach.BEHIND


def test_a_gate_of_the_lan_counts_until_one_from_outside_is_heard() -> None:
    inside = answered(ReachState(), near(4001), 1.0)
    assert (inside.reach, inside.far_at) == (Reach.DIRECT, None)
    outside = answered(answered(inside, far(), 2.0), far(), 5.0)
    assert outside.reach is Reach.BEHIND
    assert answered(outside, near(4001), 6.0) == outside


def test_a_reached_address_is_announced_before_the_others_and_an_unreached_one_is_left_out() -> None:
    standing = answered(ReachState(), far(4001), 1.0)
    own = [HOME, "/ip6/2606:4700::1111/tcp/4001"]
    assert advertised(standing, own, ()) == ("/ip4/8.8.4.4/tcp/4001", HOME)


def test_what_the_user_sets_is_always_announced() -> None:
    standing = answered(answered(ReachState(), far(), 1.0), far(), 2.0)
    assert advertised(standing, [HOME], CIRCUITS[:1], ["/dns4/example.org/tcp/443"]) == (
        "/dns4/example.org/tcp/443",
        HOME,
        CIRCUITS[0],
    )


def test_on_loopback_or_a_lan_everything_is_announced_as_without_a_gate() -> None:
    own = ["/ip4/8.8.4.5/tcp/4001", HOME]
    by_loopback = answered(ReachState(), verdict_of(GATE, "/ip4/127.0.0.1/tcp/51034", [4001], OWN), 1.0)
    assert by_loopback.reach is Reach.DIRECT
    assert advertised(by_loopback, own, ()) == advertised(ReachState(), own, ()) == tuple(own)
    assert advertised(by_loopback, ["/ip4/127.0.0.1/tcp/4001"], ()) == ("/ip4/127.0.0.1/tcp/4001",)


def test_a_call_from_somebody_has_a_node_behind_a_router_ask_again_but_not_all_the_time() -> None:
    behind = answered(answered(ReachState(), far(), 1.0), far(), 4.0)
    assert called(behind, 10.0).ask_at == 4.0 + CALLED_S
    assert called(behind, 200.0).ask_at == 200.0
    direct = answered(ReachState(), far(4001), 1.0)
    assert called(direct, 200.0) == direct


def test_another_network_makes_a_direct_node_unknown_and_one_behind_stays_so_until_it_is_reached() -> None:
    assert after_address_change(answered(ReachState(), far(4001), 1.0), 9.0) == ReachState(
        ask_at=9.0, asked_at=1.0
    )
    behind = answered(answered(ReachState(), far(), 1.0), far(), 4.0)
    after = after_address_change(behind, 9.0)
    assert (after.reach, after.ask_at) == (Reach.BEHIND, 9.0)
    assert answered(after, far(4001), 10.0).reach is Reach.DIRECT


@pytest.mark.parametrize(
    ("address", "private"),
    [
        (HOME, True),
        ("/ip4/127.0.0.1/tcp/1", True),
        ("/ip6/fd00::1/tcp/1", True),
        ("/ip4/100.64.0.9/tcp/1", True),
        ("/ip4/8.8.8.8/tcp/1", False),
        ("/dns4/example.org/tcp/1", False),
        (CIRCUITS[0], False),
        ("nonsense", False),
    ],
)
def test_private_is_what_leads_nowhere_beyond_the_lan(address: str, private: bool) -> None:
    assert is_private(address) is private


@pytest.mark.parametrize(
    "observed", ["/dns4/victim.example/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip4/224.0.0.1/tcp/1", "nonsense"]
)
def test_a_gate_that_lies_about_where_it_sees_us_cannot_send_others_anywhere(observed: str) -> None:
    standing = answered(ReachState(), verdict_of(GATE, observed, [4001], OWN), 1.0)
    assert standing.reached == ()
    assert advertised(standing, [HOME], ()) == (HOME,)


# -- several gates, one of which may lie -----------------------------------------------------------------------------------

THIRD = Identity.from_seed("third").peer_id
SOMEBODY = "/ip4/9.9.9.9/tcp/51034"


def lie(*reached: int, gate: str = OTHER) -> DialVerdict:
    return verdict_of(gate, SOMEBODY, reached, OWN)


def after(*verdicts: DialVerdict, rounds: int = 2) -> ReachState:
    """The state after the same verdicts were heard `rounds` times."""
    standing = ReachState()
    for number in range(rounds):
        for verdict in verdicts:
            standing = answered(standing, verdict, 1.0 + number)
    return standing


@pytest.mark.parametrize("verdicts", [(far(4001), lie(4001)), (lie(4001), far(4001))])
def test_two_gates_that_see_different_addresses_are_not_believed_and_reservations_are_made(
    verdicts: tuple[DialVerdict, DialVerdict],
) -> None:
    standing = after(*verdicts)
    assert standing.reach is Reach.BEHIND
    assert advertised(standing, [HOME], CIRCUITS[:2]) == (HOME, *CIRCUITS[:2])


@pytest.mark.parametrize("verdicts", [(far(), lie(4001)), (lie(4001), far())])
def test_a_gate_with_false_dial_results_cannot_make_a_node_give_up_its_reservations(
    verdicts: tuple[DialVerdict, DialVerdict],
) -> None:
    for rounds in (2, 3, 10):
        standing = after(*verdicts, rounds=rounds)
        assert standing.reach is Reach.BEHIND
        assert advertised(standing, [HOME], CIRCUITS[:2]) == (HOME, *CIRCUITS[:2])


def test_one_gate_of_three_that_lies_changes_nothing() -> None:
    standing = after(far(4001), lie(4001), far(4001, gate=THIRD))
    assert standing.reach is Reach.DIRECT
    assert advertised(standing, [HOME], ()) == ("/ip4/8.8.4.4/tcp/4001", HOME)


def test_a_dial_back_that_got_lost_at_one_of_two_gates_is_tried_again_soon_and_then_all_is_well() -> None:
    standing = answered(after(far(4001), far(4001, gate=OTHER)), far(gate=OTHER), 100.0)
    assert (standing.reach, standing.ask_at) == (Reach.DIRECT, 100.0 + RETRY_S)
    once = answered(standing, far(4001), 101.5)
    assert (once.reach, once.misses) == (Reach.DIRECT, 1)
    assert once.ask_at > 130  # if the other gate is silent now, it is not asked every second
    assert answered(once, far(4001, gate=OTHER), 101.6).misses == 0


def test_when_the_other_gate_is_gone_its_word_is_worth_nothing_after_a_while() -> None:
    standing = after(far(4001), lie(4001))
    assert answered(standing, far(4001), 600.0).reach is Reach.BEHIND
    assert answered(standing, far(4001), 600.0 + VERDICT_S).reach is Reach.DIRECT


def test_a_node_with_a_public_ipv6_address_behind_an_ipv4_router_tells_both_ways() -> None:
    own6 = "/ip6/2606:4700::1111/tcp/4001"
    six = verdict_of(OTHER, "/ip6/2606:4700::1111/tcp/51034", [4001], OWN)
    standing = after(far(), six)
    assert standing.reach is Reach.BEHIND
    assert advertised(standing, [HOME, own6], CIRCUITS[:1]) == (own6, HOME, CIRCUITS[0])


def test_an_address_that_the_provider_changed_is_no_longer_announced_once_gates_see_another() -> None:
    standing = after(far(4001), far(4001, gate=OTHER))
    for gate in (GATE, OTHER):
        standing = answered(standing, lie(4001, gate=gate), 500.0)
    standing = answered(standing, lie(4001, gate=GATE), 501.5)
    assert standing.reach is Reach.DIRECT
    assert advertised(standing, [HOME], ()) == ("/ip4/9.9.9.9/tcp/4001", HOME)
