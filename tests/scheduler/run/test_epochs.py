"""Whom a scheduler believes that another carries a campaign on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from protocol.messages.work import Denied
from protocol.values.lease import make_proof
from protocol.words import Reason, Right
from scheduler.adoption.token import passed_on
from scheduler.run.epochs import LeadershipClaims, own_proof, proven_epoch
from swarm.net.identity import Identity
from swarm.pools.membership import Credential
from swarm.pools.tokens import Grant, issue

ANN, BOB, CLEO, EVE = (Identity.from_seed(name) for name in ("ann", "bob", "cleo", "eve"))
CAMPAIGN = "c-abcdefgh"
NOW = 1_800_000_000.0


def handed(
    giver: Identity,
    to: Identity,
    held: Iterable[Credential] = (),
    *,
    own: bool = True,
    campaign: str = CAMPAIGN,
) -> list[Credential]:
    tokens = passed_on(giver, held, to.peer_id, campaign, own=own, lasts_s=3600.0, now=NOW)
    return [
        Credential(issuer=t.issuer, token=t.token, expires=NOW + 3600.0, campaign=campaign) for t in tokens
    ]


def proven(by: Identity, held: Iterable[Credential] = ()) -> int | None:
    """What Ann believes of a proof that `by` makes of all it has, as well as it can."""
    proofs = [own_proof(by, CAMPAIGN, 1002, ANN.peer_id, held)]
    proofs += [
        make_proof(by.peer_id, CAMPAIGN, 1002, by.sign, issuer=one.issuer, token=one.token) for one in held
    ]
    proofs.append(make_proof(by.peer_id, CAMPAIGN, 1002, by.sign))
    epochs = {proven_epoch(proof, CAMPAIGN, {ANN.peer_id}) for proof in proofs} - {None}
    return epochs.pop() if epochs else None


def test_the_same_key_elsewhere_is_believed() -> None:
    assert proven(ANN) == 1002


def test_whom_the_owner_let_is_believed_by_its_token() -> None:
    assert proven(BOB, handed(ANN, BOB)) == 1002


def test_whom_one_let_whom_the_owner_let_is_believed_too() -> None:
    bobs = handed(ANN, BOB)
    assert proven(CLEO, handed(BOB, CLEO, bobs, own=False)) == 1002


def test_a_stranger_and_one_with_a_token_for_another_campaign_are_not() -> None:
    assert proven(EVE) is None
    assert proven(EVE, handed(EVE, EVE)) is None
    assert proven(BOB, handed(ANN, BOB, campaign="c-another")) is None


def test_a_guest_who_may_submit_anything_is_no_scheduler_of_the_owners_campaigns() -> None:
    token = issue(ANN, EVE.peer_id, Grant(frozenset({Right.SUBMIT}), ttl_s=3600.0), now=NOW)
    assert proven(EVE, [Credential(issuer=ANN.peer_id, token=token, expires=NOW + 3600.0)]) is None


def test_somebody_elses_token_and_somebody_elses_signature_are_of_no_use() -> None:
    (held,) = handed(ANN, BOB)
    stolen = make_proof(EVE.peer_id, CAMPAIGN, 1002, EVE.sign, issuer=held.issuer, token=held.token)
    forged = make_proof(ANN.peer_id, CAMPAIGN, 1002, EVE.sign)
    for proof in (stolen, forged, b"", b"\x80", None):
        assert proven_epoch(proof, CAMPAIGN, {ANN.peer_id}) is None
    assert proven_epoch(make_proof(ANN.peer_id, "c-other", 7, ANN.sign), CAMPAIGN, {ANN.peer_id}) is None


@pytest.mark.parametrize(("epoch", "lost"), [(3, False), (4, False), (5, True)])
def test_only_a_higher_epoch_than_ours_takes_a_campaign_away(epoch: int, lost: bool) -> None:
    claims = LeadershipClaims(ANN, tuple)
    claims.take_up(CAMPAIGN, ANN.peer_id, 4)
    denied = Denied(reason=Reason.STALE_EPOCH, proof=make_proof(ANN.peer_id, CAMPAIGN, epoch, ANN.sign))
    assert claims.superseded(CAMPAIGN, denied) is lost
    claims.forget(CAMPAIGN)
    assert not claims.superseded(CAMPAIGN, denied)


def test_who_adopted_a_campaign_believes_its_owner_who_takes_it_back() -> None:
    claims = LeadershipClaims(BOB, lambda: handed(ANN, BOB))
    claims.take_up(CAMPAIGN, ANN.peer_id, 1001)
    assert claims.proof(CAMPAIGN) is not None
    proof = make_proof(ANN.peer_id, CAMPAIGN, 2002, ANN.sign)
    assert claims.superseded(CAMPAIGN, Denied(reason=Reason.STALE_EPOCH, proof=proof))


def test_the_first_life_of_a_campaign_needs_no_proof() -> None:
    assert own_proof(ANN, CAMPAIGN, 1, ANN.peer_id, ()) is None
