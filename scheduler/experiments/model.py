"""What an experiment is, by itself: its name and versions, when it is due, and when two versions are the same. Pure; the clock is told.

due ──▶ claimed ──▶ the next instant after now: what was missed meanwhile (sleep, a clock that was set) is made up for once, never piled up
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Final

from protocol.errors import CampaignError
from scheduler.store.experiments import ExperimentRow, StoredModel
from swarm.base.text import safe_text

DAY_S: Final = 86_400.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


def read_title(text: str) -> tuple[str, int | None]:
    """Name and version in `nightly@3`; None for the latest. Raises `CampaignError`."""
    name, at, number = text.partition("@")
    if not _NAME.fullmatch(name) or (at and not (number.isdecimal() and len(number) < 10)):
        raise CampaignError(
            f"{safe_text(text, 80)!r} names no experiment",
            hint="write its name, or name@version such as nightly@3: sark-node experiment list",
        )
    return name, int(number) if at else None


def digest_of(spec: str, models: Sequence[StoredModel]) -> str:
    """Of a version's content: the campaign, however it was written, and each model's bytes."""
    content = {
        "spec": json.loads(spec),
        "models": sorted([model.name, model.sha256] for model in models),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def first_due(every_s: float, at_s: float | None, now: float) -> float:
    """When a schedule that is set now runs first: at once, or at the next instant of those that follow from its time of the day."""
    if at_s is None:
        return now
    next_at = now - now % DAY_S + at_s
    if next_at <= now:
        next_at += DAY_S
    return next_at - math.floor((next_at - now) / every_s) * every_s if every_s < DAY_S else next_at


def following(due: float, every_s: float, now: float) -> float:
    """The first instant after now in the row that `due` stands in."""
    missed = max(0, math.floor((now - due) / every_s))
    then = due + (missed + 1) * every_s
    return then if then > now else then + every_s  # what rounding may leave


def strayed(row: ExperimentRow, now: float) -> bool:
    """Whether its next run lies further ahead than any can: the clock was ahead when it was set, and is right again."""
    return (
        row.due is not None
        and row.every_s is not None
        and row.due - now > max(row.every_s, DAY_S if row.at_s is not None else 0.0)
    )


def is_due(row: ExperimentRow, now: float) -> bool:
    """Whether it is to run now."""
    return row.due is not None and row.every_s is not None and row.due <= now
