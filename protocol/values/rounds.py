"""What models that took turns in one process needed, raw: part of a record."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.wire.base import Message

MAX_TOGETHER: Final = 8
"""Models of one comparison."""
MAX_ROUNDS: Final = 128
"""Of one launch."""


class RoundsSample(Message):
    """One launch: the task's models beside first, in their order, then its own."""

    wall: Annotated[tuple[bytes, ...], Field(min_length=2, max_length=MAX_TOGETHER)]
    """Of each model: packed nanoseconds of one inference, round by round."""
    cpu: Annotated[tuple[bytes, ...], Field(min_length=2, max_length=MAX_TOGETHER)] | None = None
    """The same in CPU time of all threads; None: its system does not tell."""
    per_block: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=MAX_TOGETHER)
    ]
    """Of each model: inferences in one block."""
    turns: Annotated[int, Field(ge=1, le=64)]
    """Blocks of each model in one round."""
