"""`bench --on`: builds a campaign, without a file, from models and words for devices. Pure.

--on all                  every device
--on 'ram >= 8 GiB'       a clause, as under devices.where; a device must meet all clauses
--on lab                  a device's name or id, a pool or a label; several devices are alternatives, pools and labels must all be met
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.errors import CampaignError, NothingFits
from protocol.formats.frameworks import UnitFormats
from protocol.values.advert import Advert
from protocol.values.requirement import Clause, Op, parse_clause
from scheduler.campaign.fields import URL_SCHEMES, show_percent
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.reach import foreign_units
from scheduler.local.bench import unit_for, units_that_run
from scheduler.local.own_sizes import own_sizes
from swarm.base.text import did_you_mean, safe_text
from swarm.base.units import duration_text
from swarm.download.urls import name_in, scheme_of

ALL: Final = "all"
MAX_SHOWN: Final = 12
MAX_NAMED: Final = 32
"""Most devices in one clause."""
_NAMES: Final = ("name", "device", "peer")
_OPERATOR: Final = re.compile(r"==|!=|[<>~]|\s(?:in|has)\s")
_MEASURE: Final = ("runs", "loads", "warmup", "compute_type")
"""Options of `bench` that are keys of `measure`."""


@dataclass(frozen=True, slots=True)
class Places:
    """The devices that the values of `--on` ask for."""

    clauses: tuple[Clause, ...] = ()
    words: tuple[str, ...] = ()
    """Values without an operator: only the devices tell what they mean."""

    def spread(self, adverts: Sequence[Advert]) -> str:
        """Workers count separately if each is named, even on one device."""
        named = {advert.name for advert in adverts} | {advert.peer for advert in adverts}
        return "worker" if self.words and named.issuperset(self.words) else "device"

    @property
    def everywhere(self) -> bool:
        """Whether every device is meant."""
        return not (self.clauses or self.words)


def read_places(values: Sequence[str]) -> Places:
    """Raises `CampaignError` for a clause that cannot be parsed."""
    texts = list(dict.fromkeys(text.strip() for text in values))
    if "" in texts:
        raise CampaignError("--on needs a value", hint="such as --on all, --on lab or --on 'ram >= 8 GiB'")
    clauses = tuple(parse_clause(text) for text in texts if _OPERATOR.search(text))
    return Places(clauses, tuple(text for text in texts if text != ALL and not _OPERATOR.search(text)))


def clauses_on(places: Places, adverts: Sequence[Advert]) -> tuple[Clause, ...]:
    """The clauses, and those that the words mean for these devices. Raises `NothingFits` for a word that matches none of them, and
    `CampaignError` for a word with several meanings.
    """
    meant = [(word, _meanings(word, adverts)) for word in places.words]
    for word, meanings in meant:
        if not meanings:
            known = _known(adverts)
            hint = "  ".join(
                filter(None, [did_you_mean(word, known), f"known: {_listed(known)}" if known else ""])
            )
            raise NothingFits(
                f"no device, pool or label is called {safe_text(word, 60)!r}",
                hint=hint or "no device that may run it is in the swarm now: sark-node peers",
            )
        if len(meanings) > 1:
            forms = " or ".join(f"--on '{meaning}'" for meaning in meanings)
            raise CampaignError(f"--on {safe_text(word, 60)} means several things", hint=f"write {forms}")
    return (*places.clauses, *_joined([meaning for _, (meaning,) in meant]))


def _joined(found: Sequence[Clause]) -> list[Clause]:
    """Named devices are alternatives, in one clause; pools and labels must all be met."""
    named = [clause for clause in found if clause.attribute in _NAMES]
    ways = dict.fromkeys(clause.attribute for clause in named)
    if len(ways) > 1:
        raise CampaignError(
            f"--on names devices by {' and by '.join(ways)}", hint="name all by name, or all by id"
        )
    if len(named) > MAX_NAMED:
        raise CampaignError(
            f"--on names {len(named)} devices; at most {MAX_NAMED} can be named",
            hint="use --on all, a pool, a label or a clause",
        )
    if len(named) < 2:
        return list(found)
    one_of = Clause(attribute=next(iter(ways)), op=Op.IN, value=tuple(str(clause.value) for clause in named))
    return [*(clause for clause in found if clause.attribute not in _NAMES), one_of]


def _meanings(word: str, adverts: Sequence[Advert]) -> list[Clause]:
    """Everything with this name, each as a clause."""
    found: dict[str, None] = {}
    for advert in adverts:
        if advert.name == word:
            found[f"name == {word}"] = None
        if advert.device == word:
            found[f"device == {word}"] = None
        if advert.peer == word:
            found[f"peer == {word}"] = None
        if word in advert.pools:
            found[f"pools has {word}"] = None
        found |= {
            f"label.{key} == {word}": None for key, value in sorted(advert.labels.items()) if value == word
        }
    return list(map(parse_clause, found))


def _known(adverts: Sequence[Advert]) -> list[str]:
    names = [advert.name for advert in adverts]
    groups = [
        *(pool for advert in adverts for pool in advert.pools),
        *(v for a in adverts for v in a.labels.values()),
    ]
    return sorted({*names, *groups})


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(safe_text(name, 40) for name in names[:MAX_SHOWN]) + more


# -- the campaign -------------------------------------------------------------------------------------------------------------------


def campaign_on(
    models: Sequence[str],
    units: Sequence[str],
    clauses: Sequence[Clause],
    options: Mapping[str, Any],
    adverts: Sequence[Advert] | None = None,
    spread: str = "device",
) -> Campaign:
    """One task for each model, unit and device, or worker. `models`: paths or URLs; `units`: empty if each model's format determines it;
    `options`: those of `bench`, as in `Measure`, and `against`: the second of two models is compared with the first, each on its own of two
    `units`; `adverts`: of devices, whose drivers may add units; None: not known yet. Raises `CampaignError`.
    """
    pair = bool(options.get("against"))
    entries = _entries(list(dict.fromkeys(models)) if pair else models, options)
    measure = {name: options[name] for name in _MEASURE if name in options}
    if "precision" in options:
        measure["precision"] = show_percent(options["precision"])
    if options.get("check") is False:
        measure["check"] = "none"
    if "sustain_s" in options:
        measure["sustain"] = duration_text(options["sustain_s"])
    if "over_s" in options:
        measure["over"] = duration_text(options["over_s"])
    if pair:
        measure["against"] = _turns(entries, name_of(models[0]), units)
    for name in ("threads", "batch"):
        if name in options:
            measure[name] = [options[name]]
    value = {
        "campaign": _title(models),
        "models": entries,
        "units": [units[-1]] if pair and units else list(units or default_units(models)),
        "devices": {"where": list(map(_text, clauses)), "spread": spread},
        "measure": measure,
    }
    try:
        found = dict.fromkeys(units, ()) if adverts is None else _foreign(adverts)
        return parse_campaign(json.dumps(value).encode(), "bench.json", find_units=lambda units: found)
    except CampaignError as exc:
        raise CampaignError(exc.detail, hint=exc.first_hint) from None


def _foreign(adverts: Sequence[Advert]) -> UnitFormats:
    return foreign_units(offer for advert in adverts for offer in advert.units)


def _turns(entries: Sequence[dict[str, Any]], first: str, units: Sequence[str]) -> dict[str, str]:
    """What the second of two models is compared with: the first (`first` is its name), on the first of `units` if there are two. A single
    model is compared with itself there.
    """
    named = {"unit": units[0]} if len(set(units)) == 2 else {}
    if named and len(entries) == 1:
        return named
    if named:
        entries[0]["units"] = [units[0]]
    return {"model": entries[0].get("name", first), **named}


def default_units(models: Sequence[str]) -> tuple[str, ...]:
    """The default unit for the models' format. Raises `CampaignError` if they have several formats, or an unknown one."""
    units = {unit_for(Path(name_of(model))): model for model in models}
    if len(units) > 1:
        (unit, first), (other, second), *_ = units.items()
        raise CampaignError(
            f"{safe_text(name_of(first), 60)} runs on {unit}, but {safe_text(name_of(second), 60)} on {other}",
            hint="measure the models of one format at a time",
        )
    return tuple(units)


def offered_units(models: Sequence[str], adverts: Sequence[Advert]) -> tuple[str, ...]:
    """The units meant by `--unit all`: those of these devices that run the models' format."""
    default_units(models)
    offered = sorted({offer.unit for advert in adverts for offer in advert.units})
    for model in models:
        offered = units_that_run(Path(name_of(model)), offered, _foreign(adverts))
    return tuple(offered)


def name_of(model: str) -> str:
    """The file's name, from a path or a URL."""
    return name_in(model) if scheme_of(model) in URL_SCHEMES else Path(model).name


def _entries(models: Sequence[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry for each model; files with one name in several folders get their folder's name too."""
    names = Counter(map(name_of, models))
    entries: list[dict[str, Any]] = []
    for model, own in zip(models, own_sizes(models, options), strict=True):
        by_url = scheme_of(model) in URL_SCHEMES
        entry: dict[str, Any] = (
            {"url": model} if by_url else {"path": str(Path(model).expanduser().absolute())}
        )
        if names[name_of(model)] > 1:
            entry["name"] = f"{Path(model).absolute().parent.name}-{name_of(model)}"
        shapes = {name: list(shape) for name, shape in own.get("shapes", {}).items()}
        sizes = {"inputs": {**own.get("inputs", {}), **shapes}, "dims": own.get("dims")}
        entries.append(entry | {name: value for name, value in sizes.items() if value})
    return entries


def _text(clause: Clause) -> str:
    """The clause as in a campaign file: a size in bytes gets its unit."""
    size = isinstance(clause.value, int) and clause.attribute in ("ram", "vram")
    return f"{clause.attribute} {clause.op} {clause.value} B" if size else str(clause)


def _title(models: Sequence[str]) -> str:
    stem = Path(name_of(models[0])).stem + (f" and {len(models) - 1} more" if len(models) > 1 else "")
    return re.sub(r"[^A-Za-z0-9 ._-]+", "-", stem).strip(" -._")[:64] or "bench"
