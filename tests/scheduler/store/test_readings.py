"""The file of live readings: the newest of each worker, nothing old, and no harm where the file is missing or broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.values.reading import DeviceReading, GpuReading
from scheduler.store.readings import KEPT_S, ReadingsFile, read_readings

ONE = DeviceReading(age_s=1.5, cpu=0.5, gpus=(GpuReading(utilisation=1.0),))


class Wall:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_each_workers_newest_reading_is_there_with_when_it_was_made(tmp_path: Path) -> None:
    wall, path = Wall(), tmp_path / "readings"
    file = ReadingsFile(path, wall)
    file.put({"a": ONE, "b": DeviceReading(cpu=0.1)})
    wall.now += 2
    file.put({"b": DeviceReading(cpu=0.2)})
    found = read_readings(path, wall.now)
    assert {peer: (one.at, one.reading.cpu) for peer, one in found.items()} == {
        "a": (1_000_000.0 - 1.5, 0.5),
        "b": (1_000_002.0, 0.2),
    }
    assert found["a"].reading == ONE


def test_what_is_old_is_left_out_by_who_writes_and_by_who_reads(tmp_path: Path) -> None:
    wall, path = Wall(), tmp_path / "readings"
    file = ReadingsFile(path, wall)
    file.put({"a": ONE})
    assert not read_readings(path, wall.now + KEPT_S)
    wall.now += KEPT_S
    file.put({"b": ONE})
    assert b'"a"' not in path.read_bytes()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": {"at": 0}}', b'{"a": {"at": 1e9, "reading": {"cpu": 7}}}']
)
def test_a_broken_file_shows_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "readings"
    assert read_readings(path, 0.0) == {}
    path.write_bytes(content)
    assert read_readings(path, 0.0) == {}


def test_a_folder_that_takes_no_file_costs_the_view_alone(tmp_path: Path) -> None:
    ReadingsFile(tmp_path / "missing" / "readings", Wall()).put({"a": ONE})
