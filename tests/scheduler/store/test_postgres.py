"""A store on a PostgreSQL server: who has access, what breaks, and who shares it. The server is a real one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from protocol.errors import ResourceError, SettingsError
from scheduler.store import store as store_module
from scheduler.store.database import ServerLocation, server_url
from scheduler.store.postgres import PostgreSQL
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store, has_store, open_store, store_location
from swarm.base.home import Home
from tests.scheduler.conftest import on_server
from tests.scheduler.core_parts import SCHEDULER, a_task

SECRET = "hunter2%2F@"


def named(store: Store, campaign: str = "c-one") -> None:
    store.campaigns.create(NewCampaign(campaign, "one", SCHEDULER, "{}"), [], [a_task(1, campaign=campaign)])


def write_around(store: Store, happens: Callable[[sa.Connection], object]) -> None:
    """Let something happen between two events of one transaction."""
    with store.database.transaction() as c:
        store.events.append(c, "c-one", "half.done", None)
        happens(c)
        store.events.append(c, "c-one", "all.done", None)


def cut_off(store: Store, pid: int) -> None:
    """End the server's process of another connection."""
    store.database.connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")


@pytest.fixture
def store(postgres: str) -> Store:
    made = Store(on_server(postgres))
    named(made)
    return made


def refusal(url: sa.URL) -> ResourceError:
    """The error when a store is opened there, which never contains a password."""
    with pytest.raises(ResourceError) as error:
        Store(ServerLocation(url, "sark_nobody"))
    for text in (str(error.value), error.value.hint, repr(error.value)):
        assert "hunter2" not in text
    return error.value


def test_a_server_that_is_down_is_one_clear_line(tmp_path: Path) -> None:
    result = refusal(server_url(f"postgresql://sark:hunter2@/db?host={tmp_path}&password=hunter2"))
    assert result.what == "postgresql://sark@/db: the server does not answer"
    assert "check that it is running" in result.hint
    assert "does not answer" in refusal(server_url("postgresql://sark:hunter2@127.0.0.1:1/db")).what
    assert "cannot be used" in refusal(server_url("postgresql://h/db?password=hunter2&port=x")).what


def test_a_server_that_stays_away_is_asked_again_each_time_and_found_when_it_is_back(
    postgres: str, store: Store
) -> None:
    url = server_url(postgres)
    with tempfile.TemporaryDirectory(
        prefix="sark-way-", dir="/tmp"
    ) as folder:  # a socket's path may have 107 bytes
        way = Path(folder) / "way"
        way.symlink_to(str(url.query["host"]))
        with Store(on_server(str(url.set(query={"host": str(way)})))) as other:
            named(other)
            pid = other.database.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            way.unlink()
            cut_off(store, pid)
            for _ in range(3):
                with pytest.raises(ResourceError, match="does not answer"):
                    other.campaigns.get("c-one")
            way.symlink_to(str(url.query["host"]))
            assert other.campaigns.get("c-one") is not None


def test_a_database_that_is_missing_is_one_clear_line(postgres: str) -> None:
    result = refusal(server_url(postgres).set(database="nowhere", password="hunter2"))
    assert "the database does not exist" in result.what
    assert "createdb" in result.hint


def test_a_wrong_password_is_one_clear_line_and_a_right_one_opens(postgres: str, store: Store) -> None:
    c = store.database.connection
    if not c.exec_driver_sql("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'").scalar():
        c.exec_driver_sql("CREATE ROLE guarded LOGIN PASSWORD 'hunter2/@'")
    url = server_url(postgres).set(username="guarded")
    assert "user or password is wrong" in refusal(url.set(password="wrong")).what
    assert "user or password is wrong" in refusal(url).what
    assert "user or password is wrong" in refusal(url.set(username="who", password="x")).what
    right = server_url(postgres.replace("sark@", f"guarded:{SECRET.replace('@', '%40')}@"))
    assert "may not create tables" in refusal(right).what
    c.exec_driver_sql("GRANT CREATE ON DATABASE postgres TO guarded")
    with Store(ServerLocation(right, on_server(postgres).schema)) as opened:
        named(opened)
        assert "hunter2" not in str(opened.location)


def test_a_lost_connection_is_reported_once_and_made_again(store: Store) -> None:
    with Store(store.location) as other:
        pid = other.database.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        observed = other.changes_by_others()
        cut_off(store, pid)
        with pytest.raises(ResourceError, match="does not answer"):
            other.campaigns.request_cancel("c-one")
        assert [task.cancel for task in other.tasks.all("c-one")] == [False]
        assert other.campaigns.request_cancel("c-one") == 1
        assert other.changes_by_others() == observed


def test_a_connection_that_is_cut_inside_a_transaction_leaves_nothing_of_it(store: Store) -> None:
    with Store(store.location) as other:
        pid = other.database.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with pytest.raises(ResourceError, match="does not answer"):
            write_around(other, lambda c: cut_off(store, pid))
        assert [event.name for event in other.events.since("c-one")] == ["campaign.created"]


def test_a_full_disk_of_the_server_is_one_clear_line_and_nothing_is_lost(store: Store) -> None:
    full = "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    with pytest.raises(ResourceError, match="the server's disk is full"):
        write_around(store, lambda c: c.exec_driver_sql(full))
    assert len(store.events.since("c-one")) == 1
    named(store, "c-two")


def test_a_writer_waits_for_another_and_says_so_when_that_takes_too_long(store: Store) -> None:
    with Store(store.location) as other, store.database.transaction():
        assert len(other.tasks.all("c-one")) == 1  # readers never wait
        assert isinstance(other.database.backend, PostgreSQL)
        other.database.backend.busy_ms = 20
        with pytest.raises(ResourceError, match="locked"):
            other.campaigns.request_cancel("c-one")


def test_one_machine_alone_runs_the_campaigns_of_a_store(store: Store) -> None:
    store.claim()
    with Store(store.location) as other:
        assert isinstance(other.database.backend, PostgreSQL)
        other.database.backend.claim_ms = 20
        with pytest.raises(ResourceError, match="another machine"):
            other.claim()
        store.close()
        other.database.backend.claim_ms = 60_000
        other.claim()


def test_two_homes_on_one_database_see_nothing_of_each_other(postgres: str, tmp_path: Path) -> None:
    homes = [Home.at(tmp_path / name) for name in ("one", "two")]
    for home in homes:
        home.config.mkdir(parents=True)
        home.config_file.write_text(f'[scheduler]\nstore = "{postgres}"\n')
        assert has_store(home)
        with open_store(home) as mine:
            assert mine.campaigns.summaries() == ()
            named(mine, "c-same")
            mine.claim()
    with open_store(homes[0]) as mine:
        assert len(mine.campaigns.summaries()) == 1
    assert not homes[0].store.exists()


def test_what_a_peer_says_may_hold_a_nul(store: Store) -> None:
    store.events.add(["c-one"], "worker.says", why="a\0b")
    store.workers.save("peer", "a\0b", [])
    assert store.events.since("c-one", 1)[0].fields["why"] == "a\0b"
    assert store.workers.all()[0].device == "a\ufffdb"


def test_an_invalid_address_is_refused_without_being_repeated(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    for text in (
        "mysql://u:hunter2@h/d",
        "postgresql://u:hunter2@h:port/d",
        "postgresql://u:p@hunter2@h/d",  # the password is p@hunter2: @ was to be written %40
        "postgresql:/u:hunter2@h/d",
        "u:hunter2@h/d",
        "hunter2",
    ):
        with pytest.raises(SettingsError) as error:
            store_location(home, {"SARK_STORE": text})
        assert "postgresql://user:password@host/database" in error.value.hint
        assert "hunter2@" not in error.value.what
    assert store_location(home, {}) == home.store


def test_whatever_opens_the_store_of_a_home_looks_at_its_settings() -> None:
    own = Path(store_module.__file__)
    results = [
        path.name
        for path in own.parent.rglob("*.py")
        if path != own and re.search(r"\b(home|obj)\.store\b", path.read_text("utf-8"))
    ]
    assert results == [], (
        "these open the file, also where `store` is set: take scheduler.store.store.open_store"
    )
