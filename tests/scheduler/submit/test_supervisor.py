"""A scheduler that crashed is restarted, and the user is told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scheduler.submit.supervisor import (
    LONGEST_S,
    STEADY_S,
    CrashReport,
    crash_line,
    how_it_ended,
    last_crash,
    main,
    stays_held,
    supervise,
)
from swarm.base.home import Home
from swarm.base.locks import lock_folder

SIGKILL = -9


def supervised(
    lives: Sequence[tuple[int, float]], *, taken: Iterator[bool] | None = None
) -> tuple[int, list[float]]:
    """Each life is an exit code and its duration in seconds. Returns the exit code, and the pauses between the lives."""
    ends, pauses, now = iter(lives), [], 0.0

    def run() -> int:
        nonlocal now
        code, seconds = next(ends)
        now += seconds
        return code

    code = supervise(
        run,
        taken=lambda: taken is not None and next(taken),
        report=lambda why, wait_s: None,
        pause=pauses.append,
        now=lambda: now,
    )
    assert next(ends, None) is None, "all of them were run"
    return code, pauses


def test_what_was_killed_is_started_again_until_it_ends_well() -> None:
    assert supervised([(SIGKILL, 5.0), (SIGKILL, 5.0), (0, 5.0)]) == (0, [1.0, 2.0])


def test_pauses_grow_up_to_a_minute_and_are_short_again_after_a_good_while() -> None:
    _, pauses = supervised([(SIGKILL, 1.0)] * 8 + [(SIGKILL, STEADY_S), (0, 1.0)])
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_S, LONGEST_S, 1.0]


@pytest.mark.parametrize("code", [2, 5])
def test_wrong_settings_are_not_tried_again(code: int) -> None:
    assert supervised([(code, 1.0)]) == (code, [])


def test_what_cannot_be_started_twice_in_a_row_is_given_up_and_what_had_run_well_is_not() -> None:
    assert supervised([(6, 1.0), (6, 1.0)]) == (6, [1.0])
    assert supervised([(6, STEADY_S), (6, 1.0), (6, 1.0), (0, 1.0)])[0] == 0


def test_it_leaves_the_home_to_another_process() -> None:
    assert supervised([(6, 1.0)], taken=iter([False, True])) == (0, [1.0])


def test_who_lost_the_race_for_a_home_has_not_crashed() -> None:
    assert supervised([(6, 1.0)], taken=iter([True])) == (0, []), "nothing is reported, nothing waited for"


def test_who_only_looks_at_a_home_does_not_take_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as looking:
        looking.enter_context(lock_folder(tmp_path))
        assert not stays_held(tmp_path, pause=lambda seconds: looking.close())
    with lock_folder(tmp_path):
        assert stays_held(tmp_path, pause=lambda seconds: None)


def test_a_real_process_that_is_killed_comes_back_and_leaves_word_while_it_runs(tmp_path: Path) -> None:
    home, seen = Home.at(tmp_path), tmp_path / "seen"
    killed = "import os, signal, sys; from pathlib import Path; seen = Path(sys.argv[1]);"
    killed += (
        "first = not seen.exists(); seen.write_text(Path(sys.argv[2]).read_text() if not first else '');"
    )
    killed += "os.kill(os.getpid(), signal.SIGKILL) if first else None"
    place = home.folder("scheduler") / "crash.json"
    place.parent.mkdir(parents=True)
    command = [sys.executable, "-c", killed, str(seen), str(place)]
    assert main(home.folder("scheduler"), command) == 0
    assert '"killed by SIGKILL"' in seen.read_text()
    assert last_crash(home) is None, "it ended well"


def test_people_read_what_happened() -> None:
    crash = CrashReport(how_it_ended(SIGKILL), at=1_000.0, again_at=1_004.0, crashes=2)
    assert "killed by SIGKILL" in crash_line(crash, running=True, wall=2_000.0)
    assert "2 crashes so far" in crash_line(crash, running=True, wall=2_000.0)
    assert "again in 3 s" in crash_line(crash, running=False, wall=1_001.0)
    assert not crash_line(crash, running=False, wall=2_000.0), "the supervisor is gone too"
    assert not crash_line(None, running=True, wall=0.0)
