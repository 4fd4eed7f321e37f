"""The phases of a run."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """The phase of a run, in the order it passes through them."""

    QUEUED = "queued"
    FETCH = "fetch"
    PREPARE = "prepare"
    LOAD = "load"
    WARM_UP = "warm-up"
    RUN = "run"
    CHECK = "check"
    CLEANUP = "cleanup"
    """Post-run steps, and the driver's own cleanup."""
    UPLOAD = "upload"


NODE_PHASES: Final = frozenset({Phase.QUEUED, Phase.FETCH, Phase.UPLOAD})
"""Phases that the node reports; all others happen in a driver's child process."""


BUSY: Final = "waits for other work on the device to end"
"""The reason shown while preparation counts seconds: a device measures once it is idle, or when that time is over."""
