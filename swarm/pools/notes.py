"""What a pool's owner remembers beside the manifest: the tickets that are out, and how long what the pool gave to each peer lasts.

The tickets say how many may come by each; the ends say when a revocation has nothing left to stop, so that its room can be used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from protocol.errors import NotPermitted
from protocol.messages.pool import MAX_MEMBERS, TokenId
from protocol.wire.base import Count, Message, PeerName
from protocol.wire.codec import pack
from protocol.words import Role
from swarm.base.durable import write_durably
from swarm.pools.files import locked, read_file
from swarm.pools.tokens import LEEWAY_S

MAX_TICKETS: Final = 512
MAX_USES: Final = MAX_MEMBERS
"""Of one ticket."""
MAX_USES_OUT: Final = 2048
"""Of all tickets that are out: their file stays readable however they are used."""
MAX_ENDS: Final = 1024
SURELY_OVER_S: Final = 86_400.0
"""A revocation is kept for so long after the end of what it stops: clocks differ."""


class TicketNote(Message):
    """A ticket that was given, until it is over."""

    id: TokenId
    role: Annotated[Role, Field(strict=False)]
    until: Count
    """Wall seconds."""
    to: PeerName | None = None
    team: Annotated[str, StringConstraints(max_length=64)] = ""
    uses: Annotated[int, Field(ge=1, le=MAX_USES)] = 1
    """How many may come by it."""
    used: Annotated[tuple[PeerName, ...], Field(max_length=MAX_USES)] = ()
    """Who was let in by it."""


class _Notes(Message):
    tickets: Annotated[tuple[TicketNote, ...], Field(max_length=MAX_TICKETS)] = ()


class TicketEnd(Message):
    """When what was given ends."""

    peer: PeerName | None = None
    """To whom; None: a ticket that was taken back."""
    ticket: TokenId | None = None
    """By which ticket the peer came last."""
    until: Count
    """Wall seconds."""


class _Ends(Message):
    ends: Annotated[tuple[TicketEnd, ...], Field(max_length=MAX_ENDS)] = ()


class PoolJournal:
    """The two files of a pool that was made here. Each change is made alone among the processes of the home."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    # -- tickets ----------------------------------------------------------------------------------------------------------------

    def tickets(self, now: float) -> tuple[TicketNote, ...]:
        """Those given that are not over. Raises `ResourceError` for a damaged file."""
        path = self._folder / "tickets"
        notes = read_file(path, _Notes).tickets if path.exists() else ()
        return tuple(note for note in notes if note.until + LEEWAY_S >= now)

    def note(self, ticket: TicketNote, now: float) -> None:
        """Remember a ticket that is given. Raises `NotPermitted` when there are too many."""
        with locked(self._folder):
            notes = (*self.tickets(now), ticket)
            uses = sum(note.uses for note in notes)
            if len(notes) > MAX_TICKETS or uses > MAX_USES_OUT:
                raise NotPermitted(
                    f"{len(notes) - 1} tickets of pool {self._name}, for {uses - ticket.uses} newcomers, are out and"
                    f" not yet over; {MAX_TICKETS} for {MAX_USES_OUT} is the most",
                    hint="give shorter ones, for fewer: --for 1h --uses 1",
                )
            self.keep(notes)

    def unnote(self, ticket: bytes, now: float) -> None:
        """Forget a ticket that was not given after all."""
        with locked(self._folder):
            self.keep(tuple(note for note in self.tickets(now) if note.id != ticket))

    def use(self, ticket: bytes, peer: str, now: float) -> bool:
        """Count `peer` among those who came by this ticket; gives whether it is the first time.

        Raises `NotPermitted` when as many others came already as may, and for a ticket that was not given here.
        """
        with locked(self._folder):
            notes = self.tickets(now)
            note = next((note for note in notes if note.id == ticket), None)
            if note is None:
                raise NotPermitted(f"pool {self._name} knows no such ticket", hint="ask its owner for one")
            if peer in note.used:
                return False
            if len(note.used) >= note.uses:
                raise NotPermitted(
                    f"this ticket was for {note.uses}, and as many have used it",
                    hint="ask the pool's owner for one",
                )
            marked = note.model_copy(update={"used": (*note.used, peer)})
            self.keep(tuple(marked if each is note else each for each in notes))
            return True

    def keep(self, notes: tuple[TicketNote, ...]) -> None:
        """Write the tickets, in the place of what was there."""
        write_durably(self._folder / "tickets", pack(_Notes(tickets=notes).to_wire()))

    # -- ends -------------------------------------------------------------------------------------------------------------------

    def ends(self) -> tuple[TicketEnd, ...]:
        """All that are known. Raises `ResourceError` for a damaged file."""
        path = self._folder / "ends"
        return read_file(path, _Ends).ends if path.exists() else ()

    def gave(self, peer: str, until: float, ticket: bytes | None = None) -> None:
        """Something that lasts until then was given to a peer; `ticket`: by which it came, None: by what it had."""
        with locked(self._folder):
            ends = self.ends()
            had = next((end for end in ends if end.peer == peer), None)
            last, by = int(until) + 1, ticket
            if had is not None:
                last, by = max(last, had.until), ticket or had.ticket
            self._keep(
                (*(end for end in ends if end is not had), TicketEnd(peer=peer, until=last, ticket=by))
            )

    def ticket_ends(self, ticket: bytes, until: float) -> None:
        """A ticket that is good until then is taken back."""
        with locked(self._folder):
            others = (end for end in self.ends() if end.peer is not None or end.ticket != ticket)
            self._keep((*others, TicketEnd(ticket=ticket, until=int(until) + 1)))

    def came_by(self, ticket: bytes, now: float) -> frozenset[str]:
        """The peers that came by a ticket and were given something that still lasts."""
        used = (peer for note in self.tickets(now) if note.id == ticket for peer in note.used)
        return frozenset((*used, *(end.peer for end in self.ends() if end.peer and end.ticket == ticket)))

    def over(self, now: float) -> tuple[frozenset[str], frozenset[bytes]]:
        """The peers, and the tickets, of which it is known that nothing they were given can still be good."""
        late = [end for end in self.ends() if end.until + SURELY_OVER_S < now]
        peers = frozenset(end.peer for end in late if end.peer is not None)
        return peers, frozenset(end.ticket for end in late if end.peer is None and end.ticket is not None)

    def unsure(self) -> None:
        """This home was restored from a copy: more may have been given since than is written here."""
        with locked(self._folder):
            (self._folder / "ends").unlink(missing_ok=True)

    def forget(self, peers: Iterable[str], tickets: Iterable[bytes]) -> None:
        """What was known of the ends of these, which are no longer in the manifest."""
        peers, tickets = frozenset(peers), frozenset(tickets)
        with locked(self._folder):
            ends = self.ends()
            left = tuple(
                end
                for end in ends
                if not (end.peer in peers if end.peer is not None else end.ticket in tickets)
            )
            if left != ends:
                self._keep(left)

    def _keep(self, ends: tuple[TicketEnd, ...]) -> None:
        """Write the ends. When they are too many those that come last are kept: no revocation is ended too early by that."""
        if len(ends) > MAX_ENDS:
            ends = tuple(sorted(ends, key=lambda end: end.until))[-MAX_ENDS:]
        write_durably(self._folder / "ends", pack(_Ends(ends=ends).to_wire()))
