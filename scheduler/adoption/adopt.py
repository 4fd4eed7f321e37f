"""Adopts a campaign that another machine began: gathers it from its workers, puts it into this home's store, and runs it like any other.

    gather ─▶ manifest, where each task is ─▶ models ─▶ take_over        then the ordinary scheduler starts: Adopt, under a higher epoch

Nothing changes at any worker before the store has everything. A kill before that leaves nothing but copies of models.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from protocol.errors import CampaignError, ResourceError
from protocol.formats.reference_model import reference_sha256
from protocol.values.campaign_manifest import CampaignManifest, OpenedManifest
from protocol.values.lease import MAX_EPOCH
from protocol.values.task import Model, Task
from protocol.values.trust import Trust
from scheduler.adoption.recovery import RecoveryScan
from scheduler.campaign.trust import trust_of_spec
from scheduler.conversation.claims import ADOPTION_EPOCH_STEP
from scheduler.models.describe import by_devices, sha256_of
from scheduler.models.fetch import fetch_adopted
from scheduler.models.spool import is_spooled, spool_reference
from scheduler.models.spool import spool as copy_in
from scheduler.run.manifests import CampaignManifests
from scheduler.store.rows import NewCampaign, NewModel, WorkerTask
from scheduler.store.store import Store
from swarm.base.durable import make_folder
from swarm.base.text import count
from swarm.base.threads import DISK
from swarm.download.download import EDGE, Edge

log = structlog.get_logger("sark.adopt")


@dataclass(frozen=True, slots=True)
class Adoption:
    """The result of an adoption: how many of the campaign's tasks run, wait, have finished or lack a model."""

    campaign: str
    name: str
    tasks: int
    running: int = 0
    waiting: int = 0
    """Tasks with a queued lease."""
    finished: int = 0
    """Number of tasks whose run has ended, on devices that still have the results."""
    missing: tuple[str, ...] = ()
    """Names of models that open tasks need and no device has: these tasks wait until the user provides them."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Peers of the campaign that gave no report, with their names and why; their tasks will be run again elsewhere."""

    @property
    def to_do(self) -> int:
        """Number of tasks that no answering device knows."""
        return self.tasks - self.running - self.waiting - self.finished

    def line(self) -> str:
        """One line about the adoption, for people."""
        parts = [f"{self.running} running", f"{self.finished} finished elsewhere", f"{self.to_do} to do"]
        if self.waiting:
            parts.insert(1, f"{self.waiting} waiting in queues")
        return f"{count(self.tasks, 'task')}: {', '.join(parts)}"


async def adopt_campaign(
    scan: RecoveryScan,
    *,
    campaign: str,
    owner: str,
    store: Store,
    spool: Path,
    models: Path | None,
    wall: Callable[[], float],
    trust_of: Callable[[str], Trust],
    keep: Callable[[], None] = lambda: None,
    rng: random.Random | None = None,
) -> Adoption:
    """Adopt a campaign of `owner` into the store. `models`: a folder in which to look for models that no worker has. `keep`: stores what
    entitles this home to act for the campaign; called once everything has been gathered, before the campaign is in the store. `trust_of`:
    this home's own trust, with which results of runs under way are recorded. A worker that the campaign does not admit is believed only if
    it has the manifest, which comes with a task.

    Raises `CampaignError` when the campaign is already here, or its manifest cannot be fetched; then nothing was stored.
    """
    if store.campaigns.get(campaign) is not None:
        raise CampaignError(f"{campaign} is on this home already", hint=f"sark-node watch {campaign}")
    recovery, data, opened = await scan.recover(owner)
    manifest = opened.manifest
    ids = {task.task for task in opened.tasks}
    if ids - recovery.places().keys():
        await scan.widen(recovery)
    scope, known = trust_of_spec(manifest.spec), hashlib.sha256(data).hexdigest()
    for peer, report in tuple(recovery.reports.items()):
        if report.manifest != known and not scope.admits(peer, trust_of(peer)):
            log.warning("look.stranger", peer=peer, leases=len(report.leases))
            del recovery.reports[peer]
    reports = {
        task: replace(report, trust=scope.judge(report.worker, trust_of(report.worker)).text)
        for task, report in recovery.places(known).items()
        if task in ids
    }
    missing = await _bring_models(scan, opened, reports, spool, models)
    keep()
    CampaignManifests(spool).keep(campaign, data)
    store.campaigns.take_over(
        _new(manifest),
        [NewModel(model.name, model.sha256, model.size, model.facts) for model in manifest.models],
        list(zip(opened.tasks, manifest.tasks, strict=True)),
        reports,
        epoch=epoch_after(recovery.believed(campaign, owner), rng or random.SystemRandom()),
        created=min(float(manifest.created), wall()) if manifest.created else wall(),
    )
    for peer in dict.fromkeys(report.worker for report in reports.values()):
        advert = scan.adverts[peer]
        store.workers.save(peer, advert.name, advert.addresses)
    log.info("campaign.taken-over", campaign=campaign, tasks=len(ids), found=len(reports))
    return replace(tally(manifest, opened.tasks, reports, recovery.silent), missing=missing)


def epoch_after(believed: int, rng: random.Random) -> int:
    """The epoch under which to continue. It has a random part: of two simultaneous adopters with copies of one key, only one may be
    newest.
    """
    return min(believed + ADOPTION_EPOCH_STEP + rng.randrange(ADOPTION_EPOCH_STEP), MAX_EPOCH)


def tally(
    manifest: CampaignManifest,
    tasks: Iterable[Task],
    reports: Mapping[str, WorkerTask],
    silent: Mapping[str, str],
) -> Adoption:
    """Count the tasks by state."""
    places = [reports[task.task] for task in tasks if task.task in reports]
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


def bring_models(tasks: Iterable[Task], spec: str, spool: Path, folder: Path | None) -> tuple[Model, ...]:
    """Copy the models that these tasks of a campaign need from a folder into the spool. Returns the models that are in neither.

    Models that devices fetch themselves are not needed. Blocking.
    """
    others = by_devices(spec)
    models = {model.sha256: model for task in tasks for model in task.files() if model.sha256 not in others}
    if models.pop(reference_sha256(), None) is not None:  # this model comes with the program
        spool_reference(spool)
    return tuple(
        model
        for model in models.values()
        if not is_spooled(model, spool) and (folder is None or not _from_folder(folder, model, spool))
    )


async def _bring_models(
    scan: RecoveryScan,
    opened: OpenedManifest,
    reports: Mapping[str, WorkerTask],
    spool: Path,
    folder: Path | None,
    edge: Edge = EDGE,
) -> tuple[str, ...]:
    """Bring every model that may still be needed into the spool, under its hash.

    This includes models of running and finished tasks, if they can be found: a run may fail, and is then tried elsewhere. Returns the names
    of models that open tasks need and that cannot be found.
    """
    try:
        await DISK.run(make_folder, spool)
    except OSError as exc:
        raise ResourceError(f"cannot use {spool}: {exc.strerror}") from None
    missing: list[str] = []
    spec = opened.manifest.spec
    for model in await DISK.run(bring_models, opened.tasks, spec, spool, folder):
        tasks = [task for task in opened.tasks if task.needs(model.sha256)]
        likely = [reports[task.task].worker for task in tasks if task.task in reports]
        url = next((url for task in tasks if (url := task.url_of(model)) is not None), None)
        if await scan.model(model, spool, likely):
            continue
        if url is not None and await fetch_adopted(url, model, spool, edge):
            continue
        log.warning("model.missing", model=model.name, sha256=model.sha256)
        if any(task.task not in reports or reports[task.task].queued for task in tasks):
            missing.append(model.name)
    return tuple(missing)


def _from_folder(folder: Path, model: Model, spool: Path) -> bool:
    """Copy the model from anywhere in a folder, found by its size, then by its hash."""
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names):
            try:
                if path.stat().st_size == model.size and sha256_of(path) == model.sha256:
                    copy_in(path, model, spool)
                    return True
            except (OSError, CampaignError):
                continue
    return False
