"""Can this node be dialled? A pure state machine, fed with what gates say who tried; `reach_keeper` is its shell.

                 reached                missed twice
    UNKNOWN ───────────────▶ DIRECT ───────────────▶ BEHIND
       │  ▲                    │ ▲                     │ ▲
       │  └──── moved ─────────┘ └────── reached ──────┘ │
       └───────────────── missed twice ──────────────────┘

A node that does not know yet acts as one that can be dialled, so a swarm on loopback or on one LAN works from the first second.
A gate on the same LAN (`Reachable.near`) sees no router in between, so its word counts only as long as none from farther away is heard.
One gate may lie, or see another address than the rest do: where several were heard, an address counts that most of them name, and who is
reached as often as missed is not taken for reached. Such a node is BEHIND: it holds places, by which it is found whoever is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from protocol.wire.table import Table, step
from swarm.net.addresses import Address, PeerId, is_loopback, is_private, parse_tcp

TRIES: Final = 2
"""So many dial-backs in vain make BEHIND of it: one may have been lost."""
ASK_AGAIN_S: Final = 1.0
"""After the first try in vain."""
ASK_DIRECT_S: Final = 600.0
ASK_BEHIND_S: Final = 300.0
ASK_UNKNOWN_S: Final = 60.0
CALLED_S: Final = 60.0
"""Somebody who calls a node that is BEHIND has it ask again, at most this often."""
FAR_COUNTS_S: Final = 1800.0
"""How long what a farther gate said outranks a gate of the same LAN."""
WORD_S: Final = 700.0
"""How long a gate's word stands beside those of others: until it should have been asked again."""
MAX_WORDS: Final = 8
MAX_DIRECT: Final = 6
MAX_BESIDE_CIRCUITS: Final = 3
MAX_TOLD: Final = 8
"""Addresses in an advert: no more go into it."""


class Reach(StrEnum):
    """Whether others can dial this node."""

    UNKNOWN = "unknown"
    """No gate was asked yet."""
    DIRECT = "direct"
    """A gate dialled back, and got through."""
    BEHIND = "behind"
    """Behind a router or a firewall: reached through a gate alone."""


class Observation(StrEnum):
    """What may change it."""

    REACHED = "reached"
    MISSED = "missed"
    """The first time in vain."""
    MISSED_TWICE = "missed twice"
    MOVED = "moved"
    """This machine's own addresses are others now."""


REACHABILITY: Final[Table[Reach, Observation]] = {
    Reach.UNKNOWN: {
        Observation.REACHED: Reach.DIRECT,
        Observation.MISSED: Reach.UNKNOWN,
        Observation.MISSED_TWICE: Reach.BEHIND,
        Observation.MOVED: Reach.UNKNOWN,
    },
    Reach.DIRECT: {
        Observation.REACHED: Reach.DIRECT,
        Observation.MISSED: Reach.DIRECT,
        Observation.MISSED_TWICE: Reach.BEHIND,
        Observation.MOVED: Reach.UNKNOWN,
    },
    Reach.BEHIND: {
        Observation.REACHED: Reach.DIRECT,
        Observation.MISSED: Reach.BEHIND,
        Observation.MISSED_TWICE: Reach.BEHIND,
        Observation.MOVED: Reach.BEHIND,  # most places are behind something: it must be shown that this one is not
    },
}


@dataclass(frozen=True, slots=True)
class Reachable:
    """What one gate says after it has dialled back."""

    gate: PeerId
    observed: Address
    """Where it sees this node, with the port of the node's own connection."""
    reached: tuple[int, ...]
    """Ports at which it got through."""
    near: bool = False
    """It sees an address of this very machine that is not a public one: both are on one LAN, or one host."""


@dataclass(frozen=True, slots=True)
class ReachWord:
    """The latest that a gate from outside the LAN has said."""

    verdict: Reachable
    at: float

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where it says that it got through."""
        return _addresses(self.verdict)


@dataclass(frozen=True, slots=True)
class ReachState:
    """What is known now. Times are seconds of whatever clock the caller uses."""

    reach: Reach = Reach.UNKNOWN
    reached: tuple[Address, ...] = ()
    """Addresses at which a gate got through, latest first."""
    misses: int = 0
    """Dial-backs in vain since the last that was not."""
    far_at: float | None = None
    """When a gate from outside the LAN was last heard."""
    ask_at: float = 0.0
    """When to ask again."""
    asked_at: float | None = None
    """When an answer was last heard."""
    words: tuple[ReachWord, ...] = ()
    """Of each gate from outside the LAN that was heard lately, the latest first."""

    @property
    def holder(self) -> bool:
        """Whether this node may keep adverts and route for others."""
        return self.reach is not Reach.BEHIND


def heard(standing: ReachState, verdict: Reachable, now: float) -> ReachState:
    """A gate has answered."""
    outranked = standing.far_at is not None and now - standing.far_at < FAR_COUNTS_S
    if verdict.near and outranked:
        return standing
    first_from_afar = not verdict.near and standing.far_at is None
    if verdict.near:
        words, far_at = standing.words, standing.far_at
        reached, through, more = (*_addresses(verdict), *standing.reached), bool(verdict.reached), True
    else:
        words, far_at = _words(standing.words, verdict, now), now
        counting = [word for word in words if _agreed(word, words)]
        reached = tuple(address for word in counting for address in word.addresses)
        got_through = sum(bool(word.verdict.reached) for word in counting)
        through = bool(verdict.reached) and _agreed(words[0], words)
        more = 2 * got_through > len(words)
    reached = tuple(dict.fromkeys(reached))[:MAX_DIRECT]
    if through and not more:  # as many, or more, did not get through: nothing is shown yet
        pause = standing.ask_at if standing.ask_at > now else now + ASK_UNKNOWN_S
        return replace(standing, far_at=far_at, ask_at=pause, asked_at=now, words=words)
    if through:
        return ReachState(
            reach=step(REACHABILITY, standing.reach, Observation.REACHED),
            reached=reached,
            far_at=far_at,
            ask_at=now + ASK_DIRECT_S,
            asked_at=now,
            words=words,
        )
    misses = (0 if first_from_afar else standing.misses) + 1
    reach = step(
        REACHABILITY, standing.reach, Observation.MISSED_TWICE if misses >= TRIES else Observation.MISSED
    )
    if verdict.near:
        reached = standing.reached
    return ReachState(
        reach=reach,
        reached=() if reach is Reach.BEHIND else reached,
        misses=min(misses, TRIES),
        far_at=far_at,
        ask_at=now + (ASK_BEHIND_S if misses >= TRIES else ASK_AGAIN_S),
        asked_at=now,
        words=words,
    )


def _words(before: Sequence[ReachWord], verdict: Reachable, now: float) -> tuple[ReachWord, ...]:
    """The verdict, and those of the other gates as long as they stand."""
    others = (word for word in before if word.verdict.gate != verdict.gate and now - word.at < WORD_S)
    return (ReachWord(verdict, now), *others)[:MAX_WORDS]


def _agreed(word: ReachWord, words: Sequence[ReachWord]) -> bool:
    """Whether more gates see the node at that address than at any other of the same family."""
    seen = Counter(_seen(each) for each in words)
    family, host = _seen(word)
    rest = (count for (other, at), count in seen.items() if other == family and at != host)
    return seen[family, host] > max(rest, default=0)


def _seen(word: ReachWord) -> tuple[str, str]:
    where = parse_tcp(word.verdict.observed)
    return (where.family, where.host) if where is not None else ("", "")


def _addresses(verdict: Reachable) -> tuple[Address, ...]:
    where = verdict.observed
    return tuple(_at(where, port) for port in verdict.reached if _is_somewhere(where))


def _at(observed: Address, port: int) -> Address:
    where = parse_tcp(observed)
    assert where is not None
    return f"/{where.family}/{where.host}/tcp/{port}"


def _is_somewhere(observed: Address) -> bool:
    """A gate tells an IP address: a name, or an address of many, would send others anywhere in our name."""
    where = parse_tcp(observed)
    ip = where.ip if where is not None else None
    return ip is not None and not (ip.is_unspecified or ip.is_multicast)


def moved(standing: ReachState, now: float) -> ReachState:
    """This machine has other addresses than before: what gates said of the old ones counts no more."""
    return ReachState(
        reach=step(REACHABILITY, standing.reach, Observation.MOVED), ask_at=now, asked_at=standing.asked_at
    )


def called(standing: ReachState, now: float) -> ReachState:
    """Somebody has connected with this node by himself: if it is BEHIND, that is worth asking about."""
    if standing.reach is not Reach.BEHIND:
        return standing
    earliest = now if standing.asked_at is None else max(now, standing.asked_at + CALLED_S)
    return replace(standing, ask_at=min(standing.ask_at, earliest))


def unanswered(standing: ReachState, now: float) -> ReachState:
    """No gate answered: nothing is learned, and asked again a little later."""
    pause = ASK_AGAIN_S if standing.misses == 1 else ASK_UNKNOWN_S
    return replace(standing, ask_at=now + pause)


def link_came_back(standing: ReachState, now: float) -> ReachState:
    """A gate is connected with that was not before: it may be asked at once."""
    return replace(standing, ask_at=now)


def verdict_of(gate: PeerId, observed: Address, reached: Sequence[int], own: Collection[str]) -> Reachable:
    """`own`: the IP addresses of this machine's interfaces, as text."""
    where = parse_tcp(observed)
    ip = where.ip if where is not None else None
    near = ip is not None and not ip.is_global and (ip.is_loopback or str(ip) in own)
    return Reachable(gate, observed, tuple(reached), near)


def told(
    standing: ReachState, own: Sequence[Address], circuits: Sequence[Address], fixed: Sequence[Address] = ()
) -> tuple[Address, ...]:
    """The addresses for this node's advert, best first, at most MAX_TOLD.

    `own`: where it listens; `circuits`: places held at gates; `fixed`: what the user said is to be told, and always is.
    A public address that was not reached is not told once a gate has spoken; a private one is, to neighbours on the LAN.
    """
    near = tuple(filter(is_private, own))
    reached = tuple(address for address in standing.reached if address in own or not is_loopback(address))
    match standing.reach:
        case Reach.BEHIND:  # what is this machine's own address is no victim's: it may lead here for some
            named = (address for word in standing.words for address in word.addresses)
            direct = (*fixed, *(address for address in named if address in own), *near)
        case Reach.DIRECT if standing.far_at is not None:
            direct = (*fixed, *reached, *near)
        case _:
            direct = (*fixed, *reached, *own)
    kept = tuple(circuits)[: MAX_TOLD // 2]
    most = MAX_BESIDE_CIRCUITS if kept else MAX_TOLD
    return (*tuple(dict.fromkeys(direct))[:most], *kept)
