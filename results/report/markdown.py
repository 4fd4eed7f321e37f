"""A report as Markdown (as GitHub, GitLab and most wikis read it): the same sections, with charts described in words. Pure.

Others' words stand in code spans: there no markup, link, mention or HTML begins, whatever they are.
"""

from __future__ import annotations

import re
from typing import Final

from results.report.page import (
    Block,
    Bullets,
    Figures,
    Heading,
    Line,
    Paragraph,
    ReportPage,
    ShellCommands,
    Table,
    TextSpan,
)
from swarm.base.text import safe_text

_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|#~&$])")
TEXT: Final = 2000


def markdown_report(page: ReportPage) -> str:
    """The whole file. The same page gives the same text."""
    parts = [f"# {_line([TextSpan(page.title)])}", _text(page.kicker)]
    parts.append("\n".join(f"- {_text(name)}: {_line(line)}" for name, line in page.facts))
    for section in page.sections:
        parts.append(f"## {_text(section.title)}")
        parts += [_block(block) for block in section.blocks]
    parts.append(f"---\n\n{_line(page.foot)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"**{_line(block.line)}**" if block.tone else _line(block.line)
        case Bullets():
            return "\n".join(f"- {_line(line)}" for line in block.lines)
        case Heading():
            return f"### {_line(block.line)}"
        case ShellCommands():
            return "\n".join(
                ["```", *(safe_text(line, TEXT).replace("```", "'''") for line in block.lines), "```"]
            )
        case Figures():  # what a table has is not repeated
            drawings = block.drawings if block.described else ()
            texts = [f"{drawing.title}: {drawing.description}" for drawing in drawings]
            return "\n\n".join(
                _text(text, TEXT) if _is_plain(text) else _line([TextSpan(text)]) for text in texts
            )
        case Table():
            return _table(block)


def _is_plain(text: str) -> bool:
    """Whether nobody else's text can be in it that means something in Markdown."""
    return bool(re.fullmatch(r"[A-Za-z0-9 ,.;:%'’–…-]*", text)) and "://" not in text and "www." not in text


def _table(table: Table) -> str:
    heads = " | ".join(_text(head.text) for head in table.heads)
    marks = " | ".join("--:" if head.number else "---" for head in table.heads)
    rows = [f"| {' | '.join(_line(cell.line, in_table=True) for cell in cells)} |" for cells in table.rows]
    return "\n".join([f"{_line(table.caption)}:", "", f"| {heads} |", f"| {marks} |", *rows])


def _line(line: Line, *, in_table: bool = False) -> str:
    return "".join(
        _code(span.text, in_table=in_table) if isinstance(span, TextSpan) else _text(span, TEXT)
        for span in line
    )


def _code(text: str, *, in_table: bool) -> str:
    """A bar ends a cell even within a code span, unless it is escaped; a backslash before the bar would undo that."""
    safe = safe_text(text, TEXT).replace("`", "'")
    if in_table:
        safe = safe.replace("\\", "/").replace("|", "\\|")
    return f"`{safe}`" if safe else ""


def _text(text: str, limit: int = 300) -> str:
    """Ours; blanks at either end are kept."""
    safe = safe_text(text, limit)
    before, after = " " * text.startswith(" "), " " * (text.endswith(" ") and bool(safe))
    return _MARKUP.sub(r"\\\1", before + safe + after)
