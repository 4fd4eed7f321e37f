"""A whole store out and in again, between both sorts of place, and what is removed when it is old."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.words import Reason
from scheduler.core.commands import Intent
from scheduler.store import schema
from scheduler.store.archive import (
    TABLES,
    LoadedCampaigns,
    check_archive,
    dump,
    load,
    read_archive,
    replace,
    write_archive,
)
from scheduler.store.backend import Location
from scheduler.store.events import check_chain
from scheduler.store.experiments import StoredModel
from scheduler.store.opening import delete_old
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
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
    store.attempts.begin([Intent(f"{campaign}/1", 1, f"{campaign}/1/1", PEERS[0], "mini", 1)])
    store.attempts.record_grant(f"{campaign}/1", 1, lease="l", fence=fence, queued=False)
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
    store.attempts.end_pending([f"{campaign}/2"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS, detail=HOSTILE)
    store.events.add([campaign], "worker.says", why=HOSTILE, nul="\0", number=0.1)
    if end:
        rest = [f"{campaign}/{n}" for n in range(3, tasks + 1)]
        store.attempts.end_pending(rest, TaskEvent.CANCEL, reason=Reason.CANCELLED)
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
            "nightly", digest="d", spec="{}", models=[StoredModel("m", SHA, 1)], folder="/", alarm=0.1
        )
        yield made


@pytest.fixture(params=["to sqlite", "to postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "to sqlite":
        return tmp_path / "target.db"
    return on_server(request.getfixturevalue("postgres"))


def everything(store: Store) -> list[object]:
    return list(dump(store, page=2))


def test_every_table_goes_along() -> None:
    assert set(TABLES) == set(schema.metadata.tables)


def test_all_that_goes_out_comes_in_byte_for_byte_and_a_second_time_changes_nothing(
    store: Store, target: Location, tmp_path: Path
) -> None:
    before = everything(store)
    file = tmp_path / "all.jsonl.gz"
    assert write_archive(file, dump(store)) == 3
    assert file.stat().st_mode & 0o777 == 0o600
    check_archive(file)
    with Store(target) as other:
        assert load(other, read_archive(file), with_open=True) == LoadedCampaigns(new=3)
        assert everything(other) == before
        assert load(other, read_archive(file), with_open=True) == LoadedCampaigns(known=3)
        assert everything(other) == before
        for campaign in ("c-one", "c-two", "c-open"):
            assert check_chain(other.events.all(campaign), other.events.count(campaign)) is None
        assert other.results.rows("c-one")[0].record == BODY
        assert other.results.page() == store.results.page()
        other.campaigns.next_epoch("c-open")  # and it goes on, with the chain
        assert check_chain(other.events.all("c-open"), other.events.count("c-open")) is None
        assert [task.state for task in other.tasks.all("c-open")][2] is TaskState.PENDING


def test_open_campaigns_stay_out_unless_they_are_wanted(
    store: Store, target: Location, tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl.gz"
    write_archive(file, dump(store))
    with Store(target) as other:
        assert load(other, read_archive(file), with_open=False) == LoadedCampaigns(new=2, open=1)
        assert other.campaigns.unfinished() == ()


def test_a_backup_takes_the_place_of_what_is_there(store: Store, target: Location) -> None:
    with Store(target) as other:
        live(other, "c-else")
        assert replace(other, dump(store)) == 3
        assert everything(other) == everything(store)


def test_what_goes_out_is_of_one_instant_while_others_write(store: Store) -> None:
    entries = dump(store)
    first = next(entries)
    with Store(store.location) as other:
        other.campaigns.next_epoch("c-one")
        live(other, "c-late")
    dumped = [first, *entries]
    assert {row["id"] for name, row in dumped if name == "campaigns"} == {"c-one", "c-two", "c-open"}
    assert next(row for name, row in dumped if name == "campaigns")["epoch"] == 0
    assert store.campaigns.get("c-late") is not None


def test_a_file_of_sqlite_is_copied_whole_while_others_write(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    if not store.copy_to(copy):
        assert not isinstance(store.location, Path)
        return
    with Store(copy) as other:
        assert everything(other) == everything(store)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_a_line(data: bytes) -> bytes:
    lines = gzip.decompress(data).splitlines(keepends=True)
    return gzip.compress(b"".join(lines[:5] + lines[6:]))


def with_a_changed_record(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'"mini"', b'"maxi"'))


def without_its_end(data: bytes) -> bytes:
    return gzip.compress(b"".join(gzip.decompress(data).splitlines(keepends=True)[:-1]))


def of_a_newer_form(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'"version": ', b'"version": 9', 1))


def with_a_wrong_cell(data: bytes) -> bytes:
    lines = gzip.decompress(data).splitlines(keepends=True)
    lines[1] = json.dumps({"table": "campaigns", "row": {"id": 5}}).encode() + b"\n"
    return gzip.compress(b"".join(lines))


@pytest.mark.parametrize(
    "damage",
    [cut, without_a_line, with_a_changed_record, without_its_end, of_a_newer_form, with_a_wrong_cell],
)
def test_a_damaged_file_is_told_apart_before_anything_is_changed(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "all.jsonl.gz"
    with Store(tmp_path / "store.db") as store:
        live(store, "c-one")
        write_archive(file, dump(store))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CampaignError) as error:
        check_archive(file)
    assert str(file) in error.value.what


def test_no_file_of_ours_is_told_as_that(tmp_path: Path) -> None:
    for data in (b"", b"junk", gzip.compress(b'{"format": "other"}\n'), gzip.compress(b"[]\n")):
        file = tmp_path / "junk"
        file.write_bytes(data)
        with pytest.raises(CampaignError):
            check_archive(file)


def test_what_ended_long_ago_goes_with_all_that_belongs_to_it_and_open_campaigns_stay(
    store: Store, clock: Clock
) -> None:
    clock.now += parse_age("1d")
    assert [row.id for row in store.campaigns.old(parse_age("1d"))] == ["c-one", "c-two"]
    assert [row.id for row in store.campaigns.old(parse_age("1d"), keep=1)] == ["c-one"]
    assert store.campaigns.old(parse_age("2d")) == ()
    assert delete_old(store, parse_age("1d"), keep=1) == ("c-one",)
    assert {name for name, row in everything(store) if "c-one" in str(row)} == set()
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
