"""What the pool commands show of a pool: who is in it, in 80 columns, and which pools this home has to do with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from protocol.messages.pool import PoolMember

ROOMY = 120
"""Columns from which there is room for whole peer ids."""
TAIL = 8
"""Letters of the end of a peer id that stand for it: enough to name it by."""


def tail(peer: str) -> str:
    """`…R5DXUdsR`"""
    return f"…{peer[-TAIL:]}"


def members_table(members: Iterable[PoolMember], width: int = 80) -> Table:
    """A line for each member, with the end of its id, or with all of it where there is room."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("member", "role", "team", "priority", "slots", "peer"):
        wraps = column in ("member", "team")
        table.add_column(
            column,
            no_wrap=not wraps,
            overflow="fold",
            justify="right" if column in ("priority", "slots") else "left",
        )
    for one in members:
        table.add_row(
            Text(one.name),
            str(one.role),
            Text(one.team or "-"),
            str(one.priority),
            "any" if one.slots is None else str(one.slots),
            one.peer if width >= ROOMY else tail(one.peer),
        )
    return table


def pools_table(lines: Sequence[tuple[str, str, str]], width: int = 80) -> Table:
    """`lines`: name, what this home is in it, id."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("pool", "this home", "id"):
        table.add_column(column, no_wrap=column != "this home", overflow="fold")
    for name, what, peer in lines:
        table.add_row(Text(name), Text(what), peer if width >= ROOMY else tail(peer))
    return table
