"""The health protocol, `/sark/health/1`: is a node alive, and in which state?

anybody                          a node
    │ Ping ──────────────────────▶ │
    │ ◀────────────────────── Pong │
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.wire.base import Count, Detail, Message
from protocol.wire.codec import Vocabulary
from protocol.words import WorkerState


class Ping(Message, type="ping"):
    """Ask whether the node is alive."""


class Pong(Message, type="pong"):
    """The node is alive. A worker adds its state."""

    role: Literal["worker", "gate", "scheduler"]
    incarnation: Count
    state: Annotated[WorkerState, Field(strict=False)] | None = None
    why: Detail = ""
    """Why it is faulty or draining."""
    running: Count = 0
    queue: Count = 0


HEALTH: Final = Vocabulary(Ping, Pong, calls=(Ping,))
