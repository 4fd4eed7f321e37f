"""The reach conversation, `/sark/reach/1`: can I be dialled, and what time have you?

a node                       a gate, or another node that can be dialled
    │ DialBack(ports) ────────────▶ │   it dials the address that this very connection comes from, at these ports,
    │                               │   by a fresh connection on which the node's key is proved; and no other address
    │ ◀─ DialledBack(observed, …) ─ │   or Refused: too often, or it is not one that can tell
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.messages.index import ContactInfo, RefusedMessage
from protocol.wire.base import AddressText, Count, Message
from protocol.wire.codec import Vocabulary

MAX_PORTS: Final = 4
MAX_GATES: Final = 2

Port = Annotated[int, Field(ge=1, le=65_535)]


class DialBack(Message):
    """Dial me back at these ports of the address you see me at. `gates`: others I use, so that gates without a link meet."""

    type: Literal["dial-back"] = "dial-back"
    ports: Annotated[tuple[Port, ...], Field(max_length=MAX_PORTS)] = ()
    gates: Annotated[tuple[ContactInfo, ...], Field(max_length=MAX_GATES)] = ()


class DialBackReply(Message):
    """What came of it: the address the asker is seen at, and which of the ports led to it."""

    type: Literal["dial-back-reply"] = "dial-back-reply"
    observed: AddressText
    """With the port of the asker's own connection, such as `/ip4/192.0.2.7/tcp/51034`."""
    reached: Annotated[tuple[Port, ...], Field(max_length=MAX_PORTS)] = ()
    wall_ms: Count
    """The answerer's wall clock, in milliseconds since 1970: shown to people whose own clock is wrong, and used for nothing else."""


REACH: Final = Vocabulary(DialBack, DialBackReply, RefusedMessage)
"""All of the above, and the index's `RefusedMessage`."""
