"""Units of third-party drivers: known from the adverts of reachable devices, with the formats that they run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from protocol.formats.frameworks import UnitFormats
from protocol.formats.gpu_units import without_number
from protocol.values.advert import UnitOffer
from scheduler.campaign.fields import UNITS

FindUnits = Callable[[Collection[str]], UnitFormats]
"""The reachable units that are not in `UNITS`, in particular the given ones. Raises `SarkError` if no device can be asked."""


def foreign_units(offers: Iterable[UnitOffer]) -> dict[str, tuple[str, ...]]:
    """The units that are not in `UNITS`, with their formats: the union over all devices; none if one device does not name its formats."""
    found: dict[str, tuple[str, ...]] = {}
    for offer in offers:
        unit = without_number(offer.unit)
        if unit in UNITS:
            continue
        both = (*found.get(unit, ()), *(offer.formats or ()))
        open_to_all = offer.formats is None or found.get(unit) == ()
        found[unit] = () if open_to_all else tuple(dict.fromkeys(both))
    return found
