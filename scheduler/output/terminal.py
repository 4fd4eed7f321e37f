"""Lines and tables in one style. Imports no store, so that every command may import it at its start."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from swarm.base.screen import new_console


def print_lines(lines: Iterable[str], console: Console | None = None) -> None:
    """Print lines as they are; the terminal wraps them."""
    console = console or new_console()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def local_time(instant: str | float | None) -> str:
    """`2026-11-22 10:00` in local time, from ISO 8601 or seconds since 1970; '' for None."""
    if instant is None:
        return ""
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else datetime.fromtimestamp(instant, UTC)
    return at.astimezone().strftime("%Y-%m-%d %H:%M")


def table(*columns: str | Column, gap: int = 2, expand: bool = False) -> Table:
    """A table without lines. `gap`: spaces between columns; `expand`: as wide as the terminal."""
    return Table(*columns, box=None, padding=(0, gap, 0, 0), header_style="dim", expand=expand)


def number(head: str, least: int | None = None) -> Column:
    """A column of numbers, which always stand whole."""
    return Column(head, justify="right", no_wrap=True, min_width=least)


def name(head: str, least: int | None = None, most: int | None = None, ratio: int | None = None) -> Column:
    """A column of at least `least` and at most `most` columns, in which longer names end in an ellipsis."""
    return Column(head, no_wrap=True, overflow="ellipsis", min_width=least, max_width=most, ratio=ratio)


def shrinking(head: str) -> Column:
    """A column of `short` names that gives way when the table is too wide."""
    return Column(head, min_width=6)


def short(text: str) -> Text:
    """A name in a shrinking column: what has no room ends in an ellipsis."""
    return Text(text, no_wrap=True, overflow="ellipsis")
