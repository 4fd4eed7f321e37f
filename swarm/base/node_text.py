"""Words from the outside (hardware, drivers, host names) made fit for messages: printable ASCII, one line, bounded."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_NOT_LINE: Final = re.compile(r"[^ -~]+")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9 ._-]+")


def line(text: str, limit: int = 200) -> str:
    """A `protocol.base.Line`: accents dropped, anything else odd left out, spaces single."""
    plain = unicodedata.normalize(
        "NFKD", text.replace("\n", " ").replace("\t", " ").replace("®", "").replace("™", "")
    )
    return " ".join(_NOT_LINE.sub("", plain).split())[:limit].rstrip()


def name(text: str, fallback: str) -> str:
    """A `protocol.base.Name`; `fallback`, which must be one, where nothing is left of the text."""
    plain = _NOT_NAME.sub("-", line(text)).strip(" ._-")[:64].rstrip(" ._-")
    return plain or fallback


def detail(text: str) -> str:
    """A `protocol.base.Detail`."""
    return text if len(text) <= 2000 else text[:1999] + "…"
