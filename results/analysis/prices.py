"""The user's price file: what an hour of a device costs, by its name, its id or its chip. Nothing is known without it.

currency: EUR
per_hour:
  mini: 0.12                     # a device's name
  "AMD EPYC": 0.48               # a chip, as the Soc column has it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swarm.base.text import safe_text
from swarm.base.yaml import read_document

_KEYS: Final = ("currency", "per_hour")


@dataclass(frozen=True, slots=True)
class Price:
    """Of one device or chip."""

    per_hour: float
    currency: str


def read_prices(path: Path) -> Mapping[str, Price]:
    """Prices by name. Raises `CampaignError` with file, line and hint. Blocking."""
    hint = "write currency: EUR and, under per_hour:, a device's name and a number"
    document = read_document(path, f"in a YAML file, {hint}")
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), "a price file is a mapping of key: value", hint)
    for key in value:
        if key not in _KEYS:
            raise document.error((key,), f"unknown key {safe_text(str(key), 60)!r}", hint)
    currency, text = value.get("currency", ""), value.get("per_hour")
    if not isinstance(currency, str) or not 1 <= len(currency) <= 16:
        raise document.error(("currency",), "currency must be a short text, such as EUR", hint)
    if not isinstance(text, dict) or not text:
        raise document.error(("per_hour",), "per_hour must be a mapping of device: price", hint)
    prices = {}
    for name, price in text.items():
        number = isinstance(price, (int, float)) and not isinstance(price, bool)
        if not number or not 0 <= price < 1e9:
            shown = safe_text(str(name), 60)
            raise document.error(
                ("per_hour", name), f"the price of {shown!r} must be a number from 0 on", hint
            )
        prices[str(name)] = Price(float(price), currency)
    return prices
