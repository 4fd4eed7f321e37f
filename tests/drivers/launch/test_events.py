"""What a parent takes of a child's story, and where it stops listening."""

from __future__ import annotations

import pytest

from drivers.contract.base import Found, Phase, Progressed
from drivers.contract.frames import Garbled
from drivers.launch.events import MAX_CHANGES, MAX_FOUND, Answers
from drivers.measure.stopping import Job, Launching


def test_figures_without_end_are_not_gathered() -> None:
    answers = Answers(Launching(Job.RUN, 1), served=False, cold=False)
    for at in range(MAX_FOUND):
        assert answers.take(Found({f"figure_{at}": 1.0}))
    with pytest.raises(Garbled, match="one Found too many"):
        answers.take(Found({"figure": 1.0}))


def test_a_launch_that_only_times_tells_no_figures() -> None:
    with pytest.raises(Garbled, match="one Found too many"):
        Answers(Launching(Job.AGAIN, 1), served=False, cold=False).take(Found({"figure": 1.0}))


def test_phases_that_change_without_end_are_not_told_on() -> None:
    answers = Answers(Launching(Job.RUN, 1), served=False, cold=False)
    for at in range(MAX_CHANGES):
        for done in range(3):  # going on within one is no change
            assert answers.take(Progressed((Phase.LOAD, Phase.RUN)[at % 2], done))
    with pytest.raises(Garbled, match="another phase"):
        answers.take(Progressed(Phase.CHECK))
