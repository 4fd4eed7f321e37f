"""Results wait on disk until they are taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.store.outbox import MAX_ITEMS, RETENTION_S, Outbox, OutboxItem
from node.store.shares import gives_way
from protocol.errors import ResourceError
from protocol.values.lease import Fence
from protocol.wire.base import MAX_INLINE

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobBobBo"


def item(body: bytes, *, peer: str = ANN, stored: float = 100.0) -> OutboxItem:
    sha = hashlib.sha256(body).hexdigest()
    return OutboxItem(
        peer=peer,
        campaign="c-1",
        task="c-1/1",
        attempt=1,
        lease="w-1.1",
        fence=Fence(incarnation=1, number=1),
        sha256=sha,
        size=len(body),
        signature=bytes(64),
        stored=stored,
    )


async def test_what_was_stored_is_there_in_the_next_life_until_it_is_settled(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    first, second = item(b"one", stored=100.0), item(b"two", stored=99.0)
    changed = outbox.changed
    await outbox.store(first, b"one")
    await outbox.store(second, b"two")
    assert changed.is_set()
    reborn = Outbox(tmp_path, lambda: 100.0)
    assert reborn.waiting(ANN) == (second, first)
    message = await reborn.message(first)
    assert (message.body, message.sha256, message.lease) == (b"one", first.sha256, "w-1.1")
    await reborn.settle(first.sha256)
    assert Outbox(tmp_path, lambda: 100.0).waiting(ANN) == (second,)


async def test_a_record_is_its_schedulers_alone(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    one = item(b"one")
    await outbox.store(one, b"one")
    assert outbox.waiting(BOB) == ()
    assert outbox.find(BOB, one.sha256) is None
    found = outbox.find(ANN, one.sha256)
    assert isinstance(found, Path)
    assert found.read_bytes() == b"one"


async def test_a_large_record_is_only_named(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    body = bytes(MAX_INLINE + 1)
    await outbox.store(item(body), body)
    assert (await outbox.message(item(body))).body is None


@pytest.mark.parametrize("damage", ["head", "record", "cut", "gone"])
async def test_a_damaged_entry_is_set_aside_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    bad, good = item(b"bad!"), item(b"good")
    await outbox.store(bad, b"bad!")
    await outbox.store(good, b"good")
    head, record = tmp_path / f"{bad.sha256}.head", tmp_path / f"{bad.sha256}.record"
    match damage:
        case "head":
            head.write_bytes(b"\x00junk")
        case "record":
            record.write_bytes(b"evil")
        case "cut":
            record.write_bytes(b"ba")
        case "gone":
            record.unlink()
    reborn = Outbox(tmp_path, lambda: 100.0)
    assert reborn.waiting(ANN) == (good,)
    assert head.with_suffix(".broken").exists()
    assert Outbox(tmp_path, lambda: 100.0).waiting(ANN) == (good,)


async def test_a_record_whose_head_never_came_is_cleared_away(tmp_path: Path) -> None:
    orphan = tmp_path / f"{'a' * 64}.record"
    orphan.write_bytes(b"half")
    assert len(Outbox(tmp_path, lambda: 100.0)) == 0
    assert not orphan.exists()


async def test_what_is_too_old_is_given_up_for_what_comes(tmp_path: Path) -> None:
    now = 100.0
    outbox = Outbox(tmp_path, lambda: now)
    old = item(b"old")
    await outbox.store(old, b"old")
    now += RETENTION_S + 1
    assert await outbox.store(item(b"new", stored=now), b"new") == (old,)
    assert [kept.sha256 for kept in outbox.waiting(ANN)] == [item(b"new").sha256]


async def test_what_was_stored_before_the_clock_was_set_is_no_older_for_it(tmp_path: Path) -> None:
    now = 5.0  # a board without a clock of its own begins in 1970
    outbox = Outbox(tmp_path, lambda: now)
    early = item(b"early", stored=now)
    await outbox.store(early, b"early")
    now = 1.7e9
    assert await outbox.store(item(b"new", stored=now), b"new") == ()
    assert early in outbox.waiting(ANN)


async def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path) -> None:
    one = item(b"one")
    await Outbox(tmp_path, lambda: 100.0).store(one, b"one")
    half = tmp_path / f".{one.sha256}.record.0123456789ab"
    half.write_bytes(b"ha")
    (tmp_path / ".keep").write_bytes(b"")
    assert Outbox(tmp_path, lambda: 100.0).waiting(ANN) == (one,)
    assert not half.exists()
    assert (tmp_path / ".keep").exists()


async def test_on_a_full_disk_a_small_result_is_kept_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    outbox = Outbox(folder, lambda: 100.0)
    folder.rmdir()
    folder.write_text("a file where the folder was: nothing can be written below it")
    one = item(b"one")
    await outbox.store(one, b"one")
    assert (await outbox.message(one)).body == b"one"
    assert outbox.find(ANN, one.sha256) == b"one"
    large = bytes(MAX_INLINE + 1)
    with pytest.raises(ResourceError, match="cannot use"):
        await outbox.store(item(large), large)
    await outbox.settle(one.sha256)
    assert len(outbox) == 0


def test_there_is_a_bound() -> None:
    assert MAX_ITEMS <= 10_000


def test_whoever_takes_the_most_of_shared_room_gives_way_first_and_its_oldest_of_that() -> None:
    items = [("ann", 10), ("eve", 40), ("eve", 40), ("ann", 10), ("bob", 30)]

    def left(number: int, room: int) -> list[tuple[str, int]]:
        gone = gives_way(items, lambda one: one[0], lambda one: one[1], number=number, room=room)
        kept = list(items)
        for one in gone:
            kept.remove(one)
        return kept

    assert left(5, 130) == items
    assert left(5, 129) == [items[0], items[2], items[3], items[4]]
    assert left(5, 60) == [items[0], items[3], items[4]]
    assert left(3, 1_000) == [items[2], items[3], items[4]]
    assert left(0, 0) == []
