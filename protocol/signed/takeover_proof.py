"""That a campaign is carried on under an epoch, in bytes that prove it: signed by who carries it on, with the token that lets it.

    who adopts ──Adopt, Commit with the proof──▶ worker, which keeps it ──Denied stale-epoch, with the proof──▶ who spoke before

A worker's word that somebody else carries a campaign on is worth nothing by itself; this is what makes it worth something. The worker
does not read it: whoever is refused does, and believes it when the campaign's owner signed it, or one whom the owner let do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from protocol.values.lease import MAX_PROOF, Epoch
from protocol.wire.base import Id, Message, PeerName, Signature, Token
from protocol.wire.codec import pack, read_value

_CONTEXT: Final = b"sark adopt 1\n"


class TakeoverProof(Message):
    """What the bytes hold."""

    v: Literal[1] = 1
    peer: PeerName
    """Who carries it on."""
    campaign: Id
    epoch: Epoch
    signature: Signature
    """Of `peer`, over campaign and epoch."""
    issuer: PeerName | None = None
    """Whose token lets it; None: the campaign is its own."""
    token: Token | None = None

    @property
    def message(self) -> bytes:
        """What the signature is made over."""
        return _message(self.campaign, self.epoch)


def make_proof(
    peer: str,
    campaign: str,
    epoch: int,
    sign: Callable[[bytes], bytes],
    *,
    issuer: str | None = None,
    token: bytes | None = None,
) -> bytes | None:
    """The bytes; None when they would be more than a message takes."""
    proof = TakeoverProof(
        peer=peer,
        campaign=campaign,
        epoch=epoch,
        signature=sign(_message(campaign, epoch)),
        issuer=issuer,
        token=token,
    )
    data = pack(proof.to_wire())
    return data if len(data) <= MAX_PROOF else None


def read_proof(data: bytes) -> TakeoverProof:
    """What is in the bytes; signature and token are for the caller to check. Raises `RemoteProtocolError`."""
    return read_value(TakeoverProof, data, max_bytes=MAX_PROOF)


def _message(campaign: str, epoch: int) -> bytes:
    return _CONTEXT + campaign.encode() + b"\n" + str(epoch).encode()
