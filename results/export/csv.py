"""The CSV: a header and one line per row. Text from peers cannot become a formula, a second line or a second cell."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Final

from results.row.row import COLUMNS, Row
from swarm.base.text import safe_text

CELL: Final = 2000
"""Maximum characters of a text cell."""
_VALUES: Final = operator.attrgetter(*Row.model_fields)
_FORMULA: Final = re.compile(r"^\s*[=+\-@＝＋－＠]")
_AFTER_SEPARATOR: Final = re.compile(r"([;|]\s*)(?=[=+\-@＝＋－＠])")
_QUOTED: Final = re.compile(r'[",;\r\n\t]|^\s|\s$')


def csv_lines(rows: Iterable[Row]) -> Iterable[str]:
    """The header and one line per row, each ending in CR LF (RFC 4180)."""
    yield ",".join(COLUMNS) + "\r\n"
    for row in rows:
        yield ",".join([csv_cell(value) for value in _VALUES(row)]) + "\r\n"


def csv_cell(value: object) -> str:
    """One cell: None is empty, a number is plain with a decimal point, a text is made safe and quoted if necessary."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, int):
        return str(value)
    text = safe_text(str(value), CELL)
    if _FORMULA.match(text):
        text = f"'{text}"
    text = _AFTER_SEPARATOR.sub(r"\1'", text)  # a spreadsheet that splits at semicolons starts a cell here
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def show_number(value: float) -> str:
    """At most six decimals (a nanosecond, for milliseconds), never an exponent; numbers below 0.001 get up to 15 decimals."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.15f}".rstrip("0") if abs(value) >= 1e-12 else "0"
    return f"{value:.6f}".rstrip("0").rstrip(".")
