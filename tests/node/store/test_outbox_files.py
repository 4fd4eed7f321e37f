"""The outbox on disk after a crash, a kill or a disk error."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.conversation.commands import ReadRecord, SettleRecords, WriteHead, WriteRecord
from node.store.outbox_files import open_outbox
from protocol.errors import ResourceError
from tests.node.conversation.parts import BOB, item


def test_what_was_stored_is_there_in_the_next_life_until_it_is_settled(tmp_path: Path) -> None:
    files = open_outbox(tmp_path)
    first, second = item(b"one"), item(b"two")
    files.carry_out(WriteRecord(first, b"one"))
    files.carry_out(WriteRecord(second, b"two"))
    reborn = open_outbox(tmp_path)
    assert {head.sha256: head for head in reborn.waiting} == {head.sha256: head for head in (first, second)}
    assert reborn.carry_out(ReadRecord(first)) == b"one"
    reborn.carry_out(SettleRecords(settled=(first.sha256,), removed=(second.sha256,)))
    again = open_outbox(tmp_path)
    assert (again.waiting, again.settled) == ([], [first])
    assert {path.stem for path in tmp_path.iterdir()} == {first.sha256}


@pytest.mark.parametrize("damage", ["head", "record", "cut", "gone"])
def test_a_damaged_entry_is_set_aside_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    files = open_outbox(tmp_path)
    bad, good = item(b"bad!"), item(b"good")
    files.carry_out(WriteRecord(bad, b"bad!"))
    files.carry_out(WriteRecord(good, b"good"))
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
    assert open_outbox(tmp_path).waiting == [good]
    assert head.with_suffix(".broken").exists()
    assert open_outbox(tmp_path).waiting == [good]


def test_a_record_whose_head_never_came_is_cleared_away(tmp_path: Path) -> None:
    orphan = tmp_path / f"{'a' * 64}.record"
    orphan.write_bytes(b"half")
    assert not open_outbox(tmp_path).waiting
    assert not orphan.exists()


def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path) -> None:
    one = item(b"one")
    open_outbox(tmp_path).carry_out(WriteRecord(one, b"one"))
    half = tmp_path / f".{one.sha256}.record.0123456789ab"
    half.write_bytes(b"ha")
    (tmp_path / ".keep").write_bytes(b"")
    assert open_outbox(tmp_path).waiting == [one]
    assert not half.exists()
    assert (tmp_path / ".keep").exists()


def test_handed_over_and_killed_before_the_old_name_was_gone_it_is_there_once(tmp_path: Path) -> None:
    files = open_outbox(tmp_path)
    one = item(b"one")
    files.carry_out(WriteRecord(one, b"one"))
    files.carry_out(SettleRecords(settled=(one.sha256,)))
    settled = tmp_path / f"{one.sha256}.settled"
    left = settled.read_bytes()
    fresh = one.model_copy(update={"peer": BOB})
    files.carry_out(WriteHead(fresh))
    assert not settled.exists()
    settled.write_bytes(left)
    reborn = open_outbox(tmp_path)
    assert (reborn.waiting, reborn.settled) == ([fresh], [])
    assert not settled.exists()


def test_a_disk_that_takes_nothing_says_so(tmp_path: Path) -> None:
    files = open_outbox(tmp_path / "outbox")
    (tmp_path / "outbox").rmdir()
    (tmp_path / "outbox").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot use"):
        files.carry_out(WriteRecord(item(b"one"), b"one"))
    with pytest.raises(ResourceError, match="cannot use "):
        open_outbox(tmp_path / "outbox")
