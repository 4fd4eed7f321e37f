"""What one scheduler's owner hands to another: good for one campaign, for one holder, for a while."""

from __future__ import annotations

import pytest

from protocol.errors import NotPermitted
from protocol.words import Right
from scheduler.adoption.token import Handover, passed_on, read_handover, write_handover
from swarm.net.identity import Identity
from swarm.pools.membership import Credential
from swarm.pools.tokens import Grant, issue, prove

ANN, BOB, CAT = (Identity.from_seed(name) for name in ("ann", "bob", "cat"))
POOL = Identity.from_seed("pool")
NOW = 1_700_000_000.0


def handed(*, to: Identity = BOB, campaign: str = "c-one", lasts_s: float = 3600.0) -> str:
    grant = Grant(frozenset({Right.SUBMIT, Right.STATUS}), priority=60)
    held = [Credential(POOL.peer_id, issue(POOL, ANN.peer_id, grant, now=NOW), "lab", NOW + 86_400.0)]
    tokens = passed_on(ANN, held, to.peer_id, campaign, own=True, lasts_s=lasts_s, now=NOW)
    return write_handover(Handover(campaign=campaign, owner=ANN.peer_id, tokens=tokens))


def test_it_says_whose_campaign_it_is_and_acts_for_the_owner_in_pools_too() -> None:
    handover, credentials = read_handover(handed(), BOB.peer_id, now=NOW)
    assert (handover.campaign, handover.owner) == ("c-one", ANN.peer_id)
    own, pooled = credentials
    assert (own.issuer, own.campaign, own.pool_name) == (ANN.peer_id, "c-one", "")
    proof = prove(pooled.token, POOL.peer_id, BOB.peer_id, now=NOW)
    assert proof.principal == ANN.peer_id
    assert proof.grant.campaigns == {"c-one"}
    assert proof.grant.priority == 60, "never more than its owner has"


def test_whoever_else_has_the_string_can_do_nothing_with_it() -> None:
    with pytest.raises(NotPermitted, match="was given to"):
        read_handover(handed(), CAT.peer_id, now=NOW)


def test_it_ends() -> None:
    with pytest.raises(NotPermitted, match="ended at"):
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
def test_a_damaged_one_is_told_from_a_good_one(spoil: object) -> None:
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
