"""Join tickets: everything a newcomer needs, in one string to be pasted. Pure.

    sark1 + base58( checksum of 4 bytes + msgpack of: pool, name, gates, role, token )

The token in it is a bearer's (it lets in whoever has the ticket, until it ends), or is bound to one peer id (`to`): then nobody else
can use it and no gate needs to be asked.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import base58
from pydantic import Field

from protocol.errors import BadTicket, RemoteProtocolError
from protocol.wire.base import AddressText, Message, Name, PeerName, Token
from protocol.wire.codec import pack, read_value
from protocol.words import Role

MARK: Final = "sark"
VERSION: Final = "1"
MAX_TEXT: Final = 16 * 1024
MAX_GATES: Final = 8
_MAX_BODY: Final = 12 * 1024
_CHECKSUM: Final = 4
_CONTEXT: Final = b"sark ticket 1\n"
_DAMAGED: Final = "this ticket is damaged"
_AGAIN: Final = "copy it whole, from sark1 to its last letter"


class Ticket(Message):
    """What is in a ticket."""

    v: Literal[1] = 1
    pool: PeerName
    """The pool's id: its key."""
    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    """Where it can be used, with their peer ids."""
    role: Annotated[Role, Field(strict=False)]
    token: Token
    to: PeerName | None = None
    """The only peer id it is good for; None: anybody's."""


def write_ticket(ticket: Ticket) -> str:
    """The string."""
    body = pack(ticket.to_wire())
    return MARK + VERSION + base58.b58encode(_checksum(body) + body).decode()


def read_ticket(text: str) -> Ticket:
    """What is in the string; spaces and line breaks in it do not count. Raises `BadTicket` with what to do."""
    text = "".join(text.split())
    if not text.startswith(MARK) or not text[len(MARK) : len(MARK) + 1].isdigit():
        raise BadTicket("this is no ticket: a ticket begins with sark1", hint="ask the pool's owner for one")
    if text[len(MARK)] != VERSION:
        raise BadTicket(
            f"this ticket is of version {text[len(MARK)]}, which is not known here",
            hint=f"{_AGAIN}; or update sark-node",
        )
    if len(text) > MAX_TEXT:
        raise BadTicket(f"{_DAMAGED}: it is longer than any", hint=_AGAIN)
    try:
        raw = base58.b58decode(text[len(MARK) + 1 :])
    except ValueError:
        raise BadTicket(f"{_DAMAGED}: it has a character that no ticket has", hint=_AGAIN) from None
    body = raw[_CHECKSUM:]
    if len(raw) <= _CHECKSUM or raw[:_CHECKSUM] != _checksum(body):
        raise BadTicket(f"{_DAMAGED}: a part is missing or was changed", hint=_AGAIN)
    try:
        return read_value(Ticket, body, max_bytes=_MAX_BODY)
    except RemoteProtocolError:
        raise BadTicket(
            "this ticket says something that is not understood here",
            hint="update sark-node, or ask for another",
        ) from None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(_CONTEXT + body).digest()[:_CHECKSUM]
