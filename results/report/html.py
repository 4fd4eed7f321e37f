"""A report as one HTML file that needs nothing else: no script, no other host, its own policy. Pure.

The policy lets in the file's own style, by its hash, and nothing besides; so whatever a name or an error's text holds, nothing in it runs
or is fetched. Tables turn into cards where the page is narrow; their roles are written out, for some readers forget them then.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from typing import Final

from results.report.drawing import DARK, LIGHT, Drawing, Tone, svg
from results.report.page import (
    Block,
    Bullets,
    Figures,
    Heading,
    Line,
    Paragraph,
    ReportPage,
    Section,
    ShellCommands,
    Table,
    TableCell,
    TextSpan,
)
from swarm.base.text import safe_text

TEXT: Final = 2000
"""Characters of one text."""


@cache
def style() -> str:
    """The style sheet, with the charts' colours by day and by night."""
    day = "".join(f"--{tone}:{LIGHT[tone]};" for tone in Tone)
    night = "".join(f"--{tone}:{DARK[tone]};" for tone in Tone)
    marks = "".join(f".f-{tone}{{fill:var(--{tone})}}.s-{tone}{{stroke:var(--{tone})}}" for tone in Tone)
    rest = (files("results.report") / "report.css").read_text("utf-8")
    colours = f":root{{color-scheme:light dark;{day}}}@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    return f"{colours}{marks}\n{rest}"


@cache
def policy() -> str:
    """The file's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def html_report(page: ReportPage) -> str:
    """The whole file. The same page gives the same text."""
    numbers = count(1)
    links = "".join(
        f'<li><a href="#{section.name}">{_text(section.title)}</a></li>' for section in page.sections
    )
    facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_line(line)}</dd></div>" for name, line in page.facts)
    sections = "".join(_section(section, numbers) for section in page.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="generator" content="sark-node">\n'
        f"<title>{_text(page.title)} · {_text(page.kicker)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        f'<header><p class="kicker">{_text(page.kicker)}</p><h1>{_line([TextSpan(page.title)])}</h1>'
        f'<dl class="facts">{facts}</dl></header>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{sections}</main>\n'
        f"<footer><p>{_line(page.foot)}</p></footer>\n</body>\n</html>\n"
    )


def _section(section: Section, numbers: count[int]) -> str:
    inner = "".join(_block(block, numbers) for block in section.blocks)
    title = f'<h2 id="{section.name}-h">{_text(section.title)}</h2>'
    return f'<section id="{section.name}" aria-labelledby="{section.name}-h">{title}\n{inner}</section>\n'


def _block(block: Block, numbers: count[int]) -> str:
    match block:
        case Paragraph():
            tone = f' class="{block.tone}"' if block.tone else ""
            return f"<p{tone}>{_line(block.line)}</p>\n"
        case Bullets():
            return "<ul>" + "".join(f"<li>{_line(line)}</li>" for line in block.lines) + "</ul>\n"
        case Heading():
            return f"<h3>{_line(block.line)}</h3>\n"
        case ShellCommands():
            lines = "\n".join(_text(line, TEXT) for line in block.lines)
            return f"<pre><code>{lines}</code></pre>\n"
        case Figures():
            figures = "".join(_figure(drawing, block, numbers) for drawing in block.drawings)
            return f'<div class="figures">{figures}</div>\n'
        case Table():
            return _table(block)


def _figure(drawing: Drawing, block: Figures, numbers: count[int]) -> str:
    caption = f"<figcaption>{_text(drawing.description, TEXT)}</figcaption>" if block.described else ""
    return f"<figure>{svg(drawing, name=f'p{next(numbers)}')}{caption}</figure>"


def _table(table: Table) -> str:
    """With its caption, a header for each column and each row."""
    heads = "".join(
        '<th scope="col" role="columnheader"' + ' class="n"' * head.number + f">{_text(head.text)}</th>"
        for head in table.heads
    )
    rows = "".join(_row(table, cells) for cells in table.rows)
    return (
        f'<table role="table"><caption>{_line(table.caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody role="rowgroup">{rows}</tbody></table>\n'
    )


def _row(table: Table, cells: Sequence[TableCell]) -> str:
    elements = []
    for at, (head, cell) in enumerate(zip(table.heads, cells, strict=True)):
        inner = _line(cell.line)
        if cell.tone:
            inner = f'<span class="badge {cell.tone}">{inner}</span>'
        label = f' data-label="{_text(head.text)}"'
        if at == 0:
            elements.append(f'<th scope="row" role="rowheader"{label}>{inner}</th>')
        else:
            kinds = " ".join(["n"] * head.number + ["empty"] * (not inner))
            kind = f' class="{kinds}"' if kinds else ""
            elements.append(f'<td role="cell"{kind}{label}>{inner}</td>')
    return f'<tr role="row">{"".join(elements)}</tr>'


def _line(line: Line) -> str:
    return "".join(_isolated(span) if isinstance(span, TextSpan) else _text(span, TEXT) for span in line)


def _isolated(span: TextSpan) -> str:
    """So that text in a script that runs to the left turns nothing round that follows."""
    if span.code:
        return f"<code>{_text(span.text, TEXT)}</code>"
    return f"<bdi>{_text(span.text, TEXT)}</bdi>" if span.text else ""


def _text(text: str, limit: int = 300) -> str:
    safe = safe_text(text, limit)  # which takes blanks off either end
    before, after = " " * text.startswith(" "), " " * (text.endswith(" ") and bool(safe))
    return escape(before + safe + after)
