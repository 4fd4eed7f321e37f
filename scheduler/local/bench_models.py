"""The models that `bench` is given: files of this machine, and URLs, which its owner may lead anywhere."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import CampaignError, ResourceError
from scheduler.campaign.fields import URL_SCHEMES
from scheduler.campaign.model import ModelEntry
from scheduler.models.describe import Fetch, find_model, sha256_of
from swarm.base.text import safe_text
from swarm.download.urls import scheme_of, without_secrets


def is_url(name: str) -> bool:
    """Whether a model of this name is fetched."""
    return scheme_of(name) in URL_SCHEMES


@contextlib.contextmanager
def at_hand(
    names: Sequence[str], folder: Path, fetch: Fetch, *, sha256: str | None = None
) -> Iterator[tuple[Path, ...]]:
    """Each of these as a path: what is a URL is fetched, and lies under its last name in a folder of its own in `folder`, for the block.
    `sha256`: what each of them must have.

    Raises `CampaignError` for a file that is not there and for a URL that gives none, `ResourceError` when it cannot be kept. Blocking.
    """
    found = tuple(_found(name, fetch, sha256) for name in names)
    for name, (path, _) in zip(names, found, strict=True):
        if sha256 is not None and (digest := sha256_of(path)) != sha256:
            raise CampaignError(
                f"model {safe_text(without_secrets(name), 100)} has the sha256 {digest}, not the one that was asked for",
                hint="the file has changed, or is another one",
            )
    with contextlib.ExitStack() as stack:
        yield tuple(path if entry is None else _named(path, entry, folder, stack) for path, entry in found)


def _found(name: str, fetch: Fetch, sha256: str | None) -> tuple[Path, ModelEntry | None]:
    """Where it is; the entry, where it was fetched and has another name there."""
    if not is_url(name):
        path = Path(name)
        if not path.exists():
            raise CampaignError(
                f"model {path}: there is no such file", hint="give the path of a model's file, or its URL"
            )
        return path, None
    try:
        entry = ModelEntry.model_validate({"url": name, "sha256": sha256})
    except ValidationError as exc:
        told = exc.errors(include_url=False)[0]
        said = told.get("ctx", {})
        raise CampaignError(str(said.get("what", told["msg"])), hint=str(said.get("hint", ""))) from None
    path = find_model(entry, Path(), fetch)
    shown = safe_text(without_secrets(name), 100)
    if not path.exists():
        raise CampaignError(f"model {shown}: there is no such file", hint="look at the URL")
    return path, entry


def _named(path: Path, entry: ModelEntry, folder: Path, stack: contextlib.ExitStack) -> Path:
    """The same file under the entry's name, as long as `stack` is open: rows show it, and its ending tells the unit."""
    name = re.sub(r"[/\\\x00]", "_", entry.label)
    if name in ("", ".", "..", path.name):
        return path
    try:
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder))) / name
        try:
            os.link(path, there)
        except OSError:  # a file system without links
            shutil.copyfile(path, there)
    except OSError as exc:
        raise ResourceError(
            f"cannot keep {safe_text(name, 60)} in {folder}: {exc.strerror or exc}",
            hint="look at the disk, or put the cache elsewhere: --home",
        ) from None
    return there
