"""A cold load is one of a file that was confirmed to be out of memory. On this system's own files."""

from __future__ import annotations

import os
from pathlib import Path

from drivers.contract import memory

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
