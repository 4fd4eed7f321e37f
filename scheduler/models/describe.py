"""The models of a campaign on this machine's disk: found, inspected, and identified by their content."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Collection
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from pydantic import ValidationError

from protocol.errors import CampaignError, Refused
from protocol.formats.frameworks import words_of
from protocol.formats.model_files import (
    CODE_CARRYING_FORMATS,
    FormatError,
    ModelFormat,
    find_other_format,
    read_format,
)
from protocol.formats.onnx import OnnxGraph
from protocol.values.requirement import show_size
from protocol.values.task import Model
from protocol.words import SIMULATED_UNIT
from scheduler.campaign.against import Bases
from scheduler.campaign.errors import combine_errors
from scheduler.campaign.fields import file_of
from scheduler.campaign.model import Campaign, ModelEntry
from scheduler.campaign.sizes import given_sizes
from scheduler.campaign.unfit import give_another, unfit_jobs
from scheduler.models.evaluate import Evaluations
from scheduler.models.examples_fit import check_examples
from scheduler.models.files import CampaignFile, Models
from scheduler.models.inspect import WrongUnits, check_common_dims, check_ending, inspect
from swarm.base.text import count, safe_text
from swarm.blobs.bundles import contents
from swarm.download.urls import OTHERS_URL_REACH, read_url, scheme_of

_HEAD: Final = 512


Fetch = Callable[[ModelEntry], Path]
"""Downloads the model of an entry that has only a URL, and returns its file. Raises `CampaignError`."""


def no_fetch(entry: ModelEntry) -> Path:
    """A `Fetch` that downloads nothing."""
    raise entry.error("a model by URL cannot be fetched here", "give its path")


def describe_models(campaign: Campaign, base_dir: Path, fetch: Fetch = no_fetch) -> dict[str, CampaignFile]:
    """Each model's file with its content's name, size and sha256, and the examples with which it is evaluated. Relative paths start at
    `base_dir`, the campaign file's folder. `fetch` downloads models that are given only by URL. For models that devices fetch, the
    campaign's statements are accepted (`model_notes`).

    Raises `CampaignError`, with the line of the model, for a model that is missing, unreadable, empty or plainly not a model, whose sha256
    differs from the campaign's, that cannot be measured as the campaign says (`inspect`), or whose evaluation data its task cannot read.
    Blocking, and reads every byte: call it in a thread.
    """
    described: dict[str, CampaignFile] = {}
    evaluations = Evaluations(base_dir)
    graphs: list[OnnxGraph | None] = []
    bases = Bases(campaign)
    errors: list[CampaignError] = []

    def describe(entry: ModelEntry) -> None:
        units = {*(line.unit for line in campaign.lines_of(entry)), *bases.also_on(entry)}
        path, model = _describe(entry, base_dir, units, fetch)
        graph = None
        if units != {SIMULATED_UNIT}:
            try:
                graph = _look_into(campaign, entry, path, units)
            except WrongUnits as error:
                if campaign.jobs:
                    error.hint = give_another(error.form)
                raise
            graphs.append(graph)
        described[entry.key] = CampaignFile(path, model)
        if (evaluation := evaluations.of(entry)) is not None:
            if graph is not None:
                check_examples(entry, graph, evaluation)
            described[entry.examples_key] = CampaignFile(*evaluation)

    for entry in campaign.models:
        if errors and _is_fetched(entry):
            continue  # may take minutes, for nothing
        try:
            describe(entry)
        except CampaignError as error:
            errors.append(error)
    if errors:
        raise combine_errors(errors)
    check_common_dims(campaign, graphs)
    return described


def _is_fetched(entry: ModelEntry) -> bool:
    """Whether the model is downloaded for inspection."""
    return entry.path is None and entry.url is not None and scheme_of(entry.url) != "file"


def find_model(entry: ModelEntry, base_dir: Path, fetch: Fetch = no_fetch) -> Path:
    """Where the file of `entry` should be, without checking. Raises `CampaignError`, for example for a package that is not installed."""
    if entry.path is None and entry.url is not None:
        return Path(file_of(entry.url)) if scheme_of(entry.url) == "file" else fetch(entry)
    path = entry.path or ""
    if entry.package is None:
        return base_dir / Path(path).expanduser()
    spec = package_spec(entry.package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise entry.error(
            f"{entry.title}: the Python package {entry.package} is not installed here",
            f"python -m pip install {entry.package}",
        )
    inside = PurePosixPath(path)
    if inside.is_absolute() or ".." in inside.parts or "\\" in path or PureWindowsPath(path).drive:
        raise entry.error(
            f"path {safe_text(path)!r} leaves the package {entry.package}", "give the path inside it"
        )
    matches = [Path(folder) / inside for folder in folders]
    return next((file for file in matches if file.exists()), matches[0])


def package_spec(name: str) -> ModuleSpec | None:
    """Where the top-level package `name` is, without importing it; None: there is no such package."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module loaded in another way, such as __main__
        return None


def model_notes(campaign: Campaign) -> tuple[str, ...]:
    """A line for each unit on which a model is not measured, and for each fact unknown here about models that devices fetch themselves."""
    lines = [f"{why}: its jobs will fail at once." for why in unfit_jobs(campaign).values()]
    bases = Bases(campaign)
    for entry in campaign.models:
        if entry.format and not campaign.lines_of(entry) and not bases.also_on(entry):
            lines.append(f"{entry.title} is not measured: each of its units measures another file.")
        for unit in () if entry.format else campaign.left_out(entry):
            what = (
                f"{entry.title} is not measured on {unit}, which runs {words_of(unit, campaign.unit_formats)}"
            )
            lines.append(f"{what}, not {entry.known_format}.")
        if not entry.by_devices or entry.public_url is None:
            continue
        try:
            read_url(entry.public_url, OTHERS_URL_REACH)
            who = "each device"
        except Refused as exc:
            who = f"each of your own devices, and no other ({exc.what}),"
        lines.append(
            f"{entry.title} is not checked here: {who} fetches it from its URL. Only there does it turn out whether it"
            " is a model, and whether sha256 and size are right. The memory that it needs is estimated from the given size."
        )
    return tuple(lines)


def evaluation_notes(campaign: Campaign, models: Models) -> tuple[str, ...]:
    """How each model is evaluated, a line each."""
    lines: list[str] = []
    for entry in campaign.models:
        file = models.get(entry.examples_key)
        if file is not None and file.account is not None:
            examples = count(len(file.account.references), "example")
            by = ", ".join(file.account.metrics) or "nothing"
            size = show_size(file.model.size)
            lines.append(
                f"{entry.title} is evaluated by {file.account.title}: {examples} ({size}), scored by {by}."
            )
    return tuple(lines)


def by_devices(spec: str) -> frozenset[str]:
    """Hashes of the models of a stored campaign that each device fetches itself; none for a campaign stored by another version."""
    try:
        campaign = Campaign.model_validate_json(spec)
    except ValidationError:
        return frozenset()
    return frozenset(entry.sha256 for entry in campaign.models if entry.by_devices and entry.sha256)


def _look_into(
    campaign: Campaign, entry: ModelEntry, path: Path | None, units: Collection[str]
) -> OnnxGraph | None:
    if path is not None:
        return inspect(entry, path, units, given_sizes(campaign, entry), campaign.unit_formats)
    check_ending(entry, units, campaign.unit_formats)
    return None


def _describe(
    entry: ModelEntry, base_dir: Path, units: Collection[str], fetch: Fetch
) -> tuple[Path | None, Model]:
    if entry.size is not None and entry.sha256 is not None:
        return None, Model(name=entry.label, sha256=entry.sha256, size=entry.size, variant=entry.variant)
    try:
        path = find_model(entry, base_dir, fetch)
        shown = safe_text(str(path))
        if not path.exists():
            where = (
                f"inside the package {entry.package}" if entry.package else "from the campaign file's folder"
            )
            raise entry.error(f"{entry.title}: no such file: {shown}", f"paths are resolved {where}")
        if not path.is_file() and not path.is_dir():
            raise entry.error(f"{entry.title}: {shown} is not a regular file", "give the model's file")
        size, digest = _read(entry, path, units)
    except (OSError, ValueError, RuntimeError) as exc:  # RuntimeError: ~ of a user that does not exist
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise entry.error(
            f"{entry.title} cannot be read: {safe_text(why)}", "check the path and the file's permissions"
        ) from exc
    if entry.sha256 is not None and digest != entry.sha256:
        raise entry.error(
            f"{entry.title} has the sha256 {digest}, not the one in the campaign",
            f"the file{' at the URL' if entry.path is None else ''} has changed, or is a different one: correct sha256, or remove it",
        )
    return path, Model(name=entry.label, sha256=digest, size=size, variant=entry.variant)


def _read(entry: ModelEntry, path: Path, units: Collection[str]) -> tuple[int, str]:
    """Size and sha256 of the whole model, as a worker gets it. Raises `CampaignError` for what is plainly not a model."""
    hashing = hashlib.sha256()
    size = 0
    for chunk in contents(path):
        if size == 0 and set(units) != {SIMULATED_UNIT}:
            _refuse_other_files(entry, path, chunk[:_HEAD])
        hashing.update(chunk)
        size += len(chunk)
    if size == 0:
        raise entry.error(f"{entry.title}: the file is empty", "export or download it again")
    return size, hashing.hexdigest()


def _refuse_other_files(entry: ModelEntry, path: Path, head: bytes) -> None:
    """Raise `CampaignError` for a file that is plainly not a model. The driver checks it more closely."""
    if head.startswith(b"PK\x03\x04"):
        try:
            kind = read_format(path)
        except FormatError:
            kind = ModelFormat.ZIP
        if kind in CODE_CARRYING_FORMATS:
            return
        if kind is ModelFormat.CHECKPOINT:
            raise entry.error(
                f"{entry.title} is a PyTorch checkpoint: a Python pickle, which could run any program",
                "save the model with torch.export.save or torch.jit.save, or its weights as safetensors with a declaration",
            )
    if other := find_other_format(head):
        what, hint = other
        raise entry.error(f"{entry.title} is {what}", hint)


def sha256_of(model: Path) -> str:
    """The sha256 of a model, a file or a folder. Raises `CampaignError`. Blocking."""
    digest = hashlib.sha256()
    try:
        for piece in contents(model):
            digest.update(piece)
    except (OSError, ValueError) as exc:
        text = (exc.strerror if isinstance(exc, OSError) else str(exc)) or "it cannot be read"
        raise CampaignError(f"cannot read the model {safe_text(str(model))}: {safe_text(text)}") from None
    return digest.hexdigest()
