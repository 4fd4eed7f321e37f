"""Text from peers and files, made safe to show: on a terminal, in a table, in a sheet, in a log line.

Nobody's device name, error message or file may move the cursor, recolour the screen, turn the reading direction round, hide letters
or break a line in two.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Final

_SPACES: Final = frozenset("\t\n\v\f\r\x85\u2028\u2029")
_DROPPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Controls (C0, C1, DEL), formats (bidi marks, zero-width, tags), surrogates, private and unassigned code points."""


def safe_text(text: str, limit: int = 300) -> str:
    """`text` on one line of visible characters, at most `limit` of them; a longer one ends in an ellipsis."""
    kept = "".join(_safe(char) for char in text[: 4 * limit + 64])
    kept = unicodedata.normalize("NFC", " ".join(kept.split()))
    if len(kept) > limit or len(text) > 4 * limit + 64:
        return kept[: limit - 1].rstrip() + "…"
    return kept


def is_safe(text: str) -> bool:
    """Whether every character is one that may be shown as it is."""
    return all(char not in _SPACES and unicodedata.category(char) not in _DROPPED for char in text)


def _safe(char: str) -> str:
    if " " <= char <= "~":
        return char
    if char in _SPACES:
        return " "
    return "" if unicodedata.category(char) in _DROPPED else char


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` or nothing."""
    near = _nearest(word, known)
    return f"did you mean {near!r}?" if near else ""


def _nearest(word: str, known: Iterable[str]) -> str | None:
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[near[0]] if near else None
