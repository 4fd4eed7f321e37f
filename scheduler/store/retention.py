"""Which campaigns are too old to be kept, by a time that no jump of the clock moves.

The observed time follows the wall clock unless the clock is further ahead than a machine that was off explains: a quarter of `keep`. Beyond
that the observed time advances only by the time that was really seen to pass. Only what is too old by the observed time is deleted, until
the user confirms the clock.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import CampaignError, ResourceError
from scheduler.store.store import Store
from swarm.base.durable import write_durably
from swarm.base.threads import DISK
from swarm.base.units import DAY_S, parse_age, show_duration

STEP_S: Final = 3_600.0
"""Seconds between two checks of the clock."""
LEAST: Final = 10
SHARE: Final = 10
"""Most campaigns deleted in an observed day: `LEAST`, or one in `SHARE`, whichever is more."""
FILE: Final = "retention.json"

log = structlog.get_logger("sark.scheduler")


@dataclass(frozen=True, slots=True)
class ObservedTime:
    """What a home knows about the time. Instants are wall seconds."""

    time: float
    """A lower bound on the current time."""
    deleted: float = -math.inf
    """The observed time of the last deletion."""

    def after(self, wall: float, passed_s: float, keep_s: float) -> ObservedTime:
        """The observed time once `passed_s` were seen to pass since the last check."""
        if self.jump_s(wall, passed_s, keep_s):
            return replace(self, time=self.time + passed_s)
        return replace(self, time=max(self.time, wall))

    def jump_s(self, wall: float, passed_s: float, keep_s: float) -> float:
        """Seconds by which the clock `wall` is ahead of the trusted time; 0: the clock is trusted."""
        ahead_s = wall - self.time - passed_s
        return ahead_s if ahead_s > keep_s / 4 else 0.0


def most_at_once(observed: ObservedTime, ended: int) -> int:
    """How many campaigns may be deleted now, if `ended` campaigns have ended."""
    return max(LEAST, ended // SHARE) if observed.time - observed.deleted >= DAY_S else 0


class Retention:
    """Deletes campaigns older than `keep`, and stores the observed time in `folder`."""

    def __init__(
        self,
        folder: Path,
        keep: str,
        open_store: Callable[[], Store],
        wall: Callable[[], float] = time.time,
        *,
        scheduler: str = "",
    ) -> None:
        """`scheduler`: the key of this home; workers then also forget the deleted campaigns that it signed."""
        self._place = folder / FILE
        self._keep, self._keep_s = keep, parse_age(keep)
        self._open = open_store
        self._wall = wall
        self._scheduler = scheduler

    async def run(self) -> None:
        """Run a step now and once an hour, in a thread, forever."""
        at: float | None = None
        while True:
            now = trio.current_time()
            passed_s, at = 0.0 if at is None else now - at, now
            try:
                await DISK.run(self.step, passed_s)
            except ResourceError as exc:
                log.warning("campaigns.not-deleted", why=exc.what)
            await trio.sleep(STEP_S)

    def step(self, passed_s: float) -> tuple[str, ...]:
        """Check the clock and delete what is too old; returns the ids. `passed_s`: since the last step of this process. Blocking; raises
        `ResourceError`.
        """
        with self._open() as store:
            wall = self._wall()
            ended = store.campaigns.old(-wall)
            newest = max((row.ended for row in ended if row.ended is not None), default=wall)
            known = read_observed(self._place) or ObservedTime(min(newest, wall))
            jump_s = known.jump_s(wall, passed_s, self._keep_s)
            if jump_s:
                hint = "if it is right: sark-node db prune --clock-is-right"
                log.warning("clock.jumped", ahead=show_duration(jump_s), keep=self._keep, hint=hint)
            known = known.after(wall, passed_s, self._keep_s)
            most = most_at_once(known, len(ended))
            old = [row.id for row in ended if row.ended is not None and row.ended < known.time - self._keep_s]
            deleted = tuple(id for id in old[:most] if store.campaigns.delete(id, self._scheduler))
            if deleted:
                known = replace(known, deleted=known.time)
                log.info(
                    "campaigns.deleted", campaigns=len(deleted), left=len(old) - most, older_than=self._keep
                )
            write_observed(self._place, known)
            return deleted


def clock_ahead_s(folder: Path, keep_s: float, wall: float) -> float:
    """Seconds by which the clock is ahead of the latest time that this home has seen, if that is too far to delete anything; 0: the clock
    is trusted.
    """
    known = read_observed(folder / FILE)
    return 0.0 if known is None else known.jump_s(wall, 0.0, keep_s)


def believe_clock(folder: Path, keep_s: float, wall: float, *, confirmed: bool) -> None:
    """Call this before a user deletes by the clock. Raises `CampaignError` if the clock is far ahead and not `confirmed`."""
    known = read_observed(folder / FILE)
    if known is not None and confirmed:
        write_observed(folder / FILE, replace(known, time=wall))
    elif ahead_s := clock_ahead_s(folder, keep_s, wall):
        raise CampaignError(
            f"this machine's clock says {local_day(wall)}, {show_duration(ahead_s)} after the latest time that this home has seen",
            hint="check it with: date\nif it is right: sark-node db prune --clock-is-right",
        )


def local_day(wall: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(wall))


def read_observed(place: Path) -> ObservedTime | None:
    """The stored observed time of a home; None: nothing is stored."""
    try:
        known = json.loads(place.read_bytes())
        return ObservedTime(float(known["time"]), float(known["deleted"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_observed(place: Path, known: ObservedTime) -> None:
    """Store the observed time. Raises `ResourceError`."""
    write_durably(place, json.dumps(asdict(known)).encode())
