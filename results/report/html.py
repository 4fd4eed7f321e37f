"""A report as one self-contained HTML file: no script, no other host, its own policy. Pure.

The policy allows only the file's own style, by its hash. Whatever a name or an error text contains, nothing in the file can run or be
fetched. Tables turn into cards on a narrow page; their roles are written out because some screen readers lose them in that layout.
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
    TEXT,
    Badge,
    Block,
    Bullets,
    Figures,
    Heading,
    ReportPage,
    Section,
    ShellCommands,
    Table,
    Warn,
    quote,
    render_line,
)
from swarm.base.text import safe_text

_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="sark-node">
<title>{title} · {kicker}</title>
<style>{style}</style>
</head>
"""


@cache
def style() -> str:
    """The style sheet, with the charts' colours for light and dark mode."""
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
    """The whole file. The same page always gives the same text."""
    numbers = count(1)
    kicker = escape(page.kicker)
    links = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in page.sections)
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{_line(line)}</dd></div>" for name, line in page.facts)
    sections = "".join(_section(section, numbers) for section in page.sections)
    title = escape(safe_text(page.title))
    head = _HEAD.format(policy=escape(policy()), title=title, kicker=kicker, style=style())
    return (
        f'{head}<body>\n<header><p class="kicker">{kicker}</p><h1>{_line(quote(page.title))}</h1>'
        f'<dl class="facts">{facts}</dl></header>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{sections}</main>\n'
        f"<footer><p>{_line(page.foot)}</p></footer>\n</body>\n</html>\n"
    )


def _section(section: Section, numbers: count[int]) -> str:
    inner = "".join(_block(block, numbers) for block in section.blocks)
    title = f'<h2 id="{section.name}-h">{escape(section.title)}</h2>'
    return f'<section id="{section.name}" aria-labelledby="{section.name}-h">{title}\n{inner}</section>\n'


def _block(block: Block, numbers: count[int]) -> str:
    match block:
        case str():
            return f"<p>{_line(block)}</p>\n"
        case Warn():
            return f'<p class="{block.tone}">{_line(block.line)}</p>\n'
        case Bullets():
            return "<ul>" + "".join(f"<li>{_line(line)}</li>" for line in block.lines) + "</ul>\n"
        case Heading():
            return f"<h3>{_line(block.line)}</h3>\n"
        case ShellCommands():
            lines = "\n".join(escape(safe_text(line, TEXT)) for line in block.lines)
            return f"<pre><code>{lines}</code></pre>\n"
        case Figures():
            figures = "".join(_figure(drawing, block, numbers) for drawing in block.drawings)
            return f'<div class="figures">{figures}</div>\n'
        case Table():
            return _table(block)


def _figure(drawing: Drawing, block: Figures, numbers: count[int]) -> str:
    text = escape(safe_text(drawing.description, TEXT))
    caption = f"<figcaption>{text}</figcaption>" if block.described else ""
    return f"<figure>{svg(drawing, name=f'p{next(numbers)}')}{caption}</figure>"


def _table(table: Table) -> str:
    """A table with a caption and a header for each column and each row."""
    heads = "".join(
        '<th scope="col" role="columnheader"' + ' class="n"' * head.endswith("#") + f">{_label(head)}</th>"
        for head in table.heads
    )
    rows = "".join(_row(table, cells) for cells in table.rows)
    return (
        f'<table role="table"><caption>{_line(table.caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody role="rowgroup">{rows}</tbody></table>\n'
    )


def _row(table: Table, cells: Sequence[str | Badge]) -> str:
    elements: list[str] = []
    for head, cell in zip(table.heads, cells, strict=True):
        inner = _line(cell.line if isinstance(cell, Badge) else cell)
        if isinstance(cell, Badge):
            inner = f'<span class="badge {cell.tone}">{inner}</span>'
        label = f' data-label="{_label(head)}"'
        kinds = " ".join(["n"] * head.endswith("#") + ["empty"] * (not inner))
        kind = f' class="{kinds}"' if kinds else ""
        elements.append(
            f'<td role="cell"{kind}{label}>{inner}</td>'
            if elements
            else f'<th scope="row" role="rowheader"{label}>{inner}</th>'
        )
    return f'<tr role="row">{"".join(elements)}</tr>'


def _label(head: str) -> str:
    return escape(head.removesuffix("#"))


def _line(line: str) -> str:
    """A line in which quoted text is isolated, so that a right-to-left script does not reverse what follows it."""
    return render_line(
        line,
        escape,
        lambda text: f"<bdi>{escape(text)}</bdi>",
        lambda text: f"<code>{escape(text)}</code>",
    )
