"""The pools made in this home: their keys, their manifests and their open tickets."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from protocol.errors import NotPermitted, RemoteProtocolError, ResourceError, SettingsError
from protocol.messages.pool import MAX_MEMBERS, SECRET_BYTES, ManifestMessage, PoolManifest, PoolMember
from protocol.wire.base import AddressText, Count, Message, Name, PeerName, Priority
from protocol.wire.codec import pack, read_value
from protocol.words import Role
from swarm.base.durable import UNFINISHED, unusable, write_durably
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.net.identity import load_or_create
from swarm.pools.manifests import sign_manifest, verified
from swarm.pools.tickets import MAX_GATES

MAX_TICKETS: Final = 512
MAX_USES: Final = MAX_MEMBERS
"""Most uses of one ticket."""
MAX_OPEN_USES: Final = 2048
"""Most uses of all open tickets together, so that their file stays readable."""
TICKET_ID_BYTES: Final = 8
MAX_FILE: Final = 256 * 1024
MAX_FILE_ELEMENTS: Final = 262_144
JOINED: Final = "joined"
"""The folder of joined pools; each pool made here has its own folder next to it."""
HOME_POOL: Final = "home"
"""The name of the home pool: `swarm.pools.home_pool`."""
KEY_FILE: Final = "pool.key"
LOCK_WAIT_S: Final = 2.0
"""How long a change waits for another process of the home, which holds its lock for a few milliseconds."""

_NAME: Final = TypeAdapter(Name)

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Damaged = Callable[[ResourceError], object]
"""Called for each file that cannot be read."""


class _PoolFile(Message):
    """The settings of a pool, from its owner."""

    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()


class MemberTerms(Message):
    """What a new member is granted; `PoolMember` describes the fields."""

    role: Annotated[Role, Field(strict=False)]
    ttl_s: Count | None = None
    priority: Priority = 100
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None
    team: Annotated[str, StringConstraints(max_length=64)] = ""

    def member(self, peer: str, name: str, now: float) -> PoolMember:
        """The line of a peer admitted now."""
        return PoolMember(
            peer=peer,
            name=name,
            until=None if self.ttl_s is None else int(now) + self.ttl_s,
            **self.model_dump(include=set(MemberTerms.model_fields)),
        )


class TicketRecord(MemberTerms):
    """An issued ticket, and what it grants."""

    digest: Annotated[bytes, Field(min_length=32, max_length=32)]
    """SHA-256 of its secret."""
    until: Count
    """When the ticket ends, in wall seconds."""
    uses: Annotated[int, Field(ge=1, le=MAX_USES)] = 1
    """How many peers the ticket admits."""
    used: Annotated[tuple[PeerName, ...], Field(max_length=MAX_USES)] = ()
    """The peers that the ticket admitted."""

    @property
    def id(self) -> str:
        """The id by which the owner refers to the ticket."""
        return self.digest[:TICKET_ID_BYTES].hex()

    def is_open(self, now: float) -> bool:
        """Whether the ticket can still be used, by the clock that issued it."""
        return now <= self.until


class _TicketsFile(Message):
    tickets: Annotated[tuple[TicketRecord, ...], Field(max_length=MAX_TICKETS + MAX_MEMBERS)] = ()


class OwnPool:
    """A pool whose key is in this home. Each change holds a lock that excludes the home's other processes."""

    def __init__(self, folder: Path) -> None:
        """Raises `ResourceError` if one of its files is missing or damaged."""
        self.key_file: Final = folder / KEY_FILE
        if not self.key_file.exists():
            raise ResourceError(f"{self.key_file} is missing", hint="restore it from a copy")
        self.folder: Final = folder
        self.key: Final = load_or_create(self.key_file)
        file = read_file(folder / "pool", _PoolFile)
        self.name: Final = file.name
        self.gates: Final = file.gates
        self._read_at: tuple[object, ...] = ()
        self._newest: tuple[ManifestMessage, PoolManifest] | None = None

    @property
    def id(self) -> str:
        """The key as a peer id."""
        return self.key.peer_id

    # -- manifest -------------------------------------------------------------------------------------------------------------

    def signed(self) -> ManifestMessage:
        """The newest manifest, whichever process wrote it."""
        return self._read()[0]

    def manifest(self) -> PoolManifest:
        """The content of `signed`."""
        return self._read()[1]

    def change(self, how: Callable[[PoolManifest], PoolManifest]) -> PoolManifest:
        """Change the manifest. If `how` raises, nothing changes."""
        with lock_folder(self.folder, wait_s=LOCK_WAIT_S):
            before = self.manifest()
            after = how(before)
            if after != before:
                write_durably(self.folder / "manifest", pack(sign_manifest(self.key, after).to_wire()))
        return self.manifest()

    def _read(self) -> tuple[ManifestMessage, PoolManifest]:
        path = self.folder / "manifest"
        try:
            info = path.stat()
        except OSError as error:
            raise unusable(path, error) from error
        stat = (info.st_mtime_ns, info.st_ino, info.st_size)
        if self._newest is None or stat != self._read_at:
            signed = read_file(path, ManifestMessage)
            try:
                manifest = verified(signed)
            except RemoteProtocolError as error:
                raise damaged(path) from error
            if manifest.pool != self.id:
                raise damaged(path)
            self._newest, self._read_at = (signed, manifest), stat
        return self._newest

    # -- tickets --------------------------------------------------------------------------------------------------------------

    def tickets(self) -> tuple[TicketRecord, ...]:
        """The open tickets, and those with which members joined. Raises `ResourceError` for a damaged file."""
        path = self.folder / "tickets"
        return read_file(path, _TicketsFile).tickets if path.exists() else ()

    def open_tickets(self, now: float) -> tuple[TicketRecord, ...]:
        """The tickets that can still be used."""
        return tuple(ticket for ticket in self.tickets() if ticket.is_open(now))

    def issue_ticket(
        self, terms: MemberTerms, *, until: int, uses: int, now: float
    ) -> tuple[bytes, TicketRecord]:
        """A new ticket: its secret and its record. Raises `NotPermitted` if too many are open."""
        secret = secrets.token_bytes(SECRET_BYTES)
        ticket = TicketRecord(digest=_digest(secret), until=until, uses=uses, **dict(terms))
        with lock_folder(self.folder, wait_s=LOCK_WAIT_S):
            tickets = self.open_tickets(now)
            open_uses = sum(each.uses for each in tickets)
            if len(tickets) >= MAX_TICKETS or open_uses + uses > MAX_OPEN_USES:
                raise NotPermitted(
                    f"{len(tickets)} tickets of pool {self.name}, for {open_uses} newcomers, are open;"
                    f" at most {MAX_TICKETS} tickets for {MAX_OPEN_USES} newcomers can be",
                    hint="issue tickets for a shorter time and fewer newcomers: --for 1h --uses 1",
                )
            self.write_tickets((*self._retained(now), ticket))
        return secret, ticket

    def find_ticket(self, secret: bytes, now: float) -> TicketRecord:
        """The open ticket with this secret. Raises `NotPermitted`."""
        digest = _digest(secret)
        ticket = next((each for each in self.tickets() if each.digest == digest), None)
        if ticket is None:
            raise NotPermitted(f"pool {self.name} has no such ticket; it may have been revoked")
        if not ticket.is_open(now):
            raise NotPermitted("this ticket has expired")
        return ticket

    def use_ticket(self, secret: bytes, peer: str, now: float) -> bool:
        """Count `peer` among the peers that the ticket admitted; return whether it is new.

        Raises `NotPermitted` if the ticket is closed, or has admitted as many peers as it may.
        """
        with lock_folder(self.folder, wait_s=LOCK_WAIT_S):
            ticket = self.find_ticket(secret, now)
            if peer in ticket.used:
                return False
            if len(ticket.used) >= ticket.uses:
                raise NotPermitted(f"this ticket is used up (allowed uses: {ticket.uses})")
            self._replace(ticket.model_copy(update={"used": (*ticket.used, peer)}), now)
            return True

    def close_ticket(self, ticket: str, now: float) -> TicketRecord | None:
        """Close `ticket`, so that it admits nobody else. Returns its record, with all members admitted; None: another process forgot it."""
        with lock_folder(self.folder, wait_s=LOCK_WAIT_S):
            record = next((each for each in self.tickets() if each.id == ticket), None)
            if record is not None and record.is_open(now):
                self._replace(record.model_copy(update={"until": max(0, int(now) - 1)}), now)
            return record

    def revoke_tickets(self, ids: frozenset[str], now: float) -> None:
        """Forget these tickets, so that nobody can join with them."""
        with lock_folder(self.folder, wait_s=LOCK_WAIT_S):
            self.write_tickets(tuple(ticket for ticket in self._retained(now) if ticket.id not in ids))

    def write_tickets(self, tickets: tuple[TicketRecord, ...]) -> None:
        """Replace the file of tickets."""
        write_durably(self.folder / "tickets", pack(_TicketsFile(tickets=tickets).to_wire()))

    def _replace(self, fresh: TicketRecord, now: float) -> None:
        tickets = self._retained(now)
        self.write_tickets(tuple(fresh if each.digest == fresh.digest else each for each in tickets))

    def _retained(self, now: float) -> tuple[TicketRecord, ...]:
        """The open tickets, and the last ticket with which each member joined."""
        members = {member.peer for member in self.manifest().members}
        remaining: list[TicketRecord] = []
        for ticket in reversed(self.tickets()):
            if not ticket.is_open(now):
                ticket = ticket.model_copy(update={"used": tuple(p for p in ticket.used if p in members)})
            if ticket.used or ticket.is_open(now):
                remaining.append(ticket)
            members -= set(ticket.used)
        return tuple(reversed(remaining))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def create_pool(home: Home, name: str, gates: tuple[str, ...] = ()) -> OwnPool:
    """A new pool of that name, with its own key. Raises `SettingsError` if the name is taken, reserved or invalid."""
    _check_pool_name(name)
    if name.lower() == HOME_POOL:
        raise SettingsError(
            f"every home already has a pool {HOME_POOL} of its own",
            hint="invite a device to it: sark-node invite",
        )
    folder = pools_folder(home) / name
    with lock_folder(folder, wait_s=LOCK_WAIT_S):
        if (folder / "manifest").exists():
            raise SettingsError(
                f"this home already has a pool {name}", hint=f"show it with: sark-node pool members {name}"
            )
        write_pool(folder, name, gates)
    return OwnPool(folder)


def write_pool(
    folder: Path, name: str, gates: tuple[str, ...] = (), members: tuple[PoolMember, ...] = ()
) -> None:
    """Write the files of a new pool, its manifest last: without a manifest there is no pool. The caller holds the folder's lock."""
    key = load_or_create(folder / KEY_FILE)
    write_durably(folder / "pool", pack(_PoolFile(name=name, gates=gates).to_wire()))
    first = PoolManifest(pool=key.peer_id, name=name, number=1, members=members)
    write_durably(folder / "manifest", pack(sign_manifest(key, first).to_wire()))


def check_name(name: str, what: str = "a member") -> None:
    """Raise `SettingsError` unless a pool or a member can have this name."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        raise SettingsError(
            f"{what} cannot be called {name[:80]!r}",
            hint="letters, digits, space and . _ -, at most 64, beginning with a letter or digit",
        ) from None


def _check_pool_name(name: str) -> None:
    check_name(name, "a pool")
    if name.lower() == JOINED or name != name.rstrip(" ."):  # the name is also a folder's
        raise SettingsError(f"a pool cannot be called {name!r}", hint="choose another name")


def own_pools(home: Home, damaged: Damaged | None = None) -> tuple[OwnPool, ...]:
    """The pools made in this home, sorted by name. `damaged`: see `read_each`."""

    def is_pool(folder: Path) -> bool:
        return folder.name != JOINED and (folder / "manifest").is_file()

    return read_each(pools_folder(home), is_pool, OwnPool, damaged)


def own_pool(home: Home, name: str) -> OwnPool:
    """The pool of that name. Raises `SettingsError` if this home has none."""
    _check_pool_name(name)
    folder = pools_folder(home) / name
    if not (folder / "manifest").is_file():
        names = ", ".join(pool.name for pool in own_pools(home, lambda exc: None))
        raise SettingsError(
            f"this home has no pool {name}",
            hint=f"its pools: {names}" if names else f"create it with: sark-node pool create {name}",
        )
    return OwnPool(folder)


# -- files --------------------------------------------------------------------------------------------------------------------


def pools_folder(home: Home) -> Path:
    """The folder of a home's pools."""
    return home.data / "pools"


def read_file(path: Path, shape: type[M]) -> M:
    """Parse one of Sark's files. Raises `ResourceError`, which names the file."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise damaged(path)
        return read_value(shape, path.read_bytes(), max_bytes=MAX_FILE, max_elements=MAX_FILE_ELEMENTS)
    except OSError as error:
        raise unusable(path, error) from error
    except RemoteProtocolError as error:
        raise damaged(path) from error


def read_each(
    folder: Path, select: Callable[[Path], bool], read: Callable[[Path], T], damaged: Damaged | None = None
) -> tuple[T, ...]:
    """Read the selected entries of a folder, which may be missing. Entries that cannot be read go to `damaged`; without it, the first one
    raises `ResourceError`."""
    values: list[T] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED.fullmatch(path.name) or not select(path):
            continue
        try:
            values.append(read(path))
        except ResourceError as exc:
            if damaged is None:
                raise
            damaged(exc)
    return tuple(values)


def damaged(path: Path) -> ResourceError:
    """The error for a file that cannot be parsed."""
    return ResourceError(f"{path} is damaged", hint="restore it from a copy, or move it away and join again")
