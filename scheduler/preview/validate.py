"""What `validate` shows: whether a campaign can be read, what it would measure, and everything that is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.table import Column, Table

from protocol.errors import CampaignError
from protocol.values.requirement import show_size
from protocol.values.task import Model
from results.row.form import JsonModel
from results.row.rounds import LOOKS
from scheduler.campaign.against import base_of
from scheduler.campaign.fields import Threads, show_percent
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign, JobFields, MeasureFields
from scheduler.models.describe import evaluation_notes, model_notes
from scheduler.models.files import CampaignFile, Models
from scheduler.models.inspect import ModelShapes, resolved_shapes
from scheduler.output.schemas import CampaignModel, shown_as
from scheduler.output.terminal import table
from scheduler.planning.tasks import derive_cells, needs_devices, tasks_of
from swarm.base.text import safe_text
from swarm.base.units import show_duration
from swarm.base.yaml import parse_document

NOBODY: Final = "1" * 44
"""In the place of who will sign the tasks: here they are only counted."""


class CampaignInputs(JsonModel):
    """The shapes of one model's inputs, with one batch."""

    model: str
    batch: int | None
    """Null: as the model has it."""
    shapes: dict[str, tuple[int, ...]]
    """By input."""


class ValidCampaign(JsonModel):
    """A campaign that can be submitted: what `sark-node validate --json` prints."""

    campaign: dict[str, Any]
    """With everything that was left out."""
    models: dict[str, CampaignModel]
    tasks: int | None
    """Null: they follow from the devices that fit."""
    notes: tuple[str, ...]
    """What cannot be known here of models that devices fetch themselves."""
    inputs: tuple[CampaignInputs, ...] = ()
    """Of the models whose files tell."""


class CampaignMistake(JsonModel):
    """One thing that is wrong."""

    line: int
    """From 1."""
    what: str
    hint: str


class ValidationReport(JsonModel):
    """What came of looking at a campaign's text."""

    valid: bool
    mistakes: tuple[CampaignMistake, ...]
    """By line; none: it is valid."""
    given: dict[str, Any] | None
    """The values that stand in the text, as they stand there; null: it cannot be read at all."""
    found: ValidCampaign | None
    """Null: it is not valid."""


def valid(campaign: Campaign, models: Models) -> ValidCampaign:
    """What `campaign` would measure. `models`: none where they were not looked at. Blocking."""
    tasks = None
    if not needs_devices(campaign):
        counted = models or {
            entry.key: CampaignFile(None, Model(name=entry.label, sha256="0" * 64, size=1))
            for entry in campaign.models
        }
        tasks = len(tasks_of(derive_cells(campaign, counted, campaign_id="c-check", scheduler=NOBODY)))
    return ValidCampaign(
        campaign=campaign.model_dump(mode="json"),
        models={name: shown_as(CampaignModel, file.model) for name, file in models.items()},
        tasks=tasks,
        notes=(*model_notes(campaign), *evaluation_notes(campaign, models)),
        inputs=tuple(
            CampaignInputs(model=one.model, batch=one.batch, shapes=dict(one.shapes))
            for one in resolved_shapes(campaign, models)
        ),
    )


def valid_table(campaign: Campaign, models: Models, inputs: Sequence[CampaignInputs]) -> Table:
    """A line for each model, unit, number of threads and batch."""
    shapes = {(one.model, one.batch): ModelShapes(one.model, one.batch, one.shapes).text for one in inputs}
    measure = campaign.measure
    batches = {entry.key: campaign.batches(entry) for entry in campaign.models}
    entries = {entry.key: entry for entry in campaign.models}
    bases = {entry.key: base_of(entry, measure.against, campaign.models) for entry in campaign.models}
    compared = any(base is not None for base in bases.values())
    has_batch = any(batch is not None for sizes in batches.values() for batch in sizes)
    until = f"±{show_percent(measure.precision)}" if measure.precision else ""
    until = until if measure.sustain is None else show_duration(measure.sustain)
    rows: list[tuple[tuple[str, ...], tuple[JobFields, Threads, int | None], str]] = []
    for label, entry in entries.items():
        model, base = models[label].model, bases[label]
        if base is not None and base.key == label:
            continue
        against = "" if base is None else safe_text(base.label)
        head = (safe_text(label), show_size(model.size), f"{model.sha256[:12]}…", against)
        heads = itertools.chain([head], itertools.repeat(("", "", "", "")))
        lines = itertools.product(campaign.lines_of(entry), measure.threads, batches[label])
        rows += (
            (head, line, shapes.get((label, line[2]), "")) for head, line in zip(heads, lines, strict=False)
        )
    return table(
        rows,
        *(
            (Column(column), lambda row, at=at: row[0][at])
            for at, column in enumerate(("model", "size", "sha256"))
        ),
        (Column("against"), lambda row: row[0][3]) if compared else None,
        (Column("unit"), lambda row: safe_text(row[1][0].unit)),
        (Column("threads"), lambda row: str(row[1][1])),
        (Column("batch"), lambda row: str(row[1][2] or "")) if has_batch else None,
        (Column("shape"), lambda row: safe_text(row[2], 60)) if shapes else None,
        (
            Column("runs"),
            lambda row: "in turns" if row[0][3] else until or str(row[1][0].runs or measure.runs),
        ),
        (Column("loads"), lambda row: _loads(measure, in_turns=bool(row[0][3]))),
    )


def _loads(measure: MeasureFields, *, in_turns: bool) -> str:
    if in_turns:
        return f"{LOOKS[0]} to {LOOKS[-1]}"
    if measure.sustain is not None:
        return "1"
    return "6 to 20" if measure.precision else str(measure.loads)


def check(
    data: bytes,
    file: str,
    place: Callable[[Campaign], Campaign],
    describe: Callable[[Campaign], Models] | None,
) -> ValidationReport:
    """All that can be said of a campaign's text. `place` finds where its models lie, `describe` looks at them (None: nobody does); both
    raise `CampaignError`. Blocking.
    """
    given: dict[str, Any] | None = None
    try:
        value = parse_document(data, file).value
        given = value if isinstance(value, dict) else None
        campaign = place(parse_campaign(data, file))
        models = describe(campaign) if describe is not None else {}
        return ValidationReport(valid=True, mistakes=(), given=given, found=valid(campaign, models))
    except CampaignError as exc:
        first = (exc.line or 1, exc.detail, exc.first_hint)
        lines = tuple(
            CampaignMistake(line=line, what=what, hint=hint) for line, what, hint in (first, *exc.others)
        )
        return ValidationReport(valid=False, mistakes=lines, given=given, found=None)
