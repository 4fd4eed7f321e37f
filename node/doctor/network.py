"""What `sark-node doctor` says of the network: gates, whether this device can be dialled, its clock against theirs, neighbours.

    look(…): a node for a few seconds ─▶ NetSigns ─▶ net_checks(signs): pure ─▶ Check(subject, ok | note | bad, what, todo)

Where no worker of this home runs, the node is the worker to be: its key and, if one is set, its port. Else it is a passing one on a port
of the system's choice, and the running worker is asked how it is reached.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from node.doctor.host import SET_CLOCK, Check, CheckState
from protocol.errors import Refused, RemoteProtocolError, ResourceError, SarkError, Unreachable
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.base.units import show_ms
from swarm.join.host import open_host
from swarm.net.addresses import Address, Contact, gate_contacts, own_ips, parse_tcp, split_peer
from swarm.net.identity import Identity
from swarm.net.link import Link, Links, serve_links
from swarm.net.network import Network
from swarm.p2p.dialler import AnotherAnswers
from swarm.pools.membership import Membership
from swarm.reach.autonat import DialBackAnswer, ask
from swarm.reach.reachability import TRIES, Reach, ReachState, heard, verdict_of

CLOCK_OFF_S: Final = 5.0
GATES: Final = 8
ANSWER_S: Final = 5.0
AGAIN_S: Final = 1.0
EXAMPLE_PORT: Final = 4102
ANYWHERE: Final = ("/ip4/0.0.0.0/tcp/0",)


@dataclass(frozen=True, slots=True)
class GateFacts:
    """What one gate did."""

    name: str
    """`192.0.2.7:4101`."""
    why: str = ""
    """Why it does not answer; empty: it does."""
    expected: str = ""
    """The peer id that its address names."""
    other: str = ""
    """The peer id that answers there instead."""
    ms: float | None = None
    dials_back: bool = True
    observed: str = ""
    """The IP address at which it sees this device."""
    ahead_s: float | None = None
    """Its wall clock less ours."""
    place: bool = False
    """It lent a place."""
    no_place: str = ""
    """Why not."""
    relayed_ms: float | None = None
    """How long a call through it takes."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What was found."""

    gates: tuple[GateFacts, ...] = ()
    reach: Reach = Reach.UNKNOWN
    reached: tuple[Address, ...] = ()
    far: bool = False
    """A gate from beyond the LAN was heard."""
    own_ip: str = ""
    """Of this device on its LAN."""
    port: int | None = None
    """At which it was tried."""
    fixed: bool = False
    """The port is one that the user chose."""
    behind_router: bool = False
    """Gates see another address than this device has."""
    neighbours: int | None = None
    """Found on the LAN; None: it is not looked for them."""
    worker: str | None = None
    """What the running worker says of how it is reached; None: none runs."""
    connected: bool = True
    """This device has an address beside loopback."""
    trouble: str = ""
    """Why nothing could be tried."""


async def look(
    gates: Sequence[str],
    identity: Identity,
    listen: Sequence[Address],
    *,
    neighbours: int | None,
    worker: str | None,
    fixed: bool,
    wall: Callable[[], float] = time.time,
) -> NetworkFacts:
    """Be a node for a few seconds and see. Raises nothing because of the network."""
    contacts = gate_contacts(gates)[:GATES]
    if not contacts:
        return NetworkFacts(neighbours=neighbours, worker=worker, fixed=fixed)
    try:
        async with open_host(identity, listen=listen, server=False, rng=random.Random()) as network:
            _answer_pings(network)
            return await _try_all(network, contacts, neighbours, worker, fixed, wall)
    except ResourceError as error:
        return NetworkFacts(neighbours=neighbours, worker=worker, fixed=fixed, trouble=error.what)


def _answer_pings(network: Network) -> None:
    async def answer(link: Link, message: Message) -> Message:
        return Pong(role="worker", incarnation=0)

    serve_links(network, ProtocolId.HEALTH, HEALTH, answer)


async def _try_all(
    network: Network,
    contacts: Sequence[Contact],
    neighbours: int | None,
    worker: str | None,
    fixed: bool,
    wall: Callable[[], float],
) -> NetworkFacts:
    ports = [address.port for text in network.addresses if (address := parse_tcp(text)) is not None]
    signs: dict[str, GateFacts] = {}
    replies: list[DialBackAnswer] = []

    async def one(contact: Contact) -> None:
        signs[contact.peer] = await _try_gate(network, contact, ports[:1], replies, wall)

    async with trio.open_nursery() as nursery:
        for contact in contacts:
            nursery.start_soon(one, contact)
    ips = own_ips()
    standing = ReachState()
    for reply in replies:
        standing = heard(standing, verdict_of(reply.gate, reply.observed, reply.reached, ips), wall())
    observed = {parsed.host for reply in replies if (parsed := parse_tcp(reply.observed)) is not None}
    connected = any(not ipaddress.ip_address(ip).is_loopback for ip in ips)
    near = [parsed.host for text in network.addresses if (parsed := parse_tcp(text)) is not None]
    return NetworkFacts(
        gates=tuple(signs[contact.peer] for contact in contacts),
        reach=standing.reach,
        reached=standing.reached,
        far=standing.far_at is not None,
        own_ip=near[0] if near else "",
        port=ports[0] if ports else None,
        fixed=fixed,
        behind_router=bool(observed - ips),
        connected=connected,
        neighbours=neighbours,
        worker=worker,
    )


async def _try_gate(
    network: Network,
    contact: Contact,
    ports: Sequence[int],
    replies: list[DialBackAnswer],
    wall: Callable[[], float],
) -> GateFacts:
    name = gate_text(contact)
    try:
        await network.connect(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
    except Unreachable as error:
        cause = error.__cause__
        other = cause.found if isinstance(cause, AnotherAnswers) else ""
        return GateFacts(name, why=error.what, expected=contact.peer, other=other)
    sign = GateFacts(name, dials_back=False)
    for _ in range(TRIES):  # one try may be lost
        try:
            reply = await ask(network, contact, ports, wall=wall)
        except (Unreachable, Refused, RemoteProtocolError):
            break
        replies.append(reply)
        seen = parse_tcp(reply.observed)
        sign = GateFacts(name, observed=seen.host if seen is not None else "", ahead_s=reply.ahead_s)
        if reply.reached:
            break
        await trio.sleep(AGAIN_S)
    ms = await _round_trip(network, contact)
    try:
        place = await network.reserve(contact.peer, contact.addresses, max_wait_s=ANSWER_S)
    except (Unreachable, Refused) as error:
        members = isinstance(error, Refused) and error.reason is Reason.NOT_ALLOWED
        no_place = "it relays for those it lets in only" if members else error.what
        return replace(sign, ms=ms, no_place=no_place)
    return replace(sign, ms=ms, place=True, relayed_ms=await _relayed(network, place.address))


async def _round_trip(network: Network, contact: Contact) -> float | None:
    """Milliseconds of a ping on a link that is up."""
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
    """Milliseconds of a ping through a gate, made by a second node of ours; None when there is no answer."""
    async with open_host(Identity.fresh(), server=False, rng=random.Random()) as caller:
        _answer_pings(caller)  # gates relay for those alone who speak a protocol of ours
        return await _round_trip(caller, Contact(network.peer_id, (circuit,)))


def gate_text(contact: Contact) -> str:
    """`192.0.2.7:4101`."""
    where = parse_tcp(contact.addresses[0])
    if where is None:
        return f"…{contact.peer[-8:]}"
    return f"[{where.host}]:{where.port}" if where.family == "ip6" else f"{where.host}:{where.port}"


def usable_gates(gates: Sequence[str]) -> tuple[str, ...]:
    """Those that can be read."""
    kept = []
    for gate in gates:
        try:
            split_peer(gate)
        except ValueError:
            continue
        kept.append(gate)
    return tuple(kept)


# -- judging -------------------------------------------------------------------------------------------------------------


def net_checks(signs: NetworkFacts) -> list[Check]:
    """All lines, in the order in which they are shown. Pure."""
    return [*_gates(signs), *_reach(signs), *_clock(signs), *_neighbours(signs)]


def pool_checks(joined: Sequence[Membership], now: float) -> list[Check]:
    """Whether each pool let this device in. `now`: wall seconds."""
    return [_pool(pool, now) for pool in joined]


def _pool(pool: Membership, now: float) -> Check:
    if pool.credential is not None and pool.until > now:
        return Check("pool", CheckState.OK, f"{pool.name} let this device in")
    if pool.ticket is not None and not pool.spent and pool.until > now:
        what = f"{pool.name} has not let this device in yet: no gate that has the pool's key took the ticket"
        todo = (
            "does the worker run (sark-node join), and do the gates answer? else it may be used up: ask the pool's owner for a new one"
            f"\nor leave the pool: sark-node join --leave-pool {pool.name}"
        )
        return Check("pool", CheckState.NOTE, what, todo)
    what = f"{pool.name} does not let this device in: its ticket is over or used up, or was taken back"
    return Check(
        "pool", CheckState.NOTE, what, "ask the pool's owner for a new one, then: sark-node join TICKET"
    )


def _gates(signs: NetworkFacts) -> list[Check]:
    if signs.trouble:
        return [Check("network", CheckState.NOTE, signs.trouble)]
    if not signs.gates:
        what = "none is known: devices beyond this LAN and this one do not find each other"
        return [
            Check("gates", CheckState.NOTE, what, "sark-node join TICKET, or: sark-node join --gate ADDRESS")
        ]
    none = all(gate.why for gate in signs.gates)
    lines = []
    if none and not signs.connected:
        what = "this device is on no network: it has no address but loopback"
        lines.append(Check("network", CheckState.BAD, what, "connect it, by cable or Wi-Fi"))
    for gate in signs.gates:
        if gate.why:
            state = CheckState.BAD if none else CheckState.NOTE
            if gate.other:
                what = (
                    f"{gate.name} is another gate: expected …{gate.expected[-8:]}, found …{gate.other[-8:]}"
                )
                todo = "ask its operator for its address as it is now; a gate prints its own when it starts"
                lines.append(Check("gate", state, what, todo))
                continue
            port = gate.name.rpartition(":")[2]
            todo = f"is it running? does this network let TCP connections out to port {port}?"
            lines.append(Check("gate", state, f"{gate.name} does not answer", todo))
            continue
        took = "" if gate.ms is None else f" in {show_ms(gate.ms)}"
        more = "" if gate.dials_back else ", but does not tell whether this device can be dialled"
        lines.append(Check("gate", CheckState.OK, f"{gate.name} answers{took}{more}"))
    return lines


def _reach(signs: NetworkFacts) -> list[Check]:
    found = []
    if signs.worker:
        found.append(Check("worker", CheckState.OK, f"the worker that runs here {signs.worker}"))
    if not any(not gate.why for gate in signs.gates):
        return found
    port = signs.port if signs.fixed and signs.port else EXAMPLE_PORT
    listen = "" if signs.fixed else f" --listen /ip4/0.0.0.0/tcp/{port}"
    match signs.reach:
        case Reach.DIRECT if signs.far:
            what = f"can be dialled from outside: {', '.join(signs.reached)}"
            found.append(Check("reach", CheckState.OK, what))
        case Reach.DIRECT:
            found.append(
                Check("reach", CheckState.OK, "can be dialled on this LAN; no gate from outside was asked")
            )
        case Reach.BEHIND:
            if signs.behind_router:
                todo = (
                    f"to be dialled directly, and for faster transfers: have the router send TCP port {port} to {signs.own_ip},"
                    f" then: sark-node join{listen}\nor let it be asked to: sark-node join --upnp{listen}"
                    f"\nwhere the outer port is another: sark-node join{listen} --announce /ip4/{_seen(signs)}/tcp/OUTER_PORT"
                )
            else:
                todo = f"a firewall is in the way: open TCP port {port} in it, then: sark-node join{listen}"
            found.append(_behind(signs, todo))
        case Reach.UNKNOWN:
            found.append(
                Check(
                    "reach",
                    CheckState.NOTE,
                    "not known: no gate that answers tells",
                    "ask its operator to update it",
                )
            )
    return found


def _behind(signs: NetworkFacts, todo: str) -> Check:
    ways = [
        f"gate {gate.name}" + (f" in {show_ms(gate.relayed_ms)}" if gate.relayed_ms is not None else "")
        for gate in signs.gates
        if gate.place
    ]
    if ways:
        return Check(
            "reach",
            CheckState.NOTE,
            f"cannot be dialled from outside; reached through {' and '.join(ways)}",
            todo,
        )
    why = "; ".join(f"{gate.name}: {gate.no_place}" for gate in signs.gates if gate.no_place)
    return Check(
        "reach", CheckState.BAD, f"cannot be dialled from outside, and no gate relays for it ({why})", todo
    )


def _seen(signs: NetworkFacts) -> str:
    return next((gate.observed for gate in signs.gates if gate.observed), "ROUTER")


def _clock(signs: NetworkFacts) -> list[Check]:
    told = [gate.ahead_s for gate in signs.gates if gate.ahead_s is not None]
    if not told:
        return []
    ahead = statistics.median(told)
    if abs(ahead) > CLOCK_OFF_S:
        way = "behind" if ahead > 0 else "ahead of"
        what = f"{abs(ahead):.0f} s {way} the gates': permissions and tickets have times"
        return [Check("clock", CheckState.NOTE, what, f"set it by a time server: {SET_CLOCK}")]
    return [Check("clock", CheckState.OK, f"within {CLOCK_OFF_S:.0f} s of the gates'")]


def _neighbours(signs: NetworkFacts) -> list[Check]:
    if signs.neighbours is None:
        return [Check("LAN", CheckState.OK, "neighbours are not looked for (lan = false)")]
    many = f"{signs.neighbours} neighbour{'s' if signs.neighbours != 1 else ''}"
    return [Check("LAN", CheckState.OK, f"{many if signs.neighbours else 'no neighbour'} found by mDNS")]
