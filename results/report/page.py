"""What a report consists of before it is HTML or Markdown: sections of paragraphs, tables, charts and commands. Plain values.

`TextSpan` is what others wrote: a device's name, a model's, an error's text. Both forms show it so that it can do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.report.drawing import Drawing


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text that others wrote. `code`: of one width, such as a hash."""

    text: str
    code: bool = False


Span = str | TextSpan
Line = Sequence[Span]
"""A sentence of ours with others' text in it."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """`tone`: good, warn or bad, beside words that say the same."""

    line: Line
    tone: str = ""


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """`number`: its cells are figures, on the right."""

    text: str
    number: bool = False


def heads(*names: str) -> list[ColumnHead]:
    """Column heads; a name that ends in # is over numbers."""
    return [ColumnHead(name.removesuffix("#"), name.endswith("#")) for name in names]


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of each row is its header."""

    caption: Line
    heads: Sequence[ColumnHead]
    rows: Sequence[Sequence[TableCell]]


@dataclass(frozen=True, slots=True)
class Paragraph:
    line: Line
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Heading:
    """Of a part of a section."""

    line: Line


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts side by side where there is space. `described`: their text alternatives are shown, too, for no table says the same."""

    drawings: Sequence[Drawing]
    described: bool = True


@dataclass(frozen=True, slots=True)
class ShellCommands:
    """For a shell, a line each."""

    lines: Sequence[str]


Block = Paragraph | Bullets | Table | Heading | Figures | ShellCommands


@dataclass(frozen=True, slots=True)
class Section:
    """`name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A whole report. `kicker`: above the title; `facts`: below it, name and value."""

    title: str
    kicker: str
    facts: Sequence[tuple[str, Line]]
    sections: Sequence[Section]
    foot: Line
