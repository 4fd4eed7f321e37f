"""Where a store is, and what SQLite and PostgreSQL do differently: connecting, transactions, the schema version, errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from protocol.errors import ResourceError

BUSY_MS: Final = 5000
"""How long to wait for another process's transaction."""


@dataclass(frozen=True, slots=True)
class ServerLocation:
    """A store on a PostgreSQL server. Each scheduler has its own schema, so several can share one database."""

    url: sa.URL
    schema: str

    def __str__(self) -> str:
        """The URL without the password, and without options, which may contain one."""
        url = self.url
        return sa.URL.create(
            "postgresql", url.username, None, url.host, url.port, url.database
        ).render_as_string()


Location = Path | ServerLocation


def server_url(text: str) -> sa.URL:
    """Parse the URL of a PostgreSQL database. Raises `ValueError`, whose message does not repeat it."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(LOOKS_LIKE) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or "@" in (url.host or ""):
        raise ValueError(LOOKS_LIKE)  # a host with @ contains the end of a password
    return url.set(drivername="postgresql")


LOOKS_LIKE: Final = "a store on a server looks like postgresql://user:password@host/database; in a password, @ is written %40 and / %2F"


class Backend(ABC):
    """One per open store; it counts its own writes."""

    location: Location
    has_median: ClassVar[bool] = False
    """Whether it computes a median of many rows faster than they can be read."""

    @abstractmethod
    def connect(self) -> sa.Connection:
        """An open connection that flushes every commit to the disk. Raises `ResourceError`."""

    @abstractmethod
    def begin(self, c: sa.Connection) -> None:
        """Begin a write transaction. It waits for another process's."""

    @abstractmethod
    def commit(self, c: sa.Connection) -> None:
        """Commit; the transaction is on disk when this returns."""

    @abstractmethod
    def roll_back(self, c: sa.Connection) -> None:
        """Undo the open transaction, if there is one. Never raises because the connection is gone."""

    @abstractmethod
    def begin_snapshot(self, c: sa.Connection) -> None:
        """Begin a read transaction that sees the store as of its first query. `roll_back` ends it."""

    def prepare(self, c: sa.Connection) -> None:  # noqa: B027  (SQLite needs nothing)
        """Inside a transaction: create what the schema version is stored in."""

    @abstractmethod
    def version(self, c: sa.Connection) -> int:
        """The schema version; 0 for a new store, and for one of a pre-release."""

    @abstractmethod
    def set_version(self, c: sa.Connection, version: int) -> None:
        """Set the schema version inside a transaction."""

    @abstractmethod
    def changes(self, c: sa.Connection) -> int:
        """A number that changes when another connection writes."""

    def claim(self, c: sa.Connection) -> None:  # noqa: B027  (a lock in the home does it for a file)
        """Be the only one that runs this store's campaigns until the connection ends. Raises `ResourceError` when another does."""

    @abstractmethod
    def describe(self, c: sa.Connection) -> dict[str, Any]:
        """For people: `engine` (name and version), `bytes` on disk, and details."""

    def copy_to(self, c: sa.Connection, target: Path) -> bool:
        """Copy the store to the new file `target` as of one instant, while others write. False: the store is not a file."""
        return False

    @abstractmethod
    def explain(self, error: DBAPIError) -> ResourceError | None:
        """What an error of the driver means; None: a bug, such as a violated constraint."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn driver errors of a full, locked, damaged or unreachable store into a `ResourceError`."""
        try:
            yield
        except DBAPIError as exc:
            explanation = self.explain(exc)
            if explanation is None:
                raise
            raise explanation from exc
        except OSError as exc:
            raise ResourceError(
                f"cannot use {self.location}: {exc.strerror or exc}",
                hint="check that the folder exists and is writable",
            ) from exc
