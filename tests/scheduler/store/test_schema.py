"""The version of a store's schema and its order of texts, on both engines."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from protocol.errors import ResourceError
from protocol.values.attempt import TaskEvent
from protocol.words import Reason
from scheduler.core.commands import EndPending
from scheduler.store import schema
from scheduler.store.database import Location, backend_of
from scheduler.store.rows import NewCampaign
from scheduler.store.schema import MIGRATIONS
from scheduler.store.store import Store
from tests.scheduler.core_parts import SCHEDULER, a_task


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
    assert (len(MIGRATIONS), digest) == (7, "f7ab5672e925f28c"), (
        "a field of a row became a column, or ceased to be one"
    )


def test_a_store_of_the_first_version_gets_what_was_added_and_keeps_its_results(place: Location) -> None:
    with Store(place) as store:
        results(store, "c-one", 2)
        with store.database.transaction() as c:
            for column in (
                "results DROP COLUMN remarks",
                "records DROP COLUMN scores",
                "models DROP COLUMN evaluation",
            ):
                c.exec_driver_sql(f"ALTER TABLE {column}")
            store.database.backend.set_version(c, 1)
    with Store(place) as store:
        lines = store.results.page().results
        assert [(line.task, line.remarks) for line in lines] == [("c-one/2", ""), ("c-one/1", "")]
        assert [row.scores for row in store.results.rows("c-one")] == [None, None]
        assert store.campaigns.evaluations("c-one") == {}
        assert store.database.backend.version(store.database.connection) == len(MIGRATIONS)
        results(store, "c-two", 1)
        assert len(store.results.page().results) == 3


def test_a_store_of_version_6_gets_the_indexes_of_today(place: Location) -> None:
    def indexes(store: Store) -> set[str | None]:
        looked = sa.inspect(store.database.connection)
        return {index["name"] for table in ("tasks", "events") for index in looked.get_indexes(table)}

    with Store(place) as store:
        now = indexes(store)
        with store.database.transaction() as c:
            for name in ("ix_tasks_standing", "ix_events_of_no_task"):
                c.exec_driver_sql(f"DROP INDEX {name}")
            c.exec_driver_sql("CREATE INDEX ix_tasks_state ON tasks (campaign, state)")
            store.database.backend.set_version(c, 6)
    with Store(place) as store:
        assert indexes(store) == now
        assert now >= {"ix_tasks_standing", "ix_events_of_no_task"}
        assert "ix_tasks_state" not in now


def results(store: Store, name: str, count: int) -> None:
    """A campaign whose tasks were cancelled one by one."""
    tasks = [a_task(n, campaign=name) for n in range(1, count + 1)]
    store.campaigns.create(NewCampaign(name, "t", SCHEDULER, "{}"), [], tasks)
    for task in tasks:
        store.attempts.end_pending(EndPending([task.task], TaskEvent.CANCEL, reason=Reason.CANCELLED))


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
