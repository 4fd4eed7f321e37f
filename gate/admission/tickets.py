"""Inviting to a pool, and revoking: what the pool commands change on this home's disk."""

from __future__ import annotations

from gate.admission.enrolment import TICKET_ID, is_peer, looks_like_id
from swarm.base.settings import SettingsError
from swarm.pools.manifests import revoked_peers, with_member, without
from swarm.pools.owner import MemberTerms, OwnPool, TicketRecord
from swarm.pools.tickets import Ticket


def invite(
    pool: OwnPool, gates: tuple[str, ...], terms: MemberTerms, *, now: float, for_s: float, uses: int
) -> tuple[Ticket, TicketRecord]:
    """A ticket that admits `uses` peers within `for_s` seconds, and its record. Raises `NotPermitted` when too many tickets are open."""
    until = int(now + for_s)
    secret, record = pool.issue_ticket(terms, until=until, uses=uses, now=now)
    ticket = Ticket(pool=pool.id, name=pool.name, gates=gates, role=terms.role, until=until, secret=secret)
    return ticket, record


def invite_peer(
    pool: OwnPool,
    gates: tuple[str, ...],
    terms: MemberTerms,
    peer: str,
    *,
    now: float,
    name: str | None = None,
) -> Ticket:
    """Make one scheduler a member at once, pardoned if it was revoked. The ticket holds the manifest that lists it.

    ValueError for a bad id or name; `NotPermitted` when the pool is full: then nothing has changed.
    """
    if not is_peer(peer):
        raise ValueError(f"--to {peer[:80]!r} is not a scheduler's id; on the other machine: sark-node info")
    if name is not None and looks_like_id(name):
        raise ValueError(f"--name {name!r} looks like an id; choose another")
    member = terms.member(peer, name or f"peer-{peer[-6:]}", now)
    pool.change(lambda manifest: with_member(manifest, member, now, pardon=True))
    return Ticket(
        pool=pool.id,
        name=pool.name,
        gates=gates,
        role=terms.role,
        until=int(now) + terms.ttl_s,
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
    pool.change(lambda manifest: without(manifest, peers, now))
    pool.revoke_tickets(frozenset({ticket}), now)
    if with_members:
        return (f"ticket {ticket} is revoked, and the {len(peers)} who joined with it",)
    return (f"ticket {ticket} is revoked; those who joined with it stay members",)
