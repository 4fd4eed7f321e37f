"""Text for users: makes strings from peers and files safe to show, counts with nouns, suggests words. Pure.

No device name, error message or file may move the cursor, recolour the screen, reverse the reading direction, hide letters or break a line.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Final

_SPACES: Final = frozenset("\t\n\v\f\r\x85\u2028\u2029")
_DROPPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Controls (C0, C1, DEL), formats (bidi marks, zero-width, tags), surrogates, private and unassigned code points."""
_ESCAPED: Final = _DROPPED | {"Zl", "Zp"}
_NOT_LINE: Final = re.compile(r"[^ -~]+")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9 ._-]+")


def safe_text(text: str, limit: int = 300) -> str:
    """`text` on one line of at most `limit` visible characters; a longer text ends in an ellipsis."""
    if (
        len(text) <= limit and _NOT_LINE.search(text) is None
    ):  # most of it, many thousand times for a large campaign
        return " ".join(text.split())
    visible = "".join(_visible(char) for char in text[: 4 * limit + 64])
    visible = unicodedata.normalize("NFC", " ".join(visible.split()))
    if len(visible) > limit or len(text) > 4 * limit + 64:
        return visible[: limit - 1].rstrip() + "…"
    return visible


def is_safe(text: str) -> bool:
    """Whether every character may be shown as it is."""
    return all(char not in _SPACES and unicodedata.category(char) not in _DROPPED for char in text)


def _visible(char: str) -> str:
    if " " <= char <= "~":
        return char
    if char in _SPACES:
        return " "
    return "" if unicodedata.category(char) in _DROPPED else char


def escape_text(text: str, limit: int = 512) -> str:
    """`text` with control and invisible characters written as escapes (`\\x1b`), cut at `limit` characters."""
    escaped = "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _ESCAPED else char
        for char in text[:limit]
    )
    return escaped[: limit - 1] + "…" if len(escaped) > limit or len(text) > limit else escaped


def ascii_line(text: str, limit: int = 200) -> str:
    """A valid `protocol.wire.base.Line`: printable ASCII with accents dropped and single spaces."""
    plain = unicodedata.normalize(
        "NFKD", text.replace("\n", " ").replace("\t", " ").replace("®", "").replace("™", "")
    )
    return " ".join(_NOT_LINE.sub("", plain).split())[:limit].rstrip()


def ascii_name(text: str, fallback: str) -> str:
    """A valid `protocol.wire.base.Name`. `fallback`: a valid name, used if nothing of the text is left."""
    plain = _NOT_NAME.sub("-", ascii_line(text)).strip(" ._-")[:64].rstrip(" ._-")
    return plain or fallback


def shorten(text: str, limit: int = 2000) -> str:
    """At most `limit` characters, the limit of a `protocol.wire.base.Detail`; a longer text ends in an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 task`, `2 tasks`. `plural`: given if it is not the noun with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` of which `word` is probably a misspelling."""
    by_lower = {each.lower(): each for each in words}
    near = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`did you mean 'x'?`, or an empty string."""
    near = nearest(word, words)
    return f"did you mean {near!r}?" if near else ""


def ranges(numbers: Iterable[int]) -> str:
    """`3, 5, 8-42`: at most twelve ranges"""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        elif len(spans) < 12:
            spans.append([number, number])
        else:
            spans.append([])
            break
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in spans[:12]]
    return ", ".join(parts) + (" …" if len(spans) > 12 else "")


def safe_columns(line: str) -> str:
    """`line` made safe, with its aligning spaces kept."""
    return " ".join(safe_text(word, 400) for word in line.rstrip().split(" "))
