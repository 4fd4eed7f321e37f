"""Files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from swarm.base.durable import UNFINISHED, replacing, write_atomically, write_durably


@pytest.mark.parametrize("write", [write_durably, write_atomically])
def test_a_file_is_replaced_whole_and_for_its_owner_alone(tmp_path: Path, write: object) -> None:
    assert callable(write)
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        write(path, data)
        assert path.read_bytes() == data
    assert os.name != "posix" or path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            (temporary,) = (each for each in tmp_path.iterdir() if each != path)
            assert UNFINISHED.fullmatch(temporary.name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match="cannot use"):
        write_durably(tmp_path / "file" / "below", b"data")
