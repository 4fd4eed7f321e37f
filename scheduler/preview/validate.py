"""What `validate` shows: whether a campaign can be read, what it would measure, and all its mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from rich.table import Column, Table

from protocol.errors import CampaignError
from protocol.formats.turns import LOOKS
from protocol.values.requirement import show_size
from protocol.values.task import Model
from results.row.form import JsonModel
from scheduler.campaign.fields import show_percent
from scheduler.campaign.model import Campaign, MeasureFields
from scheduler.models.describe import evaluation_notes, model_notes
from scheduler.models.files import CampaignFile, Models
from scheduler.models.inspect import ModelShapes, resolved_shapes
from scheduler.output.schemas import CampaignModel, shown_as
from scheduler.output.terminal import table
from scheduler.planning.tasks import PlannedCell, cells, derive, needs_devices
from swarm.base.text import safe_text
from swarm.base.units import show_duration
from swarm.base.yaml import parse_document

NOBODY: Final = "1" * 44
"""Stands for the scheduler that will sign the tasks, which are only counted here."""


class CampaignInputs(JsonModel):
    """The shapes of one model's inputs with one batch size."""

    model: str
    batch: int | None
    """Batch size. Null: the model's own."""
    shapes: dict[str, tuple[int, ...]]
    """Shape of each input, by name."""


class ValidCampaign(JsonModel):
    """A campaign that can be submitted: what `sark-node validate --json` prints."""

    campaign: dict[str, Any]
    """The campaign with all defaults filled in."""
    models: dict[str, CampaignModel]
    tasks: int | None
    """Number of tasks. Null if it depends on the devices that fit."""
    notes: tuple[str, ...]
    """Facts that are not known yet about models that the devices download themselves."""
    inputs: tuple[CampaignInputs, ...] = ()
    """Input shapes of the models whose files could be read."""


class CampaignMistake(JsonModel):
    """One mistake in a campaign's text."""

    line: int
    """Line of the mistake, from 1."""
    what: str
    hint: str


class ValidationReport(JsonModel):
    """The outcome of checking a campaign's text."""

    valid: bool
    mistakes: tuple[CampaignMistake, ...]
    """Mistakes, sorted by line. Empty if the campaign is valid."""
    given: dict[str, Any] | None
    """The values in the text, unchanged. Null if the text cannot be read."""
    found: ValidCampaign | None
    """The valid campaign. Null if it is not valid."""
    formats: tuple[str, ...] | None = None
    """Formats of the models that name no units of their own. Null if not all are known, or there are no such models. Units that run none of
    these formats measure nothing."""


def valid(campaign: Campaign, models: Models) -> ValidCampaign:
    """What `campaign` would measure. `models`: none if they were not read. Blocking."""
    tasks = None
    if not needs_devices(campaign):
        counted = models or {
            entry.key: CampaignFile(None, Model(name=entry.label, sha256="0" * 64, size=1))
            for entry in campaign.models
        }
        tasks = sum(1 for _ in derive(campaign, counted, campaign_id="c-check", scheduler=NOBODY))
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
    until = f"±{show_percent(measure.precision)}" if measure.precision else ""
    until = until if measure.sustain is None else show_duration(measure.sustain)
    over = "" if measure.over is None else f" over {show_duration(measure.over)}"
    rows: list[tuple[tuple[str, ...], PlannedCell]] = []
    for label, alike in itertools.groupby(cells(campaign), key=lambda cell: cell.model.key):
        model = models[label].model
        head = (safe_text(label), show_size(model.size), f"{model.sha256[:12]}…")
        heads = itertools.chain([head], itertools.repeat(("", "", "")))
        rows += zip(heads, alike, strict=False)
    compared, has_batch = (
        any(getattr(cell, name) is not None for _, cell in rows) for name in ("beside", "batch")
    )
    return table(
        rows,
        *(
            (Column(column), lambda row, at=at: row[0][at])
            for at, column in enumerate(("model", "size", "sha256"))
        ),
        (Column("against"), lambda row: safe_text(row[1].against or "")) if compared else None,
        (Column("unit"), lambda row: safe_text(row[1].unit)),
        (Column("threads"), lambda row: str(row[1].threads or "physical")),
        (Column("batch"), lambda row: str(row[1].batch or "")) if has_batch else None,
        (Column("shape"), lambda row: safe_text(shapes.get((row[1].model.key, row[1].batch), ""), 60))
        if shapes
        else None,
        (Column("runs"), lambda row: "in turns" if row[1].beside else (until or str(row[1].runs)) + over),
        (Column("loads"), lambda row: _loads(measure, in_turns=row[1].beside is not None)),
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
    read: Callable[[bytes, str], Campaign],
    describe: Callable[[Campaign], Models] | None,
) -> ValidationReport:
    """Everything that can be said of a campaign's text. `read` makes a campaign of it, `describe` reads its models (None: they are not
    read); both raise `CampaignError`. Blocking.
    """
    given: dict[str, Any] | None = None
    try:
        value = parse_document(data, file).value
        given = value if isinstance(value, dict) else None
        campaign = read(data, file)
        models = describe(campaign) if describe is not None else {}
        found = valid(campaign, models)
        return ValidationReport(valid=True, mistakes=(), given=given, found=found, formats=_formats(given))
    except CampaignError as exc:
        first = (exc.line or 1, exc.detail, exc.first_hint)
        lines = tuple(
            CampaignMistake(line=line, what=what, hint=hint) for line, what, hint in (first, *exc.others)
        )
        return ValidationReport(valid=False, mistakes=lines, given=given, found=None, formats=_formats(given))


def _formats(given: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The formats; also for a campaign that has other mistakes."""
    try:
        models = Campaign.model_validate({"campaign": "c", "models": (given or {}).get("models")}).models
    except ValidationError:
        return None
    files = [file for entry in models if entry.units is None for file in entry.each()]
    known = tuple(dict.fromkeys(file.known_format for file in files if file.known_format is not None))
    return known if files and all(file.known_format for file in files) else None
