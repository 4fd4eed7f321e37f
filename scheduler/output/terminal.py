"""Lines and tables in one style. Imports no store, so every command can import it at start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from swarm.base.screen import new_console


def print_lines(lines: Iterable[str], console: Console | None = None) -> None:
    """Print lines unchanged; the terminal wraps them."""
    console = console or new_console()
    if text := "\n".join(lines):
        console.print(Text(text), soft_wrap=True)


def show_figure(value: float | None, form: str = ".4g") -> str:
    """A number in this format; '' for None."""
    return "" if value is None else f"{value:{form}}"


def show_interval(low: float | None, high: float | None, form: str = ".4g") -> str:
    """`1.95 – 2.05`; '' for None."""
    return "" if low is None or high is None else f"{low:{form}} – {high:{form}}"


Item = TypeVar("Item")
Cell: TypeAlias = "str | Text | ShortName"


def table(
    items: Iterable[Item],
    *columns: tuple[Column, Callable[[Item], Cell]] | None,
    gap: int = 2,
    expand: bool = False,
) -> Table:
    """A table without lines, a row for each item. `columns`: each with a function that gives its cell for an item; None: left out. `gap`:
    spaces between columns; `expand`: as wide as the terminal.
    """
    shown = [column for column in columns if column is not None]
    heads = [head for head, _ in shown]
    lines = Table(*heads, box=None, padding=(0, gap, 0, 0), header_style="dim", expand=expand)
    for item in items:
        cells = (cell(item) for _, cell in shown)
        lines.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return lines


def number(head: str, least: int | None = None) -> Column:
    """A column of numbers, which are never shortened."""
    return Column(head, justify="right", no_wrap=True, min_width=least)


def name(head: str, least: int | None = None, most: int | None = None, ratio: int | None = None) -> Column:
    """A column at least `least` and at most `most` wide, in which longer names end in an ellipsis."""
    return Column(head, no_wrap=True, overflow="ellipsis", min_width=least, max_width=most, ratio=ratio)


def wrapped(head: str, least: int | None = None) -> Column:
    """A column in which longer texts take several lines."""
    return Column(head, overflow="fold", min_width=least)


def shrinking(head: str) -> Column:
    """A column of `ShortName`s that shrinks when the table is too wide."""
    return Column(head, min_width=6)


@dataclass(frozen=True, slots=True)
class ShortName:
    """A name in a table. If it does not fit, its middle is left out, since names often differ at their ends."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(6, width), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_middle(self.text, options.max_width), no_wrap=True)


def cut_middle(text: str, most: int) -> str:
    """`text` in at most `most` columns; the middle of a longer one is left out, since names often differ at their ends."""
    if cell_len(text) <= most:
        return text
    head = set_cell_size(text, (most - 1) // 2).rstrip()
    tail = text
    while cell_len(head) + 1 + cell_len(tail) > most:
        tail = tail[1:]
    return f"{head}…{tail}"
