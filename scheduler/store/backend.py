"""Where a store lies and what SQLite and PostgreSQL do differently: opening, transactions, the number of the form, errors.

All else of the store is the same code for both. `scheduler.store.sqlite` and `scheduler.store.postgres` are the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from protocol.errors import ResourceError
from scheduler.store.migrations import MIGRATIONS, Migration

BUSY_MS: Final = 5000
"""How long one process waits for another that is writing."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A store on a PostgreSQL server: a schema of its own for each scheduler, so that several share one database."""

    url: sa.URL
    schema: str

    def __str__(self) -> str:
        """For people: without the password, and without options, which may hold one too."""
        url = self.url
        return sa.URL.create(
            "postgresql", url.username, None, url.host, url.port, url.database
        ).render_as_string()


Place = Path | ServerPlace


def server_url(text: str) -> sa.URL:
    """`text` as an address of PostgreSQL. Raises ValueError, whose words do not repeat it."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(LOOKS_LIKE) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or "@" in (url.host or ""):
        raise ValueError(LOOKS_LIKE)  # a host with @ is the end of a password
    return url.set(drivername="postgresql")


LOOKS_LIKE: Final = "a store on a server looks like postgresql://user:password@host/database; in a password, @ is written %40 and / %2F"


class Backend(ABC):
    """One for each open store; it knows what it has written itself."""

    place: Place
    makes_medians: ClassVar[bool] = False
    """Whether it makes a median of many rows quicker than they can be read."""

    @abstractmethod
    def connect(self) -> sa.Connection:
        """An open connection that flushes every commit to the disk. Raises `ResourceError`."""

    @abstractmethod
    def begin(self, c: sa.Connection) -> None:
        """Begin a transaction that nobody else can write beside."""

    @abstractmethod
    def commit(self, c: sa.Connection) -> None:
        """It is on the disk when this returns."""

    @abstractmethod
    def roll_back(self, c: sa.Connection) -> None:
        """Undo what is open, if anything is; never raises because the connection is gone."""

    @abstractmethod
    def begin_reading(self, c: sa.Connection) -> None:
        """Begin a transaction that sees the store as it is at its first question, and writes nothing. `roll_back` ends it."""

    @abstractmethod
    def make_room(self, c: sa.Connection) -> None:
        """Inside a transaction, before the first migration of a new store."""

    @abstractmethod
    def version(self, c: sa.Connection) -> int:
        """How many migrations the store has been through; 0 for a new one."""

    @abstractmethod
    def set_version(self, c: sa.Connection, version: int) -> None:
        """Inside a transaction."""

    @abstractmethod
    def changes(self, c: sa.Connection) -> int:
        """A number that differs from the last one when another connection has written since."""

    @abstractmethod
    def claim(self, c: sa.Connection) -> None:
        """Be the only one that runs this store's campaigns, until the connection ends. `ResourceError` when another does."""

    @abstractmethod
    def about(self, c: sa.Connection) -> dict[str, Any]:
        """What stores it: `engine` (name and version), `bytes` on disk, and what else there is to know, for people."""

    def copy_file(self, c: sa.Connection, target: Path) -> bool:
        """Make `target`, which is not there, a whole copy as of one instant, while others write. False: there is no such file."""
        return False

    @abstractmethod
    def say(self, error: DBAPIError) -> ResourceError | None:
        """What an error of the driver means; None: a mistake of ours, such as a broken constraint."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turn what the driver raises for a full, locked, damaged or unreachable store into one clear `ResourceError`."""
        try:
            yield
        except DBAPIError as exc:
            said = self.say(exc)
            if said is None:
                raise
            raise said from exc
        except OSError as exc:
            raise ResourceError(
                f"cannot use {self.place}: {exc.strerror or exc}", hint="check the folder and its rights"
            ) from exc


def migrate(backend: Backend, c: sa.Connection, *, known: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the store to the newest form, in the one transaction that is open. ResourceError when it is newer than we are."""
    backend.make_room(c)
    version = backend.version(c)
    refuse_newer(backend, version, known=known)
    for step in known[version:]:
        step(c)
    if version < len(known):
        backend.set_version(c, len(known))


def refuse_newer(backend: Backend, version: int, *, known: Sequence[Migration] = MIGRATIONS) -> None:
    """Raises `ResourceError` for a store that a newer sark-node has written."""
    if version > len(known):
        raise ResourceError(
            f"{backend.place} was written by a newer sark-node (store version {version}, this one knows {len(known)})",
            hint="upgrade sark-node, or use another --home",
        )
