"""Members of the pools whose keys are in this home: a process admits newcomers and renews members, commands invite and revoke.

A newcomer shows the secret of a join ticket; a member is known by the peer id that the channel proved. The answer is the manifest that
lists the peer. A renewal never grants more than the member's line, which the owner may have reduced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

import structlog
import trio

from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.messages.index import RefusedMessage
from protocol.messages.pool import EnrolRequest, ManifestMessage, PoolManifest, PoolMember
from protocol.words import Reason, Role
from swarm.base.home import Home
from swarm.base.names import skeleton
from swarm.net.addresses import PeerId
from swarm.net.identity import peer_id_bytes
from swarm.pools.manifests import find_member, is_live, revoke_peers, revoked_peers, with_member
from swarm.pools.owner import MemberTerms, OwnPool, TicketRecord, own_pools
from swarm.pools.server import Enroller
from swarm.pools.tickets import Ticket

EARLY: Final = 0.75
"""A member with more than this share of its lifetime left is not renewed yet."""
MAX_ENROLLING: Final = 16
"""Most enrolments waiting for the disk."""
MAX_NAME: Final = 64
TAIL: Final = 6
"""Characters of a peer id added to a name that another member has."""
DEFAULT_FOR_S: Final = 86_400.0
"""How long a ticket can be used by default."""
TICKET_ID: Final = re.compile(r"[0-9a-f]{16}")

log = structlog.get_logger("sark.pools")


class PoolEnrolment:
    """Answers `EnrolRequest`. Reads the home's pools each time, since another process may have just made or changed one."""

    def __init__(self, home: Home, wall: Callable[[], float]) -> None:
        self._home = home
        self._wall = wall

    def __call__(self, peer: PeerId, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
        """Admit a peer, or refuse with a reason."""
        try:
            pools = own_pools(self._home, lambda exc: log.warning("pool.unusable", why=exc.what))
            pool = next((pool for pool in pools if pool.id == message.pool), None)
            if pool is None:
                return RefusedMessage(reason=Reason.UNKNOWN, detail="this node does not have that pool's key")
            return self._enrol(pool, peer, message)
        except NotPermitted as exc:
            log.info("pool.refused", pool=message.pool, peer=peer, why=exc.what)
            return RefusedMessage(reason=Reason.NOT_ALLOWED, detail=exc.what)
        except ResourceError as exc:
            log.warning("pool.unusable", pool=message.pool, why=exc.what)
            return RefusedMessage(
                reason=Reason.NOT_SERVING,
                detail="this node cannot use its disk at the moment",
                retry_after_s=60.0,
            )

    def _enrol(self, pool: OwnPool, peer: PeerId, message: EnrolRequest) -> ManifestMessage:
        now = self._wall()
        manifest = pool.manifest()
        if peer in revoked_peers(manifest):
            raise NotPermitted(f"pool {pool.name} revoked {peer}")
        ticket, fresh = None, False
        if message.ticket is not None:
            ticket = pool.find_ticket(message.ticket, now)
            if ticket.role is not message.role:
                raise NotPermitted(f"this ticket is not for the role {message.role}")
            _name(manifest, peer, message, now)  # a bad name must not use up the ticket
            fresh = pool.use_ticket(message.ticket, peer, now)

        def admit(manifest: PoolManifest) -> PoolManifest:
            member = find_member(manifest, peer, message.role, now)
            device = None if _device_taken(manifest, peer, message.device) else message.device
            if ticket is None:
                if member is None:
                    raise NotPermitted(f"pool {pool.name} has no {message.role} {peer}")
                return with_member(manifest, _on_device(_renewed(member, now), device), now)
            line = _on_device(ticket.member(peer, _name(manifest, peer, message, now), now), device)
            stored = _line(manifest, peer, message.role)
            if stored is not None and not fresh:  # the ticket does not undo later reductions by the owner
                line = _intersect_members(_on_device(_renewed(stored, now), device), line)
                if not is_live(line, now):
                    raise NotPermitted(f"the membership of {peer} in pool {pool.name} has ended")
            return with_member(manifest, _on_device(line, stored.device if stored else None), now)

        after = pool.change(admit)
        if after.number != manifest.number:
            log.info("pool.member", pool=pool.name, peer=peer, role=str(message.role))
        return pool.signed()


def enroller(
    home: Home, wall: Callable[[], float], admitted: Callable[[PeerId], object] = lambda peer: None
) -> Enroller:
    """Admits peers to the pools of this home, one at a time, in a thread that waits for the disk. `admitted` is called with each peer."""
    enrolment, one = PoolEnrolment(home, wall), trio.CapacityLimiter(1)

    async def enrol(peer: PeerId, message: EnrolRequest) -> ManifestMessage | RefusedMessage:
        if one.statistics().tasks_waiting >= MAX_ENROLLING:  # fresh keys cost nothing, a ticket milliseconds
            return RefusedMessage(
                reason=Reason.OVERLOADED, detail="too many newcomers at once", retry_after_s=2.0
            )
        answer = await trio.to_thread.run_sync(enrolment, peer, message, limiter=one)
        if isinstance(answer, ManifestMessage):
            admitted(peer)
        return answer

    return enrol


def _line(manifest: PoolManifest, peer: PeerId, role: Role) -> PoolMember | None:
    """A peer's line for that role, ended or not."""
    return next((m for m in manifest.members if (m.peer, m.role) == (peer, role)), None)


def _device_taken(manifest: PoolManifest, peer: PeerId, device: str | None) -> bool:
    """Whether another peer's line has this device. A ticket does not say whose device it is: two workers of a machine count as one device
    only if a submitter says so."""
    return any(m.device == device and m.peer != peer for m in manifest.members if m.device is not None)


def _on_device(member: PoolMember, device: str | None) -> PoolMember:
    """The line with the device that a worker names, unless it named one before."""
    if member.role is not Role.WORKER or member.device is not None or device is None:
        return member
    return member.model_copy(update={"device": device})


def _renewed(member: PoolMember, now: float) -> PoolMember:
    if member.until is None or member.ttl_s is None or member.until - now > EARLY * member.ttl_s:
        return member
    return member.model_copy(update={"until": int(now) + member.ttl_s})


def _intersect_members(member: PoolMember, line: PoolMember) -> PoolMember:
    """What both lines allow, in the team of `member`; a line that cannot be renewed stays so."""
    slots = min((each.slots for each in (member, line) if each.slots is not None), default=None)
    until, ttl_s = line.until, line.ttl_s
    if member.until is not None:
        until = member.until if until is None else min(member.until, until)
        ttl_s = min(member.ttl_s, ttl_s) if member.ttl_s is not None and ttl_s is not None else None
    priority = min(member.priority, line.priority)
    return member.model_copy(update={"priority": priority, "slots": slots, "until": until, "ttl_s": ttl_s})


def _name(manifest: PoolManifest, peer: PeerId, message: EnrolRequest, now: float) -> str:
    """The name that the peer requests, made unique if another member has it; a member keeps its own.

    Raises `NotPermitted` for a name that looks like a peer id or a ticket's id: the owner could not tell whom a revocation affects.
    """
    member = find_member(manifest, peer, message.role, now)
    if member is not None:
        return member.name
    if looks_like_id(message.name):
        raise NotPermitted(f"the name {message.name!r} looks like an id; choose another: --name")
    tail = f"-{peer[-TAIL:]}"
    taken = {skeleton(member.name) for member in manifest.members if member.peer != peer}
    for name in (message.name, message.name[: MAX_NAME - len(tail)] + tail):
        if skeleton(name) not in taken:
            return name
    raise NotPermitted(
        f"another member of pool {manifest.name} is called {message.name!r}; choose another name: --name"
    )


def looks_like_id(name: str) -> bool:
    """Whether a name could be taken for a peer id or a ticket's id."""
    return TICKET_ID.fullmatch(name.lower()) is not None or is_peer(name)


def is_peer(text: str) -> bool:
    """Whether a text is a peer id."""
    try:
        peer_id_bytes(text)
    except ValueError:
        return False
    return True


def invite(
    pool: OwnPool,
    gates: tuple[str, ...],
    terms: MemberTerms,
    *,
    now: float,
    for_s: float,
    uses: int,
    admits: tuple[str, ...] = (),
) -> tuple[Ticket, TicketRecord]:
    """A ticket that admits `uses` peers within `for_s` seconds, and its record. `admits`: addresses of the admitting node, if not the
    gates.

    Raises `NotPermitted` if too many tickets are open.
    """
    until = int(now + for_s)
    secret, record = pool.issue_ticket(terms, until=until, uses=uses, now=now)
    ticket = Ticket(
        pool=pool.id,
        name=pool.name,
        gates=gates,
        role=terms.role,
        until=until,
        secret=secret,
        admits=admits,
    )
    return ticket, record


def invite_peer(
    pool: OwnPool,
    gates: tuple[str, ...],
    terms: MemberTerms,
    peer: str,
    *,
    now: float,
    name: str | None = None,
    device: str | None = None,
    for_s: float = DEFAULT_FOR_S,
) -> Ticket:
    """Make one peer a member at once, pardoning it if it was revoked. The ticket contains the manifest that lists it. `device`: the id of a
    worker's device, if known; `for_s`: how long the ticket can be used if the membership never ends.

    Raises ValueError for a bad id or name, and `NotPermitted` if the pool is full; then nothing has changed.
    """
    if not is_peer(peer):
        whose = "scheduler" if terms.role is Role.SUBMIT else "worker"
        raise ValueError(f"--to {peer[:80]!r} is not a {whose}'s id; on the other machine: sark-node info")
    if name is not None and looks_like_id(name):
        raise ValueError(f"--name {name!r} looks like an id; choose another")
    member = terms.member(peer, name or f"peer-{peer[-6:]}", now)

    def admit(manifest: PoolManifest) -> PoolManifest:
        stored = _line(manifest, peer, terms.role)
        line = _on_device(member, device or (stored.device if stored else None))
        return with_member(manifest, line, now, pardon=True)

    pool.change(admit)
    return Ticket(
        pool=pool.id,
        name=pool.name,
        gates=gates,
        role=terms.role,
        until=int(now + (for_s if terms.ttl_s is None else terms.ttl_s)),
        to=peer,
        manifest=pool.signed(),
    )


def revoke(
    pool: OwnPool, who: str, now: float, *, with_members: bool = False, keep: Collection[str] = ()
) -> tuple[str, ...]:
    """Revoke a member (peer id or name), or a ticket (its id; `with_members`: also all who joined with it). `keep`: peers that must stay.

    Returns lines that say what happened. Raises `SettingsError` if `who` matches nobody or several members, or must stay; `NotPermitted` if
    there is no room for more revocations.
    """
    if TICKET_ID.fullmatch(who):
        return _revoke_ticket(pool, who, now, with_members=with_members)
    manifest = pool.manifest()
    peers = {who} if is_peer(who) else {member.peer for member in manifest.members if member.name == who}
    if not peers:
        names = ", ".join(sorted({member.name for member in manifest.members})) or "nobody"
        raise SettingsError(f"pool {pool.name} has no member {who}", hint=f"its members: {names}")
    if len(peers) > 1:
        raise SettingsError(
            f"{len(peers)} members of pool {pool.name} are called {who}",
            hint="give the peer id: " + " or ".join(sorted(peers)),
        )
    (peer,) = peers
    if peer in keep:
        raise SettingsError(f"{who} is this home's own scheduler, which stays in pool {pool.name}")
    tickets = frozenset(ticket.id for ticket in pool.open_tickets(now) if peer in ticket.used)
    pool.revoke_tickets(tickets, now)  # first: if this is interrupted, repeating the command finishes it
    pool.change(lambda manifest: revoke_peers(manifest, (peer,), now))
    return (
        f"{who} was revoked already" if peer in revoked_peers(manifest) else f"{who} is revoked",
        *(f"ticket {each}, with which it joined, is revoked" for each in sorted(tickets)),
    )


def _revoke_ticket(pool: OwnPool, ticket: str, now: float, *, with_members: bool) -> tuple[str, ...]:
    record = next((each for each in pool.tickets() if each.id == ticket), None)
    if record is None or not (record.is_open(now) or with_members):
        raise SettingsError(
            f"pool {pool.name} has no open ticket {ticket}",
            hint=f"list them with: sark-node pool members {pool.name}",
        )
    record = pool.close_ticket(ticket, now) or record  # first: nobody joins while its members are revoked
    peers = record.used if with_members else ()
    pool.change(lambda manifest: revoke_peers(manifest, peers, now))
    pool.revoke_tickets(frozenset({ticket}), now)
    if with_members:
        return (f"ticket {ticket} is revoked, and so is everyone who joined with it ({len(peers)})",)
    return (f"ticket {ticket} is revoked; those who joined with it stay members",)
