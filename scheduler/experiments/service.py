"""Saving experiments and starting their runs. The clock is an argument.

    file ──save──▶ version ──begin──▶ campaign ──judge_ended──▶ finding ──▶ webhook

A due run is claimed in the store, and its schedule moves to the next instant after now: missed runs are made up by one run.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from protocol.errors import CampaignError, SarkError
from results.analysis.regression import RegressionFinding
from results.row.comparison import MARGIN
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import EXAMPLES, Campaign, Schedule
from scheduler.campaign.reach import FindUnits
from scheduler.campaign.text import read_spec
from scheduler.models.describe import Fetch, describe_models, no_fetch
from scheduler.models.fetch import downloader
from scheduler.models.files import Models
from scheduler.models.uploads import uploads_folder
from scheduler.store.rows import ExperimentRow, RunClaim, VersionModel, VersionRow
from scheduler.store.store import Store
from scheduler.submit.submit import new_campaign_id, store_campaign
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.base.units import DAY_S
from swarm.download.urls import OTHERS_URL_REACH

CheckDevices = Callable[[Campaign], None]
"""Raises `CampaignError` for a campaign that names a device claimed by two keys. Blocks."""
WAIT_S: Final = 60.0
"""Seconds for which a run looks for devices that fit, by default."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


def accept_devices(campaign: Campaign) -> None:
    """The check for a home that queries no swarm."""


def parse_title(text: str) -> tuple[str, int | None]:
    """Name and version in `nightly@3`; version None: the latest. Raises `CampaignError`."""
    name, at, number = text.partition("@")
    if not _NAME.fullmatch(name) or (at and not (number.isdecimal() and len(number) < 10)):
        raise CampaignError(
            f"{safe_text(text, 80)!r} is not the name of an experiment",
            hint="write its name, or name@version such as nightly@3: sark-node experiment list",
        )
    return name, int(number) if at else None


def digest_of(spec: str, models: Sequence[VersionModel]) -> str:
    """The hash of a version's content: the campaign, the bytes of its models and examples, and the examples' references."""
    content = {
        "spec": json.loads(spec),
        "models": sorted([model.name, *_hashes(model)] for model in models),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def first_due(every_s: float, at_s: float | None, now: float) -> float:
    """When a schedule set now runs first: at once, or at the next instant of its time of day."""
    if at_s is None:
        return now
    next_at = now - now % DAY_S + at_s
    if next_at <= now:
        next_at += DAY_S
    return next_at - math.floor((next_at - now) / every_s) * every_s if every_s < DAY_S else next_at


def next_due(due: float, every_s: float, now: float) -> float:
    """The first instant after now in the series of `due`."""
    missed = max(0, math.floor((now - due) / every_s))
    then = due + (missed + 1) * every_s
    return then if then > now else then + every_s  # rounding


# -- saving ---------------------------------------------------------------------------------------------------------------------------


def save(
    store: Store,
    file: Path,
    *,
    name: str | None = None,
    fetch: Fetch = no_fetch,
    now: float | None = None,
    find_units: FindUnits | None = None,
) -> tuple[VersionRow, bool]:
    """Save the campaign in `file` as a version of an experiment; returns the version and whether it is new. A schedule in the file replaces
    the experiment's. Raises `CampaignError`. Blocking.
    """
    campaign = load_campaign(file, find_units=find_units)
    folder = file.absolute().parent
    models = describe_models(campaign, folder, fetch)
    return save_campaign(store, campaign, models, str(folder), name=name, now=now)


def save_campaign(
    store: Store,
    campaign: Campaign,
    models: Models,
    folder: str,
    *,
    name: str | None = None,
    now: float | None = None,
    keep_webhook: bool = False,
) -> tuple[VersionRow, bool]:
    """Save a campaign with its described models; `folder`: the base of its paths. Otherwise like `save` and `set_schedule`."""
    title = name or campaign.campaign
    if parse_title(title)[1] is not None:
        raise CampaignError(f"{safe_text(title, 80)} names a version", hint="leave out the @ and the number")
    version, new = _save_version(store, title, campaign, models, folder)
    if campaign.schedule is not None:
        at = time.time() if now is None else now
        set_schedule(store, title, campaign.schedule, now=at, keep_webhook=keep_webhook)
    return version, new


def remove(store: Store, name: str) -> None:
    """Remove an experiment with its versions and history; its campaigns stay. Raises `CampaignError`."""
    find(store, name)
    store.experiments.remove(name)


def needing(store: Store, folder: Path, sha256: str) -> str | None:
    """The first experiment whose next run reads this uploaded model from `folder`."""
    for row in store.experiments.all():
        latest = store.experiments.versions(row.name)[-1]
        if latest.folder == str(folder) and any(model.sha256 == sha256 for model in latest.models):
            return row.name
    return None


def _save_version(
    store: Store, name: str, campaign: Campaign, models: Models, folder: str
) -> tuple[VersionRow, bool]:
    stored, spec = version_models(models), campaign.spec()
    return store.experiments.save_version(
        name, digest=digest_of(spec, stored), spec=spec, models=stored, folder=folder, alarm=MARGIN
    )


def version_models(models: Models) -> tuple[VersionModel, ...]:
    """Described models in the form stored with a version."""
    return tuple(
        VersionModel(
            name,
            file.model.sha256,
            file.model.size,
            "" if file.account is None else file.account.references_sha256,
        )
        for name, file in models.items()
    )


def _hashes(model: VersionModel) -> tuple[str, ...]:
    """The hash of its bytes, and of its references if it has any."""
    return tuple(filter(None, (model.sha256, model.references_sha256)))


def _differences(version: VersionRow, models: Models) -> list[tuple[str, str]]:
    """What differs from the saved version, with its hash then. References saved without a hash count as unchanged."""
    saved, found = {model.name: model for model in version.models}, list[tuple[str, str]]()
    for now in version_models(models):
        then = saved.get(now.name)
        if then is None or then.sha256 != now.sha256:
            what = f"the file of model {safe_text(now.name, 60)!r} has changed"
            found.append((what, "" if then is None else then.sha256))
        elif then.references_sha256 not in ("", now.references_sha256):
            name = safe_text(now.name.removesuffix(EXAMPLES), 60)
            found.append(
                (f"the references for the evaluation of model {name!r} have changed", then.references_sha256)
            )
    return found


def read_schedule(given: Mapping[str, object], label: str = "") -> Schedule:
    """A schedule from those keys of a campaign file that are not None. `label`: put before a key in errors. Raises `CampaignError`."""
    try:
        return Schedule.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        context = error.get("ctx", {})
        raise CampaignError(
            f"{label}{error['loc'][0]}: {context.get('what', error['msg'])}", hint=context.get("hint", "")
        ) from None


def set_schedule(
    store: Store,
    name: str,
    schedule: Schedule | None,
    *,
    now: float,
    secret_file: str | None = None,
    keep_webhook: bool = False,
) -> None:
    """Replace the schedule; None: remove it. An unchanged schedule keeps its due instant. `secret_file` None: keep the current one;
    `keep_webhook`: also keep the webhook, unless the schedule names one.
    """
    row = find(store, name)
    if schedule is None:
        row = replace(row, every_s=None, at_s=None, due=None)
    else:
        if row.due is None or (row.every_s, row.at_s) != (schedule.every, schedule.at):
            row = replace(row, due=first_due(schedule.every, schedule.at, now))
        row = replace(
            row,
            every_s=schedule.every,
            at_s=schedule.at,
            alarm=MARGIN if schedule.alarm is None else schedule.alarm,
            webhook=schedule.webhook or (row.webhook if keep_webhook else ""),
        )
    if secret_file is not None:
        row = replace(row, secret_file=secret_file)
    store.experiments.set_schedule(row)


def schedule_of(row: ExperimentRow) -> Schedule | None:
    """The schedule in the form of a campaign file; None: the experiment has none."""
    if row.every_s is None:
        return None
    return Schedule.model_construct(
        every=row.every_s,
        at=row.at_s,
        alarm=None if row.alarm == MARGIN else row.alarm,
        webhook=row.webhook or None,
    )


def find(store: Store, name: str) -> ExperimentRow:
    """The experiment with this name. Raises `CampaignError`."""
    row = store.experiments.get(name)
    if row is None:
        raise CampaignError(
            f"no experiment {safe_text(name, 80)!r} on this home",
            hint="list them: sark-node experiment list; create one: sark-node experiment save FILE",
        )
    return row


def find_version(store: Store, title: str) -> VersionRow:
    """The version that `nightly@3` names, or the latest of `nightly`. Raises `CampaignError`."""
    name, number = parse_title(title)
    find(store, name)
    versions = store.experiments.versions(name)
    for version in versions:
        if version.version == (versions[-1].version if number is None else number):
            return version
    raise CampaignError(
        f"{name} has no version {number}", hint=f"it has {versions[0].version} to {versions[-1].version}"
    )


# -- starting -------------------------------------------------------------------------------------------------------------------------


def begin(
    home: Home,
    store: Store,
    title: str,
    *,
    fetch: Fetch = no_fetch,
    check: CheckDevices = accept_devices,
    wait_s: float = WAIT_S,
    due: tuple[float, float] | None = None,
    campaign_id: str | None = None,
) -> tuple[str, VersionRow] | None:
    """Start a campaign that runs `title`; returns its id and the version that runs. `due`: for a scheduled run, its instant and the next
    one.

    The models and their examples are read again. If a file or a reference changed, the latest version becomes a new one, and a named
    version is refused. Returns None if another process has started this scheduled run. Raises `CampaignError`, `ResourceError`.
    Blocking.
    """
    version = find_version(store, title)
    campaign = read_spec(version.spec, version.title)
    # A campaign that came over HTTP may name only places on the internet, whoever runs it.
    if Path(version.folder) == uploads_folder(home):
        fetch = downloader(home, lambda name, done, total: None, reach=OTHERS_URL_REACH)
    models = describe_models(campaign, Path(version.folder), fetch)
    changed = _differences(version, models)
    if changed and parse_title(title)[1] is not None:
        what, sha256 = changed[0]
        raise CampaignError(
            f"{version.title}: {what}",
            hint=f"restore the file with the sha256 {sha256[:12]}…, or run the latest version: {version.experiment}",
        )
    check(campaign)
    if changed:
        version, _ = _save_version(store, version.experiment, campaign, models, version.folder)
    claim = RunClaim(version.experiment, version.version, *(due or (None, None)))
    started = store_campaign(
        home,
        store,
        campaign,
        models,
        folder=version.folder,
        wait_s=wait_s,
        campaign_id=campaign_id,
        claim=claim,
    )
    return None if started is None else (started, version)


def begin_due(
    home: Home, store: Store, *, now: float, fetch: Fetch = no_fetch, check: CheckDevices = accept_devices
) -> list[str]:
    """Start every run that is due, unless the previous run goes on; returns their campaigns. Blocking."""
    started = []
    for row in store.experiments.all():
        if row.every_s is None or row.due is None:
            continue
        if is_too_far(row, now):
            store.experiments.move_due(row.name, row.due, first_due(row.every_s, row.at_s, now))
            continue
        if not is_due(row, now):
            continue
        then = next_due(row.due, row.every_s, now)
        if store.experiments.is_running(row.name):
            store.experiments.move_due(row.name, row.due, then)
            continue
        try:
            run = begin(home, store, row.name, check=check, fetch=fetch, due=(row.due, then))
            started += [run[0]] if run is not None else []
        except SarkError as exc:
            if store.experiments.move_due(row.name, row.due, then):
                latest, finding = (
                    store.experiments.versions(row.name)[-1].version,
                    RegressionFinding.NOT_STARTED,
                )
                store.experiments.add_failed_run(
                    new_campaign_id(), row.name, latest, why=exc.what, finding=str(finding)
                )
    return started


def is_too_far(row: ExperimentRow, now: float) -> bool:
    """Whether the next run is further ahead than its schedule allows: the clock was ahead when the schedule was set."""
    if row.due is None or row.every_s is None:
        return False
    return row.due - now > max(row.every_s, DAY_S if row.at_s is not None else 0.0)


def is_due(row: ExperimentRow, now: float) -> bool:
    """Whether a scheduled run is due."""
    return row.due is not None and row.every_s is not None and row.due <= now
