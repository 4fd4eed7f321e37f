"""Inspects a model's file before any device is asked: it must be whole, of a format that its units run, and have a shape for each input.

Blocking; reads the structure of an ONNX file and no weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import CampaignError
from protocol.formats.frameworks import (
    FORMATS,
    NO_EXTRA_FORMATS,
    UnitFormats,
    format_of_kind,
    framework_of,
    runs,
    suggestion,
)
from protocol.formats.model_files import FormatError, ModelFormat, read_format
from protocol.formats.onnx import OnnxGraph, read_graph
from protocol.formats.shapes import (
    GivenSizes,
    MissingShape,
    Shape,
    ShapeError,
    dim_keys,
    resolve,
    show_shape,
)
from results.row.form import short_shapes
from scheduler.campaign.model import Campaign, ModelEntry
from scheduler.campaign.sizes import given_sizes
from scheduler.models.files import Models
from swarm.base.text import did_you_mean, safe_text


class WrongUnits(CampaignError):
    """None of a model's units runs its format."""

    form: str
    """Its format, a word of `FORMATS`."""


class UnshapedModel(CampaignError):
    """A model's inputs have axes without a size."""

    missing: MissingShape


def inspect(
    entry: ModelEntry,
    path: Path,
    units: Collection[str],
    given: Sequence[GivenSizes],
    more: UnitFormats = NO_EXTRA_FORMATS,
) -> OnnxGraph | None:
    """The graph of an ONNX model that can be measured; None: the file has another format, which only its driver can read. `given`: the
    sizes of its inputs, with each batch; `more`: formats of units of third-party drivers. Raises `CampaignError`, with the line of the
    model, for a file that none of `units` runs, a broken ONNX file, and input sizes that are missing or wrong; the first missing size
    raises `UnshapedModel`.
    """
    form = format_of_kind(_format_of(path))
    if form is not None:
        if (claimed := entry.known_format) not in (None, form):
            hint = f"write {form} instead" if entry.format else f"rename it, or add format: {form}"
            raise entry.error(f"{entry.title} is {FORMATS[form].title}, not {FORMATS[claimed].title}", hint)
        _check_runs(entry, form, units, more)
        return None
    if entry.known_format not in ("onnx", None) or not (
        any(runs(unit, "onnx", more) for unit in units) or path.suffix.lower() == ".onnx"
    ):
        return None
    graph = _read_onnx(entry, path, units, more)
    if graph is not None:
        check_shapes(entry, graph, given)
    return graph


def check_ending(entry: ModelEntry, units: Collection[str], more: UnitFormats = NO_EXTRA_FORMATS) -> None:
    """Check a model that is not read here. Raises `WrongUnits` if its URL's ending shows that none of `units` runs it."""
    if entry.known_format is not None:
        _check_runs(entry, entry.known_format, units, more)


def _check_runs(entry: ModelEntry, form: str, units: Collection[str], more: UnitFormats) -> None:
    """Raise `WrongUnits` if none of the units runs the format."""
    if any(runs(unit, form, more) for unit in units):
        return
    what = f"{entry.title} is {FORMATS[form].title}, which {' and '.join(sorted(units))} cannot run"
    place = entry.error(what, suggestion(form))
    error = WrongUnits(place.detail, file=place.file, line=place.line, hint=place.hint)
    error.form = form
    raise error


def _format_of(path: Path) -> ModelFormat:
    try:
        return read_format(path)
    except FormatError:
        return ModelFormat.OTHER


def _read_onnx(entry: ModelEntry, path: Path, units: Collection[str], more: UnitFormats) -> OnnxGraph | None:
    """The graph of an ONNX model, a file or a folder with one; None: it may be a model for another of `units`. Raises `CampaignError`."""
    file = path
    if path.is_dir():
        files = sorted(path.rglob("*.onnx"))
        if len(files) != 1:
            raise entry.error(
                f"{entry.title} is a folder with {len(files)} .onnx files",
                "give a folder with one .onnx file, and its weights beside it",
            )
        file = files[0]
    try:
        graph = read_graph(file)
    except FormatError as why:
        if path.suffix.lower() != ".onnx" and {framework_of(unit) for unit in units} != {"ONNX"}:
            return None
        raise entry.error(f"{entry.title} {why}", "export or download it again") from None
    _check_runs(entry, "onnx", units, more)
    for name in graph.external:
        if path == file:
            raise entry.error(
                f"{entry.title} keeps weights in another file, {safe_text(name, 60)}",
                "give the folder that holds both instead of the one file",
            )
        if not (file.parent / name).is_file():
            raise entry.error(
                f"{entry.title} lacks {safe_text(name, 60)}, a file with its weights",
                "put it beside the .onnx file",
            )
    return graph


def check_shapes(entry: ModelEntry, graph: OnnxGraph, given: Sequence[GivenSizes]) -> None:
    """Raise `CampaignError` unless each of these sizes gives every input one shape."""
    if entry.declared:
        name = next(iter(entry.declared))
        raise entry.error(
            f"{entry.title} is an ONNX model, which states the types of its inputs",
            f"give only the shape: inputs: {{{safe_text(name, 60)}: [1, 3, 224, 224]}}, or --shape '{safe_text(name, 60)}=1,3,224,224'",
        )
    for sizes in given:
        try:
            resolve(graph.inputs, sizes)
        except MissingShape as why:
            error = entry.error(f"{entry.title}: {safe_text(why.what, 400)}", safe_text(why.yaml, 400))
            unshaped = UnshapedModel(error.detail, file=error.file, line=error.line, hint=error.hint)
            unshaped.missing = why
            raise unshaped from None
        except ShapeError as why:
            raise entry.error(
                f"{entry.title}: {safe_text(why.what, 400)}", safe_text(why.hint, 400)
            ) from None


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """The inputs of one model with one batch."""

    model: str
    """The model's key."""
    batch: int | None
    """None: as the model has it."""
    shapes: Mapping[str, Shape]

    @property
    def text(self) -> str:
        """`1×3×48×320`; for several inputs, the first and how many there are."""
        return short_shapes(
            "; ".join(f"{name} {show_shape(shape, 'x') or 'scalar'}" for name, shape in self.shapes.items())
        )


def resolved_shapes(campaign: Campaign, models: Models) -> tuple[ModelShapes, ...]:
    """The input shapes of the models that can be read here, which `describe_models` has checked. Blocking."""
    known: list[ModelShapes] = []
    for entry in campaign.models:
        path = models[entry.key].source if entry.key in models else None
        with contextlib.suppress(FormatError, ShapeError, StopIteration, OSError):
            if not isinstance(path, Path):
                continue
            graph = read_graph(next(path.rglob("*.onnx")) if path.is_dir() else path)
            known.extend(
                ModelShapes(entry.key, given.batch, resolve(graph.inputs, given))
                for given in given_sizes(campaign, entry)
            )
    return tuple(known)


def check_common_dims(campaign: Campaign, graphs: Sequence[OnnxGraph | None]) -> None:
    """Raise `CampaignError` for the first of `measure.dims` that no model is known to have. `graphs`: of the models whose units use sizes;
    None: a model that only its device can read. A campaign's only model has already been checked for all of them.
    """
    if not graphs or len(campaign.models) == 1:
        return
    keys = frozenset[str]().union(*(dim_keys(graph.inputs) for graph in graphs if graph is not None))
    for key, size in campaign.measure.dims.items():
        if key in keys:
            continue
        text = safe_text(key, 60)
        which, hint = "", did_you_mean(key, sorted(keys)) or "correct its name, or remove it"
        if None in graphs:
            which = " that can be inspected here"
            hint = f"write it under each model that has it: dims: {{{text!r}: {size}}}"
        what = f"measure.dims: no model{which} has a dynamic dimension {text!r}"
        raise CampaignError(what, file=campaign.models[0].error("", "").file, hint=hint)
