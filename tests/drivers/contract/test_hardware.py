"""The default number of threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drivers.contract.hardware import (
    logical_cpus,
    physical_cores,
    quota_cores,
    threads_for,
    threads_notes,
    usable_cores,
)


def cpus(folder: Path, siblings: list[str]) -> Path:
    """A made-up sysfs in which CPU n shares its core with `siblings[n]`."""
    for cpu, shared in enumerate(siblings):
        (folder / f"cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu{cpu}/topology/thread_siblings_list").write_text(shared + "\n")
    return folder


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    tree = cpus(tmp_path, ["0,2", "1,3", "0,2", "1,3"])
    assert physical_cores({0, 1, 2, 3}, tree) == 2
    assert physical_cores({0, 2}, tree) == 1


def test_where_nothing_is_known_each_cpu_counts(tmp_path: Path) -> None:
    assert physical_cores({0, 1, 5}, tmp_path) == 3


@pytest.mark.parametrize(
    ("line", "cores"),
    [("max 100000\n", None), ("250000 100000\n", 2), ("50000 100000\n", 1), ("", None), ("1 0", None)],
)
def test_a_containers_quota_is_whole_cores_at_least_one(line: str, cores: int | None) -> None:
    assert quota_cores(line) == cores


def test_threads_are_as_asked_up_to_what_runs_at_once() -> None:
    assert threads_for(1) == 1
    assert threads_for(8192) == logical_cpus()
    assert threads_for(None) == usable_cores() <= logical_cpus()
    assert threads_notes(None) == threads_notes(1) == ()
    assert "8192 requested" in threads_notes(8192)[0]


WITHOUT_SYSFS = """
import os, psutil
del os.sched_getaffinity
from drivers.contract.hardware import usable_cores
print(usable_cores() == (psutil.cpu_count(logical=False) or os.cpu_count()))
"""


def test_where_there_is_no_sysfs_cores_are_counted_by_the_systems_own_word() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_SYSFS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_this_machine_has_at_least_one() -> None:
    assert usable_cores() >= 1
