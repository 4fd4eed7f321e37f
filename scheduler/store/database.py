"""The connection of an open store: its schema version, its transactions and its queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from protocol.errors import ResourceError
from scheduler.store import schema as t
from scheduler.store.backend import Backend, Location

R = TypeVar("R")


class Database:
    """One connection, for one thread at a time. `wall` gives seconds since 1970."""

    def __init__(self, location: Location, wall: Callable[[], float]) -> None:
        """Open the store, or create it. Raises `ResourceError`."""
        self.location, self.wall = location, wall
        self.backend = backend_of(location)
        self._connection = self.backend.connect()
        try:
            self.migrate()
        except BaseException:
            self._connection.close()
            raise

    def migrate(self, steps: Sequence[t.Migration] = t.MIGRATIONS) -> None:
        """Bring the schema to the version `len(steps)`. Raises `ResourceError` for a newer store, and for one from before version 1."""
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
        """The connection, made anew after it broke: its failure has been raised already. When the server cannot be reached, the broken
        one stays, and the next query tries again."""
        if self._connection.invalidated:
            fresh = self.backend.connect()
            self._connection.close()
            self._connection = fresh
        return self._connection

    def call(self, query: Callable[[sa.Connection], R]) -> R:
        """`query` of the connection. Raises `ResourceError`."""
        with self.backend.errors():
            return query(self.connection)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A write transaction; only one process at a time has one. It is on disk when the block ends, or undone when the block raises."""
        with self.backend.errors():
            c = self.connection
            try:
                self.backend.begin(c)
                yield c
                self.backend.commit(c)
            except BaseException:
                self.backend.roll_back(c)
                raise

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """A read transaction: it sees the store as of one instant. Nothing else may use this store meanwhile."""
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

    def rows(self, row: type[R], query: sa.Executable) -> tuple[R, ...]:
        """All rows of a query as `row`, a dataclass of `scheduler.store.rows`; other columns are ignored."""
        return tuple(as_row(row, stored) for stored in self.all(query))

    def row(self, row: type[R], query: sa.Executable) -> R | None:
        """The first of them."""
        return next(iter(self.rows(row, query)), None)

    def first(self, query: sa.Executable) -> sa.Row[Any] | None:
        """The first row of a query."""
        return next(iter(self.all(query)), None)

    def tuples(self, query: sa.Executable) -> Sequence[Sequence[Any]]:
        """The driver's own rows, of columns that need no conversion: half the time for very many rows."""
        with self.backend.errors():
            result = self.connection.execute(query)
            cursor: Any = result.cursor
            try:
                return list(cursor.fetchall())
            finally:
                result.close()

    def count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        """How many rows of `table` match."""
        return int(self.all(sa.select(sa.func.count()).select_from(table).where(*where))[0][0])


def as_row(row: type[R], stored: sa.Row[Any]) -> R:
    """The values of `stored` as the dataclass `row`."""
    names: Any = row
    return row(**{name: stored._mapping[name] for name in names.__dataclass_fields__})


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
