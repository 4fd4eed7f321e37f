"""Whether this node can be dialled: a pure state machine, fed with the answers of gates that dialled back. `keeper` is its shell.

                 reached                missed twice
    UNKNOWN ───────────────▶ DIRECT ───────────────▶ BEHIND
       │  ▲                    │ ▲                     │ ▲
       │  └──── moved ─────────┘ └────── reached ──────┘ │
       └───────────────── missed twice ──────────────────┘

A node in UNKNOWN acts as one that can be dialled, so a swarm on loopback or on one LAN works from the first second. A gate on the
same LAN (`DialVerdict.near`) has no router in between, so its verdict counts only until a gate outside the LAN answers. One gate may lie,
or see another address than the others: of several verdicts the address that most name counts, and a node that is reached as often as
missed is BEHIND: with reservations others find it whichever gate is right.
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
"""Failed dial-backs that lead to BEHIND: one may have been lost."""
RETRY_S: Final = 1.0
"""After the first failure."""
ASK_DIRECT_S: Final = 600.0
ASK_BEHIND_S: Final = 300.0
ASK_UNKNOWN_S: Final = 60.0
CALLED_S: Final = 60.0
"""A direct connection to a node that is BEHIND makes it ask, at most this often."""
FAR_COUNTS_S: Final = 1800.0
"""How long the verdict of a gate outside the LAN outranks one on the LAN."""
VERDICT_S: Final = 700.0
"""How long a gate's verdict counts: until it should have been asked again."""
MAX_VERDICTS: Final = 8
MAX_DIRECT: Final = 6
MAX_WITH_CIRCUITS: Final = 3
MAX_ADDRESSES: Final = 8
"""Of an advert."""


class Reach(StrEnum):
    """Whether others can dial this node."""

    UNKNOWN = "unknown"
    """No gate has answered yet."""
    DIRECT = "direct"
    """A gate dialled back successfully."""
    BEHIND = "behind"
    """Behind a router or a firewall: reachable only through a gate."""


class Observation(StrEnum):
    """What may change the state."""

    REACHED = "reached"
    MISSED = "missed"
    """A first failure."""
    MISSED_TWICE = "missed twice"
    MOVED = "moved"
    """This machine's own addresses changed."""


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
        Observation.MOVED: Reach.BEHIND,  # most networks are behind a router: this one must be proved not to be
    },
}


@dataclass(frozen=True, slots=True)
class DialVerdict:
    """The answer of one gate that dialled back."""

    gate: PeerId
    observed: Address
    """The address at which it sees this node, with the port of the node's connection."""
    reached: tuple[int, ...]
    """Ports that it reached."""
    near: bool = False
    """It sees a private address of this machine: both are on one LAN, or one host."""


@dataclass(frozen=True, slots=True)
class TimedVerdict:
    """The latest verdict of a gate outside the LAN."""

    verdict: DialVerdict
    at: float

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses that it reached."""
        return _addresses(self.verdict)


@dataclass(frozen=True, slots=True)
class ReachState:
    """The state. Times are seconds of the caller's clock."""

    reach: Reach = Reach.UNKNOWN
    reached: tuple[Address, ...] = ()
    """Addresses that a gate reached, latest first."""
    misses: int = 0
    """Failed dial-backs since the last success."""
    far_at: float | None = None
    """When a gate outside the LAN last answered."""
    ask_at: float = 0.0
    """When to ask next."""
    asked_at: float | None = None
    """When the last answer came."""
    verdicts: tuple[TimedVerdict, ...] = ()
    """Of each gate outside the LAN that answered lately, the latest first."""

    @property
    def holder(self) -> bool:
        """Whether this node may store adverts and route for others."""
        return self.reach is not Reach.BEHIND


def answered(state: ReachState, verdict: DialVerdict, now: float) -> ReachState:
    """A gate answered."""
    outranked = state.far_at is not None and now - state.far_at < FAR_COUNTS_S
    if verdict.near and outranked:
        return state
    first_from_afar = not verdict.near and state.far_at is None
    if verdict.near:
        verdicts, far_at = state.verdicts, state.far_at
        reached, through, more = (*_addresses(verdict), *state.reached), bool(verdict.reached), True
    else:
        verdicts, far_at = _latest(state.verdicts, verdict, now), now
        counting = [each for each in verdicts if _agreed(each, verdicts)]
        reached = tuple(address for each in counting for address in each.addresses)
        got_through = sum(bool(each.verdict.reached) for each in counting)
        through = bool(verdict.reached) and _agreed(verdicts[0], verdicts)
        more = 2 * got_through > len(verdicts)
    reached = tuple(dict.fromkeys(reached))[:MAX_DIRECT]
    if through and not more:  # as many, or more, failed: nothing is proved yet
        pause = state.ask_at if state.ask_at > now else now + ASK_UNKNOWN_S
        return replace(state, far_at=far_at, ask_at=pause, asked_at=now, verdicts=verdicts)
    if through:
        return ReachState(
            reach=step(REACHABILITY, state.reach, Observation.REACHED),
            reached=reached,
            far_at=far_at,
            ask_at=now + ASK_DIRECT_S,
            asked_at=now,
            verdicts=verdicts,
        )
    misses = (0 if first_from_afar else state.misses) + 1
    reach = step(
        REACHABILITY, state.reach, Observation.MISSED_TWICE if misses >= TRIES else Observation.MISSED
    )
    if verdict.near:
        reached = state.reached
    return ReachState(
        reach=reach,
        reached=() if reach is Reach.BEHIND else reached,
        misses=min(misses, TRIES),
        far_at=far_at,
        ask_at=now + (ASK_BEHIND_S if misses >= TRIES else RETRY_S),
        asked_at=now,
        verdicts=verdicts,
    )


def _latest(before: Sequence[TimedVerdict], verdict: DialVerdict, now: float) -> tuple[TimedVerdict, ...]:
    """The verdict, and those of other gates that still count."""
    others = (each for each in before if each.verdict.gate != verdict.gate and now - each.at < VERDICT_S)
    return (TimedVerdict(verdict, now), *others)[:MAX_VERDICTS]


def _agreed(verdict: TimedVerdict, verdicts: Sequence[TimedVerdict]) -> bool:
    """Whether more gates see the node at that address than at any other of the same family."""
    hosts = Counter(_observed(each) for each in verdicts)
    family, host = _observed(verdict)
    rest = (count for (other, at), count in hosts.items() if other == family and at != host)
    return hosts[family, host] > max(rest, default=0)


def _observed(verdict: TimedVerdict) -> tuple[str, str]:
    where = parse_tcp(verdict.verdict.observed)
    return (where.family, where.host) if where is not None else ("", "")


def _addresses(verdict: DialVerdict) -> tuple[Address, ...]:
    where = verdict.observed
    return tuple(_at(where, port) for port in verdict.reached if _is_host(where))


def _at(observed: Address, port: int) -> Address:
    where = parse_tcp(observed)
    assert where is not None
    return f"/{where.family}/{where.host}/tcp/{port}"


def _is_host(observed: Address) -> bool:
    """Whether a gate sent the IP address of a host: a name, or a multicast address, could direct others to anybody."""
    where = parse_tcp(observed)
    ip = where.ip if where is not None else None
    return ip is not None and not (ip.is_unspecified or ip.is_multicast)


def moved(state: ReachState, now: float) -> ReachState:
    """This machine's addresses changed: verdicts about the old ones no longer count."""
    return ReachState(
        reach=step(REACHABILITY, state.reach, Observation.MOVED), ask_at=now, asked_at=state.asked_at
    )


def called(state: ReachState, now: float) -> ReachState:
    """A peer connected directly: if this node is BEHIND, ask again."""
    if state.reach is not Reach.BEHIND:
        return state
    earliest = now if state.asked_at is None else max(now, state.asked_at + CALLED_S)
    return replace(state, ask_at=min(state.ask_at, earliest))


def unanswered(state: ReachState, now: float) -> ReachState:
    """No gate answered: ask again a little later."""
    pause = RETRY_S if state.misses == 1 else ASK_UNKNOWN_S
    return replace(state, ask_at=now + pause)


def link_came_back(state: ReachState, now: float) -> ReachState:
    """A gate is newly connected: ask it at once."""
    return replace(state, ask_at=now)


def verdict_of(gate: PeerId, observed: Address, reached: Sequence[int], own: Collection[str]) -> DialVerdict:
    """`own`: the IP addresses of this machine's interfaces, as text."""
    where = parse_tcp(observed)
    ip = where.ip if where is not None else None
    near = ip is not None and not ip.is_global and (ip.is_loopback or str(ip) in own)
    return DialVerdict(gate, observed, tuple(reached), near)


def advertised(
    state: ReachState, own: Sequence[Address], circuits: Sequence[Address], fixed: Sequence[Address] = ()
) -> tuple[Address, ...]:
    """The addresses for this node's advert, best first, at most MAX_ADDRESSES.

    `own`: where it listens; `circuits`: through gates; `fixed`: announced by the user, always included. Once a gate has answered, a
    public address that was not reached is left out; private ones stay, for neighbours on the LAN.
    """
    near = tuple(filter(is_private, own))
    reached = tuple(address for address in state.reached if address in own or not is_loopback(address))
    match state.reach:
        case Reach.BEHIND:  # an address of this machine is nobody else's, and may work for some
            named = (address for verdict in state.verdicts for address in verdict.addresses)
            direct = (*fixed, *(address for address in named if address in own), *near)
        case Reach.DIRECT if state.far_at is not None:
            direct = (*fixed, *reached, *near)
        case _:
            direct = (*fixed, *reached, *own)
    through = tuple(circuits)[: MAX_ADDRESSES // 2]
    most = MAX_WITH_CIRCUITS if through else MAX_ADDRESSES
    return (*tuple(dict.fromkeys(direct))[:most], *through)
