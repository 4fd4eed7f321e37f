"""Which model each model of a campaign takes turns with and is compared with. Pure.

    against: yolo fp32     every other model with this one
    against: fp32          each variant with the variant fp32 of its own model
    against: first         each variant with the first of its own model
    against: reference     each model with the reference model that comes with this program, to compare devices and days through it

The model that others are compared with has no task of its own. One that has nothing to be compared with is measured alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.formats.frameworks import runs
from protocol.formats.reference_model import NAME
from protocol.words import UNIT as SIMULATED_UNIT
from scheduler.campaign.errors import FileProblem
from scheduler.campaign.model import Campaign, ModelEntry
from swarm.base.text import did_you_mean, safe_text
from swarm.base.yaml import Where

FIRST: Final = "first"
WHERE: Final[Where] = ("measure", "against")
_SERVED: Final = "API "
REFERENCE: Final = ModelEntry(name=NAME, path=NAME)
"""Stands for the reference model, which is in no file."""


def base_of(entry: ModelEntry, against: str | None, models: Sequence[ModelEntry]) -> ModelEntry | None:
    """The one of `models`, a variant each, that `entry` is compared with; itself: others are compared with it. None: nothing is."""
    if against is None:
        return None
    named = next((other for other in models if other.label == against), None)
    if named is not None:
        return named
    if against == NAME:
        return REFERENCE
    forms = [other for other in models if other.variant and other.name == entry.name and entry.variant]
    if against == FIRST:
        return forms[0] if len(forms) > 1 else None
    return next((other for other in forms if other.variant == against), None)


def uses_reference(campaign: Campaign) -> bool:
    """Whether a read campaign's models are measured beside the reference model."""
    return base_of(campaign.models[0], campaign.measure.against, campaign.models) is REFERENCE


def against_problems(campaign: Campaign) -> Iterator[FileProblem]:
    """What is wrong with `measure.against` in a file, whose models have their variants yet."""
    against, measure = campaign.measure.against, campaign.measure
    if against is None:
        return
    models = [form for entry in campaign.models for form in entry.each()]
    bases = [(entry, base_of(entry, against, models)) for entry in models]
    pairs = [(entry, base) for entry, base in bases if base is not None and base is not entry]
    if not pairs:
        yield FileProblem(WHERE, *_no_pair(against, models))
    names = [
        f"measure.{name}"
        for name in ("runs", "loads", "precision", "sustain")
        if name in measure.model_fields_set
    ]
    if names:
        text = " and ".join(names)
        what = f"measure.against measures until the comparison is decided: it does not go with {text}"
        yield FileProblem(WHERE, what, f"remove {text}, or against")
    unit = next(
        (line.unit for line in campaign.lines() if line.unit.startswith((_SERVED, SIMULATED_UNIT))), None
    )
    if unit is not None:
        what = f"measure.against is not for {unit}: no two models take turns there"
        yield FileProblem(WHERE, what, "give that unit a campaign of its own")
    if campaign.devices.trust == "anyone":
        what = "measure.against is not for strangers' devices: what takes turns with another model cannot be witnessed"
        yield FileProblem(WHERE, what, "remove devices.trust: anyone, or against")
    for entry, base in pairs:
        if base is REFERENCE:
            other = next(
                (line.unit for line in campaign.lines_of(entry) if not runs(line.unit, "onnx")), None
            )
            if other is not None:
                what = f"measure.against: the reference model is an ONNX model, which {other} cannot run"
                yield FileProblem(WHERE, what, "give that unit a campaign of its own")
                return
            continue
        alien = [line.unit for line in campaign.lines_of(entry) if line not in campaign.lines_of(base)]
        if alien:
            what = f"{entry.title} runs on {alien[0]}, {safe_text(base.label, 60)!r} does not"
            yield FileProblem(WHERE, what, "compare models of one format, or remove that unit")
            return
        if _sizes(campaign, entry) != _sizes(campaign, base):
            what = f"{entry.title} is to be compared with {safe_text(base.label, 60)!r}, and is given other sizes of inputs"
            yield FileProblem(WHERE, what, "give both the same dims, inputs, batch and batch_dim")
            return


def _sizes(campaign: Campaign, entry: ModelEntry) -> tuple[object, ...]:
    return entry.dims, entry.inputs, campaign.batches(entry), entry.batch_dim


def _no_pair(against: str, models: Sequence[ModelEntry]) -> tuple[str, str]:
    variants = list(dict.fromkeys(entry.variant for entry in models if entry.variant))
    labels = [entry.label for entry in models]
    names = [*([FIRST, *variants] if variants else []), *labels, NAME]
    if len(models) == 1:
        return (
            "measure.against needs two models, the campaign has one",
            "add a model or variants, write against: reference, or remove against",
        )
    if against in (*labels, *variants, FIRST) and against in names:
        what = f"measure.against: {safe_text(against, 60)!r} leaves no model to be compared"
        return what, "give a model two variants, or name a model"
    if against == FIRST:
        return (
            "measure.against: 'first' means the first of a model's variants, and no model has any",
            f"name a model: {', '.join(safe_text(label, 40) for label in labels[:8])}",
        )
    known = ", ".join(safe_text(name, 40) for name in names[:8])
    hint = "  ".join(filter(None, [did_you_mean(against, names), f"known here: {known}"]))
    return f"measure.against: there is no model or variant {safe_text(against, 60)!r}", hint
