"""State machines as tables: enums, one transition table, and a pure step. `tools/spec.py` draws them in SPEC.md."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from protocol.errors import LocalProtocolError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)

Table = Mapping[S, Mapping[E, S]]
"""State → allowed event → next state. Every state is a key; a state without events is final."""


def step(table: Table[S, E], state: S, event: E, *, story: str = "") -> S:
    """The state after `event`. Raises `LocalProtocolError`, with the story, if the table does not allow it."""
    after = table[state].get(event)
    if after is None:
        text = f" ({story})" if story else ""
        raise LocalProtocolError(f"{event} is not possible in state {state}{text}")
    return after


def final(table: Table[S, E], state: S) -> bool:
    """Whether no transition leaves `state`."""
    return not table[state]
