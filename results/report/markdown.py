"""A report as Markdown (as GitHub, GitLab and most wikis read it): the same sections, with charts described in words. Pure.

Others' words stand in code spans: there no markup, link, mention or HTML begins, whatever they are.
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
    """The whole file. The same page gives the same text."""
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
        case Figures():  # what a table has is not repeated
            drawings = block.drawings if block.described else ()
            texts = [safe_text(f"{drawing.title}: {drawing.description}", TEXT) for drawing in drawings]
            return "\n\n".join(_ours(text) if _is_plain(text) else _line(quote(text)) for text in texts)
        case Table():
            return _table(block)


def _is_plain(text: str) -> bool:
    """Whether nobody else's text can be in it that means something in Markdown."""
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
    """A bar ends a cell even within a code span, unless it is escaped; a backslash before the bar would undo that."""
    safe = text.replace("`", "'")
    if in_table:
        safe = safe.replace("\\", "/").replace("|", "\\|")
    return f"`{safe}`" if safe else ""


def _ours(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)
