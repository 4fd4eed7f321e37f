"""Why nothing fits, in words: for each clause how many devices meet it and how many remain, the nearest miss, and the smallest change that
would help. Pure.

0 of 214 devices fit
  units has GPU (CoreML)   61 meet it,  61 left
  ram >= 64 GiB            12 meet it,   0 left   nearest: mini-7 has 48 GiB
Smallest change: ram >= 48 GiB → 3 devices
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from protocol.values.advert import Advert
from protocol.values.match import ClauseMatch, ClauseState, match, match_clause, narrow_to_unit_gpu
from protocol.values.requirement import Clause, Op, Requirement, ValueKind, attribute_of
from protocol.words import Reason
from results.row.simulated import shown_name
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from scheduler.core.ranking import WorkerView

_AT_LEAST: Final = (Op.GE, Op.GT)
_AT_MOST: Final = (Op.LE, Op.LT)
ADVICE: Final = "; its owner can: sark-node join --allow"
"""Where the text of a worker's refusal continues with advice, which is given once for all workers."""


REPLICAS_DONE: Final = "every device that fits has already run another of its replicas, and each replica needs a device of its own"
LACKS_SIBLING: Final = "join another device of that class, or ask for fewer replicas"
"""Advice for a replica for which no device is left."""


def explain(requirement: Requirement, adverts: Sequence[Advert]) -> str:
    """A text that says, for each clause, how many of `adverts` meet it, and how many also meet all clauses before it."""
    if not adverts:
        return "no device that may run it is in the swarm now\nIs a worker running (sark-node join), and does it use the same gate?"
    adverts = [narrow_to_unit_gpu(requirement, advert) for advert in adverts]
    left = list(adverts)
    lines: list[tuple[str, int, int, str]] = []
    for clause in requirement.clauses:
        alone = [advert for advert in adverts if match_clause(clause, advert).met is ClauseState.MET]
        verdicts = [(advert, match_clause(clause, advert)) for advert in left]
        met = [advert for advert, verdict in verdicts if verdict.met is ClauseState.MET]
        near = _nearest(clause, verdicts) if left and not met else ""
        lines.append((str(clause), _distinct(alone), _distinct(met), near))
        left = met
    total = _distinct(adverts)
    width = max((len(text) for text, *_ in lines), default=0)
    digits = len(str(total))
    text = [f"{_distinct(left)} of {count(total, 'device')} fit"]
    text += [
        f"  {clause:<{width}}  {alone:>{digits}} {'meets' if alone == 1 else 'meet'} it, {together:>{digits}} left"
        + (f"   nearest: {near}" if near else "")
        for clause, alone, together, near in lines
    ]
    nearest = nearest_device(requirement, adverts)
    text += [f"Nearest device: {nearest}"] if nearest else []
    change = smallest_change(requirement, adverts)
    text += [f"Smallest change: {change}"] if change else []
    return "\n".join(text)


def nearest_device(requirement: Requirement, adverts: Iterable[Advert]) -> str:
    """The device that misses the fewest clauses, with those clauses; empty where one misses at most one, since the clauses' own lines say
    that.
    """
    misses = [(advert, match(requirement, advert).missing) for advert in adverts]
    advert, missing = min(misses, key=lambda pair: (len(pair[1]), pair[0].name, pair[0].peer))
    return (
        f"{shown_name(advert)} ({safe_text('; '.join(map(str, missing)), 1000)})" if len(missing) > 1 else ""
    )


def _distinct(adverts: Iterable[Advert]) -> int:
    """The number of devices, however many workers each has."""
    return len({advert.device for advert in adverts})


def _nearest(clause: Clause, verdicts: Sequence[tuple[Advert, ClauseMatch]]) -> str:
    def distance(advert: Advert) -> float:
        have = _number(clause, advert)
        if have is None or not isinstance(clause.value, (int, float)):
            return math.inf
        return abs(have - clause.value)

    advert, verdict = min(verdicts, key=lambda pair: (distance(pair[0]), pair[0].name))
    return f"{shown_name(advert)} has {safe_text(verdict.have)}"


def _number(clause: Clause, advert: Advert) -> float | None:
    attribute = attribute_of(clause.attribute)
    have = attribute.read(advert) if attribute is not None else None
    return have if isinstance(have, (int, float)) else None


def smallest_change(requirement: Requirement, adverts: Iterable[Advert]) -> str:
    """The single clause whose loosening or removal admits the most devices, else the best pair of clauses; empty where neither helps."""
    alone: dict[Clause, list[Advert]] = {}
    pairs: dict[tuple[Clause, ...], list[Advert]] = {}
    for advert in (narrow_to_unit_gpu(requirement, each) for each in adverts):
        missing = tuple(item.clause for item in match(requirement, advert).missing)
        if not missing:
            return ""
        if len(missing) == 1:
            alone.setdefault(missing[0], []).append(advert)
        elif len(missing) == 2:
            pairs.setdefault(missing, []).append(advert)
    if not alone:
        pair, near = max(pairs.items(), key=lambda item: (_distinct(item[1]), str(item[0])), default=((), []))
        return f"without {' and '.join(map(str, pair))} → {count(_distinct(near), 'device')}" if near else ""
    clause, near = max(alone.items(), key=lambda item: (_distinct(item[1]), str(item[0])))
    attribute = attribute_of(clause.attribute)
    numbers = [have for have in (_number(clause, advert) for advert in near) if have is not None]
    scalar = attribute is not None and attribute.of in (ValueKind.SIZE, ValueKind.NUMBER)
    if scalar and numbers and clause.op in (*_AT_LEAST, *_AT_MOST):
        best = max(numbers) if clause.op in _AT_LEAST else min(numbers)
        op = Op.GE if clause.op in _AT_LEAST else Op.LE
        value = int(best) if best == int(best) else float(best)
        looser = Clause(attribute=clause.attribute, op=op, value=value)
        near = [advert for advert in near if match_clause(looser, advert).met is ClauseState.MET]
        return f"{looser} → {count(_distinct(near), 'device')}"
    return f"without {clause} → {count(_distinct(near), 'device')}"


def why_none(
    requirement: Requirement,
    adverts: Sequence[Advert],
    fits: Sequence[WorkerView],
    declined: Iterable[str],
    *,
    scheduler: str,
    untrusted: Sequence[Advert] = (),
) -> tuple[Reason, str]:
    """Why no worker could ever run these tasks: none fits, or those that fit refuse, are not trusted, or have run the replicas.

    `scheduler`: its peer id, for the advice to owners, given once below the workers' own words. `untrusted`: devices that fit but that the
    campaign does not admit.
    """
    refusing = [view for view in fits if view.refused is not None]
    if len(refusing) < len(fits):
        return Reason.GAVE_UP, REPLICAS_DONE
    if refusing:
        reason = refusing[0].refused or Reason.NOT_ALLOWED
        hint = ""
        if reason is Reason.NOT_ALLOWED:
            hint = f"\nTheir owners must allow this scheduler: sark-node join --allow {scheduler}"
        return reason, f"refused by {len(refusing)} of {_fitting(fits)}: {_words(refusing)}{hint}"
    refusals = list(declined)
    if refusals:
        return Reason.DOES_NOT_FIT, f"every device that was asked refused: {'; '.join(refusals[:3])}"
    if untrusted:
        lines = [
            f"  {shown_name(advert, 40)}: sark-node trust {advert.peer}"
            for advert in sorted(untrusted, key=lambda advert: (advert.name, advert.peer))[:3]
        ]
        more = [f"  and {len(untrusted) - 3} more: sark-node peers"] if len(untrusted) > 3 else []
        return Reason.NOT_TRUSTED, "\n".join([why_untrusted(len(untrusted)), *lines, *more])
    return Reason.NOTHING_FITS, explain(requirement, adverts)


def why_untrusted(devices: int) -> str:
    """Why a task waits when only untrusted devices fit. `devices`: how many there are."""
    verb = "fits but is" if devices == 1 else "fit but are"
    return f"{count(devices, 'device')} {verb} not trusted: sark-node peers shows which serve you"


def _fitting(views: Sequence[WorkerView]) -> str:
    return count(len(views), "device that fits", "devices that fit")


def _words(views: Sequence[WorkerView]) -> str:
    words = [
        safe_text(f"{view.device or view.peer} says {view.why.partition(ADVICE)[0]}") for view in views[:3]
    ]
    return "; ".join(words) + (f" and {len(views) - 3} more" if len(views) > 3 else "")


def why_waiting(fits: list[WorkerView]) -> str:
    """What the workers that fit say. For an unreachable worker it says only that, since a live line has no space for addresses."""
    gone = [view.device or view.peer[-8:] for view in fits if view.unreachable]
    reasons = [
        f"{view.device or view.peer[-8:]}: {view.why_aside or view.why}"
        for view in fits
        if (view.why_aside or view.why) and not view.unreachable
    ]
    words = [listed(reasons, "; ")] if reasons else []
    if gone:
        words.append(f"{listed(gone, ', ')} {'is' if len(gone) == 1 else 'are'} gone")
    if gone and not reasons:
        words.append("waiting for a device")
    return "; ".join(words)


def listed(texts: list[str], separator: str, most: int = 3) -> str:
    """The first `most` texts, and how many more there are."""
    return separator.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
