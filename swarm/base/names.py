"""Distinct names wherever several are shown: if the names of two keys look alike, the end of the key is added. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

TAIL: Final = 6
"""Characters shown of a key; more if two keys end alike."""
_LIKE: Final = (
    ("1|!iıіӏι", "l" * 8),
    ("0оοσ", "o" * 4),
    ("аеорсухјѕԁԛԝһвкмнт", "aeopcyxjsdqwhbkmht"),
    ("αβεηκμνρτυχω", "abenkuvptuxw"),
)
_LETTERS: Final = str.maketrans(
    {char: to for chars, tos in _LIKE for char, to in zip(chars, tos, strict=True)}
)
"""Letters and digits of ASCII, Cyrillic and Greek that look like another one after case folding (which turns I into i)."""
_PAIRS: Final = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_SEPARATORS: Final = re.compile(r"[\s._\-‐-―]+")


_LABELLED: Final = re.compile(r"\s*…\w*$")


def skeleton(name: str) -> str:
    """The common form of names that look alike: without case, accents, kinds of separators, and letters that resemble others."""
    name = _LABELLED.sub("", name)
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    plain = "".join(char for char in plain if not unicodedata.combining(char) and char.isprintable())
    plain = plain.translate(_LETTERS)
    for pair, letter in _PAIRS:
        plain = plain.replace(pair, letter)
    return _SEPARATORS.sub("-", plain).strip("-")


def disambiguate_names(names: Mapping[str, str]) -> dict[str, str]:
    """Key (a peer id) → its label: the name, plus the end of the key if another key's name is the same or looks alike."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for key, name in names.items():
        alike[skeleton(name)].append(key)
    labels = dict(names)
    for keys in alike.values():
        if len(keys) > 1:
            labels |= {key: _labelled(names[key], tail) for key, tail in _tails(keys).items()}
    return labels


def _labelled(name: str, tail: str) -> str:
    """The name with its tail, which is added only once."""
    return name if name.endswith(f" …{tail}") else f"{name} …{tail}"


def _tails(keys: list[str]) -> dict[str, str]:
    """The end of each key, long enough that no two are alike."""
    length = TAIL
    while len({key[-length:] for key in keys}) < len(keys) and length < max(map(len, keys)):
        length += 1
    return {key: key[-length:] for key in keys}
