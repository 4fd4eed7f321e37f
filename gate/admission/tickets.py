"""Inviting into a pool, and taking back: what the pool commands change on this home's disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gate.admission.enrolment import TICKET_ID, give, is_peer, member_of, reads_as_id
from protocol.errors import NotPermitted
from protocol.words import Right, Role
from swarm.base.settings import SettingsError
from swarm.pools.manifests import forgiven, pruned, taken_back, with_member, without
from swarm.pools.notes import TicketNote
from swarm.pools.owner import OwnPool
from swarm.pools.tickets import Ticket
from swarm.pools.tokens import Grant, bearer, issue, prove, prove_bearer

RIGHTS: Final = {
    Role.WORKER: frozenset({Right.STATUS}),
    Role.SUBMIT: frozenset({Right.SUBMIT, Right.STATUS}),
}
"""A device of the pool may ask the others how they stand, and no more."""


def give_ticket(
    pool: OwnPool,
    gates: tuple[str, ...],
    *,
    role: Role,
    to: str | None,
    member: str | None,
    priority: int,
    slots: int | None,
    team: str,
    ticket_s: float,
    lasts_s: float,
    now: float,
    uses: int = 1,
) -> tuple[Ticket, TicketNote]:
    """A ticket, remembered. `to`: only for this peer id, with its credential inside; it is a member at once, and
    forgiven if it was revoked. `uses`: how many may come by it.

    ValueError for values that no token can say; `NotPermitted` when the pool is full, or too many tickets are out:
    then nothing has changed.
    """
    rights = RIGHTS[role]
    if to is None:
        grant = Grant(rights, priority=priority, slots=slots, team=team, lasts_s=ticket_s, renews_s=lasts_s)
        token = bearer(pool.key, role, grant, now=now)
        proof = prove_bearer(token, pool.id, now=now)
        note = TicketNote(id=proof.ids[0], role=role, until=int(proof.expires), uses=uses)
        pool.notes.note(note, now)
    else:
        if not is_peer(to):
            raise ValueError(f"--to {to[:80]!r} is no scheduler id; the other's shows in: sark-node info")
        if member is not None and reads_as_id(member):
            raise ValueError(f"--name {member!r} looks like an id; take another")
        grant = give(Grant(rights, priority=priority, slots=slots, team=team), lasts_s)
        token = issue(pool.key, to, grant, now=now)
        shown = prove(token, pool.id, to, now=now)
        named = member_of(to, role, member or f"peer-{to[-6:]}", grant)
        note = TicketNote(id=shown.ids[0], role=role, until=int(shown.expires), to=to)
        pool.notes.note(note, now)
        try:
            pool.change(lambda manifest: with_member(forgiven(manifest, to), named))
        except NotPermitted:
            pool.notes.unnote(note.id, now)
            raise
        pool.notes.gave(to, shown.expires, note.id)
    ticket = Ticket(pool=pool.id, name=pool.name, gates=gates, role=role, token=token, to=to)
    return ticket, note


def take_back(pool: OwnPool, who: str, now: float, *, with_members: bool = False) -> tuple[str, ...]:
    """Take back what a member (peer id or name) or a ticket (its id; `with_members`: with all who came by it) was given.

    Gives what happened, line by line. Raises `SettingsError` when it is nobody, or may be several; `NotPermitted` when there is no
    room for more.
    """
    _make_room(pool, now)
    if TICKET_ID.fullmatch(who):
        return _take_ticket_back(pool, bytes.fromhex(who), now, with_members=with_members)
    manifest = pool.manifest()
    named = {who} if is_peer(who) else {member.peer for member in manifest.members if member.name == who}
    if not named:
        names = ", ".join(sorted({member.name for member in manifest.members})) or "nobody"
        raise SettingsError(f"pool {pool.name} has no member {who}", hint=f"there is: {names}")
    if len(named) > 1:
        raise SettingsError(
            f"{len(named)} members of pool {pool.name} are called {who}",
            hint="name its peer id: " + " or ".join(sorted(named)),
        )
    (peer,) = named
    if taken_back(manifest, (peer,), ()):
        return (f"what {who} was given had been taken back already",)
    tickets = tuple(note.id for note in pool.notes.tickets(now) if peer in note.used)
    try:
        _without(pool, (peer,), tickets, now)
    except NotPermitted:
        _without(pool, (peer,), (), now)  # the tickets it came by end by themselves
        tickets = ()
    lines = [f"what {who} was given is taken back"]
    lines += [f"so is the ticket {token.hex()} by which it came" for token in tickets]
    return tuple(lines)


def _take_ticket_back(pool: OwnPool, ticket: bytes, now: float, *, with_members: bool) -> tuple[str, ...]:
    """A ticket for one peer goes with its peer: what was made of it is renewed under other ids."""
    note = next((note for note in pool.notes.tickets(now) if note.id == ticket), None)
    came = pool.notes.came_by(ticket, now)
    manifest = pool.manifest()
    if note is None and not (came and with_members):
        if ticket in manifest.revoked_tokens:
            return (f"ticket {ticket.hex()} had been taken back already",)
        raise SettingsError(
            f"no ticket {ticket.hex()} of pool {pool.name} is out",
            hint=f"see those that are: sark-node pool members {pool.name}",
        )
    one = note.to if note is not None else None
    peers = (one,) if one is not None else tuple(sorted(came)) if with_members else ()
    _without(pool, peers, (ticket,) if note is not None else (), now)
    if one is not None:
        return (f"ticket {ticket.hex()} is taken back, with all that {one} was given",)
    if not with_members:
        return (f"ticket {ticket.hex()} is taken back; who came by it stays",)
    return (f"ticket {ticket.hex()} is taken back, with what was given to {len(peers)} who came by it",)


def _without(pool: OwnPool, peers: Iterable[str], tickets: Iterable[bytes], now: float) -> None:
    """Take back, and remember until when that is of use."""
    peers, tickets = tuple(peers), tuple(tickets)
    pool.change(lambda manifest: without(manifest, peers, tickets))
    for note in pool.notes.tickets(now):
        if note.id in tickets:
            pool.notes.ticket_ends(note.id, note.until)


def _make_room(pool: OwnPool, now: float) -> None:
    """Drop the revocations that have nothing left to stop."""
    peers, tickets = pool.notes.over(now)
    manifest = pool.manifest()
    gone, ended = peers.intersection(manifest.revoked), tickets.intersection(manifest.revoked_tokens)
    if gone or ended:
        pool.change(lambda m: pruned(m, gone, ended))
        pool.notes.forget(gone, ended)
