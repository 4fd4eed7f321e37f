"""Statements passed directly to the database's driver: they return and raise what the library would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from protocol.errors import ResourceError
from scheduler.store import schema as t
from scheduler.store.database import read
from scheduler.store.rows import AttemptRow, TaskRow
from scheduler.store.statements import SIZES, KeyQuery, driver_cursor
from scheduler.store.store import Store
from tests.scheduler.conftest import StorePlace
from tests.scheduler.store.test_open_tasks import grant, intent, store_of

TASKS = KeyQuery(TaskRow, t.tasks.c.id)
MANY = SIZES[-1] + 1


@pytest.fixture
def store(place: StorePlace) -> Iterator[Store]:
    with store_of(place, MANY) as store:
        yield store


def ids(*numbers: int) -> list[str]:
    return [f"c-one/{number}" for number in numbers]


@pytest.mark.parametrize("count", [0, 1, 2, *(size + 1 for size in SIZES)])
def test_rows_by_their_keys_are_those_that_the_library_reads(store: Store, count: int) -> None:
    keys = ids(*range(1, count + 1))
    c = store.database.connection
    expected = read(c, TaskRow, t.tasks.c.id.in_(keys), order=[t.tasks.c.n])
    assert len(expected) == count
    assert sorted(TASKS.run(c, keys), key=lambda row: row.n) == list(expected)


def test_every_kind_of_column_is_converted_as_the_library_does(store: Store) -> None:
    store.attempts.begin([intent(1), intent(2)])
    store.attempts.record_grant(grant(1))
    attempts = KeyQuery(AttemptRow, t.attempts.c.task, [t.attempts.c.attempt])
    c = store.database.connection
    for query, row, column in ((TASKS, TaskRow, t.tasks.c.id), (attempts, AttemptRow, t.attempts.c.task)):
        expected = read(c, row, column.in_(ids(1, 2)))
        assert sorted(map(repr, query.run(c, ids(1, 2)))) == sorted(map(repr, expected))


def test_a_key_that_no_row_has_gives_none(store: Store) -> None:
    assert TASKS.run(store.database.connection, ["c-one/0", "", "' OR 1=1 --"]) == []


def test_what_the_driver_refuses_is_the_librarys_error(store: Store) -> None:
    c = store.database.connection
    with pytest.raises(DBAPIError), driver_cursor(c, "SELECT nothing") as cursor:
        cursor.execute("SELECT nothing FROM nowhere")
    assert len(TASKS.run(c, ids(1))) == 1, "the connection goes on"


def test_a_connection_that_is_closed_already_is_the_librarys_error_too(store: Store) -> None:
    c = store.database.connection
    c.connection.driver_connection.close()  # type: ignore[union-attr]
    with pytest.raises(DBAPIError):
        TASKS.run(c, ids(1))
    assert len(TASKS.run(store.database.connection, ids(1))) == 1, "it is made anew"


def test_a_connection_that_is_closed_meanwhile_is_the_librarys_error_too(store: Store) -> None:
    def ask(c: sa.Connection) -> None:
        with driver_cursor(c, "SELECT 1") as cursor:
            c.connection.driver_connection.close()  # type: ignore[union-attr]
            cursor.execute("SELECT 1")

    with pytest.raises(DBAPIError):
        ask(store.database.connection)


def test_a_key_that_no_store_can_hold_has_no_row(store: Store) -> None:
    assert TASKS.run(store.database.connection, ["c-one/1\0"]) == []


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_connection_that_the_server_ends_is_made_anew(store: Store) -> None:
    c = store.database.connection
    pid = c.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with Store(store.database.location) as other:
        other.database.connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(ResourceError), store.database.backend.errors():
        TASKS.run(c, ids(1))
    assert len(TASKS.run(store.database.connection, ids(1))) == 1
