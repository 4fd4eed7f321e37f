"""What one scheduler's owner hands to another: valid for one campaign, for one holder, for a limited time."""

from __future__ import annotations

import pytest

from protocol.errors import NotPermitted
from protocol.words import Right
from scheduler.adoption.token import Handover, passed_on, read_handover, write_handover
from swarm.net.identity import Identity
from swarm.pools.manifests import DELEGATION_S
from swarm.pools.tokens import prove

ANN, BOB, CAT = (Identity.from_seed(name) for name in ("ann", "bob", "cat"))
NOW = 1_700_000_000.0


def handed(*, to: Identity = BOB, campaign: str = "c-one", lasts_s: float = 3600.0) -> str:
    tokens = passed_on(ANN, (), to.peer_id, campaign, own=True, lasts_s=lasts_s, now=NOW)
    return write_handover(Handover(campaign=campaign, owner=ANN.peer_id, tokens=tokens))


def test_it_names_the_campaign_and_its_owner() -> None:
    handover, (own,) = read_handover(handed(), BOB.peer_id, now=NOW)
    assert (handover.campaign, handover.owner) == ("c-one", ANN.peer_id)
    assert (own.issuer, own.campaign) == (ANN.peer_id, "c-one")
    proof = prove(own.token, ANN.peer_id, BOB.peer_id, now=NOW)
    assert proof.grant.campaigns == {"c-one"}
    assert proof.grant.rights == {Right.SUBMIT, Right.STATUS}


def test_for_more_than_a_pool_takes_from_a_member_it_holds_a_shorter_token_too() -> None:
    _, held = read_handover(handed(lasts_s=2 * DELEGATION_S), BOB.peer_id, now=NOW)
    assert [one.expires - NOW for one in held] == [DELEGATION_S, 2 * DELEGATION_S]


def test_what_was_delegated_is_delegated_on_with_no_more_than_it_had() -> None:
    _, held = read_handover(handed(), BOB.peer_id, now=NOW)
    (passed,) = passed_on(BOB, held, CAT.peer_id, "c-one", own=False, lasts_s=9_000.0, now=NOW)
    proof = prove(passed.token, ANN.peer_id, CAT.peer_id, now=NOW)
    assert (passed.issuer, proof.holders, proof.expires) == (
        ANN.peer_id, (BOB.peer_id, CAT.peer_id), NOW + 3600,
    )  # fmt: skip
    assert passed_on(BOB, held, CAT.peer_id, "c-two", own=False, lasts_s=60.0, now=NOW) == ()


def test_whoever_else_has_the_string_can_do_nothing_with_it() -> None:
    with pytest.raises(NotPermitted, match="is bound to"):
        read_handover(handed(), CAT.peer_id, now=NOW)


def test_it_ends() -> None:
    with pytest.raises(NotPermitted, match="expired at"):
        read_handover(handed(lasts_s=60.0), BOB.peer_id, now=NOW + 600.0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text[:20] + "0" + text[21:],
        lambda text: "sark1" + text,
        lambda text: "",
        lambda text: "sarkd1",
    ],
)
def test_a_damaged_token_is_distinguished_from_a_good_one(spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(NotPermitted):
        read_handover(spoil(handed()), BOB.peer_id, now=NOW)


def test_one_that_names_another_campaign_or_owner_than_its_tokens_is_refused() -> None:
    good, _ = read_handover(handed(), BOB.peer_id, now=NOW)
    moved = write_handover(good.model_copy(update={"campaign": "c-two"}))
    with pytest.raises(NotPermitted, match="not for the campaign"):
        read_handover(moved, BOB.peer_id, now=NOW)
    forged = write_handover(good.model_copy(update={"owner": CAT.peer_id}))
    with pytest.raises(NotPermitted, match="not from the campaign's owner"):
        read_handover(forged, BOB.peer_id, now=NOW)


def test_a_line_break_from_a_mail_does_no_harm() -> None:
    text = handed()
    read_handover(text[:40] + "\n  " + text[40:] + "\n", BOB.peer_id, now=NOW)
