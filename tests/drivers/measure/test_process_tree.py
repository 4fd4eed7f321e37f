"""The processor time of a node and its descendants is found on every system, at little cost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Final

import psutil
import pytest

from drivers.measure.process_tree import descendants, process_tree_cpu_s

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


@pytest.mark.parametrize("listed", [None, False], ids=["as this system has it", "where none are listed"])
def test_what_a_childs_child_uses_counts_while_it_runs_and_when_it_has_ended(listed: bool | None) -> None:
    before = process_tree_cpu_s(listed)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        """Run in a separate thread, as a node starts its processes."""
        command = [sys.executable, "-c", PARENT, CHILD]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        assert started[0].stdout.readline() == b"used\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (process,) = started
    with process:
        below = set(descendants(os.getpid(), listed))
        expected = {each.pid for each in psutil.Process().children(recursive=True)}
        assert {process.pid} < below == expected
        assert process_tree_cpu_s(listed) - before >= 0.9 * USED_S
        process.kill()
    assert process_tree_cpu_s(listed) >= before


def test_nobody_is_below_a_process_that_has_started_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert list(descendants(process.pid)) == []
        process.kill()
