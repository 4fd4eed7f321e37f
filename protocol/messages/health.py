"""The health conversation, `/sark/health/1`: are you there, and how are you?

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


class Ping(Message):
    """Are you there?"""

    type: Literal["ping"] = "ping"


class Pong(Message):
    """Yes. A gate or a scheduler says only that; a worker also how it is."""

    type: Literal["pong"] = "pong"
    role: Literal["worker", "gate", "scheduler"]
    incarnation: Count
    state: Annotated[WorkerState, Field(strict=False)] | None = None
    why: Detail = ""
    """Why it is faulty or draining."""
    running: Count = 0
    queue: Count = 0


HEALTH: Final = Vocabulary(Ping, Pong)
