"""Strangers' rows, which occur only in campaigns open to anyone: every view that shows such rows says so at its top. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.values.trust import TrustKind


class HasTrust(Protocol):
    """A row, or a task in a list."""

    @property
    def trust(self) -> str: ...


def of_stranger(row: HasTrust) -> bool:
    """Whether a stranger's worker had the task."""
    return row.trust == TrustKind.STRANGER


def strangers_line(rows: Sequence[HasTrust]) -> str:
    """How many rows are of strangers; empty if none."""
    strange = sum(map(of_stranger, rows))
    if not strange:
        return ""
    which = (
        "All rows are"
        if strange == len(rows)
        else f"{strange} of {len(rows)} rows {'is' if strange == 1 else 'are'}"
    )
    return f"{which} from strangers; these figures are only the strangers' claims: see Trust."
