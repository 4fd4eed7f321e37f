"""Join tickets: everything that a newcomer needs, in one string to paste.

    sark1 + base58( checksum of 4 bytes + msgpack of a `Ticket` )

A ticket contains a secret, which admits anyone who shows it to a gate of the pool until the ticket ends. Or it is for one peer (`to`) and
contains the manifest that already lists that peer; then nobody else can use it, and no gate is needed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO, Annotated, Final, Literal

import base58
from pydantic import Field

from protocol.errors import BadTicket, RemoteProtocolError, ResourceError
from protocol.messages.pool import ManifestMessage, TicketSecret
from protocol.wire.base import AddressText, Count, Message, Name, PeerName
from protocol.wire.codec import pack, read_value
from protocol.words import Role
from swarm.base.durable import unusable

MARK: Final = "sark"
VERSION: Final = "1"
MAX_TEXT: Final = 80 * 1024
MAX_GATES: Final = 8
MAX_SECRET: Final = 96 * 1024
MAX_PATH: Final = 1024
_FILE_LIKE: Final = frozenset("./\\")
"""Characters that no ticket or token contains: a text with one is a file name."""
_MAX_BODY: Final = 56 * 1024
_CHECKSUM: Final = 4
_CONTEXT: Final = b"sark ticket 1\n"
_COPY: Final = "copy all of it, from {} to its last letter"


class Ticket(Message):
    """The content of a ticket: `secret`, or `to` and `manifest`."""

    v: Literal[1] = 1
    pool: PeerName
    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    """Ways into the swarm, with their peer ids; they admit, unless `admits` names other nodes."""
    role: Annotated[Role, Field(strict=False)]
    until: Count
    """When the ticket, or the membership it grants, ends, in wall seconds."""
    secret: TicketSecret | None = None
    admits: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()
    """Addresses of the admitting node, direct or through a gate, with its peer id; no other node is shown the secret. Empty: the gates."""
    to: PeerName | None = None
    manifest: ManifestMessage | None = None


def write_ticket(ticket: Ticket) -> str:
    """The ticket as a string."""
    return write_text(MARK + VERSION, _CONTEXT, ticket)


def read_ticket(text: str) -> Ticket:
    """Parse a ticket's string, ignoring white space. Raises `BadTicket`, which says what to do."""
    text = "".join(text.split())
    if not text.startswith(MARK) or not text[len(MARK) : len(MARK) + 1].isdigit():
        raise BadTicket("this is not a ticket: tickets begin with sark1", hint="ask the pool's owner for one")
    if text[len(MARK)] != VERSION:
        raise BadTicket(
            f"this ticket has version {text[len(MARK)]}; this sark-node reads version {VERSION}",
            hint=f"{_COPY.format(MARK + VERSION)}; or update sark-node",
        )
    body = read_text(text, MARK + VERSION, _CONTEXT, "ticket", MAX_TEXT)
    try:
        ticket = read_value(Ticket, body, max_bytes=_MAX_BODY)
    except RemoteProtocolError:
        ticket = None
    if ticket is None or (ticket.to is None) is (ticket.secret is None):
        raise BadTicket(
            "this sark-node does not understand this ticket", hint="update sark-node, or ask for another"
        )
    return ticket


def write_text(mark: str, context: bytes, message: Message) -> str:
    """`message` as one string to paste: `mark`, then base58 of a checksum and the message."""
    body = pack(message.to_wire())
    return mark + base58.b58encode(_checksum(context, body) + body).decode()


def read_text(text: str, mark: str, context: bytes, noun: str, limit: int) -> bytes:
    """The bytes of the message in such a string. `noun`: what users call it. Raises `BadTicket`."""
    damaged, copy = f"this {noun} is damaged", _COPY.format(mark)
    if len(text) > limit:
        raise BadTicket(f"{damaged}: it is too long", hint=copy)
    try:
        raw = base58.b58decode(text[len(mark) :])
    except ValueError:
        raise BadTicket(f"{damaged}: it has a character that no {noun} has", hint=copy) from None
    body = raw[_CHECKSUM:]
    if len(raw) <= _CHECKSUM or raw[:_CHECKSUM] != _checksum(context, body):
        raise BadTicket(f"{damaged}: a part is missing or was changed", hint=copy)
    return body


def _checksum(context: bytes, body: bytes) -> bytes:
    return hashlib.sha256(context + body).digest()[:_CHECKSUM]


def secret_text(text: str, stdin: IO[str]) -> str:
    """A ticket or token from the command line: the string itself, `-` for the first line of standard input, or the path of a file.

    A file or standard input keeps it secret: every user of the machine can read what is typed on a command line. Raises `ResourceError` for
    a missing or unreadable file, and for empty standard input.
    """
    text = text.strip()
    if text == "-":
        typed = stdin.readline(MAX_SECRET)
        if not typed.strip():
            hint = "paste it and press Enter, or name a file that holds it"
            raise ResourceError("standard input is empty", hint=hint)
        return typed
    if text.startswith("sark") or len(text) > MAX_PATH:
        return text
    path = Path(text)
    try:
        if path.is_file():
            with path.open(encoding="ascii", errors="replace") as file:
                return file.read(MAX_SECRET)
        what = "is a folder" if path.is_dir() else "does not exist"
    except OSError as error:
        raise unusable(path, error) from error
    except ValueError:  # a character that no path can have
        return text
    if _FILE_LIKE & set(text):
        raise ResourceError(f"the file {text} {what}", hint="name the file that holds it, or paste it")
    return text
