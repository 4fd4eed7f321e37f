"""The version and the text order of a store's schema, on both engines."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from protocol.errors import ResourceError
from scheduler.store import schema
from scheduler.store.database import Location, backend_of
from scheduler.store.schema import MIGRATIONS
from scheduler.store.store import Store


def test_text_is_ordered_by_its_bytes_wherever_it_lies(place: Location) -> None:
    with Store(place) as store:
        for peer in ("ä", "b", "B", "a", "_"):
            store.workers.save(peer, "", [])
        query = sa.select(schema.workers.c.peer).order_by(schema.workers.c.peer)
        assert [row.peer for row in store.database.all(query)] == ["B", "_", "a", "b", "ä"]


def test_the_tables_change_only_with_a_migration() -> None:
    tables = schema.metadata.sorted_tables
    lines = sorted(
        f"{column} {column.type.compile(sqlite.dialect())} {column.nullable} {column.primary_key}"
        f" {[key.target_fullname for key in column.foreign_keys]}"
        for table in tables
        for column in table.c
    ) + sorted(f"{index.name} {index.columns.keys()}" for table in tables for index in table.indexes)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert (len(MIGRATIONS), digest) == (1, "3f481805fcd5d7ed"), (
        "a field of a row became a column, or ceased to be one"
    )


def test_a_migration_that_fails_leaves_the_store_as_it_was(place: Location) -> None:
    def broken(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE half (x INTEGER)")
        raise RuntimeError("half way")

    with Store(place) as store:
        with pytest.raises(RuntimeError, match="half way"):
            store.database.migrate([*MIGRATIONS, broken])
        assert "half" not in sa.inspect(store.database.connection).get_table_names()
        assert store.database.backend.version(store.database.connection) == len(MIGRATIONS)


def test_a_store_that_a_newer_program_wrote_is_refused(place: Location) -> None:
    with Store(place) as store, store.database.transaction() as c:
        store.database.backend.set_version(c, len(MIGRATIONS) + 1)
    with pytest.raises(ResourceError, match="newer sark-node"):
        Store(place)


def test_a_store_from_before_the_first_release_is_refused(place: Location) -> None:
    backend = backend_of(place)
    with backend.connect() as c:
        backend.begin(c)
        backend.prepare(c)
        c.exec_driver_sql("CREATE TABLE campaigns (id TEXT)")
        c.exec_driver_sql("COMMIT")
    with pytest.raises(ResourceError, match="pre-release"):
        Store(place)
