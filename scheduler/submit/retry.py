"""What failed or was cancelled, once more: a new campaign with only these tasks. The old one stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from protocol.values.task import Model, Task, read_task
from scheduler.campaign.model import Campaign
from scheduler.models.describe import Fetch, find_model, no_fetch
from scheduler.models.spool import spool
from scheduler.store.progress import ADOPTED
from scheduler.store.rows import CampaignOutcome, CampaignRow, NewCampaign, NewModel, TaskRow
from scheduler.store.store import Store
from scheduler.submit.submit import new_campaign_id
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.net.identity import load_or_create

AGAIN = (TaskState.FAILED, TaskState.CANCELLED)


def retry_campaign(
    home: Home,
    store: Store,
    campaign: str,
    folder: Path,
    *,
    campaign_id: str | None = None,
    fetch: Fetch = no_fetch,
) -> tuple[str, int]:
    """Store a new campaign with the tasks of `campaign` that failed or were cancelled; gives its id and how many they are.

    A model that is no longer in the spool is taken again from where the file said, paths read from `folder`, URLs by `fetch`.
    Raises `CampaignError` when the campaign goes on, has none such, or a model is gone or another one; then nothing was stored.
    """
    row = store.campaigns.get(campaign)
    if row is None or row.ended is None:
        raise CampaignError(
            f"{campaign} has not ended yet", hint=f"sark-node watch {campaign}, or cancel it first"
        )
    if row.outcome is CampaignOutcome.ADOPTED:
        raise CampaignError(
            f"{campaign} is {ADOPTED}: its tasks did not fail",
            hint="retry it on the machine that carries it on, if some fail there",
        )
    rows = store.tasks.all(campaign)
    bodies = store.tasks.bodies(campaign)
    wanted = [task for task in rows if task.state in AGAIN]
    if not wanted:
        raise CampaignError(
            f"no task of {campaign} failed or was cancelled", hint=f"sark-node results {campaign}"
        )
    new_id = campaign_id or new_campaign_id()
    scheduler = load_or_create(home.key("scheduler")).peer_id
    olds = {task.id: read_task(bodies[task.id]) for task in rows}
    tasks = again(wanted, olds, whole_groups(rows, olds), new_id, scheduler)
    hashes = {task.model.sha256 for task in tasks}
    models = [model for model in store.campaigns.models(campaign) if model.sha256 in hashes]
    _bring_back(home, row, {task.model.sha256: task.model for task in tasks}, models, folder, fetch)
    store.campaigns.create(
        NewCampaign(
            id=new_id,
            name=row.name,
            scheduler=scheduler,
            spec=row.spec,
            attempts=row.attempts,
            backoff_s=row.backoff_s,
            wait_s=row.wait_s,
            limit_s=row.limit_s,
            priority=row.priority,
        ),
        models,
        tasks,
    )
    return new_id, len(tasks)


def again(
    wanted: Sequence[TaskRow], olds: Mapping[str, Task], whole: frozenset[int], campaign: str, scheduler: str
) -> list[Task]:
    """The same tasks under new names. A replica stays one only if all of its siblings run again: else there is none to compare with."""
    made = []
    for number, row in enumerate(wanted, start=1):
        old = olds[row.id]
        stays = old.replica is not None and row.n - old.replica in whole
        made.append(
            old.model_copy(
                update={
                    "campaign": campaign,
                    "task": f"{campaign}/{number}",
                    "scheduler": scheduler,
                    "replica": old.replica if stays else None,
                }
            )
        )
    return made


def whole_groups(rows: Sequence[TaskRow], olds: Mapping[str, Task]) -> frozenset[int]:
    """The groups of replicas of which none succeeded, each by the number before its first."""
    groups: dict[int, bool] = {}
    for row in rows:
        replica = olds[row.id].replica
        if replica is not None:
            group = row.n - replica
            groups[group] = groups.get(group, True) and row.state in AGAIN
    return frozenset(group for group, all_again in groups.items() if all_again)


def _bring_back(
    home: Home,
    row: CampaignRow,
    needed: Mapping[str, Model],
    models: Sequence[NewModel],
    folder: Path,
    fetch: Fetch,
) -> None:
    """Have the models in the spool again."""
    try:
        entries = {entry.label: entry for entry in Campaign.model_validate_json(row.spec).models}
    except ValidationError as exc:
        raise CampaignError(
            f"{row.id} was stored by another version of sark-node", hint="submit its file again"
        ) from exc
    for kept in models:
        entry = entries.get(kept.name)
        if entry is not None and entry.by_devices:
            continue
        source = home.spool / kept.sha256
        if not source.is_file() and entry is not None:
            source = find_model(entry, folder, fetch)
            if not source.exists():
                raise CampaignError(
                    f"model {safe_text(kept.name, 60)!r}: no such file: {safe_text(str(source))}",
                    hint="run it from the folder of the campaign file, or name that: --folder",
                )
        try:
            spool(source, needed[kept.sha256], home.spool)
        except CampaignError:
            there = (
                "what its URL holds" if entry is not None and entry.path is None else safe_text(str(source))
            )
            raise CampaignError(
                f"model {safe_text(kept.name, 60)!r}: {there} is not the file it was",
                hint="submit the campaign again",
            ) from None
