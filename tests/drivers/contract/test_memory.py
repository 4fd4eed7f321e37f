"""A load is cold only if its file was confirmed to be out of memory. Uses real files on this system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivers.contract import memory
from drivers.contract.memory import _unchanged

SIZE = 1_000_000


def test_a_file_counts_as_dropped_only_if_its_pages_are_seen_to_be_gone(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(os.urandom(SIZE))
    supported = memory.PLATFORM == "linux"
    assert memory.drop_pages(model, lambda file, size: 0.0) is supported
    assert memory.drop_pages(model, lambda file, size: 0.5) is False
    assert memory.drop_pages(model, lambda file, size: None) is False


def test_all_files_of_a_folder_have_to_be_gone(tmp_path: Path) -> None:
    (tmp_path / "m.mlpackage/Data").mkdir(parents=True)
    for name, size in (("Manifest.json", 10), ("Data/weights", 20), ("Data/empty", 0)):
        (tmp_path / "m.mlpackage" / name).write_bytes(bytes(size))
    sizes: list[int] = []

    def share(file: int, size: int) -> float:
        sizes.append(size)
        return 0.0

    if memory.drop_pages(tmp_path / "m.mlpackage", share):
        assert sorted(sizes) == [10, 20]
    assert not memory.drop_pages(tmp_path / "m.mlpackage", lambda file, size: float(size == 10))


def test_what_is_not_there_is_not_dropped_and_raises_nothing(tmp_path: Path) -> None:
    assert memory.drop_pages(tmp_path / "nothing") is False


def test_the_bytes_are_the_same_afterwards_and_a_file_just_read_is_in_memory(tmp_path: Path) -> None:
    model, content = tmp_path / "m.onnx", os.urandom(SIZE)
    model.write_bytes(content)
    memory.drop_pages(model)
    assert model.read_bytes() == content
    if memory.PLATFORM == "linux":
        with model.open("rb") as file:
            assert memory.resident_share(file.fileno(), SIZE) == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_leaves_its_libraries_holds_less_and_works_as_before() -> None:
    program = """import decimal, json, sqlite3, ssl
from pathlib import Path

import pytest
from drivers.contract.memory import leave_libraries
def of_files(): return int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0])
before = of_files()
leave_libraries()
print(before, of_files(), json.dumps(str(decimal.Decimal(2).sqrt())), len(ssl.create_default_context().get_ciphers()) > 0)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after, root, ciphers = done.stdout.split()
    assert int(after) < int(before) / 2
    assert (root, ciphers) == ('"1.414213562373095048801688724"', "True")


def test_a_mapping_with_pages_of_its_own_is_kept() -> None:
    smaps = """7f0000000000-7f0000001000 r-xp 00000000 08:01 42   /lib/code.so
Size:                  4 kB
Anonymous:             0 kB
7f0000001000-7f0000003000 r--p 00001000 08:01 42   /lib/code.so
Size:                  8 kB
Anonymous:             8 kB
7f0000003000-7f0000004000 rw-p 00003000 08:01 42   /lib/code.so
Anonymous:             0 kB
7f0000004000-7f0000005000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000005000-7f0000006000 r--s 00000000 08:01 43   /usr/lib/cache
Anonymous:             0 kB
"""
    assert list(_unchanged(smaps)) == [(0x7F0000000000, 0x1000)]
