"""Carrying on a campaign that another machine began: gathered from its workers, put into this home's store, then run as any other.

    gather ─▶ manifest, where each task is ─▶ models ─▶ take_over        then the ordinary scheduler starts: Adopt, under a higher epoch

Nothing changes at any worker before the store has it all; a kill on the way leaves nothing behind but copies of models.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import CampaignError, ResourceError
from protocol.signed.campaign_manifest import CampaignManifest, OpenedManifest
from protocol.values.lease import MAX_EPOCH
from protocol.values.task import Model, Task
from scheduler.adoption.recovery import RecoveryScan
from scheduler.models.describe import by_devices
from scheduler.models.fetch import fetch_adopted
from scheduler.models.spool import spool as copy_in
from scheduler.run.manifests import manifests_in
from scheduler.store.rows import NewCampaign, NewModel, WorkerTask
from scheduler.store.store import Store
from swarm.base.text import count
from swarm.download.download import EDGE, Edge

LEAP: Final = 1_000
"""Epochs left to the scheduler before us, which may be started again with the same key: it must not reach ours."""

log = structlog.get_logger("sark.adopt")


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was taken over."""

    campaign: str
    name: str
    tasks: int
    running: int = 0
    waiting: int = 0
    """Tickets in queues."""
    finished: int = 0
    """Run by devices that still have the results."""
    lacking: tuple[str, ...] = ()
    """Names of models that open tasks need and no device has: these tasks wait until somebody brings them."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Peers of the campaign that told nothing → their names and why; what they have will be run again elsewhere."""

    @property
    def to_do(self) -> int:
        """Of which no device that answered knows anything."""
        return self.tasks - self.running - self.waiting - self.finished

    def line(self) -> str:
        """For people."""
        parts = [f"{self.running} running", f"{self.finished} finished elsewhere", f"{self.to_do} to do"]
        if self.waiting:
            parts.insert(1, f"{self.waiting} waiting in queues")
        return f"{count(self.tasks, 'task')}: {', '.join(parts)}"


async def adopt_campaign(
    gatherer: RecoveryScan,
    *,
    campaign: str,
    owner: str,
    store: Store,
    spool: Path,
    models: Path | None,
    wall: Callable[[], float],
    keep: Callable[[], None] = lambda: None,
    rng: random.Random | None = None,
) -> Adoption:
    """Take over a campaign of `owner` into the store. `models`: a folder to look for models in that no worker has. `keep`: puts on disk
    what lets this home speak for the campaign; called when all has been gathered, before the campaign is in the store.

    Raises `CampaignError` when it is here already, or its manifest cannot be had; then nothing was stored.
    """
    if store.campaigns.get(campaign) is not None:
        raise CampaignError(f"{campaign} is on this home already", hint=f"sark-node watch {campaign}")
    gathered = await gatherer.gather()
    if not any(each.manifest is not None for each in gathered.heard.values()):
        await gatherer.widen(gathered)
    data, opened = await gatherer.manifest(gathered, owner)
    known = {task.task for task in opened.tasks}
    if known - gathered.places().keys():
        await gatherer.widen(gathered)
    places = gathered.places(hashlib.sha256(data).hexdigest())
    by_key = {task: place for task, place in places.items() if task in known}
    own = replace(opened, tasks=_needing(opened.tasks, opened.manifest.spec))
    missing = await _bring_models(gatherer, own, by_key, spool, models)
    keep()
    manifests_in(spool).keep(campaign, data)
    manifest = opened.manifest
    store.campaigns.take_over(
        _new(manifest),
        [NewModel(model.name, model.sha256, model.size, model.facts) for model in manifest.models],
        list(zip(opened.tasks, manifest.tasks, strict=True)),
        by_key,
        epoch=epoch_after(gathered.believed(campaign, owner), rng or random.SystemRandom()),
        created=min(float(manifest.created), wall()) if manifest.created else wall(),
    )
    for peer in dict.fromkeys(place.worker for place in by_key.values()):
        advert = gatherer.adverts[peer]
        store.workers.save(peer, advert.name, advert.addresses)
    log.info("campaign.taken-over", campaign=campaign, tasks=len(known), found=len(by_key))
    return replace(tally(manifest, opened.tasks, by_key, gathered.silent), lacking=missing)


def epoch_after(believed: int, rng: random.Random) -> int:
    """The epoch to carry on under. With chance in it: two who adopt at once, with copies of one key, must not both be the newest."""
    return min(believed + LEAP + rng.randrange(LEAP), MAX_EPOCH)


def bring_models(tasks: Iterable[Task], spec: str, spool: Path, folder: Path) -> tuple[str, ...]:
    """Copy what these tasks of a campaign need from a folder into the spool. Gives the names of models that are neither there nor here.

    Blocking.
    """
    models = {task.model.sha256: task.model for task in _needing(tasks, spec)}
    return tuple(
        model.name
        for sha256, model in models.items()
        if not _has(spool / sha256, model) and not _from_folder(folder, model, spool)
    )


def _needing(tasks: Iterable[Task], spec: str) -> tuple[Task, ...]:
    """Those whose model is needed here: the devices do not fetch it themselves."""
    others = by_devices(spec)
    return tuple(task for task in tasks if task.model.sha256 not in others)


def tally(
    manifest: CampaignManifest,
    tasks: Iterable[Task],
    found: Mapping[str, WorkerTask],
    silent: Mapping[str, str],
) -> Adoption:
    """Count where the tasks are."""
    places = [found[task.task] for task in tasks if task.task in found]
    return Adoption(
        campaign=manifest.campaign,
        name=manifest.name,
        tasks=len(manifest.tasks),
        running=sum(not place.queued and not place.ended for place in places),
        waiting=sum(place.queued for place in places),
        finished=sum(place.ended for place in places),
        silent=dict(silent),
    )


def _new(manifest: CampaignManifest) -> NewCampaign:
    return NewCampaign(
        id=manifest.campaign,
        name=manifest.name,
        scheduler=manifest.owner,
        spec=manifest.spec,
        attempts=manifest.attempts,
        backoff_s=manifest.backoff_s,
        wait_s=manifest.wait_s,
        limit_s=manifest.limit_s,
        priority=manifest.priority,
    )


# -- models ---------------------------------------------------------------------------------------------------------------------------


async def _bring_models(
    gatherer: RecoveryScan,
    opened: OpenedManifest,
    found: Mapping[str, WorkerTask],
    spool: Path,
    folder: Path | None,
    edge: Edge = EDGE,
) -> tuple[str, ...]:
    """Have every model that may still be needed in the spool, under its hash.

    Those of running and finished tasks too, if they are to be had: a run may fail, and is then tried elsewhere. Gives the names of
    those that open tasks need and that cannot be had.
    """
    try:
        await trio.to_thread.run_sync(lambda: spool.mkdir(parents=True, exist_ok=True))
    except OSError as exc:
        raise ResourceError(f"cannot use {spool}: {exc.strerror}") from None
    users: dict[str, list[Task]] = {}
    missing: list[str] = []
    for task in opened.tasks:
        users.setdefault(task.model.sha256, []).append(task)
    for sha256, tasks in users.items():
        model = tasks[0].model
        if await trio.to_thread.run_sync(_has, spool / sha256, model):
            continue
        if folder is not None and await trio.to_thread.run_sync(_from_folder, folder, model, spool):
            continue
        likely = [found[task.task].worker for task in tasks if task.task in found]
        if await gatherer.model(sha256, model.size, spool / sha256, likely):
            continue
        url = next((task.model_url for task in tasks if task.model_url is not None), None)
        if url is not None and await _by_url(url, model, spool / sha256, edge):
            continue
        log.warning("model.lacking", model=model.name, sha256=sha256)
        if any(task.task not in found or found[task.task].queued for task in tasks):
            missing.append(model.name)
    return tuple(missing)


async def _by_url(url: str, model: Model, target: Path, edge: Edge) -> bool:
    try:
        return await fetch_adopted(url, model, target, edge)
    except OSError as exc:
        raise ResourceError(
            f"cannot write a model to {target.parent}: {exc.strerror or exc}",
            hint="make room there, or check its rights; then adopt again",
        ) from None


def _has(path: Path, model: Model) -> bool:
    return path.is_file() and path.stat().st_size == model.size


def _from_folder(folder: Path, model: Model, spool: Path) -> bool:
    """Copy it from a folder, wherever it lies in it: by its size, then by its hash."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            try:
                if path.stat().st_size != model.size:
                    continue
                with path.open("rb") as file:
                    same = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
            except OSError:
                continue
            if same:
                copy_in(path, model, spool)
                return True
    return False
