"""What each model of a campaign takes turns with and is compared with, on each of its units. Pure.

    against: yolo fp32          every other model with this one
    against: fp32               each variant with the variant fp32 of its own model
    against: first              each variant with the first of its own model
    against: reference          each model with the reference model that comes with this program, which links devices and days
    against: CPU (ONNX)         each model on each other unit with itself on this one
    against: {model: yolo fp32, unit: CPU (ONNX)}     every other model, and this one on every other unit, with this one on this unit

A base with which others are compared has no task of its own. A model without a base is measured alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from protocol.formats.frameworks import chosen_format, framework_of, words_of
from protocol.formats.reference_model import NAME
from protocol.words import SIMULATED_UNIT
from results.row.form import against_words
from scheduler.campaign.errors import FileProblem
from scheduler.campaign.fields import UNITS
from scheduler.campaign.model import Campaign, ModelEntry
from swarm.base.text import did_you_mean, safe_text
from swarm.base.yaml import Where

FIRST: Final = "first"
WHERE: Final[Where] = ("measure", "against")
_SERVED: Final = "API "
REFERENCE: Final = ModelEntry(name=NAME, path=NAME, format="onnx")
"""Stands for the reference model, which no campaign file lists."""


@dataclass(frozen=True, slots=True)
class Base:
    """A model on a unit with which others are compared."""

    entry: ModelEntry
    unit: str

    def words(self, model: str, unit: str) -> str:
        """Text that distinguishes this base from a `model` on a `unit` that is compared with it."""
        return against_words(self.entry.label, self.unit, model, unit)


class Bases:
    """The bases with which the models of a campaign are compared. Each variant or file is a model here."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, against = campaign, campaign.measure.against
        self._asked = against is not None
        self._model = None if against is None else against.model
        self._labelled: dict[str, list[ModelEntry]] = {}
        self._forms: dict[str | None, list[ModelEntry]] = {}
        for entry in campaign.models if self._asked else ():
            self._labelled.setdefault(entry.label, []).append(entry)
            if entry.variant:
                self._forms.setdefault(entry.name, []).append(entry)
        self.unit = None if against is None else against.unit
        """The unit of every base. None: each base runs on the unit of the model compared with it."""
        word = self._model if self.unit is None else None
        if word is not None and not self.knows(word) and framework_of(word):
            self._model, self.unit = None, word

    def knows(self, model: str) -> bool:
        """Whether `model` names a model or a variant, or is a word that means one (`reference`, `first`)."""
        variants = (form.variant for forms in self._forms.values() for form in forms)
        return model in self._labelled or model in (NAME, FIRST) or model in variants

    @property
    def reference(self) -> bool:
        """Whether models are measured beside the reference model."""
        return self._model == NAME and NAME not in self._labelled

    def of(self, entry: ModelEntry, unit: str) -> Base | None:
        """The base of a model on one of its units; if the base is the model itself, others are compared with it. None: no base."""
        if not self._asked:
            return None
        model = entry if self._model is None else self._named(entry, self._model)
        if model is None:
            return None
        where = self.unit or unit
        file = self._file(model, where)
        if file is None and self._model is None:
            return None
        return Base(file or model, where)

    def also_on(self, entry: ModelEntry) -> tuple[str, ...]:
        """The units on which the file of `entry` may run beside others, even if its campaign does not name such a unit for it."""
        return () if self.unit is None or self._file(entry, self.unit) is not entry else (self.unit,)

    def _named(self, entry: ModelEntry, model: str) -> ModelEntry | None:
        if model in self._labelled:
            return self._labelled[model][0]
        if model == NAME:
            return REFERENCE
        forms = self._forms.get(entry.name, []) if entry.variant else []
        if model == FIRST:
            return forms[0] if len(forms) > 1 else None
        return next((other for other in forms if other.variant == model), None)

    def _file(self, model: ModelEntry, unit: str) -> ModelEntry | None:
        """The file of `model` that runs on `unit`: `model` itself, if its own file does; None: no file does."""
        files = [model] if model is REFERENCE else self._labelled[model.label]
        chosen = chosen_format(
            unit, [file.format for file in files if file.format], self._campaign.unit_formats
        )
        able = [
            file
            for file in files
            if self._campaign.runs(unit, file.known_format) and chosen in (None, file.format)
        ]
        return model if model in able else next(iter(able), None)


def against_problems(campaign: Campaign) -> Iterator[FileProblem]:
    """Problems with `measure.against` in a file, before the models' variants are expanded."""
    against, measure = campaign.measure.against, campaign.measure
    if against is None:
        return
    campaign = campaign.each()
    bases = Bases(campaign)
    names = [
        f"measure.{name}"
        for name in ("runs", "loads", "precision", "sustain", "over")
        if name in measure.model_fields_set
    ]
    if names:
        text = " and ".join(names)
        what = f"measure.against measures until the comparison is decided and cannot be combined with {text}"
        yield FileProblem(WHERE, what, f"remove {text}, or against")
    used = [*(line.unit for line in campaign.lines()), *([bases.unit] if bases.unit else [])]
    unit = next((unit for unit in used if unit.startswith((_SERVED, SIMULATED_UNIT))), None)
    if unit is not None:
        what = f"measure.against cannot be used with {unit}: models cannot take turns there"
        yield FileProblem(WHERE, what, "give that unit a campaign of its own")
    if campaign.devices.trust == "anyone":
        what = "measure.against cannot be used on strangers' devices: a run in turns with another model cannot be witnessed"
        yield FileProblem(WHERE, what, "remove devices.trust: anyone, or against")
    yield from _pair_problems(campaign, bases)


def _pair_problems(campaign: Campaign, bases: Bases) -> Iterator[FileProblem]:
    pairs = 0
    for entry in campaign.models:
        for line in campaign.lines_of(entry):
            base = bases.of(entry, line.unit)
            if base is None or (base.entry is entry and base.unit == line.unit):
                continue
            pairs += 1
            if (problem := _pair_problem(campaign, bases, entry, line.unit, base)) is not None:
                yield problem
                return
    if not pairs:
        yield FileProblem(WHERE, *_no_pair(campaign, bases))


def _pair_problem(
    campaign: Campaign, bases: Bases, entry: ModelEntry, unit: str, base: Base
) -> FileProblem | None:
    """Why these two cannot take turns; None: they can."""
    if not campaign.runs(base.unit, base.entry.known_format) or (
        bases.unit is None
        and base.entry is not REFERENCE
        and base.unit not in [line.unit for line in campaign.lines_of(base.entry)]
    ):
        if base.entry is REFERENCE:
            what = f"measure.against: the reference model is an ONNX model, which {base.unit} cannot run"
            return FileProblem(
                WHERE, what, "give that unit a campaign of its own, or name the reference's unit: "
                f"against: {{model: {NAME}, unit: CPU (ONNX)}}",
            )  # fmt: skip
        label = safe_text(base.entry.label, 60)
        if bases.unit is not None:
            what = f"measure.against: {bases.unit} runs {words_of(bases.unit, campaign.unit_formats)}, not {label!r}"
            return FileProblem(WHERE, what, "name a unit that runs it")
        what = f"{entry.title} runs on {unit}, but {label!r} does not"
        hint = "compare models of one format, remove that unit, or name that of the other model: "
        return FileProblem(WHERE, what, hint + f"against: {{model: {label}, unit: UNIT}}")
    if base.entry is not REFERENCE and _sizes(campaign, entry) != _sizes(campaign, base.entry):
        what = (
            f"{entry.title} is to be compared with {safe_text(base.entry.label, 60)!r} "
            "but has other input sizes"
        )
        return FileProblem(WHERE, what, "give both the same dims, inputs, batch and batch_dim")
    return None


def _sizes(campaign: Campaign, entry: ModelEntry) -> tuple[object, ...]:
    return entry.dims, entry.inputs, campaign.batches(entry), entry.batch_dim


def _no_pair(campaign: Campaign, bases: Bases) -> tuple[str, str]:
    models, against = campaign.models, campaign.measure.against
    assert against is not None
    if bases.unit is not None:
        able = any(bases.of(entry, bases.unit) for entry in models)
        if not able:
            return f"measure.against: {bases.unit} runs no model of this campaign", "name a unit that does"
        what = f"measure.against: {bases.unit} leaves no unit to compare with it"
        return what, "add another one under units, such as units: [GPU (ONNX)]"
    word = against.model or ""
    variants = list(dict.fromkeys(entry.variant for entry in models if entry.variant))
    labels = [entry.label for entry in models]
    names = [*([FIRST, *variants] if variants else []), *labels, NAME]
    if len(models) == 1:
        return (
            "measure.against needs two models or two units, but the campaign has one of each",
            "add a model or variants, write against: reference or against: UNIT, or remove against",
        )
    if word in (*labels, *variants, FIRST) and word in names:
        what = f"measure.against: {safe_text(word, 60)!r} leaves no other model to compare"
        return what, "give a model two variants, or name a model"
    if word == FIRST:
        return (
            "measure.against: 'first' means the first of a model's variants, and no model has any",
            f"name a model: {', '.join(safe_text(label, 40) for label in labels[:8])}",
        )
    known = ", ".join(safe_text(name, 40) for name in names[:8])
    hint = "  ".join(
        filter(None, [did_you_mean(word, [*names, *UNITS]), f"known here: {known}, and compute units"])
    )
    return f"measure.against: there is no model, variant or unit {safe_text(word, 60)!r}", hint
