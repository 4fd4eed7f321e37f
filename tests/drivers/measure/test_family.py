"""What a node and all below it use of the processors is found, on every system, with little work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import psutil
import pytest

from drivers.measure import family
from drivers.measure.family import descendants, family_cpu_s

USED_S: Final = 0.3
PARENT: Final = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
CHILD: Final = f"""
import sys, time
while time.process_time() < {USED_S}:
    pass
print("used", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["as this system lists them", "where no kernel lists them"])
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param != "where no kernel lists them":
        return True
    monkeypatch.setattr(family, "LISTED", Path("/nowhere/children"))
    return False


def test_what_a_childs_child_uses_counts_while_it_runs_and_when_it_has_ended(listed: bool) -> None:
    before = family_cpu_s()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        """In a thread of its own, as a node starts its processes."""
        command = [sys.executable, "-c", PARENT, CHILD]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        assert started[0].stdout.readline() == b"used\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (process,) = started
    with process:
        below = set(descendants(os.getpid()))
        expected = {each.pid for each in psutil.Process().children(recursive=True)}
        assert {process.pid} < below == expected
        assert family_cpu_s() - before >= 0.9 * USED_S
        process.kill()
    assert family_cpu_s() >= before


def test_nobody_is_below_a_process_that_has_started_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert list(descendants(process.pid)) == []
        process.kill()
