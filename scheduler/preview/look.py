"""Makes a plan or an explanation from a campaign and the live swarm. Nothing is stored, committed or held."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from protocol.errors import RemoteProtocolError, SarkError, first_error
from protocol.formats.frameworks import UnitFormats
from protocol.values.advert import Advert
from protocol.values.task import Task, read_task
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.reach import FindUnits
from scheduler.models.describe import Fetch, describe_models, no_fetch
from scheduler.models.files import Models
from scheduler.models.inspect import resolved_shapes
from scheduler.planning.tasks import PlannedCell, derive_cells, requirements, tasks_of
from scheduler.preview.plan import LivePlan, make_plan
from scheduler.preview.survey import VISIT, find_disputed, find_foreign_units, visit
from scheduler.store.store import has_store, open_store
from scheduler.trust.home import read_book
from scheduler.trust.identities import DisputedDevice, named_devices
from scheduler.trust.untrusted import UntrustedDevice
from swarm.base.home import Home
from swarm.net.identity import load_or_create

FRESH_S: Final = 30.0
"""Seconds for which an answer is reused: text that is being typed is read again and again."""


def plan_file(home: Home, file: Path, gates: Sequence[str], fetch: Fetch = no_fetch) -> LivePlan:
    """The plan of the campaign in `file`. Raises `CampaignError` for a bad file or model, `Unreachable` when no gate answers. Blocking."""
    campaign = load_campaign(file, find_units=units_finder(lambda: gates))
    return plan_campaign(home, campaign, describe_models(campaign, file.absolute().parent, fetch), gates)


def units_finder(
    gates: Callable[[], Sequence[str]], *, clock: Callable[[], float] = time.monotonic
) -> FindUnits:
    """Queries the swarm behind these gates; for the same units again only after `FRESH_S`. Blocks."""
    known: dict[frozenset[str], tuple[float, UnitFormats | SarkError]] = {}

    def find(wanted: Collection[str]) -> UnitFormats:
        key, now = frozenset(wanted), clock()
        at, found = known.get(key, (-math.inf, {}))
        if now - at > FRESH_S:
            try:
                found = trio.run(find_foreign_units, gates(), sorted(key))
            except* SarkError as group:
                found = first_error(group)
            known[key] = now, found
        if isinstance(found, SarkError):
            raise found
        return found

    return find


def check_devices(home: Home, campaign: Campaign, gates: Callable[[], Sequence[str]]) -> None:
    """Raises `CampaignError` if the campaign names a device that two keys claim, as far as the swarm shows now. `gates`: called if it names
    a device. Blocking.
    """
    now, needs = time.time(), requirements(campaign)
    if not named_devices(needs) or not (entries := gates()):
        return
    found: DisputedDevice | None = None
    try:
        found = trio.run(find_disputed, entries, needs, campaign.trust, read_book(home, now))
    except* SarkError:
        pass
    if found is not None:
        raise found.error()


def plan_campaign(home: Home, campaign: Campaign, models: Models, gates: Sequence[str]) -> LivePlan:
    """The plan of a campaign with its described models. Raises `Unreachable` when no gate answers, and `CampaignError` for a named device
    that two keys claim. Blocking.
    """
    check_devices(home, campaign, lambda: gates)
    scheduler = load_or_create(home.key("scheduler")).peer_id

    def cells_on(devices: Sequence[Advert]) -> Sequence[tuple[PlannedCell, Sequence[Task]]]:
        return derive_cells(campaign, models, campaign_id=VISIT, scheduler=scheduler, devices=devices)

    now = time.time()
    survey = partial(
        visit, priority=campaign.priority, now=now, trust=campaign.trust, book=read_book(home, now)
    )
    result = trio.run(
        survey, gates, home, requirements(campaign), lambda devices: tasks_of(cells_on(devices))
    )
    past = run_history(home, {file.model.sha256 for file in models.values()})
    shapes = resolved_shapes(campaign, models)
    return make_plan(campaign, models, cells_on(result.adverts), result, past, shapes)


def serving_devices(home: Home, campaign: Campaign, gates: Sequence[str]) -> tuple[UntrustedDevice, ...]:
    """Devices that fit the campaign and serve this submitter but that it does not trust; none when no gate answers. Blocking."""
    now = time.time()
    look = partial(
        visit, priority=campaign.priority, now=now, trust=campaign.trust, book=read_book(home, now)
    )
    untrusted: tuple[UntrustedDevice, ...] = ()
    try:
        untrusted = trio.run(look, gates, home, requirements(campaign), lambda devices: ()).untrusted
    except* SarkError:
        pass
    return tuple(each for each in untrusted if each.serves)


def run_history(home: Home, models: set[str]) -> list[tuple[Task, float]]:
    """Tasks with one of these models that succeeded on this home, and how long each took."""
    if not has_store(home):
        return []
    with open_store(home) as store:
        runs = store.tasks.run_times(models)
    history = []
    for body, seconds in runs:
        with contextlib.suppress(RemoteProtocolError):  # from another version
            history.append((read_task(body), seconds))
    return history
