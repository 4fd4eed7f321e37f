"""State machines as tables: enums, one transition table, a pure step. Drawn in SPEC.md from the tables themselves."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from protocol.errors import LocalProtocolError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)

Table = Mapping[S, Mapping[E, S]]
"""For each state (all of them are keys) what each allowed event leads to. A state without events is final."""


def step(table: Table[S, E], state: S, event: E, *, story: str = "") -> S:
    """The state after `event`. Raises `LocalProtocolError` with the story when the table does not allow it."""
    after = table[state].get(event)
    if after is None:
        text = f" ({story})" if story else ""
        raise LocalProtocolError(f"{event} is not possible in state {state}{text}")
    return after


def final(table: Table[S, E], state: S) -> bool:
    """Whether no edge leaves `state`."""
    return not table[state]


def diagram(table: Table[S, E]) -> str:
    """The table as a mermaid state diagram, first state first."""
    states = list(table)
    lines = ["stateDiagram-v2", f"    [*] --> {_name(states[0])}"]
    for state, edges in table.items():
        merged: dict[S, list[str]] = {}
        for event, target in edges.items():
            merged.setdefault(target, []).append(str(event))
        lines += [
            f"    {_name(state)} --> {_name(target)}: {', '.join(events)}"
            for target, events in merged.items()
        ]
        if not edges:
            lines.append(f"    {_name(state)} --> [*]")
    return "\n".join(lines)


def _name(state: StrEnum) -> str:
    return str(state).replace("-", "_")
