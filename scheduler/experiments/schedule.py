"""Who sees to experiments while a process stays: what is due is begun, what has ended is judged, what got worse is told.

Any number of processes may do this on one home: each step is claimed in the store, so that nothing happens twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from protocol.errors import SarkError
from scheduler.experiments.service import alarm_lines, begin_due, hook_body, judge_ended
from scheduler.experiments.webhook import post, read_secret
from scheduler.models.describe import Fetch
from scheduler.store.experiments import SENT, ExperimentRow, RunRow
from scheduler.store.store import Store
from swarm.base.home import Home

LOOK_S: Final = 5.0
"""How often to look at the clock: a machine that slept notices so soon that something was due."""

log = structlog.get_logger("sark.experiments")

T = TypeVar("T")
Post = Callable[[str, bytes, bytes], Awaitable[str]]
"""URL, body, secret; what it gives is empty, or why it was not taken."""


@dataclass(slots=True)
class Schedules:
    """The store is this one's own. `fetch`: brings models by URL; blocking, as is all that is done with the store."""

    home: Home
    open_store: Callable[[], Store]
    fetch: Fetch
    wall: Callable[[], float] = time.time
    send: Post | None = None
    _store: Store | None = None
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def keep(self, wake: Callable[[], Awaitable[None]], *, begin: bool = True) -> None:
        """For ever. `begin`: also start what is due; `wake`: sees to it that a scheduler process runs then."""
        try:
            while True:
                try:
                    if await self.step(begin=begin):
                        await wake()
                except SarkError as exc:  # a full disk, a locked store, settings that were changed: it may be well the next time
                    log.warning("experiments.waiting", why=exc.what)
                await trio.sleep(LOOK_S)
        finally:
            self.close()

    async def step(self, *, begin: bool) -> list[str]:
        """Once all that is to do; gives the campaigns that were begun. Raises `ResourceError`."""
        await self.judge()
        begun = await self._with(self._begin) if begin else []
        for campaign in begun:
            log.info("experiment.begun", campaign=campaign)
        await self.tell()
        return begun

    async def judge(self) -> list[RunRow]:
        """Say what came of runs that have ended."""
        found = await self._with(judge_ended)
        for run in found:
            log.info(
                "experiment.judged", experiment=run.experiment, campaign=run.campaign, finding=run.finding
            )
            for line in alarm_lines(run):
                log.warning("experiment.regression", experiment=run.experiment, what=line)
        return found

    async def tell(self) -> None:
        """Send the webhooks that are due."""
        for run in await self._with(lambda store: store.experiments.take_hooks()):
            experiment = await self._with(partial(_experiment, run))
            became = ""
            if experiment is not None and experiment.webhook:
                body = await self._with(partial(hook_body, run))
                try:
                    secret = await trio.to_thread.run_sync(read_secret, experiment.secret_file)
                    became = await self._post(experiment.webhook, body, secret) or SENT
                except SarkError as exc:
                    became = exc.what
                if became != SENT:
                    log.warning("webhook.failed", experiment=run.experiment, why=became)
            await self._with(partial(_set_hook, run, became))

    async def _post(self, url: str, body: bytes, secret: bytes) -> str:
        if self.send is not None:
            return await self.send(url, body, secret)
        return await post(url, body, secret, wall=self.wall)

    def _begin(self, store: Store) -> list[str]:
        return begin_due(self.home, store, now=self.wall(), fetch=self.fetch)

    async def _with(self, work: Callable[[Store], T]) -> T:
        async with self._turn:
            return await trio.to_thread.run_sync(self._work, work)

    def _work(self, work: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = self.open_store()
        return work(self._store)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None


def _experiment(run: RunRow, store: Store) -> ExperimentRow | None:
    return store.experiments.get(run.experiment)


def _set_hook(run: RunRow, status: str, store: Store) -> None:
    store.experiments.set_hook(run.campaign, status)
