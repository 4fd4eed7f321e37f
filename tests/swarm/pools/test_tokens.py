"""Tokens: nobody can extend one by passing it on or tampering with it, and each works for one holder only."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace

import pytest
from biscuit_auth import (
    AuthorizationError,
    AuthorizerBuilder,
    Biscuit,
    BiscuitBuilder,
    BlockBuilder,
    PrivateKey,
    PublicKey,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import NotPermitted
from protocol.wire.base import MAX_TOKEN
from protocol.words import Right
from swarm.net.identity import Identity
from swarm.pools.tokens import (
    LEEWAY_S,
    MAX_CHAIN,
    Grant,
    TokenBlock,
    delegate,
    issue,
    prove,
)

NOW = 1_800_000_000.0
ISSUER = Identity.from_seed("issuer")
HANDS = [Identity.from_seed(f"hand {number}") for number in range(MAX_CHAIN + 2)]
ANN, BEN, STRANGER = HANDS[0], HANDS[1], Identity.from_seed("stranger")
BOTH = frozenset({Right.SUBMIT, Right.STATUS})
ALL = frozenset(Right)

campaigns = st.none() | st.frozensets(st.sampled_from(["c/1", "c/2", "c/3"]), min_size=1)
grants = st.builds(
    Grant,
    rights=st.frozensets(st.sampled_from(sorted(Right)), min_size=1),
    priority=st.integers(0, 100),
    slots=st.none() | st.integers(1, 50),
    team=st.sampled_from(["", "vision", "speech"]),
    campaigns=campaigns,
    ttl_s=st.integers(0, 10_000).map(float),
)


def within(small: Grant, large: Grant) -> bool:
    """Whether `small` allows nothing that `large` does not allow."""
    return (
        small.rights <= large.rights
        and small.priority <= large.priority
        and (large.slots is None or (small.slots is not None and small.slots <= large.slots))
        and (large.campaigns is None or (small.campaigns is not None and small.campaigns <= large.campaigns))
        and large.team == small.team
        and small.ttl_s <= large.ttl_s
    )


def private(key: Identity) -> PrivateKey:
    return PrivateKey(f"ed25519-private/{key.seed.hex()}")


def public(key: Identity) -> PublicKey:
    return PublicKey(f"ed25519/{key.public_key.hex()}")


def with_block(token: bytes, source: str, signer: Identity | None) -> bytes:
    """The token with a block that its library builds from any source: signed by `signer`, or unsigned."""
    biscuit = Biscuit.from_bytes(token, public(ISSUER))
    block = BlockBuilder(source)
    if signer is None:
        return bytes(biscuit.append(block).to_bytes())
    signed = biscuit.third_party_request().create_block(private(signer), block)
    return bytes(biscuit.append_third_party(public(signer), signed).to_bytes())


def plain(grant: Grant = Grant(BOTH)) -> bytes:
    return issue(ISSUER, ANN.peer_id, grant, now=NOW)


def test_what_was_issued_is_proved_with_every_value() -> None:
    grant = Grant(BOTH, 70, 3, "team one", frozenset({"c/1", "c/2"}), 3600.0)
    proof = prove(plain(grant), ISSUER.peer_id, ANN.peer_id, now=NOW)
    assert proof.grant == grant
    assert (proof.principal, proof.holders) == (ANN.peer_id, (ANN.peer_id,))
    assert (proof.expires, proof.life_s) == (NOW + 3600, 3600)
    assert [len(each) for each in proof.ids] == [8]


@settings(max_examples=60)
@given(st.lists(grants, min_size=2, max_size=MAX_CHAIN + 1), st.integers(0, 500))
def test_a_chain_of_delegations_never_allows_more_than_any_of_its_parts(
    chain: list[Grant], later: int
) -> None:
    token, given_so_far = plain(chain[0]), [(chain[0], NOW)]
    for number, grant in enumerate(chain[1:]):
        now = NOW + later * (number + 1)
        try:
            token = delegate(token, ISSUER.peer_id, HANDS[number], HANDS[number + 1].peer_id, grant, now=now)
        except NotPermitted:
            return
        given_so_far.append((grant, now))
        try:
            proof = prove(token, ISSUER.peer_id, HANDS[number + 1].peer_id, now=now)
        except NotPermitted:  # it expired in between
            return
        assert proof.principal == ANN.peer_id
        assert proof.holders == tuple(hand.peer_id for hand in HANDS[: number + 2])
        assert proof.grant.team == chain[0].team
        for part, since in given_so_far:
            left = max(0.0, since + part.ttl_s - now)
            limits = Grant(part.rights, part.priority, part.slots, proof.grant.team, part.campaigns, left)
            assert part.team in ("", proof.grant.team)
            assert within(proof.grant, limits)
            assert proof.expires <= since + part.ttl_s


@settings(max_examples=40)
@given(grants, grants)
def test_a_block_written_by_hand_to_allow_more_allows_no_more(first: Grant, wish: Grant) -> None:
    source = TokenBlock.of(ANN.peer_id, BEN.peer_id, wish, NOW).render(first=False)
    token = with_block(plain(first), source, ANN)
    try:
        proof = prove(token, ISSUER.peer_id, BEN.peer_id, now=NOW)
    except NotPermitted:
        return
    assert within(proof.grant, Grant(**{name: getattr(first, name) for name in _LIMITS}))
    assert wish.team in ("", first.team)
    assert within(
        proof.grant, replace(Grant(**{name: getattr(wish, name) for name in _LIMITS}), team=first.team)
    )


def test_nobody_gets_into_a_team_by_passing_its_permission_on_to_itself() -> None:
    with pytest.raises(NotPermitted, match="for no team, not for vision"):
        delegate(plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH, team="vision"), now=NOW)
    source = TokenBlock.of(ANN.peer_id, BEN.peer_id, Grant(BOTH, team="vision"), NOW).render(first=False)
    with pytest.raises(NotPermitted, match="for no team, not for vision"):
        prove(with_block(plain(), source, ANN), ISSUER.peer_id, BEN.peer_id, now=NOW)


_LIMITS = ("rights", "priority", "slots", "team", "campaigns", "ttl_s")


def test_a_stolen_token_is_of_no_use_to_another_peer() -> None:
    with pytest.raises(NotPermitted, match="is bound to"):
        prove(plain(), ISSUER.peer_id, STRANGER.peer_id, now=NOW)
    passed_on = delegate(plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH), now=NOW)
    with pytest.raises(NotPermitted, match="is bound to"):
        prove(passed_on, ISSUER.peer_id, ANN.peer_id, now=NOW)
    with pytest.raises(NotPermitted, match="is bound to"):
        delegate(plain(), ISSUER.peer_id, STRANGER, BEN.peer_id, Grant(BOTH), now=NOW)


def test_a_token_under_another_key_is_refused() -> None:
    forged = issue(STRANGER, ANN.peer_id, Grant(ALL), now=NOW)
    with pytest.raises(NotPermitted, match="not a token of"):
        prove(forged, ISSUER.peer_id, ANN.peer_id, now=NOW)
    with pytest.raises(NotPermitted, match="not a token of"):
        prove(forged, "no peer id", ANN.peer_id, now=NOW)


@pytest.mark.parametrize("signer", [None, STRANGER, ISSUER, BEN])
def test_a_block_that_the_holder_did_not_sign_is_refused(signer: Identity | None) -> None:
    source = TokenBlock.of(ANN.peer_id, BEN.peer_id, Grant(BOTH), NOW).render(first=False)
    with pytest.raises(NotPermitted, match="not signed by its previous holder"):
        prove(with_block(plain(), source, signer), ISSUER.peer_id, BEN.peer_id, now=NOW)


@pytest.mark.parametrize(
    "source",
    [
        'right("control");',
        'peer("anybody");',
        "check if true;",
        "reject if true;",
        'delegated("a", "b") <- peer($p);',
        'right("submit"); unheard_of(1);',
        "",
    ],
)
@pytest.mark.parametrize("signer", [None, ANN])
def test_what_is_not_understood_in_a_block_refuses_the_token(source: str, signer: Identity | None) -> None:
    with pytest.raises(NotPermitted, match="does not understand"):
        prove(with_block(plain(), source, signer), ISSUER.peer_id, ANN.peer_id, now=NOW)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('right("status")', 'right("everything")'),
        ("priority(100)", "priority(101)"),
        ("priority(100)", "priority(100);\nextra(1)"),
        ("check if time($t)", 'check if time($t) or peer("x")'),
        ("trusting ed25519/", "trusting authority, ed25519/"),
    ],
)
def test_a_block_with_other_content_than_ours_refuses_the_token_though_the_issuer_signed_it(
    old: str, new: str
) -> None:
    source = TokenBlock.of(ISSUER.peer_id, ANN.peer_id, Grant(BOTH), NOW).render(first=True)
    assert old in source
    token = bytes(BiscuitBuilder(source.replace(old, new)).build(private(ISSUER)).to_bytes())
    with pytest.raises(NotPermitted):
        prove(token, ISSUER.peer_id, ANN.peer_id, now=NOW)


def test_a_block_cannot_be_cut_off_nor_taken_to_another_token() -> None:
    small = delegate(
        plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(frozenset({Right.STATUS}), priority=5), now=NOW
    )
    other = plain(Grant(ALL))
    for cut in range(len(small) - 1, len(small) - 80, -1):
        with pytest.raises(NotPermitted):
            prove(small[:cut], ISSUER.peer_id, BEN.peer_id, now=NOW)
    with pytest.raises(NotPermitted):
        prove(other + small[len(plain()) :], ISSUER.peer_id, BEN.peer_id, now=NOW)


@settings(max_examples=150)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_never_allows_more(place: int, flip: int) -> None:
    token = bytearray(delegate(plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH, 40), now=NOW))
    good = prove(bytes(token), ISSUER.peer_id, BEN.peer_id, now=NOW)
    token[place % len(token)] ^= flip
    try:
        proof = prove(bytes(token), ISSUER.peer_id, BEN.peer_id, now=NOW)
    except NotPermitted:
        return
    assert (proof.grant, proof.holders, proof.ids) == (good.grant, good.holders, good.ids)


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_words(raw: bytes) -> None:
    with pytest.raises(NotPermitted):
        prove(raw, ISSUER.peer_id, ANN.peer_id, now=NOW)


def test_a_token_that_is_too_long_is_not_even_read() -> None:
    with pytest.raises(NotPermitted, match=f"at most {MAX_TOKEN}"):
        prove(bytes(MAX_TOKEN + 1), ISSUER.peer_id, ANN.peer_id, now=NOW)


def test_a_token_is_good_until_its_end_and_for_the_leeway_of_clocks() -> None:
    token = plain(Grant(BOTH, ttl_s=100.0))
    assert prove(token, ISSUER.peer_id, ANN.peer_id, now=NOW + 100 + LEEWAY_S).grant.ttl_s == 0
    with pytest.raises(NotPermitted, match="expired at 2027-01-15 08:01:40 UTC"):
        prove(token, ISSUER.peer_id, ANN.peer_id, now=NOW + 101 + LEEWAY_S)


def test_the_library_alone_refuses_a_late_or_stolen_token_too() -> None:
    def allowed(token: bytes, peer: Identity, late_s: float) -> None:
        when = datetime.datetime.fromtimestamp(NOW + late_s, datetime.UTC)
        facts = {"p": peer.peer_id, "t": when}
        builder = AuthorizerBuilder("peer({p}); time({t}); allow if true;", facts)
        limits = builder.limits()
        limits.max_time = datetime.timedelta(seconds=10)
        builder.set_limits(limits)
        builder.build(Biscuit.from_bytes(token, public(ISSUER))).authorize()

    chain = delegate(plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH, ttl_s=50.0), now=NOW)
    allowed(chain, BEN, 40.0)
    for token, peer, late_s in ((chain, BEN, 60.0), (chain, ANN, 40.0), (plain(), BEN, 40.0)):
        with pytest.raises(AuthorizationError):
            allowed(token, peer, late_s)


def test_a_permission_is_passed_on_three_times_at_most_and_never_back() -> None:
    token = plain()
    for giver, taker in itertools.pairwise(HANDS[: MAX_CHAIN + 1]):
        token = delegate(token, ISSUER.peer_id, giver, taker.peer_id, Grant(BOTH), now=NOW)
    assert len(prove(token, ISSUER.peer_id, HANDS[MAX_CHAIN].peer_id, now=NOW).ids) == MAX_CHAIN + 1
    with pytest.raises(NotPermitted, match="delegated 3 times"):
        delegate(token, ISSUER.peer_id, HANDS[MAX_CHAIN], STRANGER.peer_id, Grant(BOTH), now=NOW)
    once = delegate(plain(), ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH), now=NOW)
    with pytest.raises(NotPermitted, match="holds this permission already"):
        delegate(once, ISSUER.peer_id, BEN, ANN.peer_id, Grant(BOTH), now=NOW)


def test_what_would_be_left_of_nothing_is_refused() -> None:
    token = plain(Grant(frozenset({Right.STATUS}), team="vision", campaigns=frozenset({"c/1"})))
    for grant, why in (
        (Grant(frozenset({Right.CONTROL})), "no right"),
        (Grant(BOTH, campaigns=frozenset({"c/2"})), "no campaign"),
        (Grant(BOTH, team="speech"), "team vision"),
    ):
        with pytest.raises(NotPermitted, match=why):
            delegate(token, ISSUER.peer_id, ANN, BEN.peer_id, grant, now=NOW)


def test_the_life_of_a_delegated_token_counts_from_its_first_block() -> None:
    token = plain(Grant(BOTH, ttl_s=1000.0))
    passed = delegate(token, ISSUER.peer_id, ANN, BEN.peer_id, Grant(BOTH, ttl_s=9000.0), now=NOW + 600)
    assert prove(passed, ISSUER.peer_id, BEN.peer_id, now=NOW + 600).life_s == 1000


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rights": frozenset()}, "at least one right"),
        ({"priority": 101}, "0 to 100"),
        ({"slots": 0}, "1 to"),
        ({"team": 'a"); right("control'}, "team's name"),
        ({"campaigns": frozenset({'a"'})}, "not a campaign's id"),
        ({"campaigns": frozenset()}, "0 campaigns"),
        ({"ttl_s": 1e12}, "10 years"),
        ({"ttl_s": float("nan")}, "10 years"),
    ],
)
def test_what_no_token_can_express_is_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Grant(**{"rights": BOTH, **wrong})  # type: ignore[arg-type]


def test_nothing_said_about_a_token_quotes_it() -> None:
    token = plain()
    with pytest.raises(NotPermitted) as error:
        prove(token, ISSUER.peer_id, STRANGER.peer_id, now=NOW)
    result = error.value.what + error.value.hint
    assert token.hex()[:16] not in result
    assert repr(token)[2:20] not in result
