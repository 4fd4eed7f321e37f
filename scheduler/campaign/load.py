"""Reads a campaign file: from a path to a `Campaign`, or to one clear line that says what is wrong, where, and what to do.

bytes ──▶ swarm.base.yaml ──▶ plain values + lines ──▶ model.py ──▶ checks over several values ──▶ Campaign
                                                  └─▶ compat.py (model_url and jobs) ────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from protocol.errors import SarkError
from protocol.formats.frameworks import FORMATS, UnitFormats, suggestion
from protocol.formats.gpu_units import without_number
from protocol.formats.spread import MIN_SHARE, has_several
from protocol.formats.steps import POST, PRE, problem
from scheduler.campaign.against import WHERE as AGAINST
from scheduler.campaign.against import Bases, against_problems
from scheduler.campaign.compat import is_plain, read_plain
from scheduler.campaign.errors import FileProblem, first_found, first_of
from scheduler.campaign.fields import UNITS, URL_SCHEMES
from scheduler.campaign.model import Campaign, MeasureFields, ModelEntry
from scheduler.campaign.reach import FindUnits
from swarm.base.text import did_you_mean, is_safe, safe_text
from swarm.base.units import show_duration
from swarm.base.yaml import Document, Where, parse_document, read_document
from swarm.download.urls import scheme_of

MAX_CELLS: Final = 100_000
"""Most models × units × threads × batches in one campaign."""
MAX_DIMS: Final = 64
_SERVED: Final = "API "
"""Prefix of units that measure a model in a server."""
_START: Final = "sark-node init writes a campaign file to start from"
_STEPS_HINT: Final = {
    "pre": "such as {step: normalise, of: x, mean: 127.5, std: 127.5}; examples/README.md has them all",
    "post": "such as {step: softmax, axis: -1}; examples/README.md has them all",
}
_SOURCE: Final = ("path", "url", "package", "sha256", "size", "format")
Problems = Iterator[FileProblem]


def load_campaign(path: Path, *, find_units: FindUnits | None = None) -> Campaign:
    """The campaign in the file at `path`. `find_units`: called once if the file names a unit that is not known here.

    Raises `CampaignError` with file, line and hint. Blocking; reads only this file and no model.
    """
    return _campaign(read_document(path), find_units)


def parse_campaign(data: bytes, file: str, *, find_units: FindUnits | None = None) -> Campaign:
    """The campaign in `data`. `file` is shown in errors, and its ending tells JSON from YAML. Otherwise like `load_campaign`."""
    return _campaign(parse_document(data, file), find_units)


def _campaign(document: Document, find_units: FindUnits | None) -> Campaign:
    value = document.value
    if value is None:
        raise document.error((), "the file is empty", _START)
    if not isinstance(value, dict):
        what = f"a campaign must be a mapping of key: value, not {safe_text(repr(value), 40)}"
        raise document.error((), what, _START)
    plain = is_plain(value)
    campaign = read_plain(document) if plain else _validated(document, value)
    campaign, unknown = _with_foreign_units(campaign, find_units)
    problems = [*unknown, *_unit_problems(campaign), *_cross_problems(campaign)]
    if problems:
        raise first_of(problems, document)
    for index, entry in enumerate(campaign.models):
        entry._place = document.file, document.line(("model_url",) if plain else ("models", index))
    return campaign.each()


def _validated(document: Document, value: dict[str, Any]) -> Campaign:
    if "jobs" in value:
        what, hint = "jobs can be combined with model_url, not with models", "list compute units under units:"
        raise document.error(("jobs",), what, hint)
    if "unit_formats" in value:
        raise document.error(
            ("unit_formats",), "unknown key 'unit_formats'", "remove it: devices report it themselves"
        )
    try:
        return Campaign.model_validate(value)
    except ValidationError as exc:
        raise first_found(exc, document, Campaign) from None


# -- checks over several values ---------------------------------------------------------------------------------------------------------


def _with_foreign_units(
    campaign: Campaign, find_units: FindUnits | None
) -> tuple[Campaign, list[FileProblem]]:
    """The campaign with the formats of its units that are not known here, and the problems with units that no device has."""
    unknown = [(where, unit) for where, unit in _named_units(campaign) if without_number(unit) not in UNITS]
    if not unknown:
        return campaign, []
    found: UnitFormats = {}
    what, listed, unasked = "unknown compute unit", "units", ""
    if find_units is not None:
        listed = "units known here"
        try:
            found = find_units(sorted({unit for _, unit in unknown}))
            what = "no device in reach has a unit called"
        except SarkError as why:
            unasked = f"whether a device has it through a third-party driver is not known: {why.what}."
    names = (*UNITS, *sorted(found))
    units = f"{listed}: {', '.join(names)}"
    problems = [
        FileProblem(
            where,
            f"{what} {safe_text(unit, 60)!r}",
            "  ".join(filter(None, (did_you_mean(unit, names), unasked, units))),
        )
        for where, unit in unknown
        if without_number(unit) not in found
    ]
    named = {without_number(unit) for _, unit in unknown}
    formats = {unit: forms for unit, forms in found.items() if forms and unit in named}
    return campaign.model_copy(update={"unit_formats": formats}), problems


def _named_units(campaign: Campaign) -> list[tuple[Where, str]]:
    """The units named in its file, and where."""
    jobs: list[tuple[Where, str]] = [
        (("jobs", index, "compute_unit"), job.unit) for index, job in enumerate(campaign.jobs)
    ]
    base = Bases(campaign.each()).unit
    return [
        *jobs,
        *(((*where, n), unit) for where, units in _unit_lists(campaign) for n, unit in enumerate(units)),
        *([] if base is None else [(AGAINST, base)]),
    ]


def _unit_lists(campaign: Campaign) -> list[tuple[Where, Sequence[str]]]:
    return [
        (("units",), () if campaign.jobs else campaign.units),
        *((("models", n, "units"), entry.units or ()) for n, entry in enumerate(campaign.models)),
    ]


def _unit_problems(campaign: Campaign) -> Problems:
    if not campaign.units and any(entry.units is None for entry in campaign.models):
        yield FileProblem((), "the key 'units' is missing", "add units: …")
    for where, units in _unit_lists(campaign):
        for index, unit in enumerate(units):
            if unit in units[:index]:
                yield FileProblem((*where, index), f"{unit!r} is listed twice", "remove one of the two")


def _cross_problems(campaign: Campaign) -> Problems:
    measure, lines = campaign.measure, campaign.lines()
    yield from _model_problems(campaign)
    yield from _format_problems(campaign)
    yield from _twice(measure.threads, ("measure", "threads"), "threads")
    yield from _twice(measure.batch, ("measure", "batch"), "batch")
    yield from _precision_problems(measure)
    yield from against_problems(campaign)
    yield from _spread_problems(campaign)
    yield from _sitting_problems(campaign)
    served = next((line.unit for line in lines if line.unit.startswith(_SERVED)), None)
    if served is not None:
        yield from _server_problems(campaign, served)
    for name, entries, steps in (("pre", measure.pre, PRE), ("post", measure.post, POST)):
        for index, entry in enumerate(entries):
            if what := problem(entry.model_dump(), steps):
                where = ("measure", name, index)
                yield FileProblem(where, f"{name} {index + 1}: {safe_text(what)}", _STEPS_HINT[name])
    if campaign.devices.limit is not None and campaign.devices.spread == "any":
        what = "limit has no meaning with spread: any, which takes one device for each task"
        yield FileProblem(("devices", "limit"), what, "remove spread: any, or limit")
    if campaign.replicas > 1 and (every := campaign.devices.spread) in ("device", "worker"):
        what = f"replicas have no meaning with spread: {every}, which runs each task on every {every}"
        yield FileProblem(("replicas",), what, "use spread: class (or any), or remove replicas")
    forms = sum(len(entry.each()) * len(campaign.batches(entry)) for entry in campaign.models)
    own = (len(campaign.lines_of(one)) for entry in campaign.models for one in entry.each())
    cells = forms * max(own, default=0) * len(measure.threads)
    if cells > MAX_CELLS:
        models = (
            "models" if forms == len(campaign.models) else "models with their variants, files and batches"
        )
        matrix = f"{forms} {models} × {len(lines)} units × {len(measure.threads)} thread counts"
        what = f"{matrix} make {cells:,} tasks; at most {MAX_CELLS:,} are allowed"
        yield FileProblem((), what, "split it into several campaigns")


def _twice(values: Sequence[object] | None, where: Where, name: str) -> Problems:
    for index, value in enumerate(values or ()):
        if value in (values or ())[:index]:
            yield FileProblem((*where, index), f"{name} {value} is listed twice", "remove one of the two")


def _precision_problems(measure: MeasureFields) -> Problems:
    both = [f"measure.{name}" for name in ("runs", "loads") if name in measure.model_fields_set]
    if measure.sustain is not None and (
        more := [*both, *(["measure.precision"] if measure.precision else [])]
    ):
        text = " and ".join(more)
        what = f"measure.sustain sets how long to measure and cannot be combined with {text}"
        yield FileProblem(("measure", "sustain"), what, f"remove {text}, or sustain")
    elif measure.precision is not None and both:
        text = " and ".join(both)
        what = f"measure.precision decides when to stop and cannot be combined with {text}"
        yield FileProblem(("measure", "precision"), what, f"remove {text}, or precision")


def _spread_problems(campaign: Campaign) -> Problems:
    """`over` spreads launches, so there must be several, on a device that the submitter trusts."""
    measure, where = campaign.measure, ("measure", "over")
    if measure.over is None:
        return
    if measure.sustain is not None:
        what = "measure.over spreads launches over time and cannot be combined with measure.sustain, which makes one launch without a break"
        yield FileProblem(where, what, "remove one of the two")
    elif measure.precision is None and not has_several(measure.runs, measure.loads):
        what = f"measure.over spreads launches over time, but {measure.runs} runs in {measure.loads} loads are timed in one launch"
        yield FileProblem(where, what, f"use at least 2 loads, and {MIN_SHARE} runs for each of them")
    if campaign.devices.trust == "anyone":
        what = "measure.over cannot be used on strangers' devices: nobody witnesses what they do between launches"
        yield FileProblem(where, what, "remove it, or leave out devices.trust")
    limit_s = campaign.timeouts.campaign
    if limit_s is not None and measure.over >= limit_s:
        what = f"measure.over is {show_duration(measure.over)}, but timeouts.campaign is {show_duration(limit_s)}"
        yield FileProblem(where, what, "use a shorter over, or a longer timeouts.campaign")


def _sitting_problems(campaign: Campaign) -> Problems:
    measure, limit_s = campaign.measure, campaign.timeouts.campaign
    if measure.apart is not None and measure.sittings == 1:
        what = "measure.apart is the time between sittings, but there is only one"
        yield FileProblem(("measure", "apart"), what, "add sittings: 3 under measure, or remove apart")
    if limit_s is not None and measure.gaps_s >= limit_s:
        apart, least = show_duration(measure.apart_s), show_duration(measure.gaps_s)
        what = f"{measure.sittings} sittings {apart} apart take more than {least}, but timeouts.campaign is {show_duration(limit_s)}"
        yield FileProblem(
            ("measure", "sittings"),
            what,
            "use fewer sittings, a shorter apart or a longer timeouts.campaign",
        )


def _server_problems(campaign: Campaign, unit: str) -> Problems:
    """A server is measured with a number of requests, and makes its own batches."""
    if campaign.measure.precision is not None:
        what = f"measure.precision cannot be used with {unit}: a server is measured with a fixed number of requests"
        hint = "write runs: 100 instead, or give that unit a campaign of its own"
        yield FileProblem(("measure", "precision"), what, hint)
    if campaign.measure.sustain is not None:
        what = f"measure.sustain cannot be used with {unit}: a server is measured with a fixed number of requests"
        yield FileProblem(("measure", "sustain"), what, "remove it, or give that unit a campaign of its own")
    if campaign.measure.over is not None:
        what = f"measure.over cannot be used with {unit}: a server's model is not launched"
        yield FileProblem(("measure", "over"), what, "remove it, or give that unit a campaign of its own")
    places: list[Where] = [("measure", "batch")] if campaign.measure.batch else []
    places += [("models", index, "batch") for index, entry in enumerate(campaign.models) if entry.batch]
    for where in places:
        what = f"batch cannot be used with {unit}: a server forms its own batches"
        yield FileProblem(where, what, "remove it, or give that unit a campaign of its own")


def _model_problems(campaign: Campaign) -> Problems:
    names: dict[str, int] = {}
    for index, entry in enumerate(campaign.models):
        where: Where = ("models", index)
        yield from _variant_problems(entry, where)
        yield from _twice(entry.batch, (*where, "batch"), "batch")
        if len({**campaign.measure.dims, **entry.dims}) > MAX_DIMS:
            what = f"more than {MAX_DIMS} dims for one model, including measure.dims"
            yield FileProblem(where, what, "give only the dims that the model has")
        for one in entry.each():
            if one.label and one.key in names:
                first = f"the first is number {names[one.key] + 1}"
                what = f"two models are called {safe_text(one.label, 60)!r} ({first})"
                yield FileProblem(where, what, "give each a name: of its own")
            names.setdefault(one.key, index)
        if entry.evaluate is not None and campaign.measure.against is not None:
            what = (
                "evaluate cannot be combined with measure.against: models that take turns answer no examples"
            )
            yield FileProblem((*where, "evaluate"), what, "give it a campaign of its own")


def _format_problems(campaign: Campaign) -> Problems:
    """Models that none of their units can run."""
    bases = Bases(campaign.each())
    for index, entry in enumerate(campaign.models):
        for one in entry.each():
            form, units = one.known_format, (*campaign.units_of(one), *bases.also_on(one))
            if form is None or campaign.jobs or not units or any(campaign.runs(unit, form) for unit in units):
                continue
            where: Where = ("models", index, "files", form) if entry.files else ("models", index)
            what = f"{one.title} is {FORMATS[form].title}, which {' and '.join(units)} cannot run"
            yield FileProblem(where, what, suggestion(form))


def _variant_problems(entry: ModelEntry, where: Where) -> Problems:
    """Problems with a model's source, or with each of its variants or files."""
    several = "files" if entry.files else "variants" if entry.variants else ""
    if entry.files and entry.variants:
        hint = "give each variant as a model of its own, with its files"
        yield FileProblem((*where, "files"), "files cannot be combined with variants", hint)
    if not several:
        yield from _source_problems(entry, where)
        return
    lines = [key for key in (*_SOURCE, "variant") if getattr(entry, key) is not None and key != several]
    if entry.files and entry.variant is not None:
        lines.remove("variant")
    if lines:
        hint = f"give each of its {several} its own, or remove {several}"
        yield FileProblem((*where, lines[0]), f"{lines[0]} cannot be combined with {several}", hint)
    elif entry.name is None:
        hint = f"add name: rows then show the name{' and the variant' if entry.variants else ''}"
        yield FileProblem(where, f"a model with {several} needs a name", hint)
    else:
        for one, name in zip(entry.each(), entry.files or entry.variants, strict=True):
            yield from _source_problems(one, (*where, several, name))


def _source_problems(entry: ModelEntry, where: Where) -> Problems:
    """A model has one source; a URL beside a path only says where else the file is available."""
    if entry.path and scheme_of(entry.path) in URL_SCHEMES:
        yield FileProblem((*where, "path"), "this path is a URL", "write url: instead of path:")
    elif entry.package and entry.url:
        what = "a model comes from a package or from a URL, not from both"
        yield FileProblem((*where, "url"), what, "remove one of the two")
    elif not entry.path and (entry.package or not entry.url):
        also = " inside the package" if entry.package else ", or url:"
        yield FileProblem(where, "a model needs a path", f"add path: with the model's file{also}")
    elif entry.by_devices and (entry.path or entry.sha256 is None or entry.public_url is None):
        what = "size requires url: and sha256:, and no path; a file: URL means nothing on a device"
        hint = "give all three, so that each device downloads the file itself; or remove size, so that the file is downloaded here"
        yield FileProblem((*where, "size"), what, hint)
    elif entry.label in ("", ".", "..") or len(entry.label) > 100 or not is_safe(entry.label):
        what = "the path or URL does not end in a file's name"
        place = (*where, "path" if entry.path else "url")
        yield FileProblem(place, what, "give the model's file, or add name:")
