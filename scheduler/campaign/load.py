"""Reading a campaign file: from a path to a `Campaign`, or to one clear line that says what, where and what to do.

bytes ──▶ yamlfile ──▶ plain values + lines ──▶ campaign_form ──▶ checks over several values ──▶ Campaign
                                            └─▶ campaign_plain (model_url and jobs) ──────────┘
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from protocol.formats.steps import POST, PRE, problem
from scheduler.campaign.compat import is_plain, read_plain
from scheduler.campaign.errors import FileProblem, first_found, first_of
from scheduler.campaign.fields import UNITS, URL_SCHEMES
from scheduler.campaign.model import (
    Campaign,
    CampaignLimits,
    Devices,
    JobFields,
    MeasureFields,
    ModelEntry,
    Retry,
    Schedule,
    VariantEntry,
)
from swarm.base.text import did_you_mean, is_safe, safe_text
from swarm.base.yaml import Document, Where, parse_document, read_document
from swarm.download.urls import scheme_of

__all__ = [
    "MAX_CELLS",
    "UNITS",
    "Campaign",
    "CampaignLimits",
    "Devices",
    "JobFields",
    "MeasureFields",
    "ModelEntry",
    "Retry",
    "Schedule",
    "load_campaign",
    "parse_campaign",
]

MAX_CELLS: Final = 10_000
"""Models × units × threads × batches in one campaign."""
MAX_DIMS: Final = 64
_SERVED: Final = "API "
"""How units begin whose model is in a server."""
_STEPS_HINT: Final = {
    "pre": "such as {step: normalise, of: x, mean: 127.5, std: 127.5}; examples/README.md has them all",
    "post": "such as {step: softmax, axis: -1}; examples/README.md has them all",
}

_PARTS: Final[dict[str, type[BaseModel]]] = {
    "models": ModelEntry,
    "variants": VariantEntry,
    "devices": Devices,
    "measure": MeasureFields,
    "timeouts": CampaignLimits,
    "retry": Retry,
    "schedule": Schedule,
}


def load_campaign(path: Path, *, more_units: Collection[str] = ()) -> Campaign:
    """The campaign in the file at `path`. `more_units`: names of units that drivers of one's own bring.

    Raises `CampaignError` with file, line and hint. Blocking; reads that one file and no model.
    """
    return _campaign(read_document(path), more_units)


def parse_campaign(data: bytes, file: str, *, more_units: Collection[str] = ()) -> Campaign:
    """The campaign in `data`; `file` is shown in errors and tells JSON by its ending. Raises `CampaignError`."""
    return _campaign(parse_document(data, file), more_units)


def _campaign(document: Document, more_units: Collection[str]) -> Campaign:
    value = document.value
    if value is None:
        raise document.error((), "the file is empty", "sark-node init writes a campaign to begin with")
    if not isinstance(value, dict):
        raise document.error(
            (),
            f"a campaign must be a mapping of key: value, not {safe_text(repr(value), 40)}",
            "sark-node init writes a campaign to begin with",
        )
    if is_plain(value):
        campaign, where = read_plain(document), ("jobs", "compute_unit")
    else:
        campaign, where = _validated(document, value), ("units", "")
    problems = [*_unit_problems(campaign, more_units, where), *_cross_problems(campaign)]
    if problems:
        raise first_of(problems, document)
    for index, entry in enumerate(campaign.models):
        entry._place = (
            document.file,
            document.line(("models", index) if "models" in value else ("model_url",)),
        )
    return campaign.model_copy(
        update={"models": tuple(one for entry in campaign.models for one in entry.each())}
    )


def _validated(document: Document, value: dict[str, Any]) -> Campaign:
    if "jobs" in value:
        what, hint = "jobs go with model_url, not with models", "list compute units under units:"
        raise first_of([FileProblem(("jobs",), what, hint)], document)
    try:
        return Campaign.model_validate(value)
    except ValidationError as exc:
        raise first_found(exc, document, Campaign, _PARTS) from None


def _unit_problems(campaign: Campaign, more: Collection[str], where: tuple[str, str]) -> list[FileProblem]:
    known = (*UNITS, *sorted(more))
    named = [job.unit for job in campaign.jobs] or list(campaign.units)
    problems = []
    for index, unit in enumerate(named):
        way = (where[0], index, where[1]) if where[1] else (where[0], index)
        if unit not in known:
            guess = did_you_mean(unit, known)
            hint = "  ".join(filter(None, [guess, f"units: {', '.join(known)}"]))
            problems.append(FileProblem(way, f"unknown compute unit {safe_text(unit, 60)!r}", hint))
        elif not campaign.jobs and unit in named[:index]:
            problems.append(FileProblem(way, f"{unit!r} is listed twice", "remove one of the two"))
    return problems


def _precision_problems(campaign: Campaign) -> list[FileProblem]:
    """A precision says itself when to stop, and is for models that run here."""
    measure = campaign.measure
    servers = [
        unit for unit in (*campaign.units, *(job.unit for job in campaign.jobs)) if unit.startswith(_SERVED)
    ]
    if measure.precision is not None and servers:
        what = f"measure.precision is not for {servers[0]}: a server is measured with a number of requests"
        return [
            FileProblem(
                ("measure", "precision"), what, "say runs: 100 in its place, or give it a campaign of its own"
            )
        ]
    both = [name for name in ("runs", "loads") if name in measure.model_fields_set]
    if measure.precision is None or not both:
        return []
    text = " and ".join(f"measure.{name}" for name in both)
    what = f"measure.precision says itself when to stop: it does not go with {text}"
    return [FileProblem(("measure", "precision"), what, f"remove {text}, or precision")]


def _step_problems(measure: MeasureFields) -> list[FileProblem]:
    """Steps that no driver knows, or not so."""
    return [
        FileProblem(("measure", name, index), f"{name} {index + 1}: {safe_text(what)}", _STEPS_HINT[name])
        for name, entries, known in (("pre", measure.pre, PRE), ("post", measure.post, POST))
        for index, entry in enumerate(entries)
        if (what := problem(entry.model_dump(), known))
    ]


def _cross_problems(campaign: Campaign) -> list[FileProblem]:
    """What only shows when several values are seen together."""
    problems: list[FileProblem] = []
    names: dict[str, int] = {}
    for index, entry in enumerate(campaign.models):
        problems += _variant_problems(entry, index)
        problems += _twice(entry.batch, ("models", index, "batch"), "batch")
        if len({**campaign.measure.dims, **entry.dims}) > MAX_DIMS:
            what = f"more than {MAX_DIMS} dims for one model, those of measure counted in"
            problems.append(FileProblem(("models", index), what, "give only those the model has"))
        for one in entry.each():
            if one.label and one.label in names:
                first = names[one.label] + 1
                problems.append(
                    FileProblem(
                        ("models", index),
                        f"two models are called {safe_text(one.label, 60)!r} (the first is number {first})",
                        "give each a name: of its own",
                    )
                )
            names.setdefault(one.label, index)
    threads = campaign.measure.threads
    problems += _twice(threads, ("measure", "threads"), "threads")
    problems += _twice(campaign.measure.batch, ("measure", "batch"), "batch")
    problems += [
        *_precision_problems(campaign),
        *_batch_problems(campaign),
        *_step_problems(campaign.measure),
    ]
    if campaign.devices.limit is not None and campaign.devices.spread == "any":
        problems.append(
            FileProblem(
                ("devices", "limit"),
                "limit has no meaning with spread: any, which takes one device for each task",
                "add spread: device (or class), or remove limit",
            )
        )
    if campaign.replicas > 1 and campaign.devices.spread == "device":
        problems.append(
            FileProblem(
                ("replicas",),
                "replicas have no meaning with spread: device, which runs each task on every device",
                "take spread: class (or any), or remove replicas",
            )
        )
    forms = sum(len(entry.each()) * len(campaign.batches(entry)) for entry in campaign.models)
    cells = forms * len(campaign.lines()) * len(threads)
    if cells > MAX_CELLS:
        what = "models" if forms == len(campaign.models) else "models with their variants and batches"
        problems.append(
            FileProblem(
                (),
                f"{forms} {what} × {len(campaign.lines())} units × {len(threads)} thread counts"
                f" make {cells:,} tasks; {MAX_CELLS:,} are allowed",
                "split it into several campaigns",
            )
        )
    return problems


def _twice(values: Sequence[object] | None, where: Where, what: str) -> list[FileProblem]:
    """A value of a list that stands there before."""
    return [
        FileProblem((*where, index), f"{what} {value} is listed twice", "remove one of the two")
        for index, value in enumerate(values or ())
        if value in (values or ())[:index]
    ]


def _batch_problems(campaign: Campaign) -> list[FileProblem]:
    """A server makes its own batches."""
    served = next((job.unit for job in campaign.lines() if job.unit.startswith(_SERVED)), None)
    if served is None:
        return []
    ways: list[Where] = [("measure", "batch")] if campaign.measure.batch else []
    ways += [("models", index, "batch") for index, entry in enumerate(campaign.models) if entry.batch]
    what = f"batch is not for {served}: a server makes its batches itself"
    return [FileProblem(way, what, "remove it, or give that unit a campaign of its own") for way in ways]


def _variant_problems(entry: ModelEntry, index: int) -> list[FileProblem]:
    """What is wrong with where a model comes from, or each of its variants."""
    where = ("models", index)
    if not entry.variants:
        return _source_problems(entry, where)
    lines = [key for key in ("path", "url", "sha256", "size", "variant") if getattr(entry, key) is not None]
    if lines:
        hint = "give each variant its own, or remove variants"
        return [FileProblem((*where, lines[0]), f"{lines[0]} does not go with variants", hint)]
    if entry.name is None:
        what = "a model with variants needs a name"
        return [FileProblem(where, what, "add name: rows then say the name and the variant")]
    pairs = zip(entry.each(), entry.variants, strict=True)
    return [result for one, name in pairs for result in _source_problems(one, (*where, "variants", name))]


def _source_problems(entry: ModelEntry, where: Where) -> list[FileProblem]:
    """A model comes from one place, a URL beside a path only says where else it lies."""
    if entry.path and scheme_of(entry.path) in URL_SCHEMES:
        return [FileProblem((*where, "path"), "this path is a URL", "write url: instead of path:")]
    if entry.package and entry.url:
        return [
            FileProblem(
                (*where, "url"), "a model comes from a package or from a URL", "remove one of the two"
            )
        ]
    if not entry.path and (entry.package or not entry.url):
        also = " inside the package" if entry.package else ", or url:"
        return [FileProblem(where, "a model needs a path", f"add path: with the model's file{also}")]
    if entry.by_devices and (entry.path or entry.sha256 is None or entry.public_url is None):
        return [
            FileProblem(
                (*where, "size"),
                "size goes with url: and sha256:, and with no path; a file: URL means nothing on a device",
                "give all three, and each device fetches the file itself; or remove size, and it is fetched here",
            )
        ]
    if entry.label in ("", ".", "..") or len(entry.label) > 100 or not is_safe(entry.label):
        return [
            FileProblem(
                (*where, "path" if entry.path else "url"),
                "the path or URL does not end in a file's name",
                "give the model's file, or add name:",
            )
        ]
    return []
