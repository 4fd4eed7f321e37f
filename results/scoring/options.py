"""Validates a task's options from a campaign: errors say what is allowed, and no value is converted silently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from swarm.base.text import did_you_mean, safe_text


def only(options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises `ValueError` for an option that is not in `names`."""
    known = tuple(names)
    for option in options:
        if option not in known:
            there_are = f"there are: {', '.join(known)}" if known else "it takes none here"
            guess = " ".join(filter(None, [did_you_mean(str(option), known), there_are]))
            raise ValueError(f"there is no option {safe_text(str(option), 60)!r}: {guess}")


def text_option(options: Mapping[str, Any], name: str, default: str) -> str:
    """A non-empty text."""
    text = options.get(name, default)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"option {name!r} has to be a text")
    return text


def word_option(options: Mapping[str, Any], name: str, words: Iterable[str], default: str) -> str:
    """One of `words`."""
    allowed, word = tuple(map(str, words)), options.get(name, default)
    if word not in allowed:
        raise ValueError(f"option {name!r} is {_shown(word)}: it has to be one of {', '.join(allowed)}")
    return str(word)


def whole_option(options: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """A whole number; None if not given."""
    number = options.get(name)
    if number is not None and not (type(number) is int and least <= number <= most):
        raise ValueError(
            f"option {name!r} is {_shown(number)}: it has to be a whole number, {least} to {most}"
        )
    return number


def numbers_option(
    options: Mapping[str, Any], name: str, default: float, counts: Iterable[int]
) -> list[float]:
    """One number, or a list whose length is in `counts`."""
    given = options.get(name, default)
    numbers = given if isinstance(given, list | tuple) else [given]
    allowed = sorted({1, *counts})
    if len(numbers) not in allowed or not all(
        type(number) in (int, float) and math.isfinite(number) for number in numbers
    ):
        raise ValueError(
            f"option {name!r} is {_shown(given)}: it has to be {' or '.join(map(str, allowed))} number(s), such as [0.5, 0.5, 0.5]"
        )
    return [float(number) for number in numbers]


def _shown(value: Any) -> str:
    return safe_text(repr(value), 60)
