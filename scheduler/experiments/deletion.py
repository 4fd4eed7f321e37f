"""Deletes a campaign with everything kept of it: rows, results files and models here, and what its workers hold of it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from protocol.errors import CampaignError, RemoteProtocolError, ResourceError
from protocol.formats.reference_model import reference_sha256
from protocol.values.advert import read_advert
from protocol.values.features import forgets
from results.row.form import JsonModel
from scheduler.campaign.text import read_spec
from scheduler.experiments.confirm import confirmation_of, good_models
from scheduler.store.deletion import DeletedRows
from scheduler.store.rows import ForgetRow
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.text import safe_text
from swarm.net.identity import load_or_create


class DeletedCampaign(JsonModel):
    """What was deleted on this machine, and which devices are asked to forget the campaign."""

    campaign: str
    tasks: int
    records: int
    files: int
    """Number of deleted files: results files, and copies of models that this home made and no other campaign needs."""
    size: int
    """Size of these files, in bytes."""
    devices: tuple[str, ...]
    """Devices that ran any of its tasks. Each is asked to forget the campaign, now or when it can be reached again."""
    run_of: str | None
    """Version of the experiment that the campaign was a run of, such as nightly@3. The run is deleted from the history too."""


def delete_campaign(home: Home, store: Store, campaign: str) -> DeletedCampaign:
    """Delete an ended campaign. The scheduler process, which the caller starts, asks its devices to forget it. Blocking.

    Raises `CampaignError` when there is no such campaign, or part of it still goes on; then nothing was deleted.
    """
    for run in store.experiments.confirming():
        if confirmation_of(run.campaign) == campaign:
            raise CampaignError(
                f"{campaign} measures {run.campaign} again, and the finding of {run.campaign} waits for it",
                hint=f"cancel it, and wait for the finding: sark-node cancel {campaign}",
            )
    rows = store.deletions.delete(campaign, load_or_create(home.key("scheduler")).peer_id)
    sizes = _remove_results(home, campaign) + _remove_models(home, store, rows)
    return DeletedCampaign(
        campaign=campaign,
        tasks=rows.tasks,
        records=rows.records,
        files=len(sizes),
        size=sum(sizes),
        devices=devices_of(rows.forgets),
        run_of=rows.run_of or None,
    )


def devices_of(forgets: Iterable[ForgetRow]) -> tuple[str, ...]:
    """Names of the devices that are to forget something."""
    return tuple(dict.fromkeys(one.device or f"…{one.worker[-8:]}" for one in forgets))


def too_old(store: Store, owed: Iterable[ForgetRow]) -> dict[str, str]:
    """Those of these workers whose version, when last seen, could not be asked: version number by device."""
    debtors = {one.worker: one.device for one in owed}
    found = {}
    for worker in store.workers.all():
        with contextlib.suppress(RemoteProtocolError):  # an advert from another version
            if worker.peer in debtors and worker.advert and not forgets(advert := read_advert(worker.advert)):
                found[debtors[worker.peer] or f"…{worker.peer[-8:]}"] = advert.version
    return found


def too_old_line(device: str, version: str) -> str:
    return f"{safe_text(device, 60)} runs sark-node {safe_text(version) or 'from before 0.1'} and cannot forget campaigns: update it."


def _remove_results(home: Home, campaign: str) -> list[int]:
    """Remove the files that `submit` and `watch` write by themselves; returns the size of each."""
    folder = home.data / "results" / campaign
    sizes = [path.stat().st_size for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []
    shutil.rmtree(folder, ignore_errors=True)
    return sizes


def _remove_models(home: Home, store: Store, rows: DeletedRows) -> list[int]:
    """Remove the copies of models that nothing here needs any more; returns the size of each. A copy that a submit has touched since may
    belong to a campaign that is just being stored: it is left to `scheduler.models.spool.tidy`.
    """
    needed = store.campaigns.needed_models() | good_models(store)
    sizes = []
    for model in rows.models:
        path = home.spool / model.sha256
        with contextlib.suppress(OSError):
            info = path.stat()
            if model.sha256 not in needed and info.st_mtime <= rows.campaign.created:
                path.unlink()
                sizes.append(info.st_size)
    gone = {model.name for model in rows.models if model.sha256 != reference_sha256()}
    with contextlib.suppress(CampaignError):  # from another version: its downloads go after a day
        for entry in read_spec(rows.campaign.spec, rows.campaign.id).models:
            if entry.url is not None and entry.key in gone:
                sizes += _remove_download(
                    home.cache / "downloads" / hashlib.sha256(entry.url.encode()).hexdigest()[:32]
                )
    return sizes


def _remove_download(folder: Path) -> list[int]:
    with contextlib.suppress(OSError, ResourceError):
        if folder.is_dir():
            with lock_folder(folder):
                sizes = [path.stat().st_size for path in folder.glob("model")]
                for name in ("model", "part", "note.json"):
                    (folder / name).unlink(missing_ok=True)
                return sizes
    return []
