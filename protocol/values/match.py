"""Does this device fit? One function for everybody: the holder filters with it, the scheduler ranks, the worker admits, people read it."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from protocol.values.advert import Advert
from protocol.values.requirement import Clause, Of, Op, Requirement, attribute_of, show_size
from protocol.wire.base import brief

NOT_SET: Final = "not set"
NOT_KNOWN: Final = "not known"


class ClauseState(StrEnum):
    """How one clause stands with one device."""

    MET = "met"
    UNMET = "unmet"
    UNKNOWN = "unknown"
    """The device does not say, or this version of ours does not know the attribute."""


@dataclass(frozen=True, slots=True)
class ClauseMatch:
    """One clause against one device, in words ready to be shown."""

    clause: Clause
    met: ClauseState
    have: str
    need: str

    def __str__(self) -> str:
        """One short line, fit for a message: `ram: has 4 GiB, needs >= 8 GiB`."""
        if self.have in (NOT_SET, NOT_KNOWN):
            return brief(f"{self.clause.attribute} is {self.have}, needs {brief(self.need, 90)}")
        return brief(f"{self.clause.attribute}: has {brief(self.have, 90)}, needs {brief(self.need, 90)}")


@dataclass(frozen=True, slots=True)
class Match:
    """All clauses, in the requirement's order."""

    clauses: tuple[ClauseMatch, ...]

    @property
    def fits(self) -> bool:
        return all(item.met is ClauseState.MET for item in self.clauses)

    @property
    def missing(self) -> tuple[ClauseMatch, ...]:
        return tuple(item for item in self.clauses if item.met is not ClauseState.MET)


def match(requirement: Requirement, advert: Advert) -> Match:
    """Compare every clause by itself (never two devices, never several dimensions at once)."""
    return Match(tuple(match_clause(clause, advert) for clause in requirement.clauses))


_ORDER: Final[dict[Op, Callable[[Any, Any], bool]]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


def match_clause(clause: Clause, advert: Advert) -> ClauseMatch:
    need = str(clause).removeprefix(f"{clause.attribute} ")
    attribute = attribute_of(clause.attribute)
    if attribute is None:
        return ClauseMatch(clause, ClauseState.UNKNOWN, "attribute not known here", need)
    have = attribute.read(advert)
    if have is None:
        absent = ClauseState.UNMET if clause.attribute.startswith("label.") else ClauseState.UNKNOWN
        if absent is ClauseState.UNMET and clause.op is Op.NE:
            absent = ClauseState.MET
        return ClauseMatch(clause, absent, NOT_SET if absent is not ClauseState.UNKNOWN else NOT_KNOWN, need)
    return ClauseMatch(clause, _compare(attribute.of, clause, have), show_value(attribute.of, have), need)


def _compare(of: Of, clause: Clause, have: Any) -> ClauseState:
    met = _holds(of, clause.op, clause.value, have)
    if met is None:
        return ClauseState.UNKNOWN
    return ClauseState.MET if met else ClauseState.UNMET


def _holds(of: Of, op: Op, value: Any, have: Any) -> bool | None:
    """None: this version of ours does not know how to compare these."""
    if of in (Of.NUMBER, Of.SIZE):
        return None if op not in _ORDER or isinstance(value, (str, tuple)) else _ORDER[op](have, value)
    items = tuple(map(str, have)) if of is Of.LIST else (str(have),)
    match op:
        case Op.LIKE:
            return any(_like(item, str(value)) for item in items)
        case Op.HAS if of is Of.LIST:
            return str(value) in items
        case Op.EQ | Op.NE if of is Of.TEXT:
            return _ORDER[op](items[0], str(value))
        case Op.IN if of is Of.TEXT and isinstance(value, tuple):
            return items[0] in value
    return None


def _like(text: str, pattern: str) -> bool:
    """A shell pattern, case ignored; a pattern without a wildcard may stand anywhere in the text."""
    if not any(mark in pattern for mark in "*?["):
        pattern = f"*{pattern}*"
    return fnmatch.fnmatchcase(text.lower(), pattern.lower())


def show_value(of: Of, have: Any) -> str:
    """A device's attribute for people."""
    if of is Of.SIZE:
        return show_size(int(have))
    if of is Of.LIST:
        return ", ".join(str(item) for item in have) or "none"
    return str(have)
