"""The location of a store, its connection and transactions, and the differences between SQLite and PostgreSQL."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from protocol.errors import ResourceError
from scheduler.store import schema as t

R = TypeVar("R")
BUSY_MS: Final = 5000
"""Milliseconds to wait for another process's transaction."""
BUSY_WAIT_S: Final = 600.0
"""Longest wait, in seconds, where `Database.waits` is set."""
MAX_PARAMETERS: Final = 500
"""Most rows that one statement names."""
PORTION: Final = 1000
"""Rows read at a time."""


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


class LeadershipLost(ResourceError):
    """Another process carries on campaigns of this one, which did not renew its seat in time. The attempted write is not stored."""


Location = Path | ServerLocation
LOOKS_LIKE: Final = "a store on a server looks like postgresql://user:password@host/database; in a password, @ is written %40 and / %2F"


def server_url(text: str) -> sa.URL:
    """Parse the URL of a PostgreSQL database. Raises `ValueError`, whose message does not repeat the URL."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(LOOKS_LIKE) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or "@" in (url.host or ""):
        raise ValueError(LOOKS_LIKE)  # a host with @ contains the end of a password
    return url.set(drivername="postgresql")


class Backend(ABC):
    """The database-specific part of a store. One object per open store; it counts its own writes."""

    location: Location
    shared: ClassVar[bool] = False
    """Whether several scheduler processes can run the store's campaigns; see `scheduler.store.seats`."""
    has_median: ClassVar[bool] = False
    """Whether it computes a median of many rows faster than they can be read."""

    def connect(self) -> sa.Connection:
        """An open connection that flushes every commit to the disk. Raises `ResourceError`."""
        with self.errors():
            connection = self.engine().connect()
            try:
                self.set_up(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    @abstractmethod
    def engine(self) -> sa.Engine:
        """An engine without a pool, in AUTOCOMMIT: `Database.transaction` begins and ends transactions."""

    @abstractmethod
    def set_up(self, c: sa.Connection) -> None:
        """Configure a new connection so that commits are flushed."""

    @abstractmethod
    def begin(self, c: sa.Connection) -> None:
        """Begin a write transaction. Waits for another process's transaction."""

    @abstractmethod
    def commit(self, c: sa.Connection) -> None:
        """Commit; the transaction is on disk when this returns."""

    @abstractmethod
    def roll_back(self, c: sa.Connection) -> None:
        """Undo the open transaction, if there is one. Never raises because of a lost connection."""

    @abstractmethod
    def begin_snapshot(self, c: sa.Connection) -> None:
        """Begin a read transaction that sees the store as of its first query. `roll_back` ends it."""

    def prepare(self, c: sa.Connection) -> None:  # noqa: B027  (SQLite needs nothing)
        """Inside a transaction: create the table or marker for the schema version."""

    @abstractmethod
    def version(self, c: sa.Connection) -> int:
        """The schema version; 0 for a new store, and for a pre-release's."""

    @abstractmethod
    def set_version(self, c: sa.Connection, version: int) -> None:
        """Set the schema version inside a transaction."""

    @abstractmethod
    def changes(self, c: sa.Connection) -> int:
        """A number that changes when another connection writes."""

    def claim(self, c: sa.Connection) -> None:  # noqa: B027  (a lock in the home does it for a file)
        """Claim this store: nobody else runs its campaigns until the connection ends. Raises `ResourceError` when another process does."""

    def join(self, c: sa.Connection) -> None:  # noqa: B027
        """Run campaigns of this store, together with others, until the connection ends. Raises `ResourceError` while another process claims
        it.
        """

    def take_seat(self, c: sa.Connection, seat: int) -> bool:
        """Take a seat until the connection ends. False: another process has it."""
        return True

    def fence(self, seat: int, term: int) -> None:  # noqa: B027
        """From now on each transaction fails with `LeadershipLost` unless the seat still has this term."""

    @abstractmethod
    def describe(self, c: sa.Connection) -> dict[str, Any]:
        """For people: `engine` (name and version), `bytes` on disk, and details."""

    def copy_to(self, c: sa.Connection, target: Path) -> bool:
        """Copy the store to the new file `target` as of one instant, while others write. False: the store is not a file."""
        return False

    @abstractmethod
    def explain(self, error: DBAPIError) -> ResourceError | None:
        """The meaning of a driver's error; None: a bug, such as a violated constraint."""

    @abstractmethod
    def is_busy(self, error: DBAPIError) -> bool:
        """Whether another process keeps the store locked."""

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


class PendingWrites(Protocol):
    """Changes that must be on disk before anything else is read or written."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        ...

    def write(self, c: sa.Connection) -> None:
        """Write all of them inside the open transaction `c`."""
        ...

    def written(self) -> None:
        """Called once the gathered changes are on disk."""
        ...


class Database:
    """One connection, for one thread at a time. `wall` returns seconds since 1970."""

    def __init__(self, location: Location, wall: Callable[[], float]) -> None:
        """Open the store, or create it. Raises `ResourceError`."""
        self.location, self.wall = location, wall
        self.waits: Callable[[float], None] | None = None
        """Called with the seconds so far whenever another process has kept the store locked for long; None: that is an error at once."""
        self.pending: PendingWrites | None = None
        """Changes that are in memory only; None: this store has none."""
        self._writing = False
        self.backend = backend_of(location)
        self._connection = self.backend.connect()
        try:
            self.migrate()
        except BaseException:
            self._connection.close()
            raise

    def migrate(self, steps: Sequence[t.Migration] = t.MIGRATIONS) -> None:
        """Migrate the schema to the version `len(steps)`. Raises `ResourceError` for a newer store, and for one from before version 1."""
        version = self.call(self.backend.version)
        if version < len(steps):
            with self.transaction() as c:
                self.backend.prepare(c)
                version = self.backend.version(c)  # another process may have been first
                if not version and sa.inspect(c).has_table(t.campaigns.name):
                    raise ResourceError(
                        f"{self.location} was written by a pre-release of sark-node, which this version cannot read",
                        hint="move it away, or use another --home; its results can be exported with the sark-node that wrote it",
                    )
                for step in steps[version:]:
                    step(c)
                if version < len(steps):
                    self.backend.set_version(c, version := len(steps))
        if version > len(steps):
            raise ResourceError(
                f"{self.location} was written by a newer sark-node (store version {version}, this one knows {len(steps)})",
                hint="upgrade sark-node, or use another --home",
            )

    def close(self) -> None:
        """Close the connection. Every transaction is on disk already."""
        self._connection.close()

    @property
    def connection(self) -> sa.Connection:
        """The connection, replaced after it broke; its failure has already been raised. While the server cannot be reached, the broken
        connection stays, and the next query tries again.
        """
        if self._connection.invalidated:
            fresh = self.backend.connect()
            self._connection.close()
            self._connection = fresh
        return self._connection

    def changes(self) -> int:
        """A number that changes when another connection writes."""
        with self.backend.errors():
            return self.backend.changes(self.connection)

    def call(self, query: Callable[[sa.Connection], R]) -> R:
        """Run `query` on the connection. Raises `ResourceError`."""
        self.commit()
        with self.backend.errors():
            return query(self.connection)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A write transaction; only one process at a time has one. It is on disk when the block ends, or undone when the block raises.
        Pending changes are its first part.
        """
        with self.backend.errors():
            c = self.connection
            try:
                self._begin(c)
                self._writing = True
                if self.pending:
                    self.pending.write(c)
                yield c
                self.backend.commit(c)
            except BaseException:
                self.backend.roll_back(c)
                raise
            finally:
                self._writing = False
        if self.pending:
            self.pending.written()

    def commit(self) -> None:
        """Write pending changes, unless the open transaction has written them. Raises `ResourceError`; the changes then stay pending."""
        if self.pending and not self._writing:
            with self.transaction():
                pass

    def _begin(self, c: sa.Connection) -> None:
        began = time.monotonic()
        while True:
            try:
                self.backend.begin(c)
                return
            except DBAPIError as exc:
                waited = time.monotonic() - began
                if self.waits is None or waited >= BUSY_WAIT_S or not self.backend.is_busy(exc):
                    raise
                self.backend.roll_back(c)
                self.waits(waited)

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """A read transaction, which sees the store as of one instant. Nothing else may use this store meanwhile."""
        self.commit()
        with self.backend.errors():
            c = self.connection
            self.backend.begin_snapshot(c)
            try:
                yield c
            finally:
                self.backend.roll_back(c)

    def all(self, query: sa.Executable) -> Sequence[sa.Row[Any]]:
        """All rows of a query."""
        return self.call(lambda c: c.execute(query).all())

    def rows(
        self,
        row: type[R],
        *where: sa.ColumnElement[bool],
        order: Sequence[sa.ColumnElement[Any]] = (),
        limit: int | None = None,
    ) -> tuple[R, ...]:
        """The rows of a table as `row`, its dataclass."""
        return self.call(lambda c: read(c, row, *where, order=order, limit=limit))

    def row(self, row: type[R], *where: sa.ColumnElement[bool]) -> R | None:
        """The row of a table that matches."""
        return next(iter(self.rows(row, *where, limit=1)), None)

    def tuples(self, query: sa.Executable) -> Sequence[Sequence[Any]]:
        """The driver's own rows, for columns that need no conversion: half the time for very many rows."""
        return list(self.stream(query))

    def stream(self, query: sa.Executable) -> Iterator[Any]:
        """Like `all`, but rows are read as they are used. Nothing may be written through this store before the end."""
        self.commit()
        with self.backend.errors():
            result = self.connection.execute(query)
            cursor: Any = result.cursor
            try:
                while rows := cursor.fetchmany(PORTION):
                    yield from rows
            finally:
                result.close()

    def count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        """The number of rows of `table` that match."""
        return int(self.all(sa.select(sa.func.count()).select_from(table).where(*where))[0][0])


def columns_of(row: Any) -> list[sa.Column[Any]]:
    """The columns of the fields of `row`, a dataclass, in field order."""
    return [t.TABLES[row].c[name] for name in row.__dataclass_fields__]


def read(
    c: sa.Connection,
    row: type[R],
    *where: sa.ColumnElement[bool],
    order: Sequence[sa.ColumnElement[Any]] = (),
    limit: int | None = None,
) -> tuple[R, ...]:
    """The rows of a table as `row`, its dataclass."""
    query = sa.select(*columns_of(row)).where(*where).order_by(*order).limit(limit)
    return tuple(row(*values) for values in c.execute(query))


def batched(items: Sequence[R]) -> Iterator[Sequence[R]]:
    """The items in batches that fit into one statement."""
    for first in range(0, len(items), MAX_PARAMETERS):
        yield items[first : first + MAX_PARAMETERS]


def values_of(row: Any) -> dict[str, Any]:
    """The columns of the dataclass `row`."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def backend_of(location: Location) -> Backend:
    """The backend that opens `location`. Imports only the one it needs."""
    if isinstance(location, Path):
        from scheduler.store.sqlite import SQLite

        return SQLite(location)
    from scheduler.store.postgres import PostgreSQL

    return PostgreSQL(location)
