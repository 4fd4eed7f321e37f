"""What the commands print with `--json` and the HTTP API answers: one shape for both.

Instants are UTC, as ISO 8601; durations are in the unit of their name; sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskState
from protocol.words import SIMULATED_UNIT, Reason, asks_for_simulated_unit
from results.row.form import Configuration, JsonModel, utc
from results.scoring.account import EvaluationAccount
from scheduler.campaign.model import EXAMPLES
from scheduler.store.progress import fraction, progress_text
from scheduler.store.rows import (
    CampaignStatus,
    CampaignSummary,
    EventRow,
    NewModel,
    TaskRow,
    VersionModel,
)

Shown = TypeVar("Shown", bound=BaseModel)


def shown_as(model: type[Shown], row: object, **more: Any) -> Shown:
    """A `model` filled from `more`, and from attributes of `row` for its other fields."""
    same = {name: getattr(row, name) for name in model.model_fields if hasattr(row, name)}
    return model(**same | more)


def _in_utc(timespec: str) -> BeforeValidator:
    """Converts wall seconds since 1970."""
    return BeforeValidator(lambda value: utc(value, timespec) if isinstance(value, float | int) else value)


Instant = Annotated[str, _in_utc("seconds")]
InstantMs = Annotated[str, _in_utc("milliseconds")]
"""To the millisecond."""


# -- campaigns -----------------------------------------------------------------------------------------------------------------


class CampaignInfo(JsonModel):
    """A campaign in one line."""

    campaign_id: str
    name: str
    status: CampaignStatus
    carried_on: bool
    """It has not ended, and a scheduler process runs on this home."""
    created: Instant
    ended: Instant | None
    total_tasks: int
    tasks: dict[TaskState, int]
    """How many stand where."""
    detail: str
    """Why it ended before its tasks did, if it did."""
    experiment: str | None = None
    """Of which version of an experiment it is a run, such as nightly@3; null: of none."""
    simulated: bool = False
    """Some of it, or all, is a simulation: figures from a script, or devices that are not there."""
    finding: str | None = None
    """What that run was, compared with the last good results: fine, regression, incomplete or confirming; null: not known yet."""


class CampaignModel(JsonModel):
    """A model of a campaign, by content."""

    name: str
    sha256: str
    size: int


class CampaignExamples(JsonModel):
    """What one of its models is evaluated by."""

    model: str
    """Its name among the models of the campaign."""
    title: str
    """Such as: classification of digits.npz."""
    count: int
    metrics: tuple[str, ...]
    sha256: str
    """Of the inputs, as devices get them."""
    size: int
    """Of the inputs, in bytes."""


class CampaignDetail(CampaignInfo):
    """All that is known of a campaign but its tasks."""

    planned: bool
    """Its tasks are fixed; a campaign over devices waits for the scheduler to see them."""
    scheduler: str
    """Peer id of who signs its tasks."""
    epoch: int
    """How often a scheduler took it up."""
    priority: int
    attempts: int
    """How often a task is tried."""
    wait_s: float
    """How long a device that fits is looked for before a task fails."""
    limit_s: float | None
    """Of the whole campaign; null: none."""
    last_event: int
    """Number of its newest event: what to go on after in a stream."""
    models: tuple[CampaignModel, ...]
    examples: tuple[CampaignExamples, ...]
    """Of the models that are evaluated."""
    spec: dict[str, Any]
    """The campaign as it was given."""


def campaign_info(item: CampaignSummary, *, scheduling: bool = True) -> CampaignInfo:
    """`item` for programs. `scheduling`: whether a scheduler process runs on this home."""
    return shown_as(CampaignInfo, item.campaign, **_summary(item, scheduling=scheduling))


def campaign_detail(
    item: CampaignSummary,
    models: tuple[NewModel, ...],
    spec: Mapping[str, Any],
    last_event: int,
    *,
    scheduling: bool,
) -> CampaignDetail:
    """Like `campaign_info`, with all details."""
    return shown_as(
        CampaignDetail,
        item.campaign,
        **_summary(item, scheduling=scheduling),
        last_event=last_event,
        models=shown_models(models),
        examples=tuple(_examples(model) for model in models if model.evaluation),
        spec=dict(spec),
    )


def shown_models(files: Sequence[NewModel | VersionModel]) -> tuple[CampaignModel, ...]:
    """The models among the files of a campaign, without examples."""
    examples = {model.name + EXAMPLES for model in files}
    return tuple(shown_as(CampaignModel, model) for model in files if model.name not in examples)


def _examples(model: NewModel) -> CampaignExamples:
    account = EvaluationAccount.model_validate_json(model.evaluation)
    return CampaignExamples(
        model=model.name.removesuffix(EXAMPLES),
        title=account.title,
        count=len(account.references),
        metrics=account.metrics,
        sha256=model.sha256,
        size=model.size,
    )


def _summary(item: CampaignSummary, *, scheduling: bool) -> dict[str, Any]:
    campaign = item.campaign
    return {
        "campaign_id": campaign.id,
        "status": campaign.status,
        "carried_on": scheduling and campaign.ended is None,
        "total_tasks": item.tasks,
        "tasks": {state: item.counts.get(state, 0) for state in TaskState},
        "experiment": item.experiment or None,
        "finding": item.finding or None,
        "simulated": asks_for_simulated_unit(campaign.spec),
    }


# -- tasks ---------------------------------------------------------------------------------------------------------------------


class TaskInfo(JsonModel):
    """A task with where it stands now."""

    task: str
    """Its id: the campaign's and its number."""
    n: int
    model: str
    sha256: str
    """Of the model."""
    unit: str
    """The compute unit asked for."""
    threads: int | None = None
    """Of one inference; null: as many as physical cores."""
    batch: int | None = None
    """Size of the batch; null: as the model has it."""
    simulated: bool = False
    """A simulation: its figures come from a script, or its device is not there."""
    state: TaskState
    progress: str
    """How it stands, in a phrase: what `watch` shows."""
    phase: Phase | None
    """Of its run."""
    done: int
    """Steps of the phase, as far as they are counted."""
    total: int | None
    fraction: float | None
    """Of the phase, 0 to 1; null: unknown."""
    median_ms: float | None
    """Of the inferences so far."""
    device: str
    """The name of the device that has it or had it last."""
    worker: str | None
    """That device's peer id."""
    trust: str
    """Why that device is believed: own, pool NAME, listed or stranger; empty: no device had it yet."""
    attempt: int
    """Number of its newest attempt; 0: none yet."""
    tries: int
    """Attempts that failed or were lost."""
    reason: Reason | None
    """Why it failed, or waits again, in one word."""
    detail: str
    """Why, in a sentence."""
    note: str
    position: int | None
    """In its worker's queue, from 1."""
    start_s: float | None
    """Expected wait there."""
    preempted: int
    """How often it gave way to a higher priority."""
    replica: int | None
    begun: InstantMs | None
    ended: InstantMs | None


def task_info(row: TaskRow, configuration: Configuration = Configuration()) -> TaskInfo:
    """`row` for programs."""
    return shown_as(
        TaskInfo,
        row,
        task=row.id,
        threads=configuration.threads,
        batch=configuration.batch,
        simulated=row.unit == SIMULATED_UNIT,
        progress=progress_text(row),
        fraction=fraction(row),
    )


# -- events ----------------------------------------------------------------------------------------------------------------------


class EventInfo(JsonModel):
    """Something that happened: what the hash is made over, and the hash."""

    campaign: str
    seq: int
    """Counts from 1, without gaps, in each campaign."""
    at: float
    """Seconds since 1970, as it was written."""
    time: InstantMs
    """The same in UTC."""
    name: str
    task: str | None
    fields: dict[str, Any]
    hash: str
    """Over this event and the hash of the one before."""


def event_info(event: EventRow) -> EventInfo:
    """`event` for programs."""
    return shown_as(EventInfo, event, time=event.at)
