"""Which proofs convince a scheduler that another one leads a campaign."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from node.capacity.epochs import CampaignLeaders
from protocol.messages.work import Denied
from protocol.values.lease import make_proof
from protocol.words import Reason, Right
from scheduler.adoption.token import passed_on
from scheduler.conversation.claims import Rival, RivalKind
from scheduler.run.epochs import (
    ADOPTION_EPOCH_STEP,
    MAX_EPOCH_STEP,
    LeadershipClaims,
    own_proof,
    proven_epoch,
)
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
    """The epoch that Ann accepts from the best proof that `by` can make of all its credentials."""
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


def believed(by: Identity, epoch: int) -> Denied:
    return Denied(reason=Reason.STALE_EPOCH, proof=make_proof(by.peer_id, CAMPAIGN, epoch, by.sign))


class Homes:
    """Schedulers with Ann's key, and the epochs in their stores."""

    def __init__(self, **epochs: int) -> None:
        self.epochs = epochs
        self.rng = random.Random(str(epochs))
        self.claims = {name: self.claim(name, epoch) for name, epoch in epochs.items()}

    def claim(self, name: str, epoch: int) -> LeadershipClaims:
        def following(campaign: str, above: int) -> int:
            self.epochs[name] = max(self.epochs[name], above) + 1 + self.rng.randrange(MAX_EPOCH_STEP)
            return self.epochs[name]

        claims = LeadershipClaims(ANN, tuple, following)
        claims.take_up(CAMPAIGN, ANN.peer_id, epoch)
        return claims

    def ask(self, name: str, worker: str, leaders: CampaignLeaders) -> RivalKind | None:
        """The home adopts the campaign at a worker; returns who leads it instead, if anyone."""
        claims, me = self.claims[name], ANN.peer_id
        while (denied := leaders.refuse(me, me, CAMPAIGN, self.epochs[name])) is not None:
            rival = claims.rival(CAMPAIGN, worker, denied)
            assert rival is not None
            if rival.kind is not RivalKind.FORMER:
                return rival.kind
            assert claims.lead_above_rival(CAMPAIGN, rival) == self.epochs[name] > rival.epoch
        leaders.set_leader(me, me, CAMPAIGN, self.epochs[name])
        leaders.set_proof(me, CAMPAIGN, self.epochs[name], claims.proof(CAMPAIGN))
        claims.accepted(CAMPAIGN, worker, self.epochs[name])
        return None


@pytest.mark.parametrize(("epoch", "kind"), [(3, None), (4, None), (5, RivalKind.FORMER)])
def test_a_higher_epoch_under_ones_own_key_is_outdone(epoch: int, kind: RivalKind | None) -> None:
    claims = Homes(a=4).claims["a"]
    rival = claims.rival(CAMPAIGN, "one", believed(ANN, epoch))
    assert (None if rival is None else rival.kind) is kind
    claims.forget(CAMPAIGN)
    assert claims.rival(CAMPAIGN, "one", believed(ANN, epoch)) is None


def test_the_same_key_a_leap_ahead_has_adopted_the_campaign() -> None:
    rival = Homes(a=4).claims["a"].rival(CAMPAIGN, "one", believed(ANN, 4 + ADOPTION_EPOCH_STEP))
    assert rival == Rival(RivalKind.ADOPTER, 4 + ADOPTION_EPOCH_STEP)
    nearly = Homes(a=4).claims["a"].rival(CAMPAIGN, "one", believed(ANN, 3 + ADOPTION_EPOCH_STEP))
    assert nearly == Rival(RivalKind.FORMER, 3 + ADOPTION_EPOCH_STEP)


def test_a_restored_home_leads_again_at_every_worker_whatever_each_of_them_knows() -> None:
    workers = {name: CampaignLeaders(10) for name in ("one", "two", "three")}
    for epoch, (name, leaders) in zip((3, 40, 7), workers.items(), strict=True):
        assert Homes(before=epoch).ask("before", name, leaders) is None
    homes = Homes(restored=2)
    for name in (*workers, *workers):
        assert homes.ask("restored", name, workers[name]) is None


def test_a_process_from_a_snapshot_leads_again_where_it_had_been_accepted() -> None:
    leaders = CampaignLeaders(10)
    homes = Homes(snapshot=2, meanwhile=30)
    for name in ("snapshot", "meanwhile", "snapshot", "snapshot"):
        assert homes.ask(name, "one", leaders) is None


@pytest.mark.parametrize("seed", range(20))
def test_of_two_copies_that_run_one_leads_and_the_other_says_so(seed: int) -> None:
    """Whatever the order in which they ask the workers."""
    rng = random.Random(seed)
    workers = {name: CampaignLeaders(10) for name in ("one", "two", "three")}
    homes = Homes(a=rng.randrange(2, 50), b=rng.randrange(50, 99))
    over: dict[str, RivalKind] = {}
    for _ in range(200):
        home, worker = rng.choice(["a", "b"]), rng.choice(list(workers))
        if home not in over and (kind := homes.ask(home, worker, workers[worker])) is not None:
            over[home] = kind
    assert list(over.values()) == [RivalKind.COPY]
    (left,) = {"a", "b"} - over.keys()
    assert {leaders.epoch(ANN.peer_id, CAMPAIGN) for leaders in workers.values()} == {homes.epochs[left]}


def test_who_adopted_a_campaign_believes_its_owner_who_takes_it_back() -> None:
    claims = LeadershipClaims(BOB, lambda: handed(ANN, BOB), lambda campaign, above: above + 1)
    claims.take_up(CAMPAIGN, ANN.peer_id, 1001)
    assert claims.proof(CAMPAIGN) is not None
    rival = claims.rival(CAMPAIGN, "one", believed(ANN, 2002))
    assert rival is not None
    assert rival.kind is RivalKind.ADOPTER


def test_the_first_life_of_a_campaign_needs_no_proof() -> None:
    assert own_proof(ANN, CAMPAIGN, 1, ANN.peer_id, ()) is None
