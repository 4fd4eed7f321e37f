"""The raw times of models that took turns: part of a record."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.wire.base import Message

MAX_TOGETHER: Final = 8
"""Most models in one comparison."""
MAX_ROUNDS: Final = 128
"""Most rounds of one launch."""


class RoundsSample(Message):
    """One launch: first the models of the task's `beside`, in their order, then its own."""

    wall: Annotated[tuple[bytes, ...], Field(min_length=2, max_length=MAX_TOGETHER)]
    """For each model: packed nanoseconds of one inference, round by round."""
    cpu: Annotated[tuple[bytes, ...], Field(min_length=2, max_length=MAX_TOGETHER)] | None = None
    """As `wall`, in CPU time of all threads; None: its system does not report it."""
    per_block: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=MAX_TOGETHER)
    ]
    """For each model: inferences in one block."""
    turns: Annotated[int, Field(ge=1, le=64)]
    """Blocks of each model in one round."""
