"""File locks between processes and tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from swarm.base.locks import lock_folder, lock_open_file, try_lock


def test_a_second_process_on_the_same_folder_learns_which_one_has_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from swarm.base.locks import lock_folder; from protocol.errors import *\n"
        "try:\n"
        "    with lock_folder(Path(sys.argv[1])): print('got it')\n"
        "except ResourceError as error: print(error.what)\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "data")]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    with lock_folder(tmp_path / "data"):
        assert other() == f"the data folder {tmp_path / 'data'} is in use by process {os.getpid()}"
    assert other() == "got it"


def test_a_folder_is_held_also_where_the_disk_is_full(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from swarm.base.locks import lock_folder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # no file can grow by a single byte
        f"with lock_folder(Path({str(tmp_path)!r})): print('held')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


def test_a_folder_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(ResourceError, match=f"in use by process {os.getpid()}"),
        lock_folder(tmp_path, wait_s=0.1),
    ):
        pytest.fail("two hold it")


def test_a_lock_file_has_one_holder_at_a_time(tmp_path: Path) -> None:
    with (
        try_lock(tmp_path / "a") as mine,
        try_lock(tmp_path / "a") as second,
        try_lock(tmp_path / "b") as other,
    ):
        assert (mine, second, other) == (True, False, True)
    with try_lock(tmp_path / "a") as free:
        assert free


@pytest.mark.skipif(os.name != "posix", reason="an open file is the lock there")
def test_readers_share_an_open_file_and_keep_out_whoever_wants_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"m")
    with path.open("rb") as a, path.open("rb") as b, path.open("rb") as c:
        assert lock_open_file(a, shared=True)
        assert lock_open_file(b, shared=True)
        assert not lock_open_file(c, shared=False)
    with path.open("rb") as alone, path.open("rb") as reader:
        assert lock_open_file(alone, shared=False)
        assert not lock_open_file(reader, shared=True)
