"""One is one: numbers with their nouns, for people. Pure."""

from __future__ import annotations


def count(number: int, noun: str, several: str = "") -> str:
    """`1 task`, `2 tasks`. `several`: where it is not the noun with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"
