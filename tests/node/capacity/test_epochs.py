"""Which scheduler speaks for a campaign, and what proof a superseded scheduler is shown."""

from __future__ import annotations

from node.capacity.epochs import MAX_PROOFS, CampaignLeaders

PROOF = b"signed"


def test_who_is_refused_is_shown_what_the_one_who_took_over_gave_for_it() -> None:
    speakers = CampaignLeaders(10)
    speakers.set_leader("bob", "ann", "c-1", 1002)
    speakers.set_proof("ann", "c-1", 1002, PROOF)
    denied = speakers.refuse("ann", "ann", "c-1", 2)
    assert denied is not None
    assert denied.proof == PROOF


def test_the_proof_of_another_epoch_is_not_shown_and_replaces_none() -> None:
    speakers = CampaignLeaders(10)
    speakers.set_leader("bob", "ann", "c-1", 1002)
    speakers.set_proof("ann", "c-1", 1002, PROOF)
    speakers.set_proof("ann", "c-1", 2, b"older")
    assert speakers.proof("ann", "c-1") == PROOF
    speakers.set_leader("cleo", "ann", "c-1", 2003)
    assert speakers.proof("ann", "c-1") is None


def test_proofs_take_no_more_room_than_they_may() -> None:
    speakers = CampaignLeaders(10_000)
    for n in range(MAX_PROOFS + 1):
        speakers.set_leader("bob", "ann", f"c-{n}", 2)
        speakers.set_proof("ann", f"c-{n}", 2, PROOF)
    assert speakers.proof("ann", "c-0") is None
    assert speakers.proof("ann", f"c-{MAX_PROOFS}") == PROOF
