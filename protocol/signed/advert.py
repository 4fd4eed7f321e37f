"""The advert: what a device is and how it is reached, signed by its node and kept by holders of the index.

Live load is not in it: that is asked for at negotiation. A signed advert fits in 1 KiB.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.errors import LocalProtocolError
from protocol.values.advert import MAX_ADVERT, Advert
from protocol.wire.base import Message, Signature
from protocol.wire.codec import pack, read_value

_CONTEXT: Final = b"sark advert 1\n"


class SignedAdvert(Message):
    """An advert's canonical bytes under its node's key."""

    body: Annotated[bytes, Field(max_length=MAX_ADVERT)]
    signature: Signature


def advert_body(advert: Advert) -> bytes:
    """Canonical bytes. Raises `LocalProtocolError` above the cap, naming what to shorten."""
    body = pack(advert.to_wire())
    if len(body) > MAX_ADVERT:
        raise LocalProtocolError(
            f"this node's advert is {len(body)} bytes, {MAX_ADVERT} are allowed: use fewer or shorter labels"
        )
    return body


def advert_message(body: bytes) -> bytes:
    """What the signature is made over: never the bare body, so that it can stand for nothing else."""
    return _CONTEXT + body


def read_advert(body: bytes) -> Advert:
    """The advert in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(Advert, body, max_bytes=MAX_ADVERT)
