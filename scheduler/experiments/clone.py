"""The file of a past campaign or an experiment's version, to edit and run again, with changed keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePath
from typing import Any

from protocol.errors import CampaignError
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.experiments.service import find_version
from scheduler.experiments.view import model_notes, version_note
from scheduler.models.uploads import as_sent
from scheduler.store.store import Store
from swarm.base.text import safe_text
from swarm.base.yaml import parse_document

_HINT = (
    "such as --set measure.batch=[1,8] or --set models.1.path=other.onnx; name models by name or by number from 1;"
    " nothing after = removes the key"
)


def clone_text(store: Store, source: str, changes: Sequence[str] = (), uploads: Path | None = None) -> str:
    """The file of a campaign (an id or its beginning) or of an experiment (`nightly`, `nightly@3`). `changes`: such as
    `measure.batch=[1,8]`; `uploads`: as in `campaign_clone`. Raises `CampaignError`.
    """
    if "@" in source or store.experiments.get(source) is not None:  # its campaigns have the same name
        version = find_version(store, source)
        campaign = as_sent(read_spec(version.spec, version.title), version.folder, uploads)
        models = () if changes else version.models
        return _text(campaign, version.folder, version_note(version), changes) + model_notes(models)
    return campaign_clone(store, store.campaigns.resolve(source), changes, uploads)


def campaign_clone(
    store: Store, campaign: str, changes: Sequence[str] = (), uploads: Path | None = None
) -> str:
    """The file of a stored campaign. `uploads`: the folder of uploaded models, which the file names by hash. Raises `CampaignError`, and
    `KeyError` for an unknown id.
    """
    row = store.campaigns.get(campaign)
    if row is None:
        raise KeyError(campaign)
    spec, folder, note = read_spec(row.spec, campaign), row.folder, f"From campaign {campaign}."
    if not folder:
        note += "\nThe folder it was submitted from is unknown: check the paths of its models."
    elif Path(folder) == uploads:
        spec, folder = as_sent(spec, folder, uploads), ""
    return _text(spec, folder, note, changes)


def _text(campaign: Campaign, folder: str, note: str, changes: Sequence[str]) -> str:
    text = campaign_text(campaign, folder=folder, note=note)
    if not changes:
        return text
    value = parse_document(text.encode(), "clone.yaml").value
    for change in changes:
        _apply(value, change)
    try:  # as JSON, which keeps the type of each value
        known = {line.unit: campaign.unit_formats.get(line.unit, ()) for line in campaign.lines()}
        changed = parse_campaign(json.dumps(value).encode(), "clone.json", find_units=lambda units: known)
    except CampaignError as exc:
        raise CampaignError(
            f"the changed campaign is invalid: {exc.detail}", hint=exc.first_hint or _HINT
        ) from None
    keys = ", ".join(safe_text(change.partition("=")[0], 60) for change in changes)
    return campaign_text(changed, schedule=changed.schedule, note=f"{note}\nChanged: {keys}")


def _apply(value: Any, change: str) -> None:
    """Apply `measure.batch=[1,8]` to `value`. Raises `CampaignError`."""
    path, sign, text = change.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise CampaignError(f"--set {safe_text(change, 80)!r} is not KEY=VALUE", hint=_HINT)
    try:
        new = parse_document(text.encode("utf-8", "replace"), "--set").value
    except CampaignError as exc:
        raise _error(change, exc.detail) from None
    _set(value, keys, new, change)


def _set(value: Any, keys: Sequence[str], new: Any, change: str) -> None:
    if isinstance(value, list):
        positions, rest = _positions(value, keys, change)
        for at in reversed(positions):
            if rest:
                if isinstance(value[at], str):  # a model written as its path
                    value[at] = {"path": value[at]}
                _set(value[at], rest, new, change)
            else:
                value[at : at + 1] = [] if new is None else [deepcopy(new)]
    elif isinstance(value, dict) and len(keys) > 1:
        _set(value.setdefault(keys[0], {}), keys[1:], new, change)
    elif isinstance(value, dict) and new is not None:
        value[keys[0]] = deepcopy(new)
    elif isinstance(value, dict) and keys[0] in value:
        del value[keys[0]]
    else:
        raise _error(change, "the campaign has no such key")


def _positions(value: Sequence[Any], keys: Sequence[str], change: str) -> tuple[list[int], Sequence[str]]:
    """The items of a list by number, from 1, or by the name of a model, which may contain dots; and the remaining keys."""
    first = keys[0]
    if first.isdecimal() and len(first) < 6 and 1 <= int(first) <= len(value):
        return [int(first) - 1], keys[1:]
    for length in range(len(keys), 0, -1):
        name = ".".join(keys[:length])
        positions = [at for at, item in enumerate(value) if name in _names(item)]
        if positions:
            return positions, keys[length:]
    raise _error(change, f"the list of {len(value)} has no item {safe_text(first, 40)}")


def _names(item: Any) -> tuple[str, ...]:
    """The names of a model: without and with its variant."""
    if not isinstance(item, Mapping):
        return (PurePath(item).name,) if isinstance(item, str) else ()
    name = str(item.get("name") or PurePath(str(item.get("path") or item.get("url") or "")).name)
    return (name, f"{name} {item.get('variant')}")


def _error(change: str, what: str) -> CampaignError:
    return CampaignError(f"--set {safe_text(change, 80)!r}: {what}", hint=_HINT)
