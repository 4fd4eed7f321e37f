"""From a campaign file to a campaign that is safe on disk: read, describe, copy, plan, store. What comes after survives kill -9."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import Fetch, Models, describe_models, no_fetch
from scheduler.models.spool import spool
from scheduler.planning.tasks import derive_tasks, needs_devices
from scheduler.store.experiments import RunClaim
from scheduler.store.opening import open_store
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import load_or_create

_ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"


def new_campaign_id(choose: Callable[[str], str] = secrets.choice) -> str:
    """Short, unique enough (31^8), readable aloud: no l, o, i, 0 or 1."""
    return "c-" + "".join(choose(_ALPHABET) for _ in range(8))


def submit_campaign(
    home: Home, file: Path, *, wait_s: float, campaign_id: str | None = None, fetch: Fetch = no_fetch
) -> str:
    """Store the campaign in `file`; gives its id. When this returns, everything it needs is on disk. `fetch`: brings models by URL.

    Raises `CampaignError` for a bad file or model, `ResourceError` for a full disk; then nothing was stored.
    """
    campaign = load_campaign(file)
    folder = file.absolute().parent
    models = describe_models(campaign, folder, fetch)
    with open_store(home) as store:
        stored = store_campaign(
            home, store, campaign, models, folder=str(folder), wait_s=wait_s, campaign_id=campaign_id
        )
    if stored is None:
        raise AssertionError("only a claimed run may have been started by somebody else")
    return stored


def store_campaign(
    home: Home,
    store: Store,
    campaign: Campaign,
    models: Models,
    *,
    folder: str,
    wait_s: float,
    campaign_id: str | None = None,
    claim: RunClaim | None = None,
) -> str | None:
    """Plan and store a campaign whose models have been looked at; gives its id. `claim`: of which experiment it is a run; None: another
    process has started that one. Raises `CampaignError`, `ResourceError`; then nothing was stored.
    """
    identity = load_or_create(home.key("scheduler"))
    campaign_id = campaign_id or new_campaign_id()
    tasks = None
    if not needs_devices(campaign):
        tasks = derive_tasks(
            campaign, models, campaign_id=campaign_id, scheduler=identity.peer_id, devices=None
        )
    for path, model in models.values():
        if path is not None:
            spool(path, model, home.spool)
    done = store.campaigns.create(
        _row(campaign, campaign_id, identity.peer_id, wait_s, folder),
        [NewModel(name, model.sha256, model.size, facts=model.name) for name, (_, model) in models.items()],
        tasks,
        claim=claim,
    )
    return campaign_id if done else None


def _row(campaign: Campaign, campaign_id: str, scheduler: str, wait_s: float, folder: str) -> NewCampaign:
    return NewCampaign(
        id=campaign_id,
        name=campaign.campaign,
        scheduler=scheduler,
        spec=campaign.spec(),
        attempts=campaign.retry.attempts,
        backoff_s=campaign.retry.backoff,
        wait_s=wait_s,
        limit_s=campaign.timeouts.campaign,
        priority=campaign.priority,
        folder=folder,
    )
