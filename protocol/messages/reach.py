"""The reach protocol, `/sark/reach/1`: can this node be dialled from outside? (AutoNAT.)

a node                       a gate, or another node that can be dialled
    │ DialBack(ports) ────────────▶ │   dials the address this connection comes from, and no other, at these ports, on a
    │                               │   fresh connection that proves the node's key
    │ ◀ DialBackReply(observed, …) ─ │   or RefusedMessage: too often, or this node cannot tell
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.messages.index import ContactInfo, RefusedMessage
from protocol.wire.base import AddressText, Count, Message
from protocol.wire.codec import Vocabulary

MAX_PORTS: Final = 4
MAX_GATES: Final = 2

Port = Annotated[int, Field(ge=1, le=65_535)]


class DialBack(Message, type="dial-back"):
    """Dial the sender back at these ports of the address it is seen at. `gates`: other gates it uses, so that gates learn of each other."""

    ports: Annotated[tuple[Port, ...], Field(max_length=MAX_PORTS)] = ()
    gates: Annotated[tuple[ContactInfo, ...], Field(max_length=MAX_GATES)] = ()


class DialBackReply(Message, type="dial-back-reply"):
    """The address the sender is seen at, and the ports that reached it."""

    observed: AddressText
    """Includes the port of the sender's connection, such as `/ip4/192.0.2.7/tcp/51034`."""
    reached: Annotated[tuple[Port, ...], Field(max_length=MAX_PORTS)] = ()
    wall_ms: Count
    """The replying node's wall clock in ms since 1970, used only to warn users whose clock is wrong."""


REACH: Final = Vocabulary(DialBack, DialBackReply, RefusedMessage, calls=(DialBack,))
"""All of the above, and the index's `RefusedMessage`."""
