"""The models of running campaigns: which tasks wait because their model is not on this disk, and which other workers have a model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import SarkError
from protocol.messages.blobs import MAX_OTHERS, HolderInfo, Holders, TransferGrant, grant_message
from protocol.values.task import Model, Task
from scheduler.core.commands import Command
from scheduler.core.entries import TaskEntry
from scheduler.core.ranking import WorkerView
from scheduler.core.scheduler import SchedulerCore
from scheduler.planning.devices import DeviceFinder
from swarm.base.text import safe_text
from swarm.net.identity import Identity

GRANT_TTL_S: Final = 3600.0
"""Lifetime of a transfer grant; a worker that is still fetching by then gets a new one with the next answer."""
FEW: Final = 4
SEARCH_EVERY_S: Final = 30.0
MAX_SEARCHED: Final = 256
"""Models whose last search is remembered."""

log = structlog.get_logger("sark.scheduler")


@dataclass(eq=False)
class ModelSources:
    """Tells a worker that is about to fetch a model which other workers have it, with a transfer grant that lets it fetch from them.

    Holders are known from workers' adverts and quotes, and from the tasks they hold. If few are known, the index is searched for the
    model's hash, and the next request is answered with more.
    """

    core: SchedulerCore
    index: DeviceFinder
    identity: Identity
    nursery: trio.Nursery
    carry_out: Callable[[Sequence[Command]], None]
    wall: Callable[[], float]
    rng: random.Random
    _searched_at: dict[str, float] = field(default_factory=dict)

    async def where(self, peer: str, sha256: str) -> Holders | None:
        """For `swarm.blobs.server.serve_blobs`: None for a peer that holds no task that needs the model."""
        core = self.core
        if not core.may_fetch(peer, sha256):
            return None
        holders = [
            view
            for view in core.state.workers.values()
            if view.peer != peer
            and core.may_share(view.peer, peer, sha256)
            and (sha256 in view.warm or core.may_fetch(view.peer, sha256))
            and worth_asking(view)
        ]
        if len(holders) < FEW:
            self._search(sha256)
        if len(holders) > MAX_OTHERS:
            holders = self.rng.sample(holders, MAX_OTHERS)
        self.rng.shuffle(holders)
        others = tuple(HolderInfo(peer=view.peer, addresses=view.addresses[:8]) for view in holders)
        return Holders(grant=self._grant(peer, sha256), others=others)

    def _grant(self, peer: str, sha256: str) -> TransferGrant:
        me, until = self.identity.peer_id, math.ceil(self.wall() + GRANT_TTL_S)
        signature = self.identity.sign(grant_message(me, peer, sha256, until))
        return TransferGrant(giver=me, taker=peer, sha256=sha256, until=until, signature=signature)

    def _search(self, sha256: str) -> None:
        now = trio.current_time()
        if now - self._searched_at.get(sha256, -math.inf) < SEARCH_EVERY_S:
            return
        self._searched_at.pop(sha256, None)
        self._searched_at[sha256] = now
        while len(self._searched_at) > MAX_SEARCHED:
            del self._searched_at[next(iter(self._searched_at))]
        self.nursery.start_soon(self._ask_index, sha256)

    async def _ask_index(self, sha256: str) -> None:
        try:
            result = await self.index.model(sha256, 2 * MAX_OTHERS)
        except SarkError as exc:
            log.info("model.search-failed", sha256=sha256, why=exc.what)
            return
        adverts = [each.advert for each in result.devices]
        self.carry_out(self.core.workers.add_adverts("", adverts, trio.current_time()))


def worth_asking(view: WorkerView) -> bool:
    """Whether the worker is reachable, as far as known, and serves this scheduler. Otherwise it would not accept the transfer grant."""
    return bool(view.addresses) and view.refused is None and view.unreachable == 0


LOOK_S: Final = 2.0
"""Seconds between two checks of the disk."""


class MissingModels:
    """Holds back tasks whose model is not on this disk until it is there. Only an adopted campaign can have such tasks. Tasks whose devices
    fetch the model themselves need no model here.
    """

    def __init__(self, spool: Path, host: str = "") -> None:
        """`host`: the name of this machine, if others run campaigns of the same store."""
        self._host = host
        self.waiting: list[TaskEntry] = []
        self._spool = spool
        self._gone: set[str] = set()
        """Hashes of models for which tasks wait."""
        self._looked_at = float("-inf")

    def mark(
        self, entries: Iterable[TaskEntry], by_devices: Container[str] = ()
    ) -> tuple[tuple[str, str], ...]:
        """Hold back tasks without a model. Returns (task, why it waits) for each. `by_devices`: hashes of models that devices fetch."""
        wanted = [entry for entry in entries if not entry.over]
        gone = {sha256 for sha256 in _needed(wanted) if sha256 not in by_devices and not self._has(sha256)}
        missing = [(entry, model) for entry in wanted if (model := _first_of(entry.form, gone)) is not None]
        for entry, _ in missing:
            entry.model_missing = True
        self.waiting += [entry for entry, _ in missing]
        self._gone |= gone
        return tuple(
            (entry.id, why_missing(entry.form.campaign, model.name, self._host))
            for entry, model in missing
            if not entry.live
        )

    def look(self, now: float) -> list[TaskEntry]:
        """Tasks whose model has arrived, for `SchedulerCore.add_models`. Call it often: it checks the disk every `LOOK_S`."""
        if not self.waiting or now < self._looked_at + LOOK_S:
            return []
        self._looked_at = now
        models = set(filter(self._has, self._gone))
        self._gone -= models
        arrived = [entry for entry in self.waiting if _first_of(entry.form, self._gone) is None]
        self.waiting = [
            entry for entry in self.waiting if _first_of(entry.form, self._gone) and not entry.over
        ]
        self._gone &= _needed(self.waiting)
        for entry in arrived:
            entry.model_missing = False
        for sha256 in models:
            log.info("model.arrived", sha256=sha256)
        return arrived

    def _has(self, sha256: str) -> bool:
        return (self._spool / sha256).is_file()


def _needed(entries: Iterable[TaskEntry]) -> set[str]:
    return {model.sha256 for entry in entries for model in entry.form.files()}


def _first_of(task: Task, hashes: Container[str]) -> Model | None:
    """The first model of the task that is among `hashes`."""
    return next((model for model in task.files() if model.sha256 in hashes), None)


def why_missing(campaign: str, model: str, host: str = "") -> str:
    """For people: what to do about a task that waits for its model. `host`: on which machine."""
    where = f"on {safe_text(host, 80)}, " if host else ""
    return f"waits for its model {safe_text(model, 80)}: {where}sark-node adopt {campaign} --models FOLDER"
