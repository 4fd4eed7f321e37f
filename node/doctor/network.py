"""The network checks of `sark-node doctor`: gates, whether this device can be dialled, its clock, neighbours.

    look(…): a node for a few seconds ─▶ NetworkFacts ─▶ net_checks(facts): pure ─▶ Check(subject, ok | note | bad, what, todo)

If no worker of this home is running, the node uses the worker's key and port. Otherwise it is an ephemeral node on any port, and asks the
running worker how that is reached.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from node.doctor.host import SET_CLOCK, Check, CheckState, bad, note, ok
from protocol.errors import Refused, RemoteProtocolError, ResourceError, SarkError, Unreachable
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.base.units import show_ms
from swarm.join.host import open_host
from swarm.net.addresses import Address, Contact, gate_contacts, own_ips, parse_tcp, split_peer
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Network
from swarm.p2p.dial_rules import NOT_DIALLED
from swarm.p2p.dialler import WrongPeerAnswered
from swarm.pools.membership import Membership
from swarm.reach.autonat import DialBackAnswer, ask
from swarm.reach.reachability import TRIES, Reach, ReachState, answered, verdict_of

CLOCK_OFF_S: Final = 5.0
GATES: Final = 8
ANSWER_S: Final = 5.0
AGAIN_S: Final = 1.0
EXAMPLE_PORT: Final = 4102
ANYWHERE: Final = ("/ip4/0.0.0.0/tcp/0",)


@dataclass(frozen=True, slots=True)
class GateFacts:
    """One gate."""

    name: str
    """`192.0.2.7:4101`."""
    why: str = ""
    """Why the gate does not answer; empty: it does."""
    here: bool = False
    """All its addresses are loopback addresses."""
    expected: str = ""
    """The peer id in its address."""
    other: str = ""
    """The peer id that answers instead."""
    ms: float | None = None
    dials_back: bool = True
    observed: str = ""
    """The IP address at which the gate sees this device."""
    ahead_s: float | None = None
    """The gate's wall clock minus this device's."""
    reserved: bool = False
    """The gate gave this device a reservation."""
    no_reservation: str = ""
    """Why the gate gave no reservation."""
    relayed_ms: float | None = None
    """Round trip through the gate."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """All facts about the network."""

    gates: tuple[GateFacts, ...] = ()
    reach: Reach = Reach.UNKNOWN
    reached: tuple[Address, ...] = ()
    far: bool = False
    """A gate outside the LAN answered."""
    own_ip: str = ""
    """This device's address on its LAN."""
    port: int | None = None
    """The port that was tried."""
    fixed: bool = False
    """The user chose the port."""
    behind_router: bool = False
    """Gates see this device at an address that it does not have."""
    neighbours: int | None = None
    """Number of neighbours found on the LAN; None: discovery is off."""
    worker: str | None = None
    """How the running worker is reached, in its own words; None: no worker is running."""
    connected: bool = True
    """This device has an address other than loopback."""
    trouble: str = ""
    """Why the network could not be tried; empty: it was."""


async def look(
    gates: Sequence[str], identity: Identity, listen: Sequence[Address], *, given: Sequence[Address] = ()
) -> NetworkFacts:
    """Join as a node for a few seconds. Network failures are recorded in the facts and raise no error.

    `given`: addresses from the owner, which a worker dials even if they belong to this machine or to another private network.
    """
    contacts = gate_contacts(gates)[:GATES]
    if not contacts:
        return NetworkFacts()
    try:
        async with open_host(identity, listen=listen, rng=random.Random()) as network:
            _answer_pings(network)
            network.owner_gave(given)
            return await _try_all(network, contacts)
    except ResourceError as error:
        return NetworkFacts(trouble=error.what)


def _answer_pings(network: Network) -> None:
    async def answer(link: Link, message: Message) -> Message:
        return Pong(role="worker", incarnation=0)

    serve_links(network, ProtocolId.HEALTH, HEALTH, answer)


async def _try_all(network: Network, contacts: Sequence[Contact]) -> NetworkFacts:
    ports = [address.port for text in network.addresses if (address := parse_tcp(text)) is not None]
    facts: dict[str, GateFacts] = {}
    replies: list[DialBackAnswer] = []

    async def one(contact: Contact) -> None:
        facts[contact.peer] = await _try_gate(network, contact, ports[:1], replies)

    async with trio.open_nursery() as nursery:
        for contact in contacts:
            nursery.start_soon(one, contact)
    ips = own_ips()
    standing = ReachState()
    for reply in replies:
        standing = answered(standing, verdict_of(reply.gate, reply.observed, reply.reached, ips), time.time())
    observed = {parsed.host for reply in replies if (parsed := parse_tcp(reply.observed)) is not None}
    connected = any(not ipaddress.ip_address(ip).is_loopback for ip in ips)
    near = [parsed.host for text in network.addresses if (parsed := parse_tcp(text)) is not None]
    return NetworkFacts(
        gates=tuple(facts[contact.peer] for contact in contacts),
        reach=standing.reach,
        reached=standing.reached,
        far=standing.far_at is not None,
        own_ip=near[0] if near else "",
        port=ports[0] if ports else None,
        behind_router=bool(observed - ips),
        connected=connected,
    )


async def _try_gate(
    network: Network, contact: Contact, ports: Sequence[int], replies: list[DialBackAnswer]
) -> GateFacts:
    name = gate_text(contact)
    try:
        await network.connect(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
    except Unreachable as error:
        cause = error.__cause__
        other = cause.actual if isinstance(cause, WrongPeerAnswered) else ""
        where = [parse_tcp(address) for address in contact.addresses]
        here = all(one is not None and one.ip is not None and one.ip.is_loopback for one in where)
        return GateFacts(name, why=error.what, here=here, expected=contact.peer, other=other)
    fact = GateFacts(name, dials_back=False)
    for _ in range(TRIES):  # a single try may be lost
        try:
            reply = await ask(network, contact, ports, wall=time.time)
        except (Unreachable, Refused, RemoteProtocolError):
            break
        replies.append(reply)
        observed = parse_tcp(reply.observed)
        fact = GateFacts(name, observed=observed.host if observed is not None else "", ahead_s=reply.ahead_s)
        if reply.reached:
            break
        await trio.sleep(AGAIN_S)
    ms = await _round_trip(network, contact)
    try:
        reservation = await network.reserve(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
    except (Unreachable, Refused) as error:
        members = isinstance(error, Refused) and error.reason is Reason.NOT_ALLOWED
        why = "it relays for its members only" if members else error.what
        return replace(fact, ms=ms, no_reservation=why)
    return replace(fact, ms=ms, reserved=True, relayed_ms=await _relayed(network, reservation.address))


async def _round_trip(network: Network, contact: Contact) -> float | None:
    """Milliseconds of a ping on an open link; None: no reply."""
    took: float | None = None
    async with trio.open_nursery() as nursery:
        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
        with contextlib.suppress(SarkError):
            link = await links.get(contact.peer, contact.addresses)
            began = trio.current_time()
            await link.ask(Ping(), Pong, max_wait_s=ANSWER_S)
            took = (trio.current_time() - began) * 1000
        nursery.cancel_scope.cancel()
    return took


async def _relayed(network: Network, circuit: Address) -> float | None:
    """Milliseconds of a ping through a gate from a second node of this process; None: no reply."""
    async with open_host(Identity.fresh(), rng=random.Random()) as caller:
        _answer_pings(caller)  # gates relay only for nodes that speak a Sark protocol
        return await _round_trip(caller, Contact(network.peer_id, (circuit,)))


def gate_text(contact: Contact) -> str:
    """`192.0.2.7:4101`."""
    where = parse_tcp(contact.addresses[0])
    if where is None:
        return f"…{contact.peer[-8:]}"
    return f"[{where.host}]:{where.port}" if where.family == "ip6" else f"{where.host}:{where.port}"


def usable_gates(gates: Sequence[str]) -> tuple[str, ...]:
    """The gates whose addresses can be parsed."""
    usable = []
    for gate in gates:
        try:
            split_peer(gate)
        except ValueError:
            continue
        usable.append(gate)
    return tuple(usable)


# -- judging -------------------------------------------------------------------------------------------------------------


def net_checks(facts: NetworkFacts) -> list[Check]:
    """All checks, in display order. Pure."""
    return [*_gates(facts), *_reach(facts), *_clock(facts), *_neighbours(facts)]


def pool_checks(joined: Iterable[tuple[Membership, bool]], now: float) -> list[Check]:
    """Whether each pool admitted this device. `joined`: (pool, whether its manifest lists the device); `now`: wall-clock seconds."""
    return [_pool(pool, listed, now) for pool, listed in joined]


def _pool(pool: Membership, listed: bool, now: float) -> Check:
    if listed:
        return ok("pool", f"{pool.name} admitted this device")
    if pool.unused and pool.until > now:
        what = f"{pool.name} has not admitted this device yet: no gate with the pool's key has accepted the ticket"
        todo = (
            "is the worker running (sark-node join), and do the gates answer? otherwise ask the pool's owner for a new ticket"
            f"\nor leave the pool: sark-node join --leave-pool {pool.name}"
        )
        return note("pool", what, todo)
    what = f"{pool.name} does not admit this device: its ticket expired, was used up or was revoked"
    return note("pool", what, "ask the pool's owner for a new ticket, then: sark-node join TICKET")


def _gates(facts: NetworkFacts) -> list[Check]:
    if facts.trouble:
        return [note("network", facts.trouble)]
    if not facts.gates:
        what = "none is known, so devices outside this LAN cannot find this one"
        return [note("gates", what, "sark-node join TICKET, or: sark-node join --gate ADDRESS")]
    none = all(gate.why for gate in facts.gates)
    lines = []
    if none and not facts.connected:
        what = "this device is offline: its only address is loopback"
        lines.append(bad("network", what, "connect it, by cable or Wi-Fi"))
    for gate in facts.gates:
        if gate.why:
            state = CheckState.BAD if none else CheckState.NOTE
            port = gate.name.rpartition(":")[2]
            what = f"{gate.name} does not answer"
            todo = f"is it running? does this network permit outgoing TCP to port {port}?"
            forbidden = gate.why.rpartition(NOT_DIALLED)[2] if NOT_DIALLED in gate.why else ""
            if forbidden:
                what = f"{gate.name} is not dialled: {forbidden}"
                todo = "ask its operator for an address that this device can reach; a gate prints them when it starts"
            elif gate.here:
                what = f"{gate.name} does not answer, and its address is one of this machine itself"
                todo = "start a gate here: sark-node gate\nor give the address of a gate on another machine, which it prints when it starts"
            if gate.other:
                what = (
                    f"{gate.name} is another gate: expected …{gate.expected[-8:]}, found …{gate.other[-8:]}"
                )
                todo = "ask its operator for the current address; a gate prints it when it starts"
            lines.append(Check("gate", state, what, todo))
            continue
        took = "" if gate.ms is None else f" in {show_ms(gate.ms)}"
        more = "" if gate.dials_back else ", but cannot tell whether this device can be dialled"
        lines.append(ok("gate", f"{gate.name} answers{took}{more}"))
    return lines


def _reach(facts: NetworkFacts) -> list[Check]:
    checks = []
    if facts.worker:
        checks.append(ok("worker", f"the worker running here {facts.worker}"))
    if not any(not gate.why for gate in facts.gates):
        return checks
    port = facts.port if facts.fixed and facts.port else EXAMPLE_PORT
    listen = "" if facts.fixed else f" --listen /ip4/0.0.0.0/tcp/{port}"
    match facts.reach:
        case Reach.DIRECT if facts.far:
            what = f"can be dialled from outside: {', '.join(facts.reached)}"
            checks.append(ok("reach", what))
        case Reach.DIRECT:
            checks.append(ok("reach", "can be dialled on this LAN; no gate outside the LAN was asked"))
        case Reach.BEHIND:
            if facts.behind_router:
                observed = next((gate.observed for gate in facts.gates if gate.observed), "ROUTER")
                todo = (
                    f"for faster transfers, forward TCP port {port} on the router to {facts.own_ip}, then: sark-node join{listen}"
                    f"\nor let the router do it: sark-node join --upnp{listen}"
                    f"\nif the external port differs: sark-node join{listen} --announce /ip4/{observed}/tcp/OUTER_PORT"
                )
            else:
                todo = f"a firewall blocks it: open TCP port {port}, then: sark-node join{listen}"
            checks.append(_behind(facts, todo))
        case Reach.UNKNOWN:
            checks.append(
                note("reach", "unknown: no gate that answers can tell", "ask its operator to update it")
            )
    return checks


def _behind(facts: NetworkFacts, todo: str) -> Check:
    ways = [
        f"gate {gate.name}" + (f" in {show_ms(gate.relayed_ms)}" if gate.relayed_ms is not None else "")
        for gate in facts.gates
        if gate.reserved
    ]
    if ways:
        return note("reach", f"cannot be dialled from outside; reached through {' and '.join(ways)}", todo)
    why = "; ".join(f"{gate.name}: {gate.no_reservation}" for gate in facts.gates if gate.no_reservation)
    return bad("reach", f"cannot be dialled from outside, and no gate relays for it ({why})", todo)


def _clock(facts: NetworkFacts) -> list[Check]:
    clocks = [gate.ahead_s for gate in facts.gates if gate.ahead_s is not None]
    if not clocks:
        return []
    ahead = statistics.median(clocks)
    if abs(ahead) > CLOCK_OFF_S:
        way = "behind" if ahead > 0 else "ahead of"
        what = f"{abs(ahead):.0f} s {way} the gates' clocks; tickets and tokens need the right time"
        return [note("clock", what, f"set it by a time server: {SET_CLOCK}")]
    return [ok("clock", f"within {CLOCK_OFF_S:.0f} s of the gates'")]


def _neighbours(facts: NetworkFacts) -> list[Check]:
    if facts.neighbours is None:
        return [ok("LAN", "discovery is off (lan = false)")]
    many = f"{facts.neighbours} neighbour{'s' if facts.neighbours != 1 else ''}"
    return [ok("LAN", f"{many if facts.neighbours else 'no neighbour'} found by mDNS")]
