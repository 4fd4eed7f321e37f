"""Models are copied before a campaign is safely stored, and the copies are removed when no campaign needs them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from protocol.errors import CampaignError, ResourceError
from protocol.values.task import Model
from scheduler.models.spool import KEEP_S, spool, tidy


def model(content: bytes) -> Model:
    return Model(name="m.onnx", sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def test_a_copy_outlives_the_users_file(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"content")
    copy = spool(source, model(b"content"), tmp_path / "spool")
    source.unlink()
    assert copy.read_bytes() == b"content"
    assert (
        spool(source, model(b"content"), tmp_path / "spool") == copy
    )  # the copy exists, so the file is not read again


def test_a_file_that_changed_since_it_was_described_is_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"other")
    with pytest.raises(CampaignError, match="changed while it was read"):
        spool(source, model(b"content"), tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_copy_that_fails_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot copy"):
        spool(tmp_path / "missing", model(b"content"), tmp_path / "spool")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match="cannot copy"):
        spool(tmp_path / "file", model(b"content"), tmp_path / "file" / "spool")


def test_only_old_copies_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    stored, gone = model(b"kept"), model(b"gone")
    for item, content in ((stored, b"kept"), (gone, b"gone")):
        source.write_bytes(content)
        spool(source, item, tmp_path / "spool")
    made = (tmp_path / "spool" / gone.sha256).stat().st_mtime
    assert tidy(tmp_path / "spool", {stored.sha256}, wall=lambda: made + KEEP_S - 5) == 0
    assert tidy(tmp_path / "spool", {stored.sha256}, wall=lambda: made + KEEP_S + 5) == 1
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [stored.sha256]
    assert tidy(tmp_path / "nowhere", ()) == 0
