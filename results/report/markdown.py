"""A report as Markdown (in the dialect of GitHub, GitLab and most wikis): the same sections, with charts described in words. Pure.

Foreign text stands in code spans, where it cannot start markup, a link, a mention or HTML.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from results.report.page import (
    TEXT,
    Badge,
    Block,
    Bullets,
    Figures,
    Heading,
    ReportPage,
    ShellCommands,
    Table,
    Warn,
    quote,
    render_line,
)
from swarm.base.text import safe_text

_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|#~&$])")


def markdown_report(page: ReportPage) -> str:
    """The whole file. The same page always gives the same text."""
    parts = [f"# {_line(quote(page.title))}", _ours(page.kicker)]
    parts.append("\n".join(f"- {_ours(name)}: {_line(line)}" for name, line in page.facts))
    for section in page.sections:
        parts.append(f"## {_ours(section.title)}")
        parts += [_block(block) for block in section.blocks]
    parts.append(f"---\n\n{_line(page.foot)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    match block:
        case str():
            return _line(block)
        case Warn():
            return f"**{_line(block.line)}**"
        case Bullets():
            return "\n".join(f"- {_line(line)}" for line in block.lines)
        case Heading():
            return f"### {_line(block.line)}"
        case ShellCommands():
            lines = (safe_text(line, TEXT).replace("```", "'''") for line in block.lines)
            return "\n".join(["```", *lines, "```"])
        case Figures():  # figures that a table shows are not repeated
            drawings = block.drawings if block.described else ()
            texts = [safe_text(f"{drawing.title}: {drawing.description}", TEXT) for drawing in drawings]
            return "\n\n".join(_ours(text) if _is_plain(text) else _line(quote(text)) for text in texts)
        case Table():
            return _table(block)


def _is_plain(text: str) -> bool:
    """Whether the text cannot contain foreign text with a meaning in Markdown."""
    return bool(re.fullmatch(r"[A-Za-z0-9 ,.;:%'’–…-]*", text)) and "://" not in text and "www." not in text


def _table(table: Table) -> str:
    heads = " | ".join(_ours(head.removesuffix("#")) for head in table.heads)
    marks = " | ".join("--:" if head.endswith("#") else "---" for head in table.heads)
    rows = []
    for cells in table.rows:
        lines = (cell.line if isinstance(cell, Badge) else cell for cell in cells)
        rows.append(f"| {' | '.join(_line(line, in_table=True) for line in lines)} |")
    return "\n".join([f"{_line(table.caption)}:", "", f"| {heads} |", f"| {marks} |", *rows])


def _line(line: str, *, in_table: bool = False) -> str:
    code = partial(_code, in_table=in_table)
    return render_line(line, _ours, code, code)


def _code(text: str, *, in_table: bool) -> str:
    """A code span. Within a table, a bar ends the cell even inside a code span unless escaped, and a backslash before it would undo the
    escape.
    """
    safe = text.replace("`", "'")
    if in_table:
        safe = safe.replace("\\", "/").replace("|", "\\|")
    return f"`{safe}`" if safe else ""


def _ours(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)
