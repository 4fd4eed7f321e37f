"""A whole store exported and imported, between both kinds of store; and the removal of old data."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from protocol.errors import CampaignError, ResourceError
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import CommitTo, EndPending, RecordGrant
from scheduler.store import archive, schema
from scheduler.store.archive import LoadedCampaigns, load, open_copy, replace, write_copy
from scheduler.store.database import Location
from scheduler.store.events import check_chain
from scheduler.store.rows import NewCampaign, NewModel, VersionModel
from scheduler.store.store import Store, delete_old
from swarm.base.units import parse_age
from tests.scheduler.conftest import on_server
from tests.scheduler.core_parts import PEERS, SCHEDULER, SHA, a_task

BODY = bytes(range(256))
HOSTILE = "a\x1b[31m\u202e,=1+1\n<b>é\U0001f600"


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.123456

    def __call__(self) -> float:
        return self.now


def live(store: Store, campaign: str, *, tasks: int = 3, end: bool = True) -> None:
    """A campaign with a result, a failure, a cancelled task and one that is lost and tried again."""
    store.campaigns.create(
        NewCampaign(campaign, HOSTILE, SCHEDULER, '{"x": 1}', limit_s=1.1, folder=f"/of/{campaign}"),
        [NewModel("m.onnx", SHA, 3_000_000_000)],
        [a_task(n, campaign=campaign) for n in range(1, tasks + 1)],
    )
    fence = Fence(incarnation=2**32, number=2**50)
    store.attempts.begin([CommitTo(f"{campaign}/1", 1, f"{campaign}/1/1", PEERS[0], "mini", 1)])
    store.attempts.record_grant(RecordGrant(f"{campaign}/1", 1, lease="l", fence=fence, queued=False))
    store.attempts.record_result(
        task=f"{campaign}/1",
        attempt=1,
        fence=fence,
        worker=PEERS[0],
        sha256=SHA,
        body=BODY,
        signature=bytes(64),
        event=TaskEvent.SUCCEED,
        figures={"inference_ms_median": 1 / 3, "device": HOSTILE},
    )
    store.attempts.end_pending(
        EndPending([f"{campaign}/2"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS, detail=HOSTILE)
    )
    store.events.add([campaign], "worker.says", why=HOSTILE, nul="\0", number=0.1)
    if end:
        rest = [f"{campaign}/{n}" for n in range(3, tasks + 1)]
        store.attempts.end_pending(EndPending(rest, TaskEvent.CANCEL, reason=Reason.CANCELLED))
        store.campaigns.end(campaign)
    store.workers.save(PEERS[0], "mini", ["/ip4/192.0.2.1/tcp/1"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: Location, clock: Clock) -> Iterator[Store]:
    with Store(place, wall=clock) as made:
        live(made, "c-one")
        clock.now += 100
        live(made, "c-two", tasks=5)
        clock.now += 100
        live(made, "c-open", end=False)
        made.experiments.save_version(
            "nightly", digest="d", spec="{}", models=[VersionModel("m", SHA, 1)], folder="/", alarm=0.1
        )
        yield made


@pytest.fixture(params=["to sqlite", "to postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "to sqlite":
        return tmp_path / "target.db"
    return on_server(request.getfixturevalue("postgres"))


def everything(store: Store) -> dict[str, list[dict[str, object]]]:
    return {
        table.name: [
            dict(row._mapping) for row in store.database.all(sa.select(table).order_by(*table.primary_key))
        ]
        for table in schema.metadata.sorted_tables
    }


@pytest.mark.parametrize("packed", [False, True])
def test_all_that_goes_out_comes_in_byte_for_byte_and_a_second_time_changes_nothing(
    store: Store, target: Location, tmp_path: Path, packed: bool
) -> None:
    before = everything(store)
    file = tmp_path / "all.db"
    write_copy(file, store, packed=packed)
    assert file.stat().st_mode & 0o777 == 0o600
    with Store(target) as other, open_copy(file, file.parent) as source:
        assert load(other, source, with_open=True) == LoadedCampaigns(new=3)
        assert everything(other) == before
        assert load(other, source, with_open=True) == LoadedCampaigns(existing=3)
        assert everything(other) == before
        for campaign in ("c-one", "c-two", "c-open"):
            assert check_chain(other.events.all(campaign), other.events.count(campaign)) is None
        assert other.results.rows("c-one")[0].record == BODY
        assert other.results.page() == store.results.page()
        other.campaigns.next_epoch("c-open")  # the campaign and its chain continue
        assert check_chain(other.events.all("c-open"), other.events.count("c-open")) is None
        assert [task.state for task in other.tasks.all("c-open")][2] is TaskState.PENDING


def test_open_campaigns_stay_out_unless_they_are_requested(
    store: Store, target: Location, tmp_path: Path
) -> None:
    file = tmp_path / "all.db.gz"
    write_copy(file, store, packed=True)
    with Store(target) as other, open_copy(file, file.parent) as source:
        assert load(other, source, with_open=False) == LoadedCampaigns(new=2, open=1)
        assert other.campaigns.unfinished() == ()


def test_a_backup_takes_the_place_of_what_is_there(store: Store, target: Location) -> None:
    with Store(target) as other:
        live(other, "c-else")
        assert replace(other, store) == 3
        assert everything(other) == everything(store)


def test_a_copy_is_of_one_instant_while_others_write(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = archive._copy

    def slow(source: sa.Connection, target: sa.Connection, table: sa.Table, *where: Any) -> None:
        copy(source, target, table, *where)
        if table is schema.campaigns:
            with Store(store.location) as other:
                other.campaigns.next_epoch("c-one")
                live(other, "c-late")

    monkeypatch.setattr(archive, "_copy", slow)
    with Store(tmp_path / "target.db") as other:
        replace(other, store)
        assert {row.campaign.id for row in other.campaigns.summaries()} == {"c-one", "c-two", "c-open"}
        assert check_chain(other.events.all("c-one"), other.events.count("c-one")) is None
    assert store.campaigns.get("c-late") is not None


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as c:
        c.execute(statement)
        c.commit()


def without_a_row(file: Path) -> None:
    change(file, "DELETE FROM tasks WHERE n = 1")


def without_a_table(file: Path) -> None:
    change(file, "DROP TABLE results")


def of_a_newer_version(file: Path) -> None:
    change(file, "PRAGMA user_version = 91")


def of_another_program(file: Path) -> None:
    change(file, "PRAGMA application_id = 5")


def with_a_wrong_cell(file: Path) -> None:
    change(file, "UPDATE campaigns SET priority = 'high'")


def with_an_unknown_word(file: Path) -> None:
    change(file, "UPDATE campaigns SET outcome = 'sold'")


@pytest.mark.parametrize(("damage", "packed"), [
    (cut, True), (flip, True), (cut, False), (without_a_row, False), (without_a_table, False), (of_a_newer_version, False),
    (of_another_program, False), (with_a_wrong_cell, False), (with_an_unknown_word, False),
])  # fmt: skip
def test_a_damaged_file_is_refused_before_anything_is_changed(
    tmp_path: Path, damage: Callable[[Path], None], packed: bool
) -> None:
    file = tmp_path / "copy.db"
    with Store(tmp_path / "store.db") as store:
        live(store, "c-one")
        write_copy(file, store, packed=packed)
        damage(file)
        before = everything(store)
        with pytest.raises(CampaignError), open_copy(file, file.parent) as source:
            replace(store, source)
        assert everything(store) == before


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"junk", gzip.compress(b"junk"), gzip.compress(b"")):
        file = tmp_path / "junk"
        file.write_bytes(data)
        with pytest.raises(CampaignError, match=str(file)), open_copy(file, file.parent):
            pass


def test_a_bomb_of_zeros_is_refused_by_its_first_bytes(tmp_path: Path) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(CampaignError, match="neither a store"), open_copy(file, tmp_path):
        pass


def test_an_export_in_the_former_format_is_called_that(tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"format": "sark store archive 1"}\n'))
    with pytest.raises(CampaignError, match="older format"), open_copy(file, tmp_path):
        pass


def test_a_disk_that_fills_while_a_copy_is_unpacked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copy.db.gz"
    with Store(tmp_path / "store.db") as store:
        live(store, "c-one")
        write_copy(file, store, packed=True)
    full = tmp_path / "full"
    full.mkdir()
    opened = Path.open

    def on_a_full_disk(path: Path, mode: str = "r", **options: Any) -> Any:
        return opened(Path("/dev/full"), "wb", **options) if mode == "xb" else opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", on_a_full_disk)
    with pytest.raises(ResourceError, match="No space left"), open_copy(file, full):
        pass
    assert list(full.iterdir()) == []


def test_what_ended_long_ago_goes_with_all_that_belongs_to_it_and_open_campaigns_stay(
    store: Store, clock: Clock
) -> None:
    clock.now += parse_age("1d")
    assert [row.id for row in store.campaigns.old(parse_age("1d"))] == ["c-one", "c-two"]
    assert [row.id for row in store.campaigns.old(parse_age("1d"), keep=1)] == ["c-one"]
    assert store.campaigns.old(parse_age("2d")) == ()
    assert delete_old(store, parse_age("1d"), keep=1) == ("c-one",)
    assert [name for name, rows in everything(store).items() if "c-one" in str(rows)] == []
    assert delete_old(store, parse_age("1h")) == ("c-two",)
    assert [row.id for row in store.campaigns.unfinished()] == ["c-open"]
    assert not store.campaigns.delete("c-open")
    assert not store.campaigns.delete("c-nobody")
    assert len(store.tasks.all("c-open")) == 3


def test_the_store_says_where_it_is_and_how_much_there_is(store: Store) -> None:
    result = store.describe()
    assert (result["rows"]["campaigns"], result["open_campaigns"], result["rows"]["records"]) == (3, 1, 3)
    assert result["bytes"] > 10_000
    assert result["engine"].split()[0] in ("SQLite", "PostgreSQL")


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "90 days", "90m"])
def test_an_age_without_a_number_and_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 2h, 90d, 8w, 2y|between 1h and"):
        parse_age(text)
