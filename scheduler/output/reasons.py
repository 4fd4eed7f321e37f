"""Numbered reasons below a table why lines are not simply valid, each kind once. Pure."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from rich.text import Text

from swarm.base.text import safe_text

MAX_REASON: Final = 400


class Reasons:
    """Reasons that differ only in their figures are one kind; the first of each is shown."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, str, list[str]]] = {}

    def mark(self, reason: str, where: str) -> str:
        """`[2]`; empty for no reason. `where`: the line with this reason."""
        if not reason:
            return ""
        kind = re.sub(r"[-+]?\d[\d.,]*", "#", reason)
        number, _, places = self._kinds.setdefault(kind, (len(self._kinds) + 1, reason, []))
        places.append(where)
        return f"[{number}]"

    def lines(self, width: int) -> list[Text]:
        """Each kind, wrapped at word boundaries."""
        lines: list[str] = []
        for number, reason, places in self._kinds.values():
            more = f" ({places[0]}, and {len(places) - 1} more like it)" if len(places) > 1 else ""
            head = f"[{number}] "
            text = safe_text(reason, MAX_REASON) + more
            lines += textwrap.wrap(
                text, width, initial_indent=head, subsequent_indent=" " * len(head),
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
        return [Text(line) for line in lines]
