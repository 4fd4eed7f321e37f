"""The proof that a scheduler leads a campaign under an epoch, as bytes."""

from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.values.lease import MAX_PROOF, make_proof, read_proof

PEER = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"


def sign(message: bytes) -> bytes:
    return message[-64:].rjust(64, b".")


def test_a_proof_says_who_carries_what_on_under_which_epoch_and_is_signed_over_both() -> None:
    data = make_proof(PEER, "c-one", 1002, sign, issuer=PEER, token=b"biscuit")
    assert data is not None
    proof = read_proof(data)
    assert (proof.peer, proof.campaign, proof.epoch) == (PEER, "c-one", 1002)
    assert (proof.issuer, proof.token) == (PEER, b"biscuit")
    assert proof.signature == sign(proof.message)
    other = make_proof(PEER, "c-one", 1003, sign)
    assert other is not None
    assert read_proof(other).message != proof.message


def test_a_token_that_no_message_takes_makes_no_proof() -> None:
    assert make_proof(PEER, "c-one", 1002, sign, issuer=PEER, token=b"t" * MAX_PROOF) is None


@pytest.mark.parametrize("data", [b"", b"\x80", b"p" * MAX_PROOF, b"p" * (MAX_PROOF + 1)])
def test_what_is_no_proof_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_proof(data)
