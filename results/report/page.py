"""The parts of a report before it becomes HTML or Markdown: sections of paragraphs, tables, charts and commands. Plain values.

A line is our text, with marks around foreign text (`quote`, `code`), which both output forms render harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from results.report.drawing import Drawing
from swarm.base.text import safe_text

TEXT: Final = 2000
"""Maximum characters of one text."""
_MARKED: Final = re.compile("([\x02\x03])([^\x04]*)\x04")  # safe text has no control characters


def quote(text: str) -> str:
    """Mark foreign text, such as a device's name or an error, within a line."""
    return f"\x02{safe_text(text, TEXT)}\x04" if text else ""


def code(text: str) -> str:
    """Like `quote`, in a monospaced font, for example for a hash."""
    return f"\x03{safe_text(text, TEXT)}\x04" if text else ""


def render_line(
    line: str, ours: Callable[[str], str], quoted: Callable[[str], str], coded: Callable[[str], str]
) -> str:
    """`line` with each of its parts rendered by the matching function."""
    parts = _MARKED.split(line)
    shown = [ours(parts[0])]
    for mark, others, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        shown += [quoted(others) if mark == "\x02" else coded(others), ours(rest)]
    return "".join(shown)


@dataclass(frozen=True, slots=True)
class Badge:
    """A cell with a tone (good, warn or bad) that its words express too."""

    line: str
    tone: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Column heads that end in # mark numbers. The first cell of each row is its header."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str | Badge]]


@dataclass(frozen=True, slots=True)
class Warn:
    """A paragraph that must not be missed; `tone`: warn or bad."""

    line: str
    tone: str = "warn"


@dataclass(frozen=True, slots=True)
class Bullets:
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Heading:
    line: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts side by side if there is space. `described`: also show their text alternatives, because no table has the same content."""

    drawings: Sequence[Drawing]
    described: bool = True


@dataclass(frozen=True, slots=True)
class ShellCommands:
    """Shell commands, one per line."""

    lines: Sequence[str]


Block = str | Warn | Bullets | Table | Heading | Figures | ShellCommands
"""A plain string is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section. `name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A whole report. `kicker`: the text above the title; `facts`: names and values below it."""

    title: str
    kicker: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    foot: str
