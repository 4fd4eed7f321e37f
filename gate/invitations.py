"""Inviting into a pool, and taking back: what the pool commands change on this home's disk."""

from __future__ import annotations

import re
from typing import Final

from gate.enrolment import give, member_of
from protocol.errors import NotPermitted
from protocol.words import Right, Role
from swarm.identity import peer_id_bytes
from swarm.manifests import forgiven, taken_back, with_member, without
from swarm.own_pools import OwnPool, TicketNote
from swarm.settings import SettingsError
from swarm.tickets import Ticket
from swarm.tokens import Grant, bearer, issue, prove, prove_bearer

RIGHTS: Final = {
    Role.WORKER: frozenset({Right.STATUS}),
    Role.SUBMIT: frozenset({Right.SUBMIT, Right.STATUS}),
}
"""A device of the pool may ask the others how they stand, and no more."""
_TICKET_ID: Final = re.compile(r"[0-9a-f]{16}")


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
) -> tuple[Ticket, TicketNote]:
    """A ticket, remembered. `to`: only for this peer id, with its credential inside; it is a member at once, and
    forgiven if it was revoked.

    ValueError for values that no token can say; `NotPermitted` when the pool is full.
    """
    rights = RIGHTS[role]
    if to is None:
        grant = Grant(rights, priority=priority, slots=slots, team=team, lasts_s=ticket_s, renews_s=lasts_s)
        token = bearer(pool.key, role, grant, now=now)
        proof = prove_bearer(token, pool.id, now=now)
        until, ids = proof.expires, proof.ids
    else:
        if not _is_peer(to):
            raise ValueError(f"--to {to[:80]!r} is no scheduler id; the other's shows in: sark-node info")
        grant = give(Grant(rights, priority=priority, slots=slots, team=team), lasts_s)
        token = issue(pool.key, to, grant, now=now)
        shown = prove(token, pool.id, to, now=now)
        until, ids = shown.expires, shown.ids
        named = member_of(to, role, member or f"peer-{to[-6:]}", grant)
        pool.change(lambda manifest: with_member(forgiven(manifest, to), named))
    note = TicketNote(id=ids[0], role=role, until=int(until), to=to)
    pool.note(note, now)
    ticket = Ticket(pool=pool.id, name=pool.name, gates=gates, role=role, token=token, to=to)
    return ticket, note


def take_back(pool: OwnPool, who: str, now: float) -> tuple[str, ...]:
    """Take back what a member (name or peer id) or a ticket (its id) was given. Gives what happened, line by line.

    Raises `SettingsError` when it is nobody, or may be several; `NotPermitted` when there is no room for more.
    """
    manifest = pool.manifest()
    if _TICKET_ID.fullmatch(who):
        token = bytes.fromhex(who)
        pool.change(lambda m: without(m, tokens=(token,)))
        return (f"ticket {who} is taken back; who came by it stays",)
    named = {member.peer for member in manifest.members if who in (member.name, member.peer)}
    if not named and not _is_peer(who):
        names = ", ".join(sorted({member.name for member in manifest.members})) or "nobody"
        raise SettingsError(f"pool {pool.name} has no member {who}", hint=f"there is: {names}")
    if len(named) > 1:
        raise SettingsError(
            f"{len(named)} members of pool {pool.name} are called {who}",
            hint="name its peer id: " + " or ".join(sorted(named)),
        )
    peer = next(iter(named), who)
    if taken_back(manifest, (peer,), ()):
        return (f"what {who} was given had been taken back already",)
    tickets = tuple(note.id for note in pool.tickets(now) if peer in note.used)
    try:
        pool.change(lambda m: without(m, (peer,), tickets))
    except NotPermitted:
        pool.change(lambda m: without(m, (peer,)))  # the tickets it came by end by themselves
        tickets = ()
    lines = [f"what {who} was given is taken back"]
    lines += [f"so is the ticket {token.hex()} by which it came" for token in tickets]
    return tuple(lines)


def _is_peer(text: str) -> bool:
    try:
        peer_id_bytes(text)
    except ValueError:
        return False
    return True
