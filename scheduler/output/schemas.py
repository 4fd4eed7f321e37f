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
    """Whether the campaign continues: it has not ended, and a scheduler process runs on this home."""
    created: Instant
    ended: Instant | None
    total_tasks: int
    tasks: dict[TaskState, int]
    """Number of tasks in each state."""
    detail: str
    """Why the campaign ended before its tasks did. Empty if it did not."""
    experiment: str | None = None
    """Version of the experiment that this campaign is a run of, such as nightly@3. Null if it is not a run of an experiment."""
    simulated: bool = False
    """Whether any of its results are simulated: figures from a script, or devices that do not exist."""
    finding: str | None = None
    """Outcome of comparing this run with the last good results: fine, regression, incomplete or confirming. Null if it is not known yet."""


class CampaignModel(JsonModel):
    """A model of a campaign, by content."""

    name: str
    sha256: str
    size: int


class CampaignExamples(JsonModel):
    """The examples that evaluate one of a campaign's models."""

    model: str
    """Name of the model in the campaign."""
    title: str
    """Description of the examples, such as: classification of digits.npz."""
    count: int
    metrics: tuple[str, ...]
    sha256: str
    """SHA-256 of the inputs in the form that devices get."""
    size: int
    """Size of the inputs, in bytes."""


class CampaignDetail(CampaignInfo):
    """A campaign with everything except its tasks."""

    planned: bool
    """Whether the tasks are fixed. If not, they follow from the devices that the scheduler will find."""
    scheduler: str
    """Peer id of the scheduler that signs the tasks."""
    epoch: int
    """Number of times that a scheduler has taken up the campaign."""
    priority: int
    attempts: int
    """Maximum number of attempts for each task."""
    wait_s: float
    """Seconds to wait for a matching device before a task fails."""
    limit_s: float | None
    """Time limit of the whole campaign, in seconds. Null if there is none."""
    last_event: int
    """Number of its newest event, after which a stream can continue."""
    models: tuple[CampaignModel, ...]
    examples: tuple[CampaignExamples, ...]
    """Examples of the models that are evaluated."""
    spec: dict[str, Any]
    """The campaign as submitted."""


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
    """A task with its current state."""

    task: str
    """Id of the task: campaign id and number."""
    n: int
    model: str
    sha256: str
    """SHA-256 of the model."""
    unit: str
    """Compute unit that the campaign requested."""
    threads: int | None = None
    """Number of threads for one inference. Null: one for each physical core."""
    batch: int | None = None
    """Batch size. Null: the model's own."""
    simulated: bool = False
    """Whether the task is simulated: its figures come from a script, or its device does not exist."""
    state: TaskState
    progress: str
    """State of the task in a phrase, as `watch` shows it."""
    phase: Phase | None
    """Phase of the task's run."""
    done: int
    """Number of completed steps of the phase, if they are counted."""
    total: int | None
    fraction: float | None
    """Completed share of the phase, from 0 to 1. Null if unknown."""
    median_ms: float | None
    """Median time of the inferences so far, in milliseconds."""
    device: str
    """Name of the device that has the task or had it last."""
    worker: str | None
    """Peer id of that device."""
    trust: str
    """Why that device is trusted: own, pool NAME, listed or stranger. Empty if no device has had the task yet."""
    attempt: int
    """Number of the newest attempt. 0: none yet."""
    tries: int
    """Number of attempts that failed or were lost."""
    reason: Reason | None
    """Why the task failed or waits again, in one word."""
    detail: str
    """Why the task failed or waits again, in a sentence."""
    note: str
    position: int | None
    """Position in its worker's queue, from 1."""
    start_s: float | None
    """Expected wait in that queue, in seconds."""
    preempted: int
    """Number of times that the task was preempted by a higher priority."""
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
    """An event: the fields that its hash covers, and the hash."""

    campaign: str
    seq: int
    """Number of the event in its campaign, from 1, without gaps."""
    at: float
    """Time at which the event was written, in seconds since 1970."""
    time: InstantMs
    """The same time in UTC."""
    name: str
    task: str | None
    fields: dict[str, Any]
    hash: str
    """Hash of this event and the previous event's hash."""


def event_info(event: EventRow) -> EventInfo:
    """`event` for programs."""
    return shown_as(EventInfo, event, time=event.at)
