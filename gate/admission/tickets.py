"""Inviting to a pool, and revoking: what the pool commands change on this home's disk."""

from __future__ import annotations

from gate.admission.enrolment import TICKET_ID, is_peer, looks_like_id
from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.settings import SettingsError
from swarm.pools.manifests import is_revoked, with_member, without
from swarm.pools.owner import OwnPool, TicketRecord
from swarm.pools.tickets import Ticket
from swarm.pools.tokens import check_team


def invite(
    pool: OwnPool,
    gates: tuple[str, ...],
    *,
    role: Role,
    now: float,
    for_s: float,
    ttl_s: float,
    uses: int,
    priority: int = 100,
    slots: int | None = None,
    team: str = "",
) -> tuple[Ticket, TicketRecord]:
    """A ticket that admits `uses` peers within `for_s` seconds, each for `ttl_s`, and its record.

    ValueError for a bad team; `NotPermitted` when too many tickets are open.
    """
    if team:
        check_team(team)
    until = int(now + for_s)
    secret, record = pool.issue_ticket(
        now, role=role, until=until, ttl_s=int(ttl_s), priority=priority, slots=slots, team=team, uses=uses
    )
    ticket = Ticket(pool=pool.id, name=pool.name, gates=gates, role=role, until=until, secret=secret)
    return ticket, record


def invite_peer(
    pool: OwnPool,
    gates: tuple[str, ...],
    peer: str,
    *,
    now: float,
    ttl_s: float,
    name: str | None = None,
    priority: int = 100,
    slots: int | None = None,
    team: str = "",
) -> Ticket:
    """Make one scheduler a member at once, pardoned if it was revoked. The ticket holds the manifest that lists it.

    ValueError for bad values; `NotPermitted` when the pool is full: then nothing has changed.
    """
    if not is_peer(peer):
        raise ValueError(f"--to {peer[:80]!r} is not a scheduler's id; on the other machine: sark-node info")
    if name is not None and looks_like_id(name):
        raise ValueError(f"--name {name!r} looks like an id; choose another")
    if team:
        check_team(team)
    until = int(now + ttl_s)
    member = PoolMember(
        peer=peer,
        role=Role.SUBMIT,
        name=name or f"peer-{peer[-6:]}",
        team=team,
        priority=priority,
        slots=slots,
        until=until,
        ttl_s=int(ttl_s),
    )
    pool.change(lambda manifest: with_member(manifest, member, now, pardon=True))
    return Ticket(
        pool=pool.id,
        name=pool.name,
        gates=gates,
        role=Role.SUBMIT,
        until=until,
        to=peer,
        manifest=pool.signed(),
    )


def revoke(pool: OwnPool, who: str, now: float, *, with_members: bool = False) -> tuple[str, ...]:
    """Revoke a member (peer id or name), or a ticket (its id; `with_members`: and all who joined with it).

    Returns what happened, line by line. Raises `SettingsError` when `who` is nobody or several; `NotPermitted` when there is no
    room for more.
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
    tickets = frozenset(ticket.id for ticket in pool.open_tickets(now) if peer in ticket.used)
    pool.revoke_tickets(tickets, now)  # first: if this is interrupted, the same command finishes it
    pool.change(lambda manifest: without(manifest, (peer,), now))
    return (
        f"{who} was revoked already" if is_revoked(manifest, peer) else f"{who} is revoked",
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
    pool.change(lambda manifest: without(manifest, peers, now))
    pool.revoke_tickets(frozenset({ticket}), now)
    if with_members:
        return (f"ticket {ticket} is revoked, and the {len(peers)} who joined with it",)
    return (f"ticket {ticket} is revoked; those who joined with it stay members",)
