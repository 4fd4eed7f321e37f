"""A scheduler whose supervisor is gone starts another supervisor, which takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.submit.supervised import keeping_supervisor
from scheduler.submit.supervisor import SUPERVISOR

SCHEDULER = """
import os, subprocess, sys
from pathlib import Path
from protocol.errors import SettingsError
from scheduler.submit.supervised import keeping_supervisor

folder = Path(sys.argv[1])
with (folder / "lives").open("a") as lives:
    lives.write(f"{os.environ['SARK_SUPERVISOR']}\\n")
if len((folder / "lives").read_text().split()) == 1:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    with keeping_supervisor(folder, [sys.executable, __file__, str(folder)], {"SARK_SUPERVISOR": str(gone.pid)}) as check:
        check()
        check()
        HOW
"""
"""A program whose first life has a supervisor that is gone. Each life writes down its supervisor."""


def lives(folder: Path, how: str) -> list[str]:
    """Run the program to the end of its last life; returns the supervisor of each life."""
    (folder / "life.py").write_text(SCHEDULER.replace("HOW", how))
    subprocess.run(
        [sys.executable, str(folder / "life.py"), str(folder)],
        env={**os.environ, SUPERVISOR: "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,  # the supervisor inherits it, so the output ends only when the supervisor has ended, too
        stderr=subprocess.STDOUT,
        check=False,
    )
    return (folder / "lives").read_text().split()


def test_a_scheduler_that_outlived_its_supervisor_is_started_again_when_it_crashes(tmp_path: Path) -> None:
    first, second = lives(tmp_path, f"os.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert first == "0"
    assert int(second) != os.getpid()
    assert second.isdigit()


@pytest.mark.parametrize("how", ["pass", "raise SettingsError('wrong')"])
def test_a_scheduler_that_ends_well_or_by_wrong_settings_is_not_started_again(
    tmp_path: Path, how: str
) -> None:
    assert lives(tmp_path, how) == ["0"]


def test_a_scheduler_that_nobody_supervised_starts_no_supervisor(tmp_path: Path) -> None:
    with keeping_supervisor(tmp_path, ["no such command"], {}) as check:
        check()


def test_one_whose_supervisor_lives_starts_no_other(tmp_path: Path) -> None:
    with keeping_supervisor(tmp_path, ["no such command"], {SUPERVISOR: str(os.getpid())}) as check:
        check()


def test_an_error_of_the_scheduler_goes_on_to_whoever_called_it(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="wrong"), keeping_supervisor(tmp_path, [], {}):
        raise CampaignError("wrong")
