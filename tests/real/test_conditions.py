"""Conditions that benchmarks create on purpose: they exist while the block lasts, and leave nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.measuring.conditions import condition
from drivers.launch.child import NAME

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux")]
LOOKS = 200_000
"""This many take about ten seconds."""


def below() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize(("name", "fewest"), [("quiet", 0), ("cpu", 1), ("memory", 1)])
def test_neighbours_end_with_the_block(name: str, fewest: int) -> None:
    before = below()
    with condition(name):
        assert len(below() - before) >= fewest
    assert below() == before


@pytest.fixture
def child(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process with the name of a measuring process."""
    program = tmp_path / NAME
    shutil.copy2(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([str(program), "600"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_what_measures_is_stopped_and_goes_on(child: psutil.Process) -> None:
    with condition("pauses"):
        assert any(child.status() == psutil.STATUS_STOPPED for _ in range(LOOKS))
    assert child.status() != psutil.STATUS_STOPPED
