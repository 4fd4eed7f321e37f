"""How a store of an earlier form becomes one of the newest, on both sorts of place."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from protocol.errors import ResourceError
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.task import read_task, task_body
from scheduler.store import migrations, schema
from scheduler.store.backend import Place, migrate
from scheduler.store.event_chain import check_chain
from scheduler.store.migrations import MIGRATIONS
from scheduler.store.store import Store, backend_of
from tests.scheduler.core_parts import PEERS, SCHEDULER, a_task

FENCE = Fence(incarnation=1, number=7)
WORKER = PEERS[0]
SHA = "ab" * 32


def first_form(place: Place) -> None:
    """A store as the first release made it, with a campaign on its way."""
    backend = backend_of(place)
    with backend.connect() as c:
        backend.begin(c)
        migrate(backend, c, known=MIGRATIONS[:1])
        for statement, values in (
            (
                "INSERT INTO campaigns VALUES ('c-old', 'old', :by, '{}', 3, 5.0, 60.0, NULL, 50, 2, :yes, :no, 900.25, NULL, NULL, '', 3)",
                {"by": SCHEDULER, "yes": True, "no": False},
            ),
            ("INSERT INTO models VALUES ('c-old', 'tiny.onnx', :sha, 100, '')", {"sha": SHA}),
            (
                (
                    "INSERT INTO tasks (id, campaign, n, body, model, sha256, unit, state, attempt, tries, worker, device, lease,"
                    " incarnation, number, detail, cancel, done, note) VALUES ('c-old/1', 'c-old', 1, :body, 'tiny.onnx', :sha,"
                    " 'CPU (ONNX)', 'leased', 1, 0, :worker, 'mini-7', 'l7', 1, 7, '', :no, 0, 'a note')"
                ),
                {"body": task_body(a_task(1, campaign="c-old")), "sha": SHA, "worker": WORKER, "no": False},
            ),
            (
                (
                    "INSERT INTO attempts VALUES"
                    " ('c-old/1', 1, 'k', :worker, 'mini-7', 2, 'granted', 'l7', 1, 7, NULL, '', 901.5, NULL)"
                ),
                {"worker": WORKER},
            ),
            (
                "INSERT INTO events VALUES ('c-old', 1, 900.25, 'campaign.created', NULL, :told)",
                {"told": '{"name": "old"}'},
            ),
            (
                "INSERT INTO events VALUES ('c-old', 2, 901.5, 'task.committing', 'c-old/1', :told)",
                {"told": '{"attempt": 1}'},
            ),
        ):
            c.execute(sa.text(statement), values)
        backend.commit(c)


def test_a_store_of_the_first_release_is_brought_up_and_loses_nothing(place: Place) -> None:
    first_form(place)
    with Store(place, wall=lambda: 1000.0) as store:
        row = store.task("c-old/1")
        assert row is not None
        assert (row.state, row.fence, row.note, row.device) == (TaskState.LEASED, FENCE, "a note", "mini-7")
        assert (row.position, row.start_s, row.preempted, row.replica) == (None, None, 0, None)
        assert read_task(store.bodies("c-old")["c-old/1"]) == a_task(1, campaign="c-old")
        assert [attempt.lease for attempt in store.attempts("c-old")] == ["l7"]
        store.next_epoch("c-old")
        assert [(event.seq, event.at, event.name) for event in store.events_since("c-old")] == [
            (1, 900.25, "campaign.created"),
            (2, 901.5, "task.committing"),
            (3, 1000.0, "campaign.adopted"),
        ]
        assert check_chain(store.all_events("c-old"), store.event_count("c-old")) is None
    with Store(place) as again:
        assert check_chain(again.all_events("c-old"), again.event_count("c-old")) is None


def shape(place: Place) -> dict[str, set[tuple[str, str, bool]]]:
    """By table: its columns, what sort of value each holds, whether it may be empty."""
    with Store(place) as store:
        look = sa.inspect(store._connection)
        return {
            table.name: {
                (str(column["name"]), sort_of(column["type"]), not column["nullable"])
                for column in look.get_columns(table.name)
            }
            for table in schema.metadata.sorted_tables
        }


def sort_of(kind: sa.types.TypeEngine[object]) -> str:
    """What a column holds, whatever its dialect calls that."""
    if isinstance(kind, sa.types.TypeDecorator):
        return sort_of(kind.impl_instance)
    for name, sort in (
        ("yes or no", sa.Boolean),
        ("whole number", sa.Integer),
        ("number", sa.Float),
        ("bytes", sa.types._Binary),
    ):
        if isinstance(kind, sort):
            return name
    return "text"


def test_a_new_store_and_one_brought_up_are_alike_and_as_the_tables_say(
    place: Place, second_place: Place
) -> None:
    first_form(place)
    old, new = shape(place), shape(second_place)
    assert old == new
    for table in schema.metadata.sorted_tables:
        assert new[table.name] == {
            (column.name, sort_of(column.type), not column.nullable) for column in table.c
        }


def test_text_is_ordered_by_its_bytes_wherever_it_lies(place: Place) -> None:
    with Store(place) as store:
        for peer in ("ä", "b", "B", "a", "_"):
            store.remember_worker(peer, "", [])
        query = sa.select(schema.workers.c.peer).order_by(schema.workers.c.peer)
        assert [row.peer for row in store._all(query)] == ["B", "_", "a", "b", "ä"]


def test_a_migration_that_fails_leaves_the_store_as_it_was(place: Place) -> None:
    def broken(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE half (x INTEGER)")
        raise RuntimeError("half way")

    with Store(place) as store:
        with pytest.raises(RuntimeError, match="half way"), store._writing() as c:
            migrate(store._backend, c, known=[*MIGRATIONS, broken])
        assert "half" not in sa.inspect(store._connection).get_table_names()
        assert store._backend.version(store._connection) == len(MIGRATIONS)


def test_a_store_that_a_newer_program_wrote_is_refused(place: Place) -> None:
    with Store(place) as store, store._writing() as c:
        store._backend.set_version(c, len(MIGRATIONS) + 1)
    with pytest.raises(ResourceError, match="newer sark-node"):
        Store(place)


def test_the_first_form_is_frozen_in_the_words_of_sqlite() -> None:
    assert migrations.in_words_of("sqlite", migrations.FIRST) == migrations.FIRST
    told = migrations.in_words_of("postgresql", migrations.FIRST)
    assert "BLOB" not in told
    assert "WHERE decides;" in told
