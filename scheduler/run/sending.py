"""Writes the results of ended campaigns to their URLs, and retries until this succeeds.

Each try is a process of its own (`sark-node results CAMPAIGN --send URL`), so that any fault or wait of a storage library ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from subprocess import DEVNULL
from typing import Final

import structlog
import trio

from scheduler.store.rows import SendingRow
from scheduler.store.store import Store
from swarm.base.text import safe_text

LIMIT_S: Final = 1800.0
"""Longest time of one try, in seconds."""
RETRY_S: Final = 5.0
"""Seconds before the second try; the wait doubles before each further try."""
MAX_RETRY_S: Final = 3600.0
STAY_TRIES: Final = 4
"""Number of tries for which a scheduler without campaigns stays; the next scheduler continues."""

Send = Callable[[str, str], Awaitable[str]]
"""Writes the results of a campaign below a URL; returns why it failed, empty: it succeeded."""

log = structlog.get_logger("sark.scheduler")


@dataclass(eq=False)
class Sendings:
    """The results of one store's campaigns that are still to be written to their URLs."""

    store: Store
    scheduler: str
    """The scheduler's peer id."""
    nursery: trio.Nursery
    send: Send
    _due: dict[str, float] = field(default_factory=dict)
    """When to try each campaign next; infinite: a try is running."""
    _tries: dict[str, int] = field(default_factory=dict)
    """Number of tries by this process, by campaign."""

    @property
    def busy(self) -> bool:
        """Whether this process should stay for results that are still to be written."""
        return any(self._tries.get(campaign, 0) < STAY_TRIES for campaign in self._due)

    def load(self) -> None:
        """Read what is due. Call this when a campaign has ended, and once at the start."""
        for row in self.store.sendings.due(self.scheduler):
            self._due.setdefault(row.campaign, 0.0)

    def beat(self, now: float) -> None:
        """Start what is due. Call it a few times each second."""
        ready = [campaign for campaign, at in self._due.items() if at <= now]
        rows = {row.campaign: row for row in self.store.sendings.due(self.scheduler)} if ready else {}
        for campaign in ready:
            if campaign in rows:
                self._due[campaign] = math.inf
                self.nursery.start_soon(self._try, rows[campaign])
            else:  # it was deleted, or its owner has sent the results
                del self._due[campaign]

    async def _try(self, row: SendingRow) -> None:
        why = await self.send(row.campaign, row.url)
        tries = self._tries[row.campaign] = self._tries.get(row.campaign, 0) + 1
        self.store.sendings.settle(row.campaign, row.url, why)
        if why:
            log.warning("results.not-sent", campaign=row.campaign, url=row.url, why=why)
            self._due[row.campaign] = trio.current_time() + min(MAX_RETRY_S, RETRY_S * 2 ** (tries - 1))
        else:
            log.info("results.sent", campaign=row.campaign, url=row.url)
            self._due.pop(row.campaign, None)


async def send_apart(command: Sequence[str], campaign: str, url: str) -> str:
    """A `Send` that runs in a process of its own. `command`: this program with its home."""
    with trio.move_on_after(LIMIT_S):
        run = partial(trio.run_process, check=False, stdin=DEVNULL, capture_stdout=True, capture_stderr=True)
        try:
            done = await run([*command, "results", campaign, "--send", url])
        except OSError as exc:
            return f"cannot start: {exc.strerror}"
        lines = (done.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        said = [
            line.removeprefix("sark-node: ") for line in lines if line.startswith("sark-node: ")
        ] or lines[-1:]
        return (
            safe_text(said[0], 500) if done.returncode and said else ("it failed" if done.returncode else "")
        )
    return f"it took more than {LIMIT_S / 60:g} minutes"
