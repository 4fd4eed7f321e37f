"""The words for what a row's numbers are worth."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RowVerdict(StrEnum):
    """What the numbers of a complete row are worth. If several verdicts apply, the gravest."""

    VALID = "valid"
    SIMULATED = "simulated"
    UNWITNESSED = "unwitnessed"
    MISMATCH = "mismatch"
    UNCHECKED = "unchecked"
    FEW_RUNS = "few-runs"
    THROTTLED = "throttled"
    BUSY_HOST = "busy-host"
    DRIFT = "drift"
    BIMODAL = "bimodal"
    NOISY = "noisy"
    UNREADABLE = "unreadable"


VERDICTS_BY_SEVERITY: Final = tuple(
    verdict for verdict in RowVerdict if verdict not in ("valid", "unreadable")
)
