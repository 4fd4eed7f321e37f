"""Whether this node can be dialled: a pure state machine, fed with the AutoNAT answers of gates. `keeper` runs it.

                 reached                missed twice
    UNKNOWN ───────────────▶ DIRECT ───────────────▶ BEHIND ─┐
       │  ▲                    │ ▲                     │ ▲ ▲  │ moved
       │  └──── moved ─────────┘ └────── reached ──────┘ │ └──┘
       └───────────────── missed twice ──────────────────┘

A node in UNKNOWN acts as if it could be dialled, so a swarm on loopback or on one LAN works from the first second. A gate on the same LAN
(`DialVerdict.near`) has no router in between, so its verdict counts only until a gate outside the LAN answers. One gate may lie, or see
another address than the others. Of several verdicts, the address that most gates name counts. A node that is missed as often as it is
reached is BEHIND: with reservations, others find it whichever gates are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from swarm.net.addresses import Address, PeerId, is_loopback, is_private, parse_tcp

TRIES: Final = 2
"""Failed probes that lead to BEHIND; a single one may have been lost."""
RETRY_S: Final = 1.0
"""Pause after the first failure."""
ASK_DIRECT_S: Final = 600.0
ASK_BEHIND_S: Final = 300.0
ASK_UNKNOWN_S: Final = 60.0
CALLED_S: Final = 60.0
"""A direct connection to a node that is BEHIND makes it ask again, at most this often."""
FAR_COUNTS_S: Final = 1800.0
"""How long the verdict of a gate outside the LAN outranks one on the LAN."""
VERDICT_S: Final = 700.0
"""How long a gate's verdict counts: until the gate should have been asked again."""
MAX_VERDICTS: Final = 8
MAX_DIRECT: Final = 6
MAX_WITH_CIRCUITS: Final = 3
MAX_ADDRESSES: Final = 8
"""Most addresses in an advert."""


class Reach(StrEnum):
    """Whether others can dial this node."""

    UNKNOWN = "unknown"
    """No gate has answered yet."""
    DIRECT = "direct"
    """A gate reached this node."""
    BEHIND = "behind"
    """Behind a router or a firewall: reachable only through gates."""


@dataclass(frozen=True, slots=True)
class DialVerdict:
    """The answer of one gate that tried to dial this node."""

    gate: PeerId
    observed: Address
    """The address at which the gate sees this node, with the port of the node's connection."""
    reached: tuple[int, ...]
    """The ports that the gate reached."""
    near: bool = False
    """The gate sees a private address of this machine: both are on one LAN or one host."""
    at: float = 0.0
    """When the gate answered."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses that the gate reached. None unless it names the IP address of a host: a DNS name or a multicast address could
        direct others anywhere."""
        where = parse_tcp(self.observed)
        if where is None or where.ip is None or where.ip.is_unspecified or where.ip.is_multicast:
            return ()
        return tuple(f"/{where.family}/{where.host}/tcp/{port}" for port in self.reached)


@dataclass(frozen=True, slots=True)
class ReachState:
    """The state. Times are in seconds on the caller's clock."""

    reach: Reach = Reach.UNKNOWN
    reached: tuple[Address, ...] = ()
    """Addresses that a gate reached, latest first."""
    misses: int = 0
    """Failed probes since the last success."""
    far_at: float | None = None
    """When a gate outside the LAN last answered."""
    ask_at: float = 0.0
    """When to ask next."""
    asked_at: float | None = None
    """When the last answer came."""
    verdicts: tuple[DialVerdict, ...] = ()
    """The latest verdict of each gate outside the LAN that answered lately, newest first."""

    @property
    def holder(self) -> bool:
        """Whether this node may store adverts and route for others."""
        return self.reach is not Reach.BEHIND


def answered(state: ReachState, verdict: DialVerdict, now: float) -> ReachState:
    """The state after a gate answered."""
    misses, far_at, verdicts = state.misses, state.far_at, state.verdicts
    if verdict.near:
        if far_at is not None and now - far_at < FAR_COUNTS_S:
            return state
        reached = (*verdict.addresses, *state.reached)
        got_through = proved = bool(verdict.reached)
    else:
        if far_at is None:
            misses = 0
        far_at = now
        others = (v for v in verdicts if v.gate != verdict.gate and now - v.at < VERDICT_S)
        verdicts = (replace(verdict, at=now), *others)[:MAX_VERDICTS]
        counting = [each for each in verdicts if _agreed(each, verdicts)]
        reached = tuple(address for each in counting for address in each.addresses)
        got_through = bool(verdict.reached) and verdicts[0] in counting
        proved = got_through and 2 * sum(bool(each.reached) for each in counting) > len(verdicts)
    if got_through and not proved:  # at least as many gates failed to reach us
        pause = state.ask_at if state.ask_at > now else now + ASK_UNKNOWN_S
        return replace(state, far_at=far_at, ask_at=pause, asked_at=now, verdicts=verdicts)
    if proved:
        reach, misses, pause = Reach.DIRECT, 0, ASK_DIRECT_S
    elif misses + 1 < TRIES:
        reach, misses, pause = state.reach, misses + 1, RETRY_S
    else:
        reach, misses, pause = Reach.BEHIND, TRIES, ASK_BEHIND_S
    return ReachState(
        reach=reach,
        reached=() if reach is Reach.BEHIND else tuple(dict.fromkeys(reached))[:MAX_DIRECT],
        misses=misses,
        far_at=far_at,
        ask_at=now + pause,
        asked_at=now,
        verdicts=verdicts,
    )


def _agreed(verdict: DialVerdict, verdicts: Sequence[DialVerdict]) -> bool:
    """Whether more gates see the node at this verdict's address than at any other address of the same family."""
    hosts = Counter(_observed(each) for each in verdicts)
    family, host = _observed(verdict)
    rest = (count for (other, at), count in hosts.items() if other == family and at != host)
    return hosts[family, host] > max(rest, default=0)


def _observed(verdict: DialVerdict) -> tuple[str, str]:
    where = parse_tcp(verdict.observed)
    return (where.family, where.host) if where is not None else ("", "")


def after_address_change(state: ReachState, now: float) -> ReachState:
    """The state after this machine's addresses changed: verdicts about the old ones no longer count. Most networks are behind a router, so
    a node that was BEHIND stays so until a gate reaches it."""
    reach = state.reach if state.reach is Reach.BEHIND else Reach.UNKNOWN
    return ReachState(reach=reach, ask_at=now, asked_at=state.asked_at)


def called(state: ReachState, now: float) -> ReachState:
    """The state after a peer connected directly: if this node is BEHIND, it asks again."""
    if state.reach is not Reach.BEHIND:
        return state
    earliest = now if state.asked_at is None else max(now, state.asked_at + CALLED_S)
    return replace(state, ask_at=min(state.ask_at, earliest))


def unanswered(state: ReachState, now: float) -> ReachState:
    """The state after no gate answered: the node asks again a little later."""
    pause = RETRY_S if state.misses == 1 else ASK_UNKNOWN_S
    return replace(state, ask_at=now + pause)


def verdict_of(gate: PeerId, observed: Address, reached: Sequence[int], own: Collection[str]) -> DialVerdict:
    """The verdict from a gate's answer. `own`: the IP addresses of this machine's interfaces, as text."""
    where = parse_tcp(observed)
    ip = where.ip if where is not None else None
    near = ip is not None and not ip.is_global and (ip.is_loopback or str(ip) in own)
    return DialVerdict(gate, observed, tuple(reached), near)


def advertised(
    state: ReachState, own: Sequence[Address], circuits: Sequence[Address], fixed: Sequence[Address] = ()
) -> tuple[Address, ...]:
    """The addresses for this node's advert, best first, at most `MAX_ADDRESSES`.

    `own`: where the node listens; `circuits`: through gates; `fixed`: announced by the user, always included. Once a gate has answered,
    public addresses that were not reached are left out. Private ones stay, for neighbours on the LAN.
    """
    near = tuple(filter(is_private, own))
    reached = tuple(address for address in state.reached if address in own or not is_loopback(address))
    match state.reach:
        case Reach.BEHIND:  # an address of this machine is nobody else's, and may work for some peers
            named = (address for verdict in state.verdicts for address in verdict.addresses)
            direct = (*fixed, *(address for address in named if address in own), *near)
        case Reach.DIRECT if state.far_at is not None:
            direct = (*fixed, *reached, *near)
        case _:
            direct = (*fixed, *reached, *own)
    through = tuple(circuits)[: MAX_ADDRESSES // 2]
    most = MAX_WITH_CIRCUITS if through else MAX_ADDRESSES
    return (*tuple(dict.fromkeys(direct))[:most], *through)
