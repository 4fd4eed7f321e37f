"""A store in a file: a full disk, a lock, damaged content."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from scheduler.store.rows import NewCampaign
from scheduler.store.schema import MIGRATIONS
from scheduler.store.store import Store
from tests.scheduler.core_parts import SCHEDULER, a_task


def fill(store: Store, campaign: str, tasks: int) -> None:
    new = NewCampaign(id=campaign, name="one", scheduler=SCHEDULER, spec="{}")
    store.campaigns.create(new, [], [a_task(n, campaign=campaign) for n in range(1, tasks + 1)])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store.db", wall=lambda: 1000.0)
    fill(made, "c-one", 3)
    return made


def test_a_full_disk_is_one_clear_line_and_nothing_is_lost(store: Store) -> None:
    pages = store.database.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    store.database.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceError, match="the disk is full"):
        fill(store, "c-big", tasks=500)
    assert store.campaigns.get("c-big") is None
    assert len(store.tasks.all("c-one")) == 3
    store.database.connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    fill(store, "c-big", tasks=500)
    assert len(store.tasks.all("c-big")) == 500


def test_a_locked_store_is_one_clear_line(store: Store) -> None:
    with Store(store.location) as other:
        store.database.connection.exec_driver_sql("PRAGMA busy_timeout = 10")
        with other.database.transaction(), pytest.raises(ResourceError, match="locked"):
            store.campaigns.request_cancel("c-one")
    assert store.campaigns.request_cancel("c-one") == 3


def test_a_scheduler_waits_for_a_store_that_another_process_keeps_locked(store: Store) -> None:
    waits: list[float] = []
    with Store(store.location) as other:
        store.database.connection.exec_driver_sql("PRAGMA busy_timeout = 1")
        held = other.database.transaction()
        held.__enter__()

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                held.__exit__(None, None, None)

        store.wait_while_busy(wait)
        assert store.campaigns.request_cancel("c-one") == 3
    assert len(waits) == 3
    assert waits == sorted(waits)


def test_a_store_is_opened_and_read_while_another_process_writes(store: Store) -> None:
    with store.database.transaction(), Store(store.location) as other:
        assert len(other.tasks.all("c-one")) == 3


def test_junk_a_damaged_file_and_a_folder_are_distinguished(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database at all" * 400)
    with pytest.raises(ResourceError, match="not a store"):
        Store(junk)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="cannot be opened"):
        Store(tmp_path / "folder")


def test_a_store_from_before_the_first_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE campaigns (id TEXT); PRAGMA user_version = 5"
        )
    before = path.read_bytes()
    with pytest.raises(ResourceError, match="pre-release"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_of_a_newer_version_is_left_alone(store: Store) -> None:
    store.database.connection.exec_driver_sql(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    store.close()
    assert isinstance(store.location, Path)
    before = store.location.read_bytes()
    with pytest.raises(ResourceError, match="newer sark-node"):
        Store(store.location)
    assert store.location.read_bytes() == before
