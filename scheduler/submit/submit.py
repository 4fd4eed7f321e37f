"""Submitting a campaign (read, describe, copy, plan, store: the stored campaign survives kill -9), retrying it as a new one, and cancelling
it: the request goes to disk, and the scheduler process carries it out.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from protocol.errors import CampaignError, Unreachable
from protocol.formats.reference_model import NAME, reference_model, reference_sha256
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.task import Model, Task, TaskReader
from scheduler.campaign.against import Bases
from scheduler.campaign.load import load_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.reach import FindUnits
from scheduler.campaign.text import read_spec
from scheduler.models.describe import Fetch, describe_models, find_model, no_fetch
from scheduler.models.evaluate import Evaluations
from scheduler.models.files import CampaignFile, Models
from scheduler.models.spool import spool, spool_reference
from scheduler.planning.tasks import derive, least_tasks, needs_devices
from scheduler.store.progress import ADOPTED
from scheduler.store.rows import (
    FINAL_TASK_STATES,
    CampaignRow,
    CampaignStatus,
    NewCampaign,
    NewModel,
    RunClaim,
    TaskRow,
)
from scheduler.store.store import Store, open_store
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.net.identity import load_or_create

MOST_AT_ONCE: Final = 10_000
"""Most tasks that are stored with their campaign. Beyond that, the scheduler stores them in portions, so that nobody waits for the
store.
"""
_ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"
_RETRIED: Final = (TaskState.FAILED, TaskState.CANCELLED)


def new_campaign_id(choose: Callable[[str], str] = secrets.choice) -> str:
    """A short random id (31^8), without l, o, i, 0 and 1."""
    return "c-" + "".join(choose(_ALPHABET) for _ in range(8))


def submit_campaign(
    home: Home,
    file: Path,
    *,
    wait_s: float,
    campaign_id: str | None = None,
    fetch: Fetch = no_fetch,
    find_units: FindUnits | None = None,
) -> str:
    """Store the campaign in `file`; returns its id. When this returns, everything that it needs is on disk. `fetch` downloads models by
    URL; `find_units` as in `load_campaign`.

    Raises `CampaignError` for a bad file or model, `ResourceError` for a full disk; then nothing was stored.
    """
    campaign = load_campaign(file, find_units=find_units)
    folder = file.absolute().parent
    models = describe_models(campaign, folder, fetch)
    with open_store(home) as store:
        stored = store_campaign(
            home, store, campaign, models, folder=str(folder), wait_s=wait_s, campaign_id=campaign_id
        )
    assert stored is not None, "only a claimed run may have been started by another process"
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
    devices: Sequence[Advert] | None = None,
) -> str | None:
    """Plan and store a campaign with its described models; returns its id. `claim`: the experiment run to which it belongs; the result is
    None if another process has started that run. `devices`: those to plan on; None: the scheduler finds them if they matter, and plans
    campaigns with very many tasks itself. Raises `CampaignError`, `ResourceError`; then nothing was stored.
    """
    if campaign.results is not None:
        from scheduler.output.sending import check_storage  # imports report drawing, which takes long

        check_storage(campaign.results)
    scheduler = load_or_create(home.key("scheduler")).peer_id
    campaign_id = campaign_id or new_campaign_id()
    tasks = None
    if devices is not None or not needs_devices(campaign):
        planned = derive(
            campaign, models, campaign_id=campaign_id, scheduler=scheduler, devices=devices or ()
        )
        if devices is None and least_tasks(campaign) > MOST_AT_ONCE:
            deque(planned, maxlen=0)  # raises planning errors before the campaign is stored
        else:
            tasks = [task for _, task in planned]
    for file in models.values():
        if file.source is not None:
            spool(file.source, file.model, home.spool)
    new = NewCampaign(
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
    rows = [_new_model(name, file) for name, file in models.items()]
    if Bases(campaign).reference:
        spool_reference(home.spool)
        rows.append(NewModel(NAME, reference_sha256(), len(reference_model()), facts=NAME))
    return campaign_id if store.campaigns.create(new, rows, tasks, claim=claim) else None


def _new_model(name: str, file: CampaignFile) -> NewModel:
    account = "" if file.account is None else file.account.model_dump_json()
    return NewModel(name, file.model.sha256, file.model.size, facts=file.model.name, evaluation=account)


# -- retries ----------------------------------------------------------------------------------------------------------------------


def retry_campaign(
    home: Home,
    store: Store,
    campaign: str,
    folder: Path,
    *,
    campaign_id: str | None = None,
    fetch: Fetch = no_fetch,
    adopted: bool = False,
) -> tuple[str, int]:
    """Store a new campaign with the failed and cancelled tasks of `campaign`; returns its id and the number of tasks. `adopted`: also for a
    campaign that another machine carried on.

    A model that is no longer in the spool is read again from its path in `folder`, or from its URL by `fetch`. Raises `CampaignError` when
    the campaign has not ended, has no such task, or a model is missing or changed; then nothing was stored.
    """
    row = store.campaigns.get(campaign)
    if row is None or row.ended is None:
        raise CampaignError(
            f"{campaign} has not ended yet", hint=f"sark-node watch {campaign}, or cancel it first"
        )
    if row.outcome is CampaignStatus.ADOPTED and not adopted:
        raise CampaignError(
            f"{campaign} is {row.detail or ADOPTED}: its tasks did not fail",
            hint="if tasks fail there, retry the campaign on the machine that runs it\n"
            f"if no machine runs it any more, run the remaining tasks here: sark-node retry {campaign} --adopted",
        )
    new_id = campaign_id or new_campaign_id()
    scheduler = load_or_create(home.key("scheduler")).peer_id
    reader = TaskReader()
    old = {task: reader.form(task, body)[0] for task, body in store.tasks.bodies(campaign).items()}
    tasks = _retried_tasks(store.tasks.all(campaign), old, new_id, scheduler)
    if not tasks:
        raise CampaignError(
            f"no task of {campaign} failed or was cancelled", hint=f"sark-node results {campaign}"
        )
    needed = {model.sha256: model for task in tasks for model in task.files()}
    models = [model for model in store.campaigns.models(campaign) if model.sha256 in needed]
    _respool(home, row, needed, models, folder, fetch)
    values: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(NewCampaign)}
    values.update(id=new_id, scheduler=scheduler, folder="")
    new = NewCampaign(**values)
    store.campaigns.create(new, models, tasks)
    return new_id, len(tasks)


def _retried_tasks(
    rows: Sequence[TaskRow], old: Mapping[str, Task], campaign: str, scheduler: str
) -> list[Task]:
    """The failed and cancelled tasks with new ids. A replica remains one only if its whole group is retried and has one sitting each;
    otherwise it has nothing to compare with. The retried sittings of a cell become its sittings, again all on one device.
    """
    measured = {
        row.n - replica
        for row in rows
        if (replica := old[row.id].replica) is not None and row.state not in _RETRIED
    }  # groups of replicas, each by the number before its first task
    cells: dict[str, list[TaskRow]] = {}
    for row in rows:
        if row.state in _RETRIED:
            sitting = old[row.id].sitting
            cells.setdefault(row.id if sitting is None else sitting.task(row.id, 1), []).append(row)
    tasks: list[Task] = []
    for alike in cells.values():
        for number, row in enumerate(alike, 1):
            task, name = old[row.id], f"{campaign}/{len(tasks) + 1}"
            alone = task.replica is None or row.n - task.replica in measured or task.sitting is not None
            changes: dict[str, Any] = {
                "campaign": campaign,
                "task": name,
                "scheduler": scheduler,
                "replica": None if alone else task.replica,
            }
            if task.sitting is not None:
                place = {"number": number, "of": len(alike), "step": 1}
                changes["sitting"] = task.sitting.model_copy(update=place) if len(alike) > 1 else None
            tasks.append(task.model_copy(update=changes))
    return tasks


def _respool(
    home: Home,
    row: CampaignRow,
    needed: Mapping[str, Model],
    models: Sequence[NewModel],
    folder: Path,
    fetch: Fetch,
) -> None:
    """Copy models that are no longer in the spool back into it."""
    campaign = read_spec(row.spec, row.id, hint="submit its file again")
    entries = {entry.key: entry for entry in campaign.models}
    evaluations = Evaluations(folder)
    examples = {entry.examples_key: entry for entry in campaign.models if entry.evaluate is not None}
    for model in models:
        entry = entries.get(model.name)
        if entry is not None and entry.by_devices:
            continue
        if model.sha256 == reference_sha256():
            spool_reference(home.spool)
            continue
        spooled = home.spool / model.sha256
        source: Path | bytes = spooled
        if not spooled.is_file() and model.name in examples:
            evaluation = evaluations.of(examples[model.name])
            assert evaluation is not None
            source = evaluation.content
        elif not spooled.is_file() and entry is not None:
            source = find_model(entry, folder, fetch)
            if not source.exists():
                raise CampaignError(
                    f"model {safe_text(model.name, 60)!r}: no such file: {safe_text(str(source))}",
                    hint="run this in the folder of the campaign file, or name it: --folder FOLDER",
                )
        try:
            spool(source, needed[model.sha256], home.spool)
        except CampaignError:
            if isinstance(source, bytes):
                what = "its data"
            else:
                by_url = entry is not None and entry.path is None
                what = f"the file at {'its URL' if by_url else safe_text(str(source))}"
            raise CampaignError(
                f"model {safe_text(model.name, 60)!r}: {what} has changed",
                hint="submit the campaign again",
            ) from None


# -- cancels ----------------------------------------------------------------------------------------------------------------------

WAIT_S: Final = 20.0
POLL_S: Final = 0.05
KEEP_ALIVE_EVERY: Final = 20


class CancelRequest:
    """The request to cancel `target`, a campaign or a task. It is on disk once this object exists. Raises like `request_cancel`."""

    def __init__(self, store: Store, target: str) -> None:
        self._store, self._target = store, target
        self._cancelled = store.tasks.counts(target).get(TaskState.CANCELLED, 0)
        self._asked = request_cancel(store, target)

    def wait(
        self,
        *,
        keep_alive: Callable[[], None],
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> str:
        """Wait until its tasks have ended; returns the outcome as one line. `keep_alive` starts a scheduler process when none runs.

        Raises `Unreachable` when the scheduler does not report their end in time, or a device did not confirm that it stopped its run. The
        scheduler then asks the device again, as does the next scheduler process.
        """
        target = self._target
        if not self._asked:
            return f"{target} had ended already."
        deadline = clock() + WAIT_S
        for polls in itertools.count():
            if _has_ended(self._store, target):
                break
            if polls % KEEP_ALIVE_EVERY == 0:
                keep_alive()
            if clock() > deadline:
                raise Unreachable(
                    f"{target}: the cancellation is on disk, but was not confirmed within {WAIT_S:g} s{self._awaited()}",
                    hint="a device that cannot be reached is asked as soon as it is back",
                )
            pause(POLL_S)
        counts = self._store.tasks.counts(target)
        ended = counts.get(TaskState.CANCELLED, 0) - self._cancelled
        open_stops = self._store.attempts.unconfirmed(target)
        if open_stops:
            first = open_stops[0]
            devices = ", ".join(
                dict.fromkeys(safe_text(stop.device or stop.worker[-8:]) for stop in open_stops)
            )
            raise Unreachable(
                f"{target} is cancelled: {ended - len(open_stops)} stopped, {len(open_stops)} asked to stop but not confirmed by "
                f"{devices}: {first.task} {safe_text(first.detail)}",
                hint="it is asked again as soon as it is back: sark-node events " + target.partition("/")[0],
            )
        return f"{target} is cancelled: {ended} stopped, {sum(counts.values()) - ended} had ended before."

    def _awaited(self) -> str:
        """Whose confirmation is missing."""
        devices = self._store.tasks.devices_of_open(self._target)
        return f" by {', '.join(safe_text(device) for device in devices[:5])}" if devices else ""


def cancel_and_wait(store: Store, target: str, *, keep_alive: Callable[[], None]) -> str:
    """Cancel one target; see `CancelRequest`."""
    return CancelRequest(store, target).wait(keep_alive=keep_alive)


def request_cancel(store: Store, target: str) -> int:
    """Store the request to cancel `target`, a campaign or a task; returns the number of open tasks, at least 1, or 0 if it had ended.
    Raises `CampaignError` when there is no such task, or another machine runs the campaign.
    """
    if "/" in target and store.tasks.get(target) is None:
        raise CampaignError(f"no task {target!r}", hint="list a campaign's tasks: sark-node results CAMPAIGN")
    if _has_ended(store, target):
        row = store.campaigns.get(target.partition("/")[0])
        if row is not None and row.outcome is CampaignStatus.ADOPTED:
            raise CampaignError(f"{target} is {ADOPTED}", hint="cancel it on the machine that runs it")
        return 0
    return store.campaigns.request_cancel(target)


def _has_ended(store: Store, target: str) -> bool:
    campaign = store.campaigns.get(target.partition("/")[0])
    if campaign is not None and campaign.ended is not None:
        return True
    task = store.tasks.get(target) if "/" in target else None
    return task is not None and task.state in FINAL_TASK_STATES
