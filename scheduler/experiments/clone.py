"""A past campaign, or a version of an experiment, as a file to be edited and run again, with some of its keys changed on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePath
from typing import Any

from protocol.errors import CampaignError
from scheduler.campaign.dump import campaign_text, read_spec
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.experiments.service import find_version, utc
from scheduler.experiments.view import model_notes
from scheduler.models.uploads import SCHEME
from scheduler.store.store import Store
from swarm.base.text import safe_text
from swarm.base.yaml import parse_document

_HINT = (
    "such as --set measure.batch=[1,8] or --set models.1.path=other.onnx; models go by name or by number from 1,"
    " nothing after = takes a key out"
)


def clone_text(store: Store, source: str, changes: Sequence[str] = ()) -> str:
    """The text of `source`: a campaign's id or the beginning of it, or an experiment as `nightly` or `nightly@3`. `changes`: such as
    `measure.batch=[1,8]`. Raises `CampaignError`.
    """
    if "@" in source or store.experiments.get(source) is not None:  # its runs bear the same name
        version = find_version(store, source)
        campaign = read_spec(version.spec, version.title)
        note = f"{version.title}, saved {utc(version.created)} from {safe_text(version.folder, 400)}"
        models = () if changes else version.models
        return _text(campaign, version.folder, note, changes) + model_notes(models)
    found = store.campaigns.resolve(source)
    return campaign_clone(store, found, changes)


def campaign_clone(
    store: Store, campaign: str, changes: Sequence[str] = (), uploads: Path | None = None
) -> str:
    """The text of a stored campaign by its whole id. `uploads`: the folder of models that were sent here, which are named by their hash.
    Raises `CampaignError`, KeyError for one that is not there.
    """
    row = store.campaigns.get(campaign)
    if row is None:
        raise KeyError(campaign)
    folder = row.folder
    spec = read_spec(row.spec, campaign)
    note = f"From campaign {campaign}."
    if uploads is not None and folder and Path(folder) == uploads:
        spec = spec.model_copy(
            update={
                "models": tuple(
                    entry.model_copy(update={"path": SCHEME + entry.path})
                    if entry.path is not None and entry.package is None and not Path(entry.path).is_absolute()
                    else entry
                    for entry in spec.models
                )
            }
        )
        folder = ""
    elif not folder:
        note += "\nThe folder it was submitted from is not known: look at its models' paths."
    return _text(spec, folder, note, changes)


def _text(campaign: Campaign, folder: str, note: str, changes: Sequence[str]) -> str:
    text = campaign_text(campaign, folder=folder, note=note)
    if not changes:
        return text
    value = parse_document(text.encode(), "clone.yaml").value
    for change in changes:
        _set(value, change)
    try:  # as JSON: each value is read as the one that it is
        changed = parse_campaign(json.dumps(value).encode(), "clone.json", more_units=campaign.units)
    except CampaignError as exc:
        raise CampaignError(
            f"with these changes it is no campaign: {exc.said}", hint=exc.first_hint or _HINT
        ) from None
    told = ", ".join(safe_text(change.partition("=")[0], 60) for change in changes)
    return campaign_text(changed, schedule=changed.schedule, note=f"{note}\nChanged: {told}")


def _set(value: Any, change: str) -> None:
    """`measure.batch=[1,8]` in `value`; nothing after the sign takes the key out. Raises `CampaignError`."""
    way, sign, told = change.partition("=")
    keys = way.strip().split(".")
    if not sign or not all(keys):
        raise _wrong(change, "is not KEY=VALUE", colon=False)
    try:
        new = parse_document(told.encode("utf-8", "replace"), "--set").value
    except CampaignError as exc:
        raise _wrong(change, exc.said) from None
    _put(value, keys, new, change)


def _put(value: Any, keys: Sequence[str], new: Any, change: str) -> None:
    if isinstance(value, list):
        places, rest = _places(value, keys, change)
        for at in reversed(places):
            if not rest and new is None:
                del value[at]
            elif not rest:
                value[at] = deepcopy(new)
            else:
                if isinstance(value[at], str):  # a model that is a path alone
                    value[at] = {"path": value[at]}
                _put(value[at], rest, new, change)
    elif not isinstance(value, dict):
        raise _wrong(change, "there is no such place in it")
    elif len(keys) > 1:
        _put(value.setdefault(keys[0], {}), keys[1:], new, change)
    elif new is not None:
        value[keys[0]] = deepcopy(new)
    elif keys[0] in value:
        del value[keys[0]]
    else:
        raise _wrong(change, "it has no such key")


def _places(value: Sequence[Any], keys: Sequence[str], change: str) -> tuple[list[int], Sequence[str]]:
    """Of a list the place by its number from 1, or those of all models of that name, which may hold dots; and the keys that are left."""
    first = keys[0]
    if first.isdecimal() and len(first) < 6 and 1 <= int(first) <= len(value):
        return [int(first) - 1], keys[1:]
    for length in range(len(keys), 0, -1):
        name = ".".join(keys[:length])
        found = [at for at, one in enumerate(value) if name in _names(one)]
        if found:
            return found, keys[length:]
    raise _wrong(change, f"{safe_text(first, 40)} is no entry of that list of {len(value)}")


def _names(one: Any) -> tuple[str, ...]:
    """What a model is called: all its variants, and the very one."""
    if not isinstance(one, Mapping):
        return (PurePath(one).name,) if isinstance(one, str) else ()
    name = str(one.get("name") or PurePath(str(one.get("path") or one.get("url") or "")).name)
    return (name, f"{name} {one.get('variant')}")


def _wrong(change: str, what: str, *, colon: bool = True) -> CampaignError:
    return CampaignError(f"--set {safe_text(change, 80)!r}{':' if colon else ''} {what}", hint=_HINT)
