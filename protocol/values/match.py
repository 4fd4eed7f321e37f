"""Whether a device fits. Everybody uses one function: holders filter with it, schedulers rank, workers admit, users read its result."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from protocol.formats.gpu_units import gpu_number
from protocol.values.advert import Advert, GpuInfo
from protocol.values.requirement import Clause, Op, Requirement, ValueKind, attribute_of, show_size
from protocol.wire.base import brief

NOT_SET: Final = "not set"
NOT_KNOWN: Final = "not known"


class ClauseState(StrEnum):
    """How one device meets one clause."""

    MET = "met"
    UNMET = "unmet"
    UNKNOWN = "unknown"
    """The device does not say, or this version does not know the attribute."""


@dataclass(frozen=True, slots=True)
class ClauseMatch:
    """One clause compared with one device, in words ready to be shown."""

    clause: Clause
    met: ClauseState
    have: str
    need: str

    def __str__(self) -> str:
        """One short line for a message: `ram: has 4 GiB, needs >= 8 GiB`."""
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
    """Compare each clause separately (never two devices, never several dimensions at once), with GPUs as the unit sees them."""
    narrowed = narrow_to_unit_gpu(requirement, advert)
    return Match(tuple(match_clause(clause, narrowed) for clause in requirement.clauses))


_ON_GPU: Final = ("GPU ", "TensorRT ", "DirectML ")
"""How the names of units on GPUs begin."""
_OF_GPUS: Final = frozenset({"gpu", "vram"})


def narrow_to_unit_gpu(requirement: Requirement, advert: Advert) -> Advert:
    """The advert reduced to the GPU that the unit runs on, if the requirement asks for a unit on a GPU and has clauses about GPUs."""
    unit = _gpu_unit(requirement)
    return advert if unit is None else _with_gpu_of(unit, advert)


def _gpu_unit(requirement: Requirement) -> str | None:
    """The unit on a GPU that the requirement asks for. None: all of the device's GPUs count."""
    if not any(clause.attribute in _OF_GPUS for clause in requirement.clauses):
        return None
    named = (
        str(clause.value)
        for clause in requirement.clauses
        if clause.attribute == "units" and clause.op is Op.HAS
    )
    return next((unit for unit in named if unit.startswith(_ON_GPU)), None)


def _with_gpu_of(unit: str, advert: Advert) -> Advert:
    """The advert with the unit's GPU only. A unit without a number runs on the first."""
    number = gpu_number(unit)
    own = advert.gpus[:1] if number is None else tuple(gpu for gpu in advert.gpus if gpu.number == number)
    if not own and advert.gpus:
        own = (GpuInfo(name="?"),)  # there is a GPU, about which a small advert had no room to say anything
    return advert if own == advert.gpus else advert.model_copy(update={"gpus": own})


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
        absent = _absent(clause)
        return ClauseMatch(clause, absent, NOT_SET if absent is not ClauseState.UNKNOWN else NOT_KNOWN, need)
    holds = _comparison(attribute.of, clause)
    state = ClauseState.UNKNOWN
    if holds is not None:
        state = ClauseState.MET if holds(have) else ClauseState.UNMET
    return ClauseMatch(clause, state, show_value(attribute.of, have), need)


def _absent(clause: Clause) -> ClauseState:
    """The state of a clause for a device that does not have the attribute."""
    if not clause.attribute.startswith("label."):
        return ClauseState.UNKNOWN
    return ClauseState.MET if clause.op is Op.NE else ClauseState.UNMET


def _comparison(of: ValueKind, clause: Clause) -> Callable[[Any], bool] | None:
    """Whether a device's value meets the clause. None: this version does not know how to compare them."""
    op, value = clause.op, clause.value
    if of in (ValueKind.NUMBER, ValueKind.SIZE):
        if op not in _ORDER or isinstance(value, (str, tuple)):
            return None
        compare = _ORDER[op]
        return lambda have: compare(have, value)
    text = str(value)
    match op:
        case Op.LIKE:
            like = _like(text)
            return (lambda have: any(like(str(item)) for item in have)) if of is ValueKind.LIST else like
        case Op.HAS if of is ValueKind.LIST:
            return lambda have: text in have
        case Op.EQ | Op.NE if of is ValueKind.TEXT:
            compare = _ORDER[op]
            return lambda have: compare(have, text)
        case Op.IN if of is ValueKind.TEXT and isinstance(value, tuple):
            return frozenset(value).__contains__
    return None


@lru_cache(maxsize=1_024)
def _like(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches a shell pattern, ignoring case; a pattern without a wildcard may match anywhere in the text.

    Text between two stars is searched with `find`, the usual and fastest case. Other patterns use `fnmatch`'s expression, which does not
    backtrack to an earlier star: 200 characters in a text of 200 take at most 50 µs (measured).
    """
    pattern = pattern.lower()
    if not _is_plain(pattern):
        fits = re.compile(fnmatch.translate(pattern)).match
        return lambda text: fits(text.lower()) is not None
    if "*" not in pattern:
        return lambda text: pattern in text.lower()
    first, *between, last = pattern.split("*")
    part = between[0] if between else ""

    def find(text: str) -> bool:
        text = text.lower()
        start, end = len(first), len(text) - len(last)
        return (
            start <= end
            and text.startswith(first)
            and text.endswith(last)
            and text.find(part, start, end) >= 0
        )

    return find


def _is_plain(pattern: str) -> bool:
    """Whether the pattern has no wildcards except up to two stars."""
    return pattern.count("*") <= 2 and not ("?" in pattern or "[" in pattern)


# -- many devices -----------------------------------------------------------------------------------------------------------


EXACT_US: Final = 1.0
"""Processor time of one comparison with one device, in µs (measured)."""
PLAIN_US: Final = 1.5
"""Processor time for a pattern with at most two stars and no other wildcards."""
PATTERN_US: Final = 20.0
"""Processor time for any other pattern."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """`match(…).fits` of a requirement that is checked on many devices: compiled once, cheapest and most selective clauses first."""

    conditions: tuple[Callable[[Advert], bool], ...]
    cost_us: float
    """Processor time for one device, at most."""
    gpu_unit: str | None = None
    """The unit whose GPU is the only one that counts."""

    def __call__(self, advert: Advert) -> bool:
        if self.gpu_unit is not None:
            advert = _with_gpu_of(self.gpu_unit, advert)
        return all(condition(advert) for condition in self.conditions)


def clause_cost_us(clause: Clause) -> float:
    """Processor time to check one clause on one device, in µs."""
    if clause.op is not Op.LIKE:
        return EXACT_US
    return PLAIN_US if _is_plain(str(clause.value)) else PATTERN_US


def requirement_cost_us(requirement: Requirement) -> float:
    """Processor time to check all clauses on one device, in µs."""
    return sum(map(clause_cost_us, requirement.clauses))


_SELECTS: Final = (Op.EQ, Op.HAS, Op.IN, Op.GE, Op.GT, Op.LE, Op.LT, Op.LIKE, Op.NE)
"""Most selective first."""


def compile_requirement(requirement: Requirement) -> Predicate:
    """The predicate of a requirement. A clause that no device can meet is the only one tried."""
    clauses = sorted(
        requirement.clauses,
        key=lambda clause: (clause_cost_us(clause), _SELECTS.index(clause.op)),
    )
    conditions = [_condition(clause) for clause in clauses]
    if None in conditions:
        return Predicate((lambda advert: False,), EXACT_US)
    return Predicate(
        tuple(filter(None, conditions)), sum(map(clause_cost_us, clauses)), _gpu_unit(requirement)
    )


def _condition(clause: Clause) -> Callable[[Advert], bool] | None:
    """The condition of one clause. None: no device meets it, as far as this version knows."""
    attribute = attribute_of(clause.attribute)
    holds = None if attribute is None else _comparison(attribute.of, clause)
    absent = _absent(clause) is ClauseState.MET
    if attribute is None or (holds is None and not absent):
        return None
    read = attribute.read

    def condition(advert: Advert) -> bool:
        have = read(advert)
        return absent if have is None else holds is not None and holds(have)

    return condition


def show_value(of: ValueKind, have: Any) -> str:
    """A device's attribute in words."""
    if of is ValueKind.SIZE:
        return show_size(int(have))
    if of is ValueKind.LIST:
        return ", ".join(str(item) for item in have) or "none"
    return str(have)
